# SPDX-License-Identifier: Apache-2.0
"""Find in an ELF file the place of CPython's state and the offsets in it: members of `struct offcpu_python`
(bpf/off_cpu.h).

The file has a section `.PyRuntime` since 3.10; older versions are not read. Since 3.13 it begins with a table of
offsets made for readers from outside (`_Py_DebugOffsets`, Include/internal/pycore_debug_offsets.h of CPython). For the
versions before, the offsets are those of builds for 64-bit machines without options that change the structures: a
build for debugging is not read, because its section has another size.

    interpreters            address of the head of the list of interpreters
    direct                  all bits: `thread_frame` leads to the frame; 0: by `c_frame` after it
    tag                     bits of a reference to a code object that are no address
    index_mask, relative    the instruction is an address (relative: all bits), or an index (0)
    entry, entry_shift      a byte of a frame: from `least_shim` on, the frame is no function, and the one before it the
                            first of a call in C; or each frame is (entry_each), or if the byte is 1 (entry_marked)
    version                 offset of a code object's unique version; 0 for none
    compact, ascii_less     size of the head of a string, and how much less it is of ASCII
"""

import mmap
import os
import re
import struct
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from perf_offcpu.abi.elf import EHDR, ElfClass, SegmentType
from perf_offcpu.abi.machine import REGISTERS
from perf_offcpu.build_ids import program_headers, unpack_elf_header
from perf_offcpu.errors import LayoutError
from perf_offcpu.tables import read_table

PYTHON: Final = re.compile(rb"/(?:lib)?python3\.(\d{1,2})[^/]*$")
"""Paths of files that may hold the interpreter; the group is the minor version."""

RUNTIME: Final = b".PyRuntime"
_SECTION_HEADER: Final = struct.Struct("<IIQQQQIIQQ")
_MOST_SECTIONS: Final = 512
_MOST_NAMES: Final = 64 << 10
_COOKIE: Final = b"xdebugpy"
_HEAD, _CODE_BYTES = 800, 168  # as in bpf/python.h
_ALL: Final = 2**64 - 1
_SHIM, _TAGS = 3, 7

_OFFSETS: Final = {
    int(minor): {name: int(value) & _ALL for name, value in row.items()} for minor, row in read_table(__file__)
}
_FREE_THREADED, _FIRST_WITH_SECTION, _FIRST_WITH_TABLE = 16, 10, 13
_MOST_OFFSET, _MOST_FRAME, _MOST_THREAD = 1 << 20, 120, 248

_ADDRESS: Final = {"index_mask": _ALL, "relative": _ALL, "unit_shift": 1}
_VERSION_OF_CODE: Final = {68: 92}
"""Offset of `co_firstlineno` → offset of `co_version`, which CPython's table lacks, in the layout since 3.12."""


class Section(NamedTuple):
    """A section of an ELF file: virtual address, file offset, and (offset, size, virtual address) of each segment that
    the file loads; `loads` is [] if the file lacks the section."""

    address: int
    offset: int
    loads: list[tuple[int, int, int]]

    def place_in(self, start: int, offset: int) -> int | None:
        """Return the section's address in a process that maps the file from `offset` on at `start`; None if unknown."""
        for begin, size, address in reversed(self.loads):  # the page of a segment's end may be that of the next's begin
            if begin & -mmap.PAGESIZE <= offset < begin + size:
                return self.address + start - (address + offset - begin) & _ALL
        return None


def read_runtime(fd: int, path: bytes) -> dict[str, Any] | None:
    """Return {"section": `Section` of .PyRuntime as a tuple, "offsets": members of `struct offcpu_python`} of an open
    file; None if it holds no interpreter. `offsets` is {} for an unsupported version or a build without GIL; its
    `interpreters` is relative to the section. `path`: of the file, names the version."""
    minor = PYTHON.search(path)
    section = find_section(fd, RUNTIME) if minor else None
    if minor is None or section is None:
        return None
    if not section.loads:
        return None if int(minor[1]) >= _FIRST_WITH_SECTION else {"section": (0, 0, []), "offsets": {}}
    try:
        head = os.pread(fd, _HEAD, section.offset)
    except (OSError, OverflowError):
        return None
    return {"section": tuple(section), "offsets": offsets_of(head, int(minor[1]))}


def find_section(fd: int, wanted: bytes) -> Section | None:
    """Return a section of an open ELF file, an empty Section if it is missing; None for other files or machines."""
    try:
        header, order = unpack_elf_header(os.pread(fd, EHDR[ElfClass.BITS64].size(), 0))
        if order != "<" or header["e_machine"] not in REGISTERS:
            return None
        place = sections_of(fd, header, [wanted]).get(wanted)
        segments = program_headers(fd, header, "<") if place else ()
    except (LayoutError, OSError, OverflowError, struct.error):
        return None
    loads = [(s["p_offset"], s["p_filesz"], s["p_vaddr"]) for s in segments if s["p_type"] == SegmentType.LOAD]
    return Section(*place[:2], loads) if place else Section(0, 0, [])


def sections_of(fd: int, header: dict[str, Any], wanted: Collection[bytes]) -> dict[bytes, tuple[int, int, int]]:
    """Return name → (virtual address, file offset, size) for each section in `wanted` that an open ELF file has."""
    if header["e_shentsize"] != _SECTION_HEADER.size:
        return {}
    table = os.pread(fd, _SECTION_HEADER.size * min(header["e_shnum"], _MOST_SECTIONS), header["e_shoff"])
    sections = list(_SECTION_HEADER.iter_unpack(table[: len(table) // _SECTION_HEADER.size * _SECTION_HEADER.size]))
    if header["e_shstrndx"] >= len(sections):
        return {}
    strings = sections[header["e_shstrndx"]]
    names = os.pread(fd, min(strings[5], _MOST_NAMES), strings[4])
    named = ((names[row[0] :].partition(b"\0")[0], row[3:6]) for row in reversed(sections))
    return {name: place for name, place in named if name in wanted}


def offsets_of(head: bytes, minor: int) -> dict[str, int]:
    """Return members of `struct offcpu_python` for CPython 3.`minor`; {} if this version is not supported. `head`: the
    first _HEAD bytes of the section .PyRuntime."""
    if head.startswith(_COOKIE):
        minor = head[10]  # of PY_VERSION_HEX
        table = _OFFSETS.get(minor, {}) if minor >= _FIRST_WITH_TABLE else {}
        words = {name: int.from_bytes(head[place : place + 8], "little") for name, place in table.items()}
        if not words or head[_FREE_THREADED] or max(words.values()) > _MOST_OFFSET or words["entry"] >= _MOST_FRAME:
            return {}
        offsets = words | _ADDRESS | {"direct": _ALL, "least_shim": _SHIM, "tag": _TAGS if minor >= 14 else 0}
        offsets["frame_size"] = (max(words[name] for name in ("code", "instruction", "entry")) & ~7) + 8
    else:
        offsets = dict(_OFFSETS.get(minor, {})) if minor < _FIRST_WITH_TABLE else {}
    if not offsets:
        return {}
    compact, ascii_ = (56, 40) if minor >= 12 else (72, 48)
    entry, first_line = offsets.setdefault("entry", 0), offsets["first_line"]
    in_thread = max(offsets[name] for name in ("next_thread", "thread_frame", "thread_id"))
    in_code = max(offsets[name] for name in ("first_line", "file", "name", "lines"))
    if in_thread > _MOST_THREAD or in_code >= _CODE_BYTES - 7:
        return {}
    return offsets | {
        "minor": minor,
        "entry_shift": entry % 8 * 8,
        "line_shift": first_line % 8 * 8,
        "version": _VERSION_OF_CODE.get(first_line, 0),
        "compact": compact,
        "ascii_less": compact - ascii_,
    }
