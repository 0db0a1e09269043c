# SPDX-License-Identifier: Apache-2.0
"""Find where the records of BTF begin: 130,000 of them, each as long as its own kind and count say.

Where a record begins follows from the lengths of all before it: a walk takes 0.3 s in plain Python. But the length of a
record that *would* begin at a word can be computed for all words at once. From the table "one record on" follow "two
on", "four on" and so on, by looking the table up in itself. A few long strides give a skeleton, which the shorter
tables fill in. This is done in windows, whose tables stay in the CPU's cache.

Format: Documentation/bpf/btf.rst and include/uapi/linux/btf.h of the kernel. Byte order is the machine's."""

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_WINDOW = 1 << 15  # words
_DOUBLINGS = 5  # the longest stride is 32 records


class Kind(enum.IntEnum):
    """`BTF_KIND_*`, include/uapi/linux/btf.h."""

    VOID = 0
    INT = 1
    PTR = 2
    ARRAY = 3
    STRUCT = 4
    UNION = 5
    ENUM = 6
    FWD = 7
    TYPEDEF = 8
    VOLATILE = 9
    CONST = 10
    RESTRICT = 11
    FUNC = 12
    FUNC_PROTO = 13
    VAR = 14
    DATASEC = 15
    FLOAT = 16
    DECL_TAG = 17
    TYPE_TAG = 18
    ENUM64 = 19


# u32 words of a record: `struct btf_type` (name_off, info, size or type), what the kind adds, and what each
# of its vlen entries takes. Unknown kinds count as if they had only the first.
_HEAD_WORDS = 3
_FIXED_WORDS = np.full(32, _HEAD_WORDS, np.int32)
for _kind, _words in {Kind.INT: 4, Kind.ARRAY: 6, Kind.VAR: 4, Kind.DECL_TAG: 4}.items():
    _FIXED_WORDS[_kind] = _words
_ENTRY_WORDS = np.zeros(32, np.int32)
for _kind, _words in {
    Kind.STRUCT: 3, Kind.UNION: 3, Kind.ENUM: 2, Kind.FUNC_PROTO: 2, Kind.DATASEC: 3, Kind.ENUM64: 3,
}.items():  # fmt: skip
    _ENTRY_WORDS[_kind] = _words


@dataclass(frozen=True, slots=True)
class TypeIndex:
    """Hold columns of all types of a BTF section; row i is the type with id i + 1."""

    starts: NDArray[np.int64]  # index of each record's first word; all records are whole
    names: NDArray[np.uint32]  # their name_off
    kinds: NDArray[np.uint32]
    problem: str  # why the walk ended before the end of the types; empty if it did not

    def find(self, kind: Kind, name_off: int) -> int | None:
        """Return the id of the first type of this kind and name_off; None if there is none."""
        rows = np.flatnonzero((self.names == name_off) & (self.kinds == kind))
        return int(rows[0]) + 1 if len(rows) else None


def walk(section: memoryview) -> TypeIndex:
    """Index the section of types. `section`: u32 words of this machine's byte order."""
    words = np.frombuffer(section, np.uint32)
    parts, position = list[NDArray[np.int64]](), 0
    while position + _HEAD_WORDS <= len(words):
        info = words[position + 1 : position + 1 + _WINDOW]
        kinds, entries = _kinds(info), (info & np.uint32(0xFFFF)).view(np.int32)
        lengths = _FIXED_WORDS[kinds] + _ENTRY_WORDS[kinds] * entries
        inside = _chain(lengths)
        parts.append(position + inside.astype(np.int64))
        position += int(inside[-1] + lengths[inside[-1]])
    starts = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    unknown = np.flatnonzero(_kinds(words[starts + 1]) >= len(Kind))
    problem = ""
    if len(unknown):
        starts, kind = starts[: unknown[0]], _kinds(words[starts[unknown[0]] + 1])
        problem = f"type {len(starts) + 1} is of unknown kind {kind}"
    elif position != len(words):
        starts = starts if position < len(words) else starts[:-1]
        problem = f"type {len(starts) + 1} reaches beyond the end of the types"
    return TypeIndex(starts, words[starts], _kinds(words[starts + 1]), problem)


def _kinds(info: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return info >> np.uint32(24) & np.uint32(0x1F)


def _chain(lengths: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return int32: the words at which records begin, the first at 0, if a record at word i has lengths[i] words."""
    end = len(lengths)
    first = np.full(end + 1, end, np.int32)
    np.minimum(np.arange(end, dtype=np.int32) + lengths, end, out=first[:end])
    strides = [first]
    for _ in range(_DOUBLINGS):
        strides.append(np.take(strides[-1], strides[-1]))
    longest, skeleton = strides.pop(), [0]
    while (following := int(longest[skeleton[-1]])) < end:
        skeleton.append(following)
    starts = np.array(skeleton, np.int32)
    for stride in reversed(strides):
        starts = np.column_stack((starts, stride[starts])).ravel()
    return starts[starts < end]
