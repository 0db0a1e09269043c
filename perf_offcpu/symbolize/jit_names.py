# SPDX-License-Identifier: Apache-2.0
"""Naming addresses in memory that programs filled with code themselves (see `jit_map`)."""

from __future__ import annotations

import numpy as np

from perf_offcpu.errors import FormatError
from perf_offcpu.model.columns import I32, I64, U64
from perf_offcpu.model.recording import Recording
from perf_offcpu.model.strings import Strings
from perf_offcpu.symbolize.jit_map import (
    MapRefused,
    existing,
    load_jit_map,
    map_paths,
    read_jit_name,
)
from perf_offcpu.symbolize.named import Named, Unresolved
from perf_offcpu.symbolize.symtab import SymbolTable

NO_MAP = "code that a program made itself, without a map of it (/tmp/perf-PID.map)"


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
        self.symfs, self.force = symfs, force

    def name(self, addresses: U64, spaces: I32, rows: I64, named: Named) -> None:
        """Fill in some rows of `named`.

        Args:
            addresses: uint64[n], as in the processes.
            spaces: int32[n], whose.
            rows: int64[n], the rows that they name.
        """
        pids = self.recording.spaces.pid[spaces]
        named.address[rows] = addresses
        for pid in np.unique(pids).tolist():
            mine = np.flatnonzero(pids == pid)
            found = self._table(pid, len(mine))
            if found is not None:
                self._put(*found, addresses[mine], rows[mine], named)

    def _table(self, pid: int, places: int) -> tuple[str, SymbolTable] | None:
        born, died = self._life(pid)
        cause = NO_MAP
        for path in existing(map_paths(pid, self.symfs)):
            try:
                table = load_jit_map(path, force=self.force, born_ns=born, died_ns=died)
                return f"/tmp/perf-{pid}.map", table  # as perf calls it, wherever it lay
            except MapRefused as problem:
                cause = f"{path}: {problem}"
            except OSError as problem:
                cause = f"{path}: {problem.strerror}"
            except FormatError:
                cause = f"{path}: it is not a regular file"
        self.unresolved[cause] += places
        return None

    def _put(self, path: str, table: SymbolTable, addresses: U64, rows: I64, named: Named) -> None:
        found = table.lookup(addresses)
        named.dso[rows] = self.strings.intern(path)
        for row in np.unique(found[found >= 0]).tolist():
            one = read_jit_name(table.name(row))
            at = rows[found == row]
            named.symbol[at] = self.strings.intern(one.symbol)
            named.file[at], named.line[at] = self.strings.intern(one.file), one.line
        hit = found >= 0
        named.offset[rows[hit]] = addresses[hit] - table.start[found[hit]]
        if missing := int((~hit).sum()):
            self.unresolved[f"{path}: addresses that it does not list"] += missing

    def _life(self, pid: int) -> tuple[int, int]:
        """Wall-clock birth and death of a process, 0 where unknown or where a pid had several lives."""
        meta, tasks = self.recording.meta, self.recording.tasks
        lives = np.flatnonzero(tasks.tid == pid)
        if not meta.wall_clock_ns or len(lives) != 1:
            return 0, 0
        begin, end = int(tasks.begin_ns[lives[0]]), int(tasks.end_ns[lives[0]])
        shift = meta.wall_clock_ns - meta.wall_clock_at_ns
        return (begin + shift if begin > 0 else 0), (end + shift if end > 0 else 0)
