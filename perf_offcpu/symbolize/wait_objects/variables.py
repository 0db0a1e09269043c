# SPDX-License-Identifier: Apache-2.0
"""Find the variables at addresses of processes.

A recording has executable mappings only. Its file puts .data and .bss at fixed distances from its code, in
executables at fixed addresses, PIE and shared objects alike: the mapping of the code next below an address
tells the file and where it was loaded, the program headers of the file how far its data reach.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from perf_offcpu.errors import FormatError
from perf_offcpu.model.columns import I32, U64
from perf_offcpu.model.recording import Recording
from perf_offcpu.objects.elf.data_symbols import variables_of
from perf_offcpu.objects.elf.functions import file_offset_to_vaddr
from perf_offcpu.objects.elf.headers import Rows
from perf_offcpu.objects.files import Refused, open_dso
from perf_offcpu.objects.perf_map import is_jit_memory
from perf_offcpu.objects.search import Search
from perf_offcpu.objects.symtab import NO_ADDRESS, SymbolTable


class Variable(NamedTuple):
    """A place in the data of a file."""

    dso: int  # string: path of the file
    symbol: str  # as the file spells it; "" for a place that no symbol covers
    size: int  # of the variable, bytes
    offset: int  # from the start of the variable; without one, the address as in the file


class _File(NamedTuple):
    loads: Rows
    table: SymbolTable


def find_variables(
    recording: Recording, spaces: I32, addresses: U64, search: Search
) -> list[Variable | None]:
    """Return the variable at each of n addresses; None where it is not in the data of a known file.

    Args:
        spaces: int32[n], rows in the recording's spaces; -1 unknown.
    """
    maps, found = recording.maps, list[Variable | None]()
    rows = _maps_below(recording, spaces, addresses)
    files: dict[int, _File | None] = {}
    for row, address in zip(rows.tolist(), addresses.tolist(), strict=True):
        if row < 0:
            found.append(None)
            continue
        dso = int(maps.dso[row])
        if dso not in files:
            files[dso] = _read(recording, dso, search)
        file = files[dso]
        place = None if file is None else _address_in(file.loads, recording, row, address)
        known = file is not None and place is not None
        found.append(_variable(file, place, int(recording.dsos.path[dso])) if known else None)  # type: ignore[arg-type]
    return found


def _maps_below(recording: Recording, spaces: I32, addresses: U64) -> I32:
    """Return int32[n]: the last mapping of each space that begins at or below the address; -1 for none."""
    maps = recording.maps
    found = np.full(len(addresses), -1, np.int32)
    for space in np.unique(spaces[spaces >= 0]).tolist():
        low, high = (int(np.searchsorted(maps.space, space, side)) for side in ("left", "right"))
        mine = np.flatnonzero(spaces == space)
        place = np.searchsorted(maps.start[low:high], addresses[mine], side="right") - 1 + low
        found[mine] = np.where(place >= low, place, -1)
    return found


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
    """Return the address as in the file; None outside of its segments."""
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
