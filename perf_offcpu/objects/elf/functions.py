# SPDX-License-Identifier: Apache-2.0
"""The functions of an ELF file: which symbol covers an address, and which address a mapped byte has.

A recording says that a process mapped bytes of a file. Three steps lead from there to a name:

    ip - map.start + map.pgoff   file offset     the caller's, from the map record
    `file_offset_to_vaddr`       address as the file's program headers place it, the space of st_value
    `symbols.lookup`             row of the symbol

The same arithmetic serves executables at fixed addresses, PIE and shared objects. Symbols come from
.symtab, in the file, or in its separate debug file, or in .gnu_debugdata (an xz-compressed ELF file with
the functions that .dynsym lacks), together with .dynsym; PLT stubs are named `function@plt`. Which
symbols count is perf's choice (tools/perf/util/symbol-elf.c of Linux 6.16, dso__load_sym_internal), but
that data objects are not offered as names of code: they only bound the function before them.

Not covered: section-relative symbols of unlinked objects and kernel modules, PowerPC function descriptors.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi import elf
from perf_offcpu.errors import FormatError
from perf_offcpu.model.columns import U32, U64, Bool
from perf_offcpu.objects.debug_files import open_debug
from perf_offcpu.objects.elf.image import ElfImage, Section, Segments, open_elf
from perf_offcpu.objects.elf.plt import plt_symbols
from perf_offcpu.objects.elf.source import BytesSource
from perf_offcpu.objects.search import Search
from perf_offcpu.objects.symtab import NO_ADDRESS, Symbols, SymbolTable, alias_rank, join
from perf_offcpu.structs import frozen

MAX_SYMBOLS: Final = 1 << 23
"""Rows of one symbol table that are read; the largest programs have some two million."""
MAX_MINI_DEBUG: Final = 1 << 26
"""Bytes that .gnu_debugdata may unpack to."""
_LZMA_MEMORY: Final = 1 << 27  # xz -9 takes 65 MiB
_MAX_SEGMENTS: Final = 64
_PAGE: Final = np.uint64(4096)


@frozen
class ElfFile:
    """What naming addresses takes of one file.

    Args:
        path: the file.
        build_id: its GNU build-id, b"" if it has none.
        machine: e_machine.
        loads: its PT_LOAD segments.
        symbols: its functions, at addresses as in the file.
        full: True if .symtab was found (here or in a debug file): local functions are known.
    """

    path: str
    build_id: bytes
    machine: int
    loads: Segments
    symbols: SymbolTable
    full: bool

    def file_offset_to_vaddr(self, offsets: U64) -> U64:
        """Where the program headers place bytes of the file.

        Args:
            offsets: uint64[n], file offsets.

        Returns:
            uint64[n], addresses; NO_ADDRESS where no segment holds the byte. Segments win in file order,
            executable ones first; the kernel maps whole pages, so at last each is extended to its page's
            ends.
        """
        result = np.full(len(offsets), NO_ADDRESS)
        start, stop, shift = self._ranges()
        for i in range(len(start)):
            inside = (offsets >= start[i]) & (offsets < stop[i]) & (result == NO_ADDRESS)
            result[inside] = offsets[inside] + shift[i]
        return result

    def _ranges(self) -> tuple[U64, U64, U64]:
        """File ranges [start, stop) in order of preference, and what takes them to addresses (mod 2^64)."""
        loads = self.loads.take(self.loads.filesz > 0)
        executable = (loads.flags & np.uint64(elf.SegmentFlag.X)) != 0
        exact = loads.take(np.argsort(~executable, kind="stable")[:_MAX_SEGMENTS])
        paged = loads.take(np.flatnonzero(executable)[:_MAX_SEGMENTS])
        stop = paged.offset + paged.filesz
        rest = (_PAGE - stop % _PAGE) % _PAGE
        return (
            np.append(exact.offset, paged.offset - paged.offset % _PAGE),
            np.append(exact.offset + exact.filesz, stop + np.minimum(rest, NO_ADDRESS - stop)),
            np.append(exact.vaddr - exact.offset, paged.vaddr - paged.offset),
        )


def load_elf_symbols(path: str, search: Search | None = None) -> ElfFile:
    """Read the functions of an executable or shared object.

    Args:
        path: a regular file.
        search: where its separate debug file is looked for, if it has no .symtab itself; None: nowhere.

    Raises:
        OSError: it cannot be opened or read.
        FormatError: it is no ELF executable or shared object, or is damaged.
    """
    with ExitStack() as stack:
        image = stack.enter_context(open_elf(path))
        return read_elf_symbols(image, full_table_of(image, search, stack))


def full_table_of(image: ElfImage, search: Search | None, stack: ExitStack) -> ElfImage | None:
    """The debug file whose .symtab is to be taken; None if the object has one, or there is no such file."""
    if search is None or image.section_of_type(elf.SectionType.SYMTAB) is not None:
        return None
    return open_debug(image, search, b".symtab", stack)


def elf_build_id(path: str) -> bytes:
    """The GNU build-id of an ELF file, b"" if it has none.

    Raises:
        OSError, FormatError: as `load_elf_symbols`.
    """
    with open_elf(path) as image:
        return image.build_id


def read_elf_symbols(image: ElfImage, debug: ElfImage | None = None) -> ElfFile:
    """As `load_elf_symbols`, from images already open.

    Args:
        image: the file that was mapped.
        debug: its debug file, whose .symtab is taken instead.
    """
    if image.type not in (elf.ElfType.EXEC, elf.ElfType.DYN):
        problem = f"type {image.type} is not an executable or shared object"
        raise FormatError(image.path, "ELF header", problem)
    parts = list(_full_table(debug or image))
    full = bool(parts)
    dynamic = image.section_of_type(elf.SectionType.DYNSYM)
    if dynamic is not None:
        parts.append(listed_symbols(image, dynamic))
    if not full:
        parts.extend(_mini_debug(image))
    parts.append(plt_symbols(image, dynamic, parts))
    return ElfFile(image.path, image.build_id, image.machine, image.loads, SymbolTable(*join(parts)), full)


def _full_table(image: ElfImage) -> Iterator[tuple[Symbols, bytes]]:
    table = image.section_of_type(elf.SectionType.SYMTAB)
    if table is not None:
        yield listed_symbols(image, table)


def _mini_debug(image: ElfImage) -> Iterator[tuple[Symbols, bytes]]:
    """The symbols in .gnu_debugdata, as GDB documents it ("MiniDebugInfo")."""
    section = image.section_named(b".gnu_debugdata")
    if section is None:
        return
    unpacker = lzma.LZMADecompressor(memlimit=_LZMA_MEMORY)
    try:
        data = unpacker.decompress(image.content(section), max_length=MAX_MINI_DEBUG)
        problem = "" if unpacker.eof else f"it is cut off, or unpacks to more than {MAX_MINI_DEBUG} bytes"
    except lzma.LZMAError as error:
        problem = str(error)
    if problem:
        raise FormatError(image.path, "section .gnu_debugdata", problem, section.offset)
    yield from _full_table(ElfImage(BytesSource(data), f"{image.path}(.gnu_debugdata)"))


def listed_symbols(image: ElfImage, table: Section, places: U64 | None = None) -> tuple[Symbols, bytes]:
    """The rows of one symbol table section that can name or bound code, and its string bytes.

    Args:
        places: of an unlinked object, whose symbols count from the begin of their section: uint64[number of
            sections], where each begins; symbols of sections at NO_ADDRESS are left out.

    Raises:
        FormatError: the table is damaged or too large.
    """
    if table.size > MAX_SYMBOLS * elf.SYM[image.bits].size():
        raise FormatError(image.path, "symbol table", f"{table.size} bytes are too many", table.offset)
    strings_section = image.section(table.link)
    strings = b"" if strings_section is None else image.content(strings_section)
    rows = image.array(table, elf.SYM[image.bits])
    rows = rows[rows["st_name"] < len(strings)]
    rows = rows[np.frombuffer(strings, np.uint8)[rows["st_name"]] != 0]  # nameless
    rows = rows[(rows["st_shndx"] != elf.SHN_UNDEF) & (rows["st_shndx"] < _section_count(image))]
    if places is None:
        return _counted(image, rows, strings), strings
    rows = rows[places[rows["st_shndx"]] != NO_ADDRESS]
    symbols = _counted(image, rows, strings, places)
    return symbols, strings


def _section_count(image: ElfImage) -> int:
    return min(len(image.section_names), elf.SHN_LORESERVE)


def _counted(image: ElfImage, rows: NDArray[Any], strings: bytes, places: U64 | None = None) -> Symbols:
    """Of symbols defined in sections, those that perf would keep, as columns in native byte order."""
    section = rows["st_shndx"].astype(np.intp)
    kind, binding = rows["st_info"] & 15, rows["st_info"] >> 4
    function = (kind == elf.SymbolType.FUNC) | (kind == elf.SymbolType.GNU_IFUNC)
    label = (kind == elf.SymbolType.NOTYPE) & ((rows["st_other"] & 3) != elf.Visibility.HIDDEN)
    label &= (rows["st_other"] & 3) != elf.Visibility.INTERNAL
    text, data = _holds(image, b"text")[section], _holds(image, b"data")[section]
    loaded = (image.section_column("sh_flags")[section] & np.uint64(elf.SectionFlag.ALLOC)) != 0
    keep = loaded & (function | (label & (text | data)) | (kind == elf.SymbolType.OBJECT))
    keep &= ~_mapping_symbols(image.machine, rows["st_name"], strings)
    start = rows["st_value"].astype(np.uint64)
    if image.machine == elf.Machine.ARM:
        start[function] &= ~np.uint64(1)  # the Thumb bit is no part of the address
    if places is not None:
        start += places[section]
    symbols = Symbols(
        start=start,
        size=rows["st_size"].astype(np.uint64),
        name=rows["st_name"].astype(np.uint32),
        limit=_section_ends(image, places)[section],
        rank=alias_rank(label, binding == elf.Binding.WEAK, binding == elf.Binding.GLOBAL),
        code=(function | (label & text)).astype(np.uint8),
    )
    return symbols.take(keep)


def _holds(image: ElfImage, part: bytes) -> Bool:
    """bool[number of sections]: the name contains this; perf's test for labels (elf_sec__filter)."""
    return np.array([part in name for name in image.section_names], bool)


def _section_ends(image: ElfImage, places: U64 | None) -> U64:
    """uint64[number of sections]: the address behind each; NO_ADDRESS where that wraps around."""
    start = image.section_column("sh_addr") if places is None else places
    size = image.section_column("sh_size")
    return np.where(size > NO_ADDRESS - start, NO_ADDRESS, start + size)


def _mapping_symbols(machine: int, names: U32, strings: bytes) -> Bool:
    """bool[n]: `$a`, `$d`, `$t`, `$x`, alone or before a dot: they say what follows, code or data."""
    if machine not in (elf.Machine.ARM, elf.Machine.AARCH64, elf.Machine.RISCV):
        return np.zeros(len(names), bool)
    text = np.frombuffer(strings + bytes(2), np.uint8)
    at = names.astype(np.int64)

    def any_of(letters: bytes, offset: int) -> Bool:
        return np.isin(text[at + offset], np.frombuffer(letters, np.uint8))

    mark: Bool = any_of(b"$", 0) & any_of(b"adtx", 1)
    if machine == elf.Machine.RISCV:
        return mark  # there the name of the instruction set may follow: $xrv64i2p1
    return mark & any_of(b".\0", 2)
