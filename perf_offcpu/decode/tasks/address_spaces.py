# SPDX-License-Identifier: Apache-2.0
"""Build address spaces over time from mappings, forks and execs. A process begins with its parent's mappings (fork) or
none (exec), and adds to them. A mapping that replaces another begins a new version of the space, so that within one
version no two mappings overlap and any address has one answer."""

import bisect
from collections.abc import Iterable
from dataclasses import field
from typing import NamedTuple

import numpy as np

from perf_offcpu.binary.columnar import offsets_of
from perf_offcpu.decode.tasks.columns import MapRuns
from perf_offcpu.model.callchains import spread
from perf_offcpu.model.columns import I32, I64
from perf_offcpu.model.lookup import KERNEL_SPACE
from perf_offcpu.model.recording import Maps, Spaces
from perf_offcpu.structs import mutable

UNKNOWN_SPACE = -1
_MAX_ADDRESS = 2**64
MAX_MAPPINGS = 1 << 18  # most mappings of one space: four times what the kernel allows a process (vm.max_map_count)

_FREE_COPIES, _COPIES_PER_MAP = 1 << 20, 32
"""Limit of the mappings that are copied into new versions of spaces: a constant, plus a number for each mapping in the
file. Real recordings stay far below; a hostile one could ask for the square of its records."""


class Mapping(NamedTuple):
    """Maps the addresses [start, end) to `dso`, a row of dsos, from file offset `pgoff` on."""

    start: int
    end: int
    pgoff: int
    dso: int

    def cut(self, start: int, end: int) -> "Mapping":
        """Return the part of the mapping within [start, end)."""
        return Mapping(start, end, self.pgoff + (start - self.start), self.dso)

    def agrees(self, other: "Mapping") -> bool:
        """Return True if both map every address to the same place in the same file."""
        return self.dso == other.dso and self.pgoff - self.start == other.pgoff - other.start


@mutable
class _Space:
    """Holds one version of an address space: mappings sorted by start, not overlapping; `previous`: number of the
    version that an execve() replaced by this one, -1 none."""

    pid: int
    begin_ns: int
    starts: list[int] = field(default_factory=list)
    mappings: list[Mapping] = field(default_factory=list)
    previous: int = -1

    def overlapping(self, new: Mapping) -> slice:
        low = bisect.bisect_right(self.starts, new.start)
        if low and self.mappings[low - 1].end > new.start:
            low -= 1
        return slice(low, bisect.bisect_left(self.starts, new.end, low))

    def replace(self, where: slice, new: Mapping, *, keep: bool = True) -> None:
        """Insert `new`, and cut what it overlaps off mappings `where` (of `overlapping`); without `keep`, only cut."""
        if keep and where.start == where.stop:  # as nearly always
            self.mappings.insert(where.start, new)
            self.starts.insert(where.start, new.start)
            return
        parts = [new] if keep else []
        for old in self.mappings[where]:
            if old.start < new.start:
                parts.append(old.cut(old.start, new.start))
            if old.end > new.end:
                parts.append(old.cut(new.end, old.end))
        self.mappings[where] = sorted(parts)
        self.starts[where] = [mapping.start for mapping in sorted(parts)]


class AddressSpaces:
    """Replays mappings, forks and execs in time order, and makes the tables of the model."""

    def __init__(self) -> None:
        self.forgotten = 0  # mappings not applied because they are too many: no name rather than a wrong one
        self._copies_left = _FREE_COPIES
        self._kernel, self._spaces = _Space(-1, 0), list[_Space]()
        self._current, self._timeline = dict[int, int](), list[tuple[int, int, int]]()
        self._shared, self._execing = set[int](), set[int]()
        self._run_of: dict[int, tuple[MapRuns, int]] = {}
        """By row of `_spaces`: (runs, number of the run) that holds all its mappings; see `_space`."""

    def map(self, pid: int, mapping: Mapping, time_ns: int) -> None:
        """Apply a mapping of a process (pid -1: the kernel), in a new version of its space if it replaces others."""
        if not mapping.start < mapping.end <= _MAX_ADDRESS:
            return
        self._copies_left += _COPIES_PER_MAP
        if pid == KERNEL_SPACE:
            self._put(self._kernel, self._kernel.overlapping(mapping), mapping)
            return
        number = self._current.get(pid, -1)
        if number < 0 or pid in self._execing:
            self._execing.discard(pid)
            number = self._begin(_Space(pid, time_ns, previous=number))
        space = self._space(number)
        where = space.overlapping(mapping)
        if where.start == where.stop and number not in self._shared:  # as nearly always
            self._put(space, where, mapping)
            return
        changes = any(not old.agrees(mapping) for old in space.mappings[where])
        if number in self._shared or (changes and time_ns > space.begin_ns):
            if len(space.mappings) > self._copies_left:
                self.forgotten += 1
                space.replace(where, mapping, keep=False)
                return
            self._copies_left -= len(space.mappings)
            copy = _Space(pid, time_ns, list(space.starts), list(space.mappings), space.previous)
            space = self._spaces[self._begin(copy)]
        self._put(space, where, mapping)

    def map_run(self, runs: MapRuns, run: int) -> bool:
        """Begin an address space with all mappings of run `run`, which is sound; return False, and change nothing, if
        they belong to the space that their process has already, or are too many."""
        first, size = int(runs.first[run]), int(runs.cuts[run + 1] - runs.cuts[run])
        pid = int(runs.maps.pid[first])
        number = self._current.get(pid, -1)
        if (number >= 0 and pid not in self._execing) or size > MAX_MAPPINGS:
            return False
        self._copies_left += size * _COPIES_PER_MAP
        self._execing.discard(pid)
        number = self._begin(_Space(pid, int(runs.maps.time_ns[first]), previous=number))
        self._run_of[number] = runs, run
        return True

    def _space(self, number: int) -> _Space:
        space = self._spaces[number]
        if number in self._run_of:
            runs, run = self._run_of.pop(number)
            maps = runs.maps.take(slice(int(runs.cuts[run]), int(runs.cuts[run + 1])))
            space.starts = maps.start.tolist()
            ends = (maps.start + maps.size).tolist()
            space.mappings = list(map(Mapping, space.starts, ends, maps.pgoff.tolist(), maps.dso.tolist()))
        return space

    def _put(self, space: _Space, where: slice, mapping: Mapping) -> None:
        if len(space.mappings) >= MAX_MAPPINGS:
            self.forgotten += 1
        space.replace(where, mapping, keep=len(space.mappings) < MAX_MAPPINGS)

    def fork(self, pid: int, parent: int, time_ns: int) -> None:
        """Begin a new process with its parent's mappings; both share them until one maps something."""
        number = self._current.get(parent, -1)
        if number < 0:
            return
        self._execing.discard(pid)
        self._shared.add(number)
        self._current[pid] = number
        self._timeline.append((pid, time_ns, number))

    def exec(self, pid: int, time_ns: int) -> None:
        """Begin a new image of a process, with the first mapping that follows. Until then the process is in execve(),
        whose caller is code of the old image. If no space of the process is known, the old image's space is unknown."""
        if pid not in self._current and time_ns > 0:
            self._timeline.append((pid, 0, UNKNOWN_SPACE))
        self._execing.add(pid)

    def _begin(self, space: _Space) -> int:
        self._spaces.append(space)
        number = len(self._spaces) - 1
        self._current[space.pid] = number
        self._timeline.append((space.pid, space.begin_ns, number))
        return number

    def split(self, pid: int, times_ns: Iterable[int]) -> None:
        """Begin a new version of the space of a process at each of these times, with the same mappings: the code in its
        memory has changed. Times at which one begins already are left out."""
        for time_ns in times_ns:
            begins = [(begin, number) for owner, begin, number in self._timeline if owner == pid and begin <= time_ns]
            begin_ns, number = max(begins, default=(0, UNKNOWN_SPACE))
            if number < 0 or begin_ns == time_ns:
                continue
            space = self._space(number)
            if len(space.mappings) > self._copies_left:
                return
            self._copies_left -= len(space.mappings)
            copy = _Space(pid, time_ns, list(space.starts), list(space.mappings), space.previous)
            current, own = self._current.get(pid), self._begin(copy)
            self._current[pid] = own if current in (None, number) else current

    def tables(self) -> tuple[Spaces, Maps]:
        """Return the spaces, and all mappings by (space, start); the kernel's come first, as space -1."""
        listed = [self._kernel, *self._spaces]
        counts = np.array([len(space.mappings) for space in listed])
        for number, (runs, run) in self._run_of.items():
            counts[number + 1] = runs.cuts[run + 1] - runs.cuts[run]
        offsets = offsets_of(counts)
        maps = Maps.filled(int(offsets[-1]), space=np.repeat(np.arange(-1, len(self._spaces)), counts))
        self._fill_in_lists(maps, listed, offsets)
        self._fill_in_runs(maps, offsets)
        return Spaces.from_rows([(space.pid, space.begin_ns, space.previous) for space in self._spaces]), maps

    def _fill_in_lists(self, maps: Maps, spaces: list[_Space], offsets: I64) -> None:
        sizes, last = np.array([len(space.mappings) for space in spaces]), _MAX_ADDRESS - 1
        places = spread(offsets[:-1], sizes, offsets_of(sizes))
        mappings = [mapping for space in spaces for mapping in space.mappings]
        maps.start[places] = np.array([mapping.start for mapping in mappings], np.uint64)
        maps.end[places] = np.array([min(mapping.end, last) for mapping in mappings], np.uint64)
        maps.pgoff[places] = np.array([mapping.pgoff & last for mapping in mappings], np.uint64)
        maps.dso[places] = np.array([mapping.dso for mapping in mappings], np.int32)

    def _fill_in_runs(self, maps: Maps, offsets: I64) -> None:
        for runs in {id(runs): runs for runs, _ in self._run_of.values()}.values():
            pairs = [(number, run) for number, (owner, run) in self._run_of.items() if owner is runs]
            number, run = np.array(pairs, np.int64).T
            sizes = runs.cuts[run + 1] - runs.cuts[run]
            places = spread(offsets[number + 1], sizes, offsets_of(sizes))
            run_maps = runs.maps.take(spread(runs.cuts[run], sizes, offsets_of(sizes)))
            maps.start[places], maps.end[places] = run_maps.start, run_maps.start + run_maps.size
            maps.pgoff[places], maps.dso[places] = run_maps.pgoff, run_maps.dso

    def timeline(self) -> tuple[I32, I64, I32]:
        """Return (pid, begin_ns, row in spaces), sorted by (pid, begin_ns), for `model.lookup.rows_at`."""
        pid, begin, space = np.array(self._timeline, np.int64).reshape(-1, 3).T
        order = np.lexsort((begin, pid))
        return pid[order].astype(np.int32), begin[order], space[order].astype(np.int32)
