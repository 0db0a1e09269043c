# SPDX-License-Identifier: Apache-2.0
"""Member offsets and tracepoints of the running kernel, read from its BTF.

BTF is the kernel's own compact type information (`/sys/kernel/btf/vmlinux`). bcc compiles without kernel headers and
does no CO-RE relocation, so the few offsets that the BPF program needs come from here.

The file is a header, a section of types and a section of strings. Types carry no ids and no index: the id of a type is
its ordinal (1 first, 0 is `void`), and each record's length follows from its kind and from the count in its second
word. To find an id, the begin of all records has to be known (`walk`): computed for the first name that is there.

Format: Documentation/bpf/btf.rst and include/uapi/linux/btf.h of the kernel. Byte order is the machine's."""

import enum
import functools
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.errors import CapabilityError, FormatError
from perf_offcpu.files import read_kernel

VMLINUX_BTF = Path("/sys/kernel/btf/vmlinux")
KALLSYMS = Path("/proc/kallsyms")

_MAGIC = 0xEB9F
_HEADER = struct.Struct("=HBBIIIII")  # magic, version, flags, hdr_len, type_off, type_len, str_off, str_len
_MAX_DEPTH = 32  # of typedefs and anonymous members: the kernel's stay below 10; damage can make circles

Kind = enum.IntEnum(
    "Kind",
    "VOID INT PTR ARRAY STRUCT UNION ENUM FWD TYPEDEF VOLATILE CONST RESTRICT FUNC FUNC_PROTO VAR DATASEC FLOAT "
    "DECL_TAG TYPE_TAG ENUM64",
    start=0,
)
"""`BTF_KIND_*`, include/uapi/linux/btf.h."""
_NAMED = frozenset((Kind.STRUCT, Kind.UNION, Kind.TYPEDEF, Kind.ENUM, Kind.FUNC, Kind.VAR, Kind.DATASEC))
_COMPOSITE = frozenset((Kind.STRUCT, Kind.UNION))
_TRANSPARENT = frozenset((Kind.TYPEDEF, Kind.VOLATILE, Kind.CONST, Kind.RESTRICT, Kind.TYPE_TAG))

_WINDOW = 1 << 15  # words
_DOUBLINGS = 5  # the longest stride is 32 records

# u32 words of a record: `struct btf_type` (name_off, info, size or type), further words by kind, and the words of
# each of its vlen entries. Unknown kinds count as if they had only the first.
_HEAD_WORDS = 3
_FIXED_WORDS = np.full(32, _HEAD_WORDS, np.int32)
_FIXED_WORDS[[Kind.INT, Kind.ARRAY, Kind.VAR, Kind.DECL_TAG]] = 4, 6, 4, 4
_ENTRY_WORDS = np.zeros(32, np.int32)
_ENTRY_WORDS[[Kind.STRUCT, Kind.UNION, Kind.DATASEC, Kind.ENUM64]] = 3
_ENTRY_WORDS[[Kind.ENUM, Kind.FUNC_PROTO]] = 2


@dataclass(frozen=True, slots=True)
class TypeIndex:
    """Columns of all types of a BTF section; row i is the type with id i + 1."""

    starts: NDArray[np.int64]  # index of each record's first word; all records are complete
    names: NDArray[np.uint32]  # their name_off
    kinds: NDArray[np.uint32]
    problem: str  # why the walk ended before the end of the types; empty if it did not

    def find(self, kind: Kind, name_off: int) -> int | None:
        """Return the id of the first type of this kind with its name at `name_off` in the strings; None if none."""
        rows = np.flatnonzero((self.names == name_off) & (self.kinds == kind))
        return int(rows[0]) + 1 if len(rows) else None


def walk(section: memoryview) -> TypeIndex:
    """Index the section of types, some 130,000 records. `section`: u32 words of this machine's byte order.

    Where a record begins follows from the lengths of all before it: a walk takes 0.3 s in plain Python. But the length
    of a record that *would* begin at a word can be computed for all words at once. From the table "one record on"
    follow "two on", "four on" and so on, by looking the table up in itself. A few long strides give a skeleton, which
    the shorter tables fill in (`_chain`). This is done in windows, whose tables stay in the CPU's cache."""
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
    """Return int32: the words at which records begin, from word 0 on, if a record at word i has lengths[i] words."""
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


class Member(NamedTuple):
    """Offset of a member from the start of the outermost structure, and its size, in bytes; size 0 for types without a
    size of their own (an array, a function)."""

    offset: int
    size: int


class Tracepoint(NamedTuple):
    """A tracepoint to which a BPF program of the kind `tp_btf` can be attached. `btf_id`: id of the typedef
    `btf_trace_<name>`, which BPF_PROG_LOAD takes as attach_btf_id. `args`: number of arguments of the program."""

    btf_id: int
    args: int


class Btf:
    """Look up types of a kernel. `data`: the bytes of `/sys/kernel/btf/vmlinux` or of a file of the same form. `path`:
    its name in errors. Raises FormatError: header or sections are not BTF of this machine's byte order."""

    def __init__(self, data: bytes, path: str = str(VMLINUX_BTF)) -> None:
        self._path = path
        types, self._strings = self._sections(data)
        self._words = memoryview(data)[types].cast("I")

    @classmethod
    def load(cls, path: Path = VMLINUX_BTF) -> "Btf":
        """Read the running kernel's BTF. Raises CapabilityError: the kernel has none; FormatError: it is damaged."""
        try:
            data = read_kernel(str(path))
        except OSError as error:
            raise CapabilityError(
                f"the kernel's type information {path} cannot be read ({error.strerror})",
                "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y, as those of all large distributions are",
            ) from error
        return cls(data, str(path))

    def type_id(self, kind: Kind, name: str) -> int | None:
        """Return the BTF id of a type by its kind (one of `_NAMED`) and its name; None if the kernel lacks it."""
        name_off = self._strings.find(b"\0" + name.encode() + b"\0") + 1
        return self._index.find(kind, name_off) if name_off and kind in _NAMED else None

    @functools.cached_property
    def _index(self) -> TypeIndex:
        """Index of the records of all types, made at the first use. Raises FormatError: a record is damaged."""
        index = walk(self._words)
        if index.problem:
            raise self._damage(index.problem)
        return index

    def has_string(self, name: str) -> bool:
        """Return True if a type, member or enumerator has this name, such as `BPF_FUNC_task_pt_regs`."""
        return b"\0" + name.encode() + b"\0" in self._strings

    def member(self, structure: str, path: str, *, low_bits: bool = False) -> Member | None:
        """Return offset and size of a member; None if the structure or the member does not exist. `structure`: name of
        a `struct`. `path`: member name; names joined by dots go into embedded structures (`"thread.sp"`), never through
        pointers. Members of anonymous structures and unions are found by their own name. `low_bits`: the member may be
        a bit field that begins with a byte. Raises FormatError: the types are damaged, or it is another bit field."""
        type_id = self.type_id(Kind.STRUCT, structure)
        offset = 0
        for name in path.split("."):
            member = None if type_id is None else self._find_member(self._resolve(type_id), name, _MAX_DEPTH, low_bits)
            if member is None:
                return None
            offset, type_id = offset + member[0], member[1]
        return Member(offset, self._size(type_id or 0))

    def enumerator(self, enumeration: str, name: str) -> int | None:
        """Return the value of an enumerator of an `enum` of 32 bits; None if the kernel lacks it."""
        type_id = self.type_id(Kind.ENUM, enumeration)
        if type_id is None:
            return None
        values = (value for name_off, value in self._entries(type_id, 2) if self._string(name_off) == name)
        return next(values, None)

    def tracepoint(self, name: str) -> Tracepoint | None:
        """Return the tracepoint `name`, found by its typedef `btf_trace_<name>`; None if the kernel lacks it."""
        type_id = self.type_id(Kind.TYPEDEF, f"btf_trace_{name}")
        if type_id is None:
            return None
        pointer = self._word(type_id, 2)
        prototype = self._word(pointer, 2)
        if (self._kind(pointer), self._kind(prototype)) != (Kind.PTR, Kind.FUNC_PROTO):
            raise self._damage(f"btf_trace_{name} is not a pointer to a function")
        return Tracepoint(type_id, self._vlen(prototype) - 1)  # the first is the probe's private `void *`

    def per_cpu_offset(self, name: str) -> int | None:
        """Return the offset of a per-CPU variable in each CPU's area, in bytes; None if the kernel's BTF lacks it."""
        section, variable = self.type_id(Kind.DATASEC, ".data..percpu"), self.type_id(Kind.VAR, name)
        if section is None or variable is None:
            return None
        return next((offset for type_id, offset, _size in self._entries(section, 3) if type_id == variable), None)

    def _sections(self, data: bytes) -> tuple[slice, bytes]:
        """Return (slice of `data` that holds the types, bytes of the strings)."""
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

    def _record(self, type_id: int) -> int:
        """Return the index in `_words` of the first word of a type's record."""
        if not 0 < type_id <= len(self._index.starts):
            raise self._damage(f"type id {type_id} does not exist")
        return int(self._index.starts[type_id - 1])

    def _word(self, type_id: int, index: int) -> int:
        """Return word `index` of a type's record (0 name_off, 1 info, 2 size or type)."""
        return self._words[self._record(type_id) + index]

    def _kind(self, type_id: int) -> int:
        return self._word(type_id, 1) >> 24 & 0x1F if type_id else Kind.VOID

    def _vlen(self, type_id: int) -> int:
        return self._word(type_id, 1) & 0xFFFF

    def _entries(self, type_id: int, width: int) -> Iterator[list[int]]:
        """Yield the entries (members, enumerators, …) of a type's record, `width` words each."""
        first = self._record(type_id) + 3
        for index in range(first, first + width * self._vlen(type_id), width):
            yield self._words[index : index + width].tolist()

    def _resolve(self, type_id: int) -> int:
        """Return the id of the type that is left after typedefs and qualifiers are followed."""
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

    def _find_member(self, type_id: int, name: str, depth: int, low_bits: bool) -> tuple[int, int] | None:
        """Return (byte offset, type id) of a member of a type, also within anonymous members; None if the type lacks
        it. `depth`: number of further levels allowed. `low_bits`: as for `member`."""
        if not depth:
            raise self._damage(f"members of type {type_id} are nested too deeply")
        if self._kind(type_id) not in _COMPOSITE:
            return None
        with_widths = self._word(type_id, 1) >> 31  # kind_flag: the upper 8 bits of offsets are widths
        for name_off, member_type, offset in self._entries(type_id, 3):
            member_name, width = self._string(name_off), offset >> 24 if with_widths else 0
            bit_offset = offset & 0xFFFFFF if with_widths else offset
            if member_name == name:
                return self._whole_bytes(-1 if width and not low_bits else bit_offset, name), member_type
            if not member_name:
                inner = self._find_member(self._resolve(member_type), name, depth - 1, low_bits)
                if inner is not None:
                    return self._whole_bytes(bit_offset, name) + inner[0], inner[1]
        return None

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


def text_address() -> int:
    """Return the address of `_text`, which is in the first lines of /proc/kallsyms; 0 if addresses are hidden."""
    try:
        with KALLSYMS.open("rb") as lines:  # direct: a file of /proc
            return next((int(line.split()[0], 16) for line in lines if line.endswith(b" _text\n")), 0)
    except OSError:
        return 0


def symbol_address(kallsyms: bytes, name: bytes) -> int:
    """Return the address of a symbol in the text of /proc/kallsyms; 0 if it is not listed, or addresses are hidden."""
    end = kallsyms.find(b" " + name + b"\n")
    line = kallsyms.rfind(b"\n", 0, max(end, 0)) + 1
    return int(kallsyms[line:end].split()[0], 16) if end >= 0 else 0


def symbol_at(kallsyms: bytes, address: int) -> bytes:
    """Return the name of the symbol that begins at `address` in the text of /proc/kallsyms; b"" if there is none."""
    begin = kallsyms.find(b"%016x " % address)
    return kallsyms[begin : kallsyms.find(b"\n", begin)].split()[2] if begin >= 0 else b""


def switch_end(kallsyms: bytes) -> str:
    """Return the function in the text of /proc/kallsyms that a task runs first on a CPU; "" if not unique."""
    names = re.findall(rb" [tT] (finish_task_switch(?:\.isra\.\d+)?)\n", kallsyms)
    return names[0].decode() if len(names) == 1 else ""
