# SPDX-License-Identifier: Apache-2.0
"""Naming addresses in memory that programs filled with code themselves (see `jit_map`)."""

from __future__ import annotations

import numpy as np

from perf_offcpu.model.columns import I32, I64, U64, distinct
from perf_offcpu.model.recording import Recording
from perf_offcpu.model.strings import Strings
from perf_offcpu.objects.jit_map import read_jit_name
from perf_offcpu.objects.jit_maps import JitMaps
from perf_offcpu.objects.symtab import SymbolTable
from perf_offcpu.symbolize.symbol_names import Named, Unresolved


class JitNames:
    """Names addresses in anonymous memory, process by process.

    Args:
        recording: its spaces and tasks.
        strings: where names are interned.
        symfs: directory below which maps are looked for; "" the running system.
        unresolved: where addresses without a name are counted.
        force: believe maps of other users.
    """

    def __init__(
        self, recording: Recording, strings: Strings, symfs: str, unresolved: Unresolved, *, force: bool
    ) -> None:
        self.recording, self.strings, self.unresolved = recording, strings, unresolved
        self._maps = JitMaps(recording, symfs, force=force)

    def name(self, addresses: U64, spaces: I32, rows: I64, named: Named) -> None:
        """Fill in some rows of `named`.

        Args:
            addresses: uint64[n], as in the processes.
            spaces: int32[n], whose.
            rows: int64[n], the rows that they name.
        """
        pids = self.recording.spaces.pid[spaces]
        named.address[rows] = addresses
        for pid in distinct(pids).tolist():
            mine = np.flatnonzero(pids == pid)
            table = self._maps.of(pid)
            if isinstance(table, str):
                self.unresolved[table] += len(mine)
            else:  # as perf calls it, wherever it lay
                self._put(f"/tmp/perf-{pid}.map", table, addresses[mine], rows[mine], named)

    def _put(self, path: str, table: SymbolTable, addresses: U64, rows: I64, named: Named) -> None:
        found = table.lookup(addresses)
        named.dso[rows] = self.strings.intern(path)
        for row in distinct(found[found >= 0]).tolist():
            one = read_jit_name(table.name(row))
            at = rows[found == row]
            named.symbol[at] = self.strings.intern(one.symbol)
            named.file[at], named.line[at] = self.strings.intern(one.file), one.line
        hit = found >= 0
        named.offset[rows[hit]] = addresses[hit] - table.start[found[hit]]
        if missing := int((~hit).sum()):
            self.unresolved[f"{path}: addresses that it does not list"] += missing
