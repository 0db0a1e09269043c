# SPDX-License-Identifier: Apache-2.0
"""What the running kernel says about itself: member offsets and tracepoints, read from its BTF.

BTF is the kernel's own compact type information (`/sys/kernel/btf/vmlinux`). bcc compiles without kernel
headers and does no CO-RE relocation, so the few offsets that the BPF program needs come from here.

The file is a header, a section of types and a section of strings. Types carry no ids and no index: the id
of a type is its ordinal (1 first, 0 is `void`), and each record's length follows from its kind and from
the count in its second word. Whoever wants an id has to walk. This walk stops as soon as the name asked for
is met and goes on from there for the next name; names that the kernel lacks never start it, because they
are missing in the string section. Some 10 ms instead of 150 for the whole file.

Format: Documentation/bpf/btf.rst and include/uapi/linux/btf.h of the kernel. Byte order is the machine's.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from perf_offcpu.errors import CapabilityError, FormatError

VMLINUX_BTF = Path("/sys/kernel/btf/vmlinux")

_MAGIC = 0xEB9F
_HEADER = struct.Struct("=HBBIIIII")  # magic, version, flags, hdr_len, type_off, type_len, str_off, str_len
_MAX_DEPTH = 32  # of typedefs and anonymous members: the kernel's stay below 10; damage can make circles


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
# of its vlen entries takes.
_FIXED_WORDS = [3] * len(Kind)
for _kind, _words in {Kind.INT: 4, Kind.ARRAY: 6, Kind.VAR: 4, Kind.DECL_TAG: 4}.items():
    _FIXED_WORDS[_kind] = _words
_ENTRY_WORDS = [0] * len(Kind)
for _kind, _words in {
    Kind.STRUCT: 3, Kind.UNION: 3, Kind.ENUM: 2, Kind.FUNC_PROTO: 2, Kind.DATASEC: 3, Kind.ENUM64: 3,
}.items():  # fmt: skip
    _ENTRY_WORDS[_kind] = _words

_NAMED = frozenset((Kind.STRUCT, Kind.UNION, Kind.TYPEDEF, Kind.ENUM, Kind.FUNC, Kind.VAR, Kind.DATASEC))
_COMPOSITE = frozenset((Kind.STRUCT, Kind.UNION))
_TRANSPARENT = frozenset((Kind.TYPEDEF, Kind.VOLATILE, Kind.CONST, Kind.RESTRICT, Kind.TYPE_TAG))


@dataclass(frozen=True, slots=True)
class Member:
    """Where a member lies in its structure."""

    offset: int
    """Bytes from the start of the outermost structure."""
    size: int
    """Bytes; 0 if the type has no size of its own (an array, a function)."""


@dataclass(frozen=True, slots=True)
class Tracepoint:
    """A tracepoint that a BPF program of the kind `tp_btf` can be attached to."""

    btf_id: int
    """Id of the typedef `btf_trace_<name>`, wanted by BPF_PROG_LOAD as attach_btf_id."""
    args: int
    """Number of arguments that the program gets."""


class Btf:
    """The types of a kernel.

    Args:
        data: the bytes of `/sys/kernel/btf/vmlinux` or of a file of the same form.
        path: what to call them in errors.

    Raises:
        FormatError: header or sections are not BTF of this machine's byte order.
    """

    def __init__(self, data: bytes, path: str = str(VMLINUX_BTF)) -> None:
        self._path = path
        types, self._strings = self._sections(data)
        self._words = memoryview(data[types]).cast("I")
        self._start = [0]  # id → index of the record's first word, as far as walked; void has none
        self._ids: dict[tuple[int, int], int] = {}  # (kind, name_off) → id, as far as walked
        self._walking = self._walk()  # one walk for all questions: each goes on where the last stopped

    @classmethod
    def load(cls, path: Path = VMLINUX_BTF) -> Btf:
        """Read the running kernel's BTF.

        Raises:
            CapabilityError: the kernel offers none.
            FormatError: the file is damaged.
        """
        try:
            data = path.read_bytes()
        except OSError as error:
            raise CapabilityError(
                f"the kernel's type information {path} cannot be read ({error.strerror})",
                "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y, as those of all large distributions are",
            ) from error
        return cls(data, str(path))

    def close(self) -> None:
        """Give the memory back now: walk and types refer to each other."""
        self._walking.close()

    def type_id(self, kind: Kind, name: str) -> int | None:
        """The id of a structure, union, typedef, function or variable; None if there is none of this name."""
        name_off = self._strings.find(b"\0" + name.encode() + b"\0") + 1
        if not name_off:
            return None
        wanted = int(kind), name_off
        while wanted not in self._ids and next(self._walking, None) is not None:
            pass
        return self._ids.get(wanted)

    def has_string(self, name: str) -> bool:
        """Whether any type, member or enumerator bears this name (say `BPF_FUNC_task_pt_regs`)."""
        return b"\0" + name.encode() + b"\0" in self._strings

    def member(self, structure: str, path: str) -> Member | None:
        """Where a member lies; None if the structure or the member does not exist.

        Args:
            structure: a `struct`'s name.
            path: member name; names joined by dots go into embedded structures (`"thread.sp"`), never
                through pointers. Members of anonymous structures and unions are found by their own name.

        Raises:
            FormatError: the types are damaged, or the member is a bit field.
        """
        type_id = self.type_id(Kind.STRUCT, structure)
        offset = 0
        for name in path.split("."):
            found = None if type_id is None else self._find_member(self._resolve(type_id), name, _MAX_DEPTH)
            if found is None:
                return None
            offset, type_id = offset + found[0], found[1]
        return Member(offset, self._size(type_id or 0))

    def enumerator(self, enumeration: str, name: str) -> int | None:
        """The value of an enumerator of an `enum` of 32 bits; None if there is none."""
        type_id = self.type_id(Kind.ENUM, enumeration)
        if type_id is None:
            return None
        first = self._record(type_id) + 3
        for index in range(first, first + 2 * self._vlen(type_id), 2):
            if self._string(self._words[index]) == name:
                return self._words[index + 1]
        return None

    def tracepoint(self, name: str) -> Tracepoint | None:
        """The tracepoint `name`, found by its typedef `btf_trace_<name>`; None if the kernel lacks it."""
        type_id = self.type_id(Kind.TYPEDEF, f"btf_trace_{name}")
        if type_id is None:
            return None
        pointer = self._word(type_id, 2)
        prototype = self._word(pointer, 2)
        if (self._kind(pointer), self._kind(prototype)) != (Kind.PTR, Kind.FUNC_PROTO):
            raise self._damage(f"btf_trace_{name} is not a pointer to a function")
        return Tracepoint(type_id, self._vlen(prototype) - 1)  # the first is the probe's private `void *`

    def per_cpu_offset(self, name: str) -> int | None:
        """Where a per-CPU variable lies in each CPU's area, in bytes; None if it is not known."""
        section, variable = self.type_id(Kind.DATASEC, ".data..percpu"), self.type_id(Kind.VAR, name)
        if section is None or variable is None:
            return None
        first = self._record(section) + 3
        entries = self._words[first : first + 3 * self._vlen(section)].tolist()  # type, offset, size
        offsets = dict(zip(entries[::3], entries[1::3], strict=True))
        return offsets.get(variable)

    def _sections(self, data: bytes) -> tuple[slice, bytes]:
        """The place of the types in `data`, and the strings."""
        if len(data) < _HEADER.size:
            raise self._damage(f"header wants {_HEADER.size} bytes, file has {len(data)}")
        magic, _version, _flags, header, type_off, type_len, str_off, str_len = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise self._damage(f"magic is {magic:#x}, expected {_MAGIC:#x}")
        end = header + max(type_off + type_len, str_off + str_len)
        if end > len(data) or type_len % 4:
            raise self._damage(f"sections end at {end:#x}, file at {len(data):#x}")
        types = slice(header + type_off, header + type_off + type_len)
        return types, data[header + str_off : header + str_off + str_len]

    def _walk(self) -> Generator[int, None, None]:
        """The id of each type in turn, once it is noted where it lies and what it is called."""
        words, position, end = self._words, 0, len(self._words)
        while position + 3 <= end:
            name_off, info = words[position], words[position + 1]
            type_id, kind = len(self._start), info >> 24 & 0x1F
            if kind >= len(_FIXED_WORDS):
                raise self._damage(f"type {type_id} is of unknown kind {kind}")
            following = position + _FIXED_WORDS[kind] + _ENTRY_WORDS[kind] * (info & 0xFFFF)
            if following > end:
                break
            self._start.append(position)
            if kind in _NAMED:
                self._ids.setdefault((kind, name_off), type_id)
            yield type_id
            position = following
        if position != end:
            raise self._damage(f"type {len(self._start)} reaches beyond the end of the types")

    def _record(self, type_id: int) -> int:
        """Index of the first word of a type's record."""
        if type_id >= len(self._start):
            any(walked == type_id for walked in self._walking)
        if not 0 < type_id < len(self._start):
            raise self._damage(f"type id {type_id} does not exist")
        return self._start[type_id]

    def _word(self, type_id: int, index: int) -> int:
        """Word `index` of a type's record (0 name_off, 1 info, 2 size or type)."""
        return self._words[self._record(type_id) + index]

    def _kind(self, type_id: int) -> int:
        return self._word(type_id, 1) >> 24 & 0x1F if type_id else Kind.VOID

    def _vlen(self, type_id: int) -> int:
        return self._word(type_id, 1) & 0xFFFF

    def _resolve(self, type_id: int) -> int:
        """The type behind typedefs and qualifiers."""
        for _ in range(_MAX_DEPTH):
            if self._kind(type_id) not in _TRANSPARENT:
                return type_id
            type_id = self._word(type_id, 2)
        raise self._damage(f"type {type_id} is defined by itself")

    def _size(self, type_id: int) -> int:
        kind = self._kind(resolved := self._resolve(type_id))
        if kind == Kind.PTR:
            return struct.calcsize("P")
        sized = kind in _COMPOSITE or kind in (Kind.INT, Kind.ENUM, Kind.ENUM64, Kind.FLOAT)
        return self._word(resolved, 2) if sized else 0

    def _find_member(self, type_id: int, name: str, depth: int) -> tuple[int, int] | None:
        """(byte offset, type id) of a member, anonymous members searched too."""
        if not depth:
            raise self._damage(f"members of type {type_id} are nested too deeply")
        if self._kind(type_id) not in _COMPOSITE:
            return None
        for member_name, member_type, bit_offset in self._members(type_id):
            if member_name == name:
                return self._whole_bytes(bit_offset, name), member_type
            if not member_name:
                inner = self._find_member(self._resolve(member_type), name, depth - 1)
                if inner is not None:
                    return self._whole_bytes(bit_offset, name) + inner[0], inner[1]
        return None

    def _members(self, type_id: int) -> Iterator[tuple[str, int, int]]:
        """(name, type id, offset in bits) of each member; the offset is -1 for a bit field."""
        first = self._record(type_id) + 3
        with_widths = self._word(type_id, 1) >> 31  # kind_flag: the upper 8 bits of offsets are widths
        for index in range(first, first + 3 * self._vlen(type_id), 3):
            name_off, member_type, offset = self._words[index : index + 3].tolist()
            yield self._string(name_off), member_type, -1 if with_widths and offset >> 24 else offset

    def _whole_bytes(self, bit_offset: int, name: str) -> int:
        if bit_offset < 0 or bit_offset % 8:
            raise self._damage(f"member {name} is a bit field, which no single load reads")
        return bit_offset // 8

    def _string(self, offset: int) -> str:
        end = self._strings.find(b"\0", offset)
        if end < 0:
            raise self._damage(f"a name at {offset:#x} lies outside the strings")
        return self._strings[offset:end].decode("ascii", "replace")

    def _damage(self, problem: str) -> FormatError:
        return FormatError(self._path, "BTF", problem)
