# SPDX-License-Identifier: Apache-2.0
"""Read the functions of an ELF file, to find the symbol that covers an address.

A recording says that a process mapped bytes of a file. Three steps lead from there to a name:

    ip - map.start + map.pgoff   file offset     done by the caller, from the map record
    `file_offset_to_vaddr`       address as the file's program headers place it, the space of st_value
    `symbols.lookup`             row of the symbol

The same arithmetic serves executables at fixed addresses, PIE and shared objects. Symbols come from .symtab, in the
file or in its separate debug file, or from .gnu_debugdata (an xz-compressed ELF file with the functions that .dynsym
lacks) and .gopclntab, together with .dynsym; PLT stubs are named `function@plt`. The choice of symbols is perf's
(tools/perf/util/symbol-elf.c of Linux 6.16, dso__load_sym_internal), except that data objects do not name code: they
only bound the function before them.

The table of a file is kept in the cache under the identity of the files that were read, the object and its debug
file, so a debug file that is installed later, or a rewritten file, changes the key.

Not covered: section-relative symbols of unlinked objects and kernel modules, PowerPC function descriptors."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi import elf
from perf_offcpu.cache import DiskCache, cache_name
from perf_offcpu.errors import FormatError
from perf_offcpu.model.columns import U32, U64, Bool
from perf_offcpu.objects.elf.go import go_symbols
from perf_offcpu.objects.elf.headers import Rows, Source, uncompress
from perf_offcpu.objects.elf.image import ElfImage, Section, open_elf
from perf_offcpu.objects.elf.plt import plt_symbols
from perf_offcpu.objects.search import Search, open_debug
from perf_offcpu.objects.symtab import NO_ADDRESS, VERSION, Symbols, SymbolTable, alias_rank, join
from perf_offcpu.structs import frozen

KIND: Final = f"symbols{VERSION}"  # kind of cache file
MAX_SYMBOLS: Final = 1 << 23  # rows of one symbol table that are read; the largest programs have some two million
MAX_MINI_DEBUG: Final = 1 << 26  # bytes that .gnu_debugdata may unpack to
_MAX_SEGMENTS: Final = 64
_PAGE: Final = np.uint64(4096)


@frozen
class ElfFile:
    """Code of a file: build-id, segments and functions."""

    path: str
    build_id: bytes  # its GNU build-id, b"" if it has none
    loads: Rows  # its PT_LOAD segments, rows of `headers.SEGMENT`
    symbols: SymbolTable  # its functions, at addresses as in the file


def file_offset_to_vaddr(loads: Rows, offsets: U64) -> U64:
    """Return uint64[n]: the virtual address of each file offset; NO_ADDRESS if no segment has it. If several do,
    executable segments go first, then the first in the file. The kernel maps whole pages, so a byte in no segment
    belongs to the executable segment that shares its page. `loads`: `ElfImage.loads`."""
    return _addresses(_file_ranges(loads), offsets)


def to_vaddr(loads: Rows) -> Callable[[U64], U64]:
    """Return a function that does what `file_offset_to_vaddr` does for these segments, faster for many calls."""
    return partial(_addresses, _file_ranges(loads))


def _addresses(ranges: tuple[U64, U64, U64], offsets: U64) -> U64:
    """Return uint64[n]: offset + shift of the first range (`_file_ranges`) that has the offset; NO_ADDRESS if none."""
    result = np.full(len(offsets), NO_ADDRESS)
    for start, stop, shift in zip(*ranges, strict=True):
        inside = (offsets >= start) & (offsets < stop) & (result == NO_ADDRESS)
        result[inside] = offsets[inside] + shift
    return result


def _file_ranges(loads: Rows) -> tuple[U64, U64, U64]:
    """Return (start, stop, shift), uint64[k], best first: a file offset in [start, stop) + shift is its address."""
    loads = loads[loads["p_filesz"] > 0]
    executable = (loads["p_flags"] & np.uint64(elf.SegmentFlag.X)) != 0
    exact = loads[np.argsort(~executable, kind="stable")[:_MAX_SEGMENTS]]
    paged = loads[np.flatnonzero(executable)[:_MAX_SEGMENTS]]
    start, stop = paged["p_offset"] - paged["p_offset"] % _PAGE, paged["p_offset"] + paged["p_filesz"]
    rest = (_PAGE - stop % _PAGE) % _PAGE
    both = np.concatenate([exact, paged])
    return (
        np.append(exact["p_offset"], start),
        np.append(exact["p_offset"] + exact["p_filesz"], stop + np.minimum(rest, NO_ADDRESS - stop)),
        both["p_vaddr"] - both["p_offset"],
    )


def load_elf_symbols(path: str, search: Search | None = None) -> ElfFile:
    """Read the functions of an executable or shared object. `search`: where its separate debug file is looked up, if it
    has no .symtab itself, and where the table is kept; None: nowhere. Errors as in `elf.image`."""
    with open_elf(path, search.cache if search else None) as image:
        return symbols_of(image, search)


def symbols_of(image: ElfImage, search: Search | None = None) -> ElfFile:
    """Read the functions of an open file; as `load_elf_symbols`."""
    with ExitStack() as stack:
        debug, cache = None, search.cache if search else None
        if search and image.section_of_type(elf.SectionType.SYMTAB) is None:
            debug = open_debug(image, search, b".symtab", stack)
        return ElfFile(image.path, image.build_id, image.loads, _table(image, debug, cache))


def _table(image: ElfImage, debug: ElfImage | None, cache: DiskCache | None) -> SymbolTable:
    if cache is None:
        return _read(image, debug)
    name = cache_name(KIND, image.build_id, image.source.identity, debug.source.identity if debug else ())
    columns = cache.read(name)
    table = None if columns is None else SymbolTable.from_columns(columns)
    if table is None:
        table = _read(image, debug)
        cache.write(name, table.columns())
    return table


def _read(image: ElfImage, debug: ElfImage | None) -> SymbolTable:
    if image.type not in (elf.ElfType.EXEC, elf.ElfType.DYN):
        problem = f"type {image.type} is not an executable or shared object"
        raise FormatError(image.path, "ELF header", problem)
    full = symbols_in(debug or image, elf.SectionType.SYMTAB)
    parts = full + symbols_in(image, elf.SectionType.DYNSYM) + ([] if full else _mini_debug(image) + go_symbols(image))
    parts.append(plt_symbols(image, parts))
    return SymbolTable(*join(parts))


def symbols_in(image: ElfImage, type_: elf.SectionType) -> list[tuple[Symbols, bytes]]:
    """Return [(symbols, string bytes)] of the first symbol table section of a type; [] if the file has none."""
    table = image.section_of_type(type_)
    return [] if table is None else [listed_symbols(image, table)]


def _mini_debug(image: ElfImage) -> list[tuple[Symbols, bytes]]:
    """Return [(symbols, string bytes)] of .gnu_debugdata (GDB's "MiniDebugInfo"); [] if the file has none."""
    section = image.section_named(b".gnu_debugdata")
    if section is None:
        return []
    try:
        data = uncompress("xz", image.content(section), MAX_MINI_DEBUG)
    except ValueError as problem:
        raise FormatError(image.path, "section .gnu_debugdata", str(problem), section.offset) from None
    return symbols_in(ElfImage(Source(f"{image.path}(.gnu_debugdata)", data)), elf.SectionType.SYMTAB)


def listed_symbols(image: ElfImage, table: Section, starts: U64 | None = None) -> tuple[Symbols, bytes]:
    """Return the symbols of a symbol table section that can name or bound code, and its string bytes. `starts`: of an
    unlinked object, uint64[sections], addresses added to st_value; NO_ADDRESS: the section's symbols are left out."""
    if table.size > MAX_SYMBOLS * elf.SYM[image.bits].size():
        raise FormatError(image.path, "symbol table", f"{table.size} bytes are too many", table.offset)
    strings_section = image.section(table.link)
    strings = b"" if strings_section is None else image.content(strings_section)
    rows = image.array(table, elf.SYM[image.bits])
    rows = rows[rows["st_name"] < len(strings)]
    rows = rows[np.frombuffer(strings, np.uint8)[rows["st_name"]] != 0]  # nameless
    rows = rows[(rows["st_shndx"] != elf.SHN_UNDEF) & (rows["st_shndx"] < min(len(image.sections), elf.SHN_LORESERVE))]
    if starts is not None:
        rows = rows[starts[rows["st_shndx"]] != NO_ADDRESS]
    return _counted(image, rows, strings, starts), strings


def _counted(image: ElfImage, rows: NDArray[Any], strings: bytes, starts: U64 | None) -> Symbols:
    """Return ELF symbols (`rows`) as native columns, without those perf ignores; `starts` as in `listed_symbols`."""
    section = rows["st_shndx"].astype(np.intp)
    kind, binding, visibility = rows["st_info"] & 15, rows["st_info"] >> 4, rows["st_other"] & 3
    function = (kind == elf.SymbolType.FUNC) | (kind == elf.SymbolType.GNU_IFUNC)
    label = (kind == elf.SymbolType.NOTYPE) & (visibility != elf.Visibility.HIDDEN)
    label &= visibility != elf.Visibility.INTERNAL
    text, data = _holds(image, b"text")[section], _holds(image, b"data")[section]
    loaded = (image.sections["sh_flags"][section] & np.uint64(elf.SectionFlag.ALLOC)) != 0
    keep = loaded & (function | (label & (text | data)) | (kind == elf.SymbolType.OBJECT))
    keep &= ~_mapping_symbols(image.machine, rows["st_name"], strings)
    start = rows["st_value"].astype(np.uint64)
    if image.machine == elf.Machine.ARM:
        start[function] &= ~np.uint64(1)  # the Thumb bit
    if starts is not None:
        start += starts[section]
    begin = image.sections["sh_addr"] if starts is None else starts
    symbols = Symbols(
        start=start,
        size=rows["st_size"].astype(np.uint64),
        name=rows["st_name"].astype(np.uint32),
        limit=(begin + np.minimum(image.sections["sh_size"], NO_ADDRESS - begin))[section],
        rank=alias_rank(label, binding == elf.Binding.WEAK, binding == elf.Binding.GLOBAL),
        code=(function | (label & text)).astype(np.uint8),
    )
    return symbols.take(keep)


def _holds(image: ElfImage, part: bytes) -> Bool:
    """Return bool[sections]: True if the name contains `part`; perf's test of NOTYPE symbols (elf_sec__filter)."""
    return np.array([part in name for name in image.section_names], bool)


def _mapping_symbols(machine: int, names: U32, strings: bytes) -> Bool:
    """Return bool[n]: True for mapping symbols, marks of code or data: `$a`, `$d`, `$t`, `$x`, maybe with a suffix."""
    if machine not in (elf.Machine.ARM, elf.Machine.AARCH64, elf.Machine.RISCV):
        return np.zeros(len(names), bool)
    text = np.frombuffer(strings + bytes(2), np.uint8)
    starts = names.astype(np.int64)

    def any_of(letters: bytes, offset: int) -> Bool:
        return np.isin(text[starts + offset], np.frombuffer(letters, np.uint8))

    mark: Bool = any_of(b"$", 0) & any_of(b"adtx", 1)
    if machine == elf.Machine.RISCV:
        return mark  # there the name of the instruction set may follow: $xrv64i2p1
    return mark & any_of(b".\0", 2)
