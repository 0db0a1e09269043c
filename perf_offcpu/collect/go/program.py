# SPDX-License-Identifier: Apache-2.0
"""Find the goroutines of a Go program in its memory, and names of its functions, from sections that stripped programs
keep, because Go's runtime reads them: `.go.buildinfo`, and `.gopclntab` (src/runtime/symtab.go, symtabinl.go of Go).
These name no variables, but functions that use them: `runtime.allgadd` reads the slice `runtime.allgs`, and
`runtime.waitReason.String` the texts of reasons. Memory may hold anything: reads and loops are bounded."""

import contextlib
import ctypes
import functools
import itertools
import os
import platform
import re
import struct
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.collect.python.memory import UnreadableError
from perf_offcpu.collect.python.offsets import find_section
from perf_offcpu.files import open_regular, read_kernel

U64 = NDArray[np.uint64]
_libc = ctypes.CDLL(None, use_errno=True)
_MOST_VECTORS: Final = 1024  # of process_vm_readv(2)
_MOST_READ, _MOST_MODULE, _MOST_STEPS, _MOST_CODE, _MOST_NAME = 128 << 20, 16 << 20, 16 << 10, 4096, 250  # bytes
_MOST_INLINED, _MOST_KNOWN, _MOST_FAILED = 32, 1 << 13, 64
_TABLES, _MODULES = (b".gopclntab", b".data.rel.ro.gopclntab"), (b".go.module", b".noptrdata")
_AT_PHDR, _PHDR_OFFSET, _SECOND_LENGTH = 3, 64, len("GC assist marking")
_VERSION: Final = re.compile(rb"\xff Go buildinf:.[\2\3].{17}go1\.(\d+)\b", re.DOTALL)  # flags: the text follows
_OPERAND: Final = re.compile(rb"[\x48-\x4f][\x8b\x8d][\x05\x0d\x15\x1d\x25\x2d\x35\x3d](.{4})", re.DOTALL)
"""The instructions mov and lea that take a 64-bit register's value from disp32(%rip)."""
_TEXT, _INLINE_TABLE, _INLINE_TREE, _NONE = 22, 2, 3, 2**32 - 1  # _TEXT: word of moduledata

LAYOUTS: Final = {
    19: (144, 104, 189, 38), 20: (144, 104, 189, 40), 21: (144, 104, 188, 40), 22: (144, 104, 191, 40),
    23: (152, 104, 199, 40), 24: (152, 104, 199, 40), 25: (144, 96, 191, 40), 26: (144, 96, 191, 40),
    27: (144, 96, 191, 43),
}  # fmt: skip
"""Minor version → on x86-64, offsets in `runtime.g` of atomicstatus, sched.bp and trackingSeq, and the word of
moduledata with gofunc. Other members of `runtime.g` have fixed offsets, or a fixed distance to atomicstatus."""


class Memory:
    """Read the memory of a process up to its next execve(2). Raises OSError: its memory may not be read."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._file = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)  # direct: a file of /proc

    def __del__(self) -> None:
        os.close(self._file)

    def read(self, address: int, size: int, least: int = -1) -> bytes:
        """Return `size` bytes, or, if `least` is given, at least `least` bytes. Raises UnreadableError."""
        with contextlib.suppress(OSError, OverflowError):
            content = os.pread(self._file, size if size <= _MOST_READ else 0, address)
            if len(content) >= (size if least < 0 else least):
                return content
        raise UnreadableError

    def words(self, address: int, number: int) -> U64:
        """Return `number` 64-bit words from `address` on. Raises UnreadableError."""
        return np.frombuffer(self.read(address, 8 * number), np.uint64)

    def gather(self, addresses: U64, sizes: U64) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Return (uint8: `sizes[i]` bytes from each `addresses[i]`, one after the other, 0 if unreadable; bool[n]: True
        if read). After _MOST_FAILED unreadable addresses, no more are read."""
        ends = np.append(np.uint64(0), np.cumsum(sizes)).astype(np.int64)
        content, is_read, row = np.zeros(ends[-1], np.uint8), np.zeros(len(sizes), np.bool_), 0
        remote = np.column_stack([addresses, sizes])
        while row < len(sizes) and row - is_read.sum() < _MOST_FAILED:
            last = min(row + _MOST_VECTORS, len(sizes))
            local = np.array([content.ctypes.data + ends[row], ends[last] - ends[row]], np.uint64)
            places = local.ctypes.data, 1, remote[row:last].ctypes.data, last - row, 0
            size = _libc.process_vm_readv(self._pid, *map(ctypes.c_ulong, places))
            after = min(int(np.searchsorted(ends, ends[row] + max(size, 0), side="right")) - 1, last)
            is_read[row:after] = True
            row = after + (after < last)
        return content, is_read


def find_program(pid: int) -> dict[str, int]:
    """Return the Go program of a process, as `Functions` takes it; {} if it is none; only `minor` if its version of Go
    or the machine is unsupported. Raises OSError: the process may not be read; UnreadableError: no tables."""
    with os.fdopen(open_regular(f"/proc/{pid}/exe")) as file:
        info = find_section(file.fileno(), b".go.buildinfo")
        if not info or not info.loads:
            return {}
        version = _VERSION.match(os.pread(file.fileno(), 64, info.offset))
        minor = int(version[1]) if version and platform.machine() == "x86_64" else 0
        words = np.frombuffer(read_kernel(f"/proc/{pid}/auxv"), np.uint64).tolist()
        start = dict(zip(words[::2], words[1::2], strict=True)).get(_AT_PHDR, 0) - _PHDR_OFFSET
        sections = [[find_section(file.fileno(), name) for name in names] for names in (_TABLES, _MODULES)]
    if minor not in LAYOUTS:
        return {"minor": minor}
    memory = Memory(pid)
    places = ([section.place_in(start, 0) or 0 for section in names if section and section.loads] for names in sections)
    for table, module in itertools.product(*places):
        with contextlib.suppress(UnreadableError, IndexError, ValueError):
            # moduledata begins with the addresses of the table and of the names in it.
            content = memory.read(module, _MOST_MODULE, 0)
            words, names = np.frombuffer(content, np.uint64, len(content) // 8), table + int(memory.words(table, 5)[4])
            row = np.flatnonzero((words[:-1] == table) & (words[1:] == names))[0]
            text, data = words[[row + _TEXT, row + LAYOUTS[minor][3]]].tolist()
            program = {"minor": minor, "table": table, "text": text, "data": data}
            functions = Functions(memory, program)
            slices, texts = map(functions.operands, (b"runtime.allgadd", b"runtime.waitReason.String"))
            allgs = [place for place in slices if {place + 8, place + 16} <= {*slices}]
            reasons = [place for place in texts if int(memory.words(place + 24, 1)[0]) == _SECOND_LENGTH]
            return program | {"allgs": allgs[0], "reasons": reasons[0]}
    raise UnreadableError


class Functions:
    """Names of the functions of a Go program. `program`: `minor` version of Go, and addresses of `runtime.allgs`
    (`allgs`), texts of reasons to wait (`reasons`), .gopclntab (`table`), code (`text`), data of functions (`data`).
    `of`: returns the names of an address, innermost inlined function first."""

    def __init__(self, memory: Memory, program: dict[str, int]) -> None:
        self._memory, self._program = memory, program
        # Sizes of _func and inlinedCall, and offsets of the latter's nameOff and parentPc.
        self._size, *self._call = (40, 20, 12, 16) if program["minor"] < 20 else (44, 16, 4, 8)
        header = memory.words(program["table"] + 8, 8).tolist()
        number, _, _, self._names, self._cut, _, self._steps, self._functions = header
        table = np.frombuffer(self._read(self._functions, 8 * number + 4), np.uint32)
        self._entries, self._places = table[::2], table[1::2].astype(np.int64)
        self.of = functools.lru_cache(_MOST_KNOWN)(self._names_of)

    def _read(self, offset: int, size: int, least: int = -1) -> bytes:
        return self._memory.read(self._program["table"] + offset, size, least)

    def operands(self, name: bytes) -> list[int]:
        """Return the addresses that mov and lea instructions in the function `name` refer to relative to %rip."""
        offset = self._read(self._names, self._cut - self._names).index(b"\0" + name + b"\0") + 1
        words = np.frombuffer(self._read(self._functions, int(self._places.max()) // 4 * 4 + 8), np.uint32)
        row = np.flatnonzero(words[self._places // 4 + 1] == offset)[0]
        begin, end = (self._program["text"] + self._entries[row : row + 2].astype(np.int64)).tolist()
        code = self._memory.read(begin, min(end - begin, _MOST_CODE))
        return [begin + match.end() + struct.unpack("<i", match[1])[0] for match in _OPERAND.finditer(code)]

    def _names_of(self, address: int) -> tuple[str, ...]:
        """Return the names of the functions inlined at a return address (or begin of a function), innermost first, then
        the name of the function that contains it; ("",) if it is unknown."""
        offset, names = address - self._program["text"], list[str]()
        row = int(np.searchsorted(self._entries, min(max(offset, 0), _NONE), side="right")) - 1
        with contextlib.suppress(UnreadableError, IndexError, struct.error):
            function = self._read(self._functions + int(self._places[row]), 256, self._size)
            inside = offset - int(self._entries[row])
            inside -= inside > 0  # in the call, not after it
            tables = struct.unpack_from("<64I", function.ljust(512, b"\0"), self._size)
            table, tree = tables[_INLINE_TABLE], tables[function[28] % 32 + _INLINE_TREE]
            is_there = (
                table and tree != _NONE and function[28] > _INLINE_TABLE and function[self._size - 1] > _INLINE_TREE
            )
            size, *members = self._call
            while is_there and len(names) < _MOST_INLINED and (index := self._value_at(table, inside)) >= 0:
                call = self._memory.read(self._program["data"] + tree + size * index, size)
                name, inside = (struct.unpack_from("<I", call, member)[0] for member in members)
                names.append(self._name(name))
            return (*names, self._name(struct.unpack_from("<I", function, 4)[0]))
        return ("",)

    def _name(self, offset: int) -> str:
        return self._read(self._names + offset, _MOST_NAME, 1).split(b"\0", 1)[0].decode("utf-8", "replace")

    def _value_at(self, table: int, target: int) -> int:
        """Return the value for offset `target` of a function in a pc-value table (`runtime.pcvalue`); -1 for none.
        `table`: the table's offset in the section's pctab."""
        steps, value, place = _varints(self._read(self._steps + table, _MOST_STEPS, 1)), -1, 0
        for change, length in zip(steps, steps, strict=False):
            if not change and place:
                break
            value, place = value + (-(change & 1) ^ (change >> 1)), place + length
            if target < place:
                return value
        return -1


def _varints(content: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in content:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128 or shift > 28:
            yield number & _NONE
            number = shift = 0
