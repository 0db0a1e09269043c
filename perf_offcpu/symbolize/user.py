# SPDX-License-Identifier: Apache-2.0
"""Naming user addresses: from the mapping to the file, from the file to its functions.

An address in a mapping is a byte of a file (address − start + pgoff); program headers say where the file
wants that byte (its virtual address), and that is what symbol tables speak of.
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.cache import DiskCache
from perf_offcpu.model.columns import I32, I64, U64, distinct
from perf_offcpu.model.recording import Recording
from perf_offcpu.model.strings import Strings
from perf_offcpu.objects import vdso
from perf_offcpu.objects.elf.functions import ElfFile
from perf_offcpu.objects.files import Cause, Found, find_object
from perf_offcpu.objects.jit_map import is_jit_memory
from perf_offcpu.objects.origin import is_running_kernel, pids_of_dso, recorded_until
from perf_offcpu.objects.search import Search
from perf_offcpu.symbolize.jit_names import JitNames
from perf_offcpu.symbolize.lines.names import LineNames
from perf_offcpu.symbolize.symbol_names import Named, Unresolved, name_rows

NO_SYMBOL = "addresses outside every symbol of their file"


class UserNames:
    """Names addresses in mappings of user space.

    Args:
        recording: its maps and dsos.
        strings: where names are interned.
        search: where files are looked for.
        cache: where symbol tables are kept; None: nowhere.
        unresolved: where addresses without a name are counted.
        lines: what puts source lines to them; None: nothing.
        force: believe maps of code made by programs whoever wrote them.
    """

    def __init__(
        self,
        recording: Recording,
        strings: Strings,
        search: Search,
        cache: DiskCache | None,
        unresolved: Unresolved,
        lines: LineNames | None = None,
        *,
        force: bool = False,
    ) -> None:
        self.recording, self.strings, self.unresolved = recording, strings, unresolved
        self.search, self.cache, self.lines = search, cache, lines
        self._recorded_ns = recorded_until(recording.meta)
        self._jit = JitNames(recording, strings, search.symfs, unresolved, force=force)

    def name(self, addresses: U64, map_rows: I32) -> Named:
        """The names of n addresses, each in the mapping of the same place in `map_rows`."""
        maps, dsos = self.recording.maps, self.recording.dsos
        named = Named.filled(len(addresses), dso=dsos.path[maps.dso[map_rows]])
        places = addresses - maps.start[map_rows] + maps.pgoff[map_rows]
        named.address = places
        dso_of_place = maps.dso[map_rows]
        for dso in distinct(dso_of_place).tolist():
            rows = np.flatnonzero(dso_of_place == dso)
            if is_jit_memory(self.strings[int(dsos.path[dso])]):
                self._jit.name(addresses[rows], maps.space[map_rows[rows]], rows, named)
            elif (elf := self._open(dso, len(rows))) is not None:
                self._by_file(elf, rows, places[rows], named)
        return named

    def _by_file(self, elf: ElfFile, rows: I64, places: U64, named: Named) -> None:
        addresses = elf.file_offset_to_vaddr(places)
        found = elf.symbols.lookup(addresses)
        named.address[rows] = addresses
        named.symbol[rows], named.offset[rows] = name_rows(elf.symbols, found, addresses, self.strings)
        if missing := int((found < 0).sum()):
            self.unresolved[NO_SYMBOL] += missing
        if self.lines is not None:
            self.lines.add(elf, addresses, rows, named, self.strings[int(named.dso[rows[0]])])

    def _open(self, dso: int, places: int) -> ElfFile | None:
        path = self.strings[int(self.recording.dsos.path[dso])]
        build_id = self.strings[int(self.recording.dsos.build_id[dso])]
        if path == vdso.NAME and not build_id and not is_running_kernel(self.recording.meta):
            found = Found(cause=Cause.OTHER_BUILD)
        else:
            found = find_object(
                path,
                bytes.fromhex(build_id),
                self.search,
                pids_of_dso(self.recording, dso),
                changed_after_ns=self._recorded_ns,
                cache=self.cache,
            )
        if found.cause is not None:
            self.unresolved[f"{path}: {found.cause.value}"] += places
        return found.elf
