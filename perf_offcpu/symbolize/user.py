# SPDX-License-Identifier: Apache-2.0
"""Name user addresses: from the mapping to the file, from the file to its functions. An address in a mapping is a byte
of a file (address − start + pgoff). The program headers of the file place that byte at a virtual address, which its
symbol table names. Memory without a file may hold generated code, which the perf map of the process names."""

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.losses import LossCause, Losses
from perf_offcpu.model.columns import I32, I64, U64, Bool, Strings, distinct, is_one_of
from perf_offcpu.model.lookup import NO_MAP
from perf_offcpu.model.recording import Recording
from perf_offcpu.objects.files import Refused, find_dso
from perf_offcpu.objects.functions import file_offset_to_vaddr
from perf_offcpu.objects.perf_map import PerfMaps, is_jit_memory, read_jit_name
from perf_offcpu.objects.symtab import SymbolTable
from perf_offcpu.symbolize.frames import Locations, SymbolNames, symbols_and_offsets
from perf_offcpu.symbolize.lines.names import LineNames
from perf_offcpu.symbolize.options import SymbolizeOptions


class UserNames:
    """Names addresses in mappings of user space. `strings`: names are interned there. `lost`: addresses without a
    name are counted there. `lines`: adds source lines; None: no source lines."""

    def __init__(
        self, recording: Recording, strings: Strings, options: SymbolizeOptions, lost: Losses, lines: LineNames | None
    ) -> None:
        self.recording, self.strings, self.lost = recording, strings, lost
        self.search, self.lines = options.search(), lines
        self._perf_maps = PerfMaps(recording, self.search.symfs, force=options.force)

    def name(self, addresses: U64, map_rows: I32) -> SymbolNames:
        """Return the names of n addresses, a row each; `map_rows`: int32[n], row in maps of each address's mapping."""
        maps, dsos = self.recording.maps, self.recording.dsos
        dso_of_address = maps.dso[map_rows]
        file_offsets = addresses - maps.start[map_rows] + maps.pgoff[map_rows]
        names = SymbolNames.filled(len(addresses), dso=dsos.path[dso_of_address], address=file_offsets)
        for dso in distinct(dso_of_address).tolist():
            rows = np.flatnonzero(dso_of_address == dso)
            if is_jit_memory(self.strings[int(dsos.path[dso])]):
                names.address[rows] = addresses[rows]
                self._by_perf_maps(maps.space[map_rows[rows]], rows, names)
            else:
                self._by_file(dso, rows, file_offsets[rows], names)
        return names

    def name_methods(self, locations: Locations, map_rows: I32, names: SymbolNames) -> Bool:
        """Fill in `names` where a location is the address of a Method object of HotSpot, which stands for a frame of
        its interpreter (`unwind.step`); return bool[n]: True there. `map_rows`: int32[n], rows in maps."""
        is_method, pid_of = np.zeros(len(locations), np.bool_), np.append(self.recording.spaces.pid, -1)
        outside = np.flatnonzero((locations.cpumode == CpuMode.USER) & (map_rows == NO_MAP))
        jvms = np.array([*self.recording.perf_maps], np.int64)
        outside = outside[is_one_of(pid_of[locations.space[outside]], jvms)]
        for space in distinct(locations.space[outside]).tolist():
            rows, pid = outside[locations.space[outside] == space], int(pid_of[space])
            if len(methods := self._perf_maps.methods_of(space)):
                rows = rows[methods.lookup(locations.lookup[rows]) >= 0]
                names.address[rows], is_method[rows] = locations.lookup[rows], True
                self._by_perf_map(f"/tmp/perf-{pid}.map", methods, rows, names)
        return is_method

    def _by_file(self, dso: int, rows: I64, file_offsets: U64, names: SymbolNames) -> None:
        path = self.strings[int(self.recording.dsos.path[dso])]
        try:
            elf = find_dso(self.recording, dso, self.search)
        except Refused as problem:
            self.lost.add(problem.cause.about(path), len(rows))
            return
        addresses = file_offset_to_vaddr(elf.loads, file_offsets)
        row = elf.symbols.lookup(addresses)
        names.address[rows] = addresses
        named = symbols_and_offsets(elf.symbols, row, addresses, self.strings)
        names.symbol[rows], names.offset[rows] = named
        self.lost.add(losses.NO_SYMBOL, int((row < 0).sum()))
        if self.lines is not None:
            self.lines.add(elf, addresses, rows, names, path)

    def _by_perf_maps(self, spaces: I32, rows: I64, names: SymbolNames) -> None:
        """Fill in `rows` of names, in memory without a file, by perf maps of their processes. `spaces`: int32[rows]."""
        for space in distinct(spaces).tolist():
            table, own_rows = self._perf_maps.of(space), rows[spaces == space]
            pid = int(self.recording.spaces.pid[space])
            if isinstance(table, LossCause):
                self.lost.add(table, len(own_rows))
            else:
                self._by_perf_map(f"/tmp/perf-{pid}.map", table, own_rows, names)

    def _by_perf_map(self, path: str, table: SymbolTable, rows: I64, names: SymbolNames) -> None:
        """Fill in `rows` of names from one perf map (`table`); as in perf, the dso is `path` wherever it was found."""
        addresses = names.address[rows]
        table_row = table.lookup(addresses)
        names.dso[rows] = self.strings.intern(path)
        for row in distinct(table_row[table_row >= 0]).tolist():
            function, places = read_jit_name(table.name(row)), rows[table_row == row]
            names.symbol[places] = self.strings.intern(function.symbol)
            names.file[places], names.line[places] = self.strings.intern(function.file), function.line
        hit = table_row >= 0
        names.offset[rows[hit]] = addresses[hit] - table.start[table_row[hit]]
        self.lost.add(losses.PERF_MAP_LACKS.about(path), int((~hit).sum()))
