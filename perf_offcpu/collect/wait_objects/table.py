# SPDX-License-Identifier: Apache-2.0
"""Write the descriptions of wait objects while recording goes on.

The BPF program queues each object when it is first seen. Names are looked up in a thread, soon, because the
process may end; and the rings are emptied meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.collect.collector import Collector
from perf_offcpu.collect.kernel_totals.budgets import account_sample
from perf_offcpu.collect.output_file import OutputFile, Piece
from perf_offcpu.collect.system.background import NAP_S, in_background
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.wait_objects.describe import (
    Described,
    describe,
    described_again,
    is_epoll,
    object_payloads,
)

NAMING_S = 2.0
"""Longest time for names at the end of a file; /proc may wait for a lock of the process."""
_MOST_SETS = 256


class ObjectTable:
    """The objects of one recording, on their way from the BPF program to files."""

    def __init__(self, collector: Collector) -> None:
        self._collector, self._names = collector, collector.options.object_names
        self._naming: Future[list[Described]] | None = None
        self._named: NDArray[np.void] = np.empty(0, np.void)
        self._sets: dict[int, NDArray[np.void]] = {}  # epoll instances of this file by id, a row each
        self._unwritten: Iterator[Piece] = iter(())

    def follow(self, files: Iterable[OutputFile]) -> None:
        """Write the objects that have names by now, and begin to name those that are new."""
        if self._naming is not None and self._naming.done():
            self._write(self._naming.result(), files)
            self._naming = None
        if self._naming is None and len(rows := self._collector.program.maps.take_objects()):
            self._begin(rows)

    def finish(self, files: Iterable[OutputFile], drain: Callable[[], object]) -> None:
        """Write all objects up to now, for the end of a file, and what epoll instances watch by now.

        Args:
            drain: empties the rings, and is called again and again.
        """
        files, until = list(files), time.monotonic() + NAMING_S
        self.follow(files)
        self._await(files, until, drain)
        if self._sets and self._names:
            sets, self._sets = np.concatenate(list(self._sets.values())), {}
            self._named, self._naming = sets[:0], in_background(lambda: described_again(sets))
            self._await(files, until, drain)

    def _await(self, files: Iterable[OutputFile], until: float, drain: Callable[[], object]) -> None:
        while self._naming is not None:
            if time.monotonic() > until:  # from here on without names: /proc does not answer
                self._naming, self._names = None, False
                self._write(describe(self._named, names=False), files)
            else:
                wait([self._naming], NAP_S)
                drain()
            self.follow(files)

    def unwritten(self) -> Iterator[Piece]:
        """Yield what is not written, for a file that takes no more than a little."""
        return self._unwritten

    def _begin(self, rows: NDArray[np.void]) -> None:
        names = self._names
        for at in range(len(rows)):
            if is_epoll(rows[at]) and len(self._sets) < _MOST_SETS:
                self._sets[int(rows[at]["id"])] = rows[at : at + 1]
        self._named, self._naming = rows, in_background(lambda: describe(rows, names=names))

    def _write(self, objects: list[Described], files: Iterable[OutputFile]) -> None:
        event = self._collector.counters_event
        for file in files:
            for payload in object_payloads(objects):
                record = account_sample(event, payload, now_ns())
                self._unwritten = iter([Piece(losses.OBJECTS_UNWRITTEN, np.zeros(1, np.uint64), record)])
                file.append(record)
                self._unwritten = iter(())
