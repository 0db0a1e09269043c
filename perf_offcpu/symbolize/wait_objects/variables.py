# SPDX-License-Identifier: Apache-2.0
"""Find the variables at addresses of processes.

A recording has executable mappings only. Its file puts .data and .bss at fixed distances from its code, in
executables at fixed addresses, PIE and shared objects alike: the mapping of the code next below an address
tells the file and where it was loaded, the program headers of the file how far its data reach.

The rules are those of functions (`objects.symtab`), with the roles exchanged: data objects have names, and
functions only bound them. Labels without a type (`__bss_start`, `_edata`) name no variable. Variables of
threads (.tdata, .tbss) lie elsewhere in each thread and are left out by their type.
"""

from contextlib import ExitStack
from typing import Final, NamedTuple

import numpy as np

from perf_offcpu.abi import elf
from perf_offcpu.cache import cache_name
from perf_offcpu.errors import FormatError
from perf_offcpu.model.columns import I32, U64, distinct
from perf_offcpu.model.recording import Recording
from perf_offcpu.objects.elf.headers import Rows
from perf_offcpu.objects.elf.image import ElfImage
from perf_offcpu.objects.files import Refused, open_dso
from perf_offcpu.objects.functions import file_offset_to_vaddr, listed_symbols
from perf_offcpu.objects.perf_map import is_jit_memory
from perf_offcpu.objects.search import Search, open_debug
from perf_offcpu.objects.symtab import NO_ADDRESS, UNTYPED, VERSION, SymbolTable, join

KIND: Final = f"variables{VERSION}"  # kind of cache file


def variables_of(image: ElfImage, search: Search) -> SymbolTable:
    """Return the variables of an open file, or of its debug file, at addresses as in the file.

    Raises:
        OSError: it cannot be read.
        FormatError: a symbol table is damaged.
    """
    with ExitStack() as stack:
        has_own = image.section_of_type(elf.SectionType.SYMTAB) is not None
        debug = None if has_own else open_debug(image, search, b".symtab", stack)
        identities = image.source.identity, debug.source.identity if debug else ()
        name = cache_name(KIND, image.build_id, *identities)
        columns = search.cache.read(name) if search.cache else None
        table = None if columns is None else SymbolTable.from_columns(columns)
        if table is None:
            table = _read_variables(image, debug or image)
            if search.cache:
                search.cache.write(name, table.columns())
        return table


def _read_variables(image: ElfImage, full: ElfImage) -> SymbolTable:
    tables = (
        (full, full.section_of_type(elf.SectionType.SYMTAB)),
        (image, image.section_of_type(elf.SectionType.DYNSYM)),
    )
    rows, strings = join(listed_symbols(elf_file, table) for elf_file, table in tables if table is not None)
    is_variable = (rows.code == 0) & (rows.rank < UNTYPED)
    return SymbolTable(rows.with_columns(code=is_variable.astype(rows.code.dtype)), strings)


class Variable(NamedTuple):
    """Describes a place in the data of a file: the variable that covers it, if any."""

    dso: int  # string: path of the file
    symbol: str  # as the file spells it; "" for a place that no symbol covers
    size: int  # of the variable, bytes
    offset: int  # from the start of the variable; without one, the address as in the file


class _File(NamedTuple):
    loads: Rows
    table: SymbolTable


def find_variables(recording: Recording, spaces: I32, addresses: U64, search: Search) -> list[Variable | None]:
    """Return the variable at each of n addresses; None where it is not in the data of a known file. `spaces`: int32[n],
    rows in the recording's spaces; -1 unknown."""
    maps, variables = recording.maps, list[Variable | None]()
    rows = _maps_below(recording, spaces, addresses)
    files: dict[int, _File | None] = {}
    for row, address in zip(rows.tolist(), addresses.tolist(), strict=True):
        if row < 0:
            variables.append(None)
            continue
        dso = int(maps.dso[row])
        if dso not in files:
            files[dso] = _read(recording, dso, search)
        file = files[dso]
        place = None if file is None else _address_in(file.loads, recording, row, address)
        is_mapped = file is not None and place is not None
        variables.append(_variable(file, place, int(recording.dsos.path[dso])) if is_mapped else None)  # type: ignore[arg-type]
    return variables


def _maps_below(recording: Recording, spaces: I32, addresses: U64) -> I32:
    """Return int32[n]: row in maps of the last mapping of spaces[i] that begins at or below addresses[i]; -1 none."""
    maps = recording.maps
    row = np.full(len(addresses), -1, np.int32)
    for space in distinct(spaces[spaces >= 0]).tolist():
        low, high = (int(np.searchsorted(maps.space, space, side)) for side in ("left", "right"))
        rows = np.flatnonzero(spaces == space)
        place = np.searchsorted(maps.start[low:high], addresses[rows], side="right") - 1 + low
        row[rows] = np.where(place >= low, place, -1)
    return row


def _read(recording: Recording, dso: int, search: Search) -> _File | None:
    if is_jit_memory(recording.strings[int(recording.dsos.path[dso])]):
        return None
    try:
        with ExitStack() as stack:
            image = open_dso(recording, dso, search, stack)
            return _File(image.loads, variables_of(image, search))
    except (Refused, FormatError, OSError):
        return None  # the functions of the file count it as a loss


def _address_in(loads: Rows, recording: Recording, row: int, address: int) -> int | None:
    """Return the file's virtual address for an address of a process, by map `row`; None outside of all segments."""
    maps = recording.maps
    code = int(file_offset_to_vaddr(loads, maps.pgoff[row : row + 1])[0])
    if code == int(NO_ADDRESS):
        return None
    place = address - int(maps.start[row]) + code
    ends = zip(loads["p_vaddr"].tolist(), loads["p_memsz"].tolist(), strict=True)
    return place if any(start <= place < start + size for start, size in ends) else None


def _variable(file: _File, address: int, dso: int) -> Variable:
    row = int(file.table.lookup(np.array([address], np.uint64))[0])
    if row < 0:
        return Variable(dso, "", 0, address)
    start, end = int(file.table.start[row]), int(file.table.end[row])
    return Variable(dso, file.table.name(row), end - start, address - start)
