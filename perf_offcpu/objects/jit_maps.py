# SPDX-License-Identifier: Apache-2.0
"""The maps of a recording's processes (see `jit_map`): found, checked against their lives, read once."""

from __future__ import annotations

import numpy as np

from perf_offcpu.errors import FormatError
from perf_offcpu.model.recording import Recording
from perf_offcpu.objects.jit_map import MapRefused, existing, load_jit_map, map_paths
from perf_offcpu.objects.symtab import SymbolTable

NO_MAP = "code that a program made itself, without a map of it (/tmp/perf-PID.map)"


class JitMaps:
    """Finds the map of a process.

    Args:
        recording: its tasks.
        symfs: directory below which maps are looked for; "" the running system.
        force: believe maps of other users.
    """

    def __init__(self, recording: Recording, symfs: str, *, force: bool = False) -> None:
        self.recording, self.symfs, self.force = recording, symfs, force
        self._found: dict[int, SymbolTable | str] = {}

    def of(self, pid: int) -> SymbolTable | str:
        """The map of a process, or why there is none."""
        if pid not in self._found:
            self._found[pid] = self._load(pid)
        return self._found[pid]

    def _load(self, pid: int) -> SymbolTable | str:
        born, died = self._life(pid)
        cause = NO_MAP
        for path in existing(map_paths(pid, self.symfs)):
            try:
                return load_jit_map(path, force=self.force, born_ns=born, died_ns=died)
            except MapRefused as problem:
                cause = f"{path}: {problem}"
            except OSError as problem:
                cause = f"{path}: {problem.strerror}"
            except FormatError:
                cause = f"{path}: it is not a regular file"
        return cause

    def _life(self, pid: int) -> tuple[int, int]:
        """Wall-clock birth and death of a process, 0 where unknown or where a pid had several lives."""
        meta, tasks = self.recording.meta, self.recording.tasks
        lives = np.flatnonzero(tasks.tid == pid)
        if not meta.wall_clock_ns or len(lives) != 1:
            return 0, 0
        begin, end = int(tasks.begin_ns[lives[0]]), int(tasks.end_ns[lives[0]])
        shift = meta.wall_clock_ns - meta.wall_clock_at_ns
        return (begin + shift if begin > 0 else 0), (end + shift if end > 0 else 0)
