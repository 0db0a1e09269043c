# SPDX-License-Identifier: Apache-2.0
"""Derive waits from SWITCH records while recording goes on: a wait lasts from a switch-out to the next switch-in of its
thread. Rings of CPUs are drained one after the other, so records are sorted by time, and the latest ones are kept until
the next drain. The kernel callchains of switch-outs are kept until the waits that begin with them are over; an ordinary
user gets them at kernel.perf_event_paranoid 1 and lower."""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi.records import Misc, RecordType
from perf_offcpu.abi.sample import SAMPLE, TRAILER, SampleShape
from perf_offcpu.binary.columnar import gather_rows, gather_u64, read_columns
from perf_offcpu.binary.layout import Buffer
from perf_offcpu.collect.events.evsels import SAMPLE_TYPE
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.lookup import rows_at
from perf_offcpu.perfdata.scan import Chunk, Scanner
from perf_offcpu.perfdata.write.columns import bytes_of

Rows = NDArray[Any]

_BOTH = [("pid", "u4"), ("tid", "u4"), ("cpu", "u4"), ("kind", "u1"), ("preempted", "u1"), ("ran_since", "i8")]
EVENT: Final = np.dtype([*_BOTH, ("time", "i8")], align=True)
IN, OUT, GONE, BEFORE = range(4)
"""Kinds of events: switch-in, switch-out, end of the thread, off the CPU since before the recording."""
INTERVAL: Final = np.dtype([*_BOTH, ("begin", "i8"), ("end", "i8")], align=True)
"""Time of a thread between two switches, ns. `kind`: of the event at its begin, so IN for time on a CPU. `ran_since`:
time of the event before that one, 0 if unknown."""
_SWITCHES: Final = (int(RecordType.SWITCH), int(RecordType.EXIT), int(RecordType.LOST))
_KEY: Final = np.dtype([("tid", "i4"), ("time", "i8")])  # of a callchain
_IDENTIFIER: Final = 8  # offset in a sample: the first field after the header


class KernelChains:
    """Keep the kernel callchains of switch-outs and find them by wait. `ids`: of the event of context switches; empty
    if the kernel refuses it. `shape`: of its samples."""

    def __init__(self, ids: Iterable[int], shape: SampleShape) -> None:
        self._ids, self._shape = np.array(list(ids), np.uint64), shape
        self.clear()

    def clear(self) -> None:
        """Drop all chains: records were lost, so a chain may be of another wait."""
        self._keys, self._chains = np.zeros(0, _KEY), Ragged()  # in order of thread and time
        self._new: list[tuple[Rows, Ragged]] = []

    def take_from(self, chunk: Chunk, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Keep the callchains of samples of switches; return their rows in `chunk`. `samples`: rows of all samples."""
        if not len(self._ids) or not len(samples):
            return samples[:0]
        rows = samples[np.isin(gather_u64(chunk.data, chunk.starts[samples] + _IDENTIFIER), self._ids)]
        ends = chunk.starts[rows] + chunk.sizes[rows]
        columns = read_columns(SAMPLE, chunk.data, chunk.starts[rows] + 8, ends, NATIVE, self._shape)
        chains = Ragged(*gather_rows(chunk.data, columns.arrays["callchain"]))
        keys = np.zeros(len(rows), _KEY)
        keys["tid"], keys["time"] = columns.scalars["tid"], columns.scalars["time"]
        self._new.append((keys[columns.ok], chains.take(np.flatnonzero(columns.ok))))
        return rows

    def _sort(self) -> None:
        """Merge the new chains into `_chains`, sorted by thread and time."""
        keys = np.concatenate([self._keys, *(keys for keys, _ in self._new)])
        chains = Ragged.concat([self._chains, *(chains for _, chains in self._new)])
        order = np.lexsort((keys["time"], keys["tid"]))
        self._keys, self._chains, self._new = keys[order], chains.take(order), []

    def of_waits(self, waits: Rows) -> Ragged:
        """Return the kernel callchain with which each wait (`switches.INTERVAL`) began, empty if unknown. The kernel
        takes the sample just before the SWITCH record: between the last switch-in (`ran_since`) and the wait."""
        if self._new:
            self._sort()
        keys = np.append(self._keys, np.zeros(1, _KEY))
        rows = rows_at(keys["tid"][:-1], keys["time"][:-1], waits["tid"].astype(np.int32), waits["begin"])
        times = keys["time"][rows]
        is_of_wait = (rows >= 0) & (times <= waits["begin"]) & (times >= waits["ran_since"])
        return self._chains.take(np.where(is_of_wait, rows, -1))

    def forget(self, last_switches: Rows) -> None:
        """Drop chains from before `ran_since` (switch before the last) of their thread. `last_switches`: EVENT rows."""
        self._sort()
        order = np.argsort(last_switches["tid"], kind="stable")
        tids = last_switches["tid"][order]
        since = np.append(last_switches["ran_since"][order], np.iinfo(np.int64).min)
        rows = np.searchsorted(tids, self._keys["tid"])
        is_known = np.append(tids, 0)[rows] == self._keys["tid"]
        kept = np.flatnonzero(self._keys["time"] >= since[np.where(is_known, rows, len(tids))])
        self._keys, self._chains = self._keys[kept], self._chains.take(kept)


class SwitchLog:
    """Take SWITCH records out of drained records; a sink of rings. `tasks`: tid → pid of the threads that exist at
    `begin_ns`. `counters`: counts damaged records and missing switches. `chains`: takes the samples of context
    switches. `others`: all other records, which the caller removes and passes to `SideBand`. `samples`: number of
    on-CPU samples put into `others` so far. `last`: the last EVENT of each thread before the last `take`."""

    def __init__(self, tasks: dict[int, int], begin_ns: int, counters: Losses, chains: KernelChains) -> None:
        self.others: list[Buffer] = []
        self.samples, self._counters, self._chains = 0, counters, chains
        self.last = np.zeros(len(tasks), EVENT)
        self.last["tid"], self.last["pid"] = list(tasks), list(tasks.values())
        self.last["time"], self.last["kind"] = begin_ns, BEFORE
        self._new: list[Rows] = []

    def append(self, *pieces: Buffer) -> None:
        """Take complete records: note SWITCH and EXIT, pass samples of switches to `chains`, put all records but SWITCH
        and these samples into `others`."""
        for chunk in Scanner(NATIVE, self._counters).feed(b"".join(pieces)):
            samples = np.flatnonzero(chunk.types == RecordType.SAMPLE)
            switches = self._chains.take_from(chunk, samples)
            self.samples += len(samples) - len(switches)
            self._note(chunk.take(np.flatnonzero(np.isin(chunk.types, _SWITCHES))))
            is_other = chunk.types != RecordType.SWITCH
            is_other[switches] = False
            others = bytes_of(chunk.take(np.flatnonzero(is_other)))
            if len(others):
                self.others.append(bytes(others))

    def _note(self, chunk: Chunk) -> None:
        ends = chunk.starts + chunk.sizes
        trailer = read_columns(TRAILER, chunk.data, ends - TRAILER.size(SAMPLE_TYPE), ends, NATIVE, SAMPLE_TYPE).scalars
        rows = np.zeros(len(chunk), EVENT)
        for name in ("pid", "tid", "time", "cpu"):
            rows[name] = trailer[name]
        rows["kind"] = np.where(chunk.miscs & np.uint16(Misc.SWITCH_OUT) != 0, OUT, IN)
        rows["kind"][chunk.types == RecordType.EXIT] = GONE
        rows["preempted"] = chunk.miscs & np.uint16(Misc.SWITCH_OUT_PREEMPT) != 0
        if (chunk.types == RecordType.LOST).any():
            # A switch may be among the lost records: the last event of each thread is unknown.
            self.last, self._new = self.last[:0], []
            self._chains.clear()
        self._new.append(rows[chunk.types != RecordType.LOST])

    def _events(self) -> Rows:
        """Return `last` (last EVENT of each thread before `take`) and all later events, sorted by thread and time."""
        events = np.concatenate([self.last, *self._new])
        return events[np.lexsort((events["time"], events["tid"]))]

    def take(self, before_ns: int) -> Rows:
        """Remove and return the intervals (INTERVAL) that ended before `before_ns`, a time before the last drain."""
        events = self._events()
        late = events["time"] >= before_ns
        self._new, events = [events[late]], events[~late]
        same = events["tid"][1:] == events["tid"][:-1]
        events["ran_since"][1:] = np.where(same, events["time"][:-1], events["ran_since"][1:])
        begin, end = events[:-1], events[1:]
        off = (begin["kind"] == OUT) | (begin["kind"] == BEFORE)
        paired = same & np.where(off, end["kind"] == IN, (begin["kind"] == IN) & (end["kind"] != IN))
        self._counters.add(losses.ENDS_MISSED, int((same & (begin["kind"] == OUT) & (end["kind"] == OUT)).sum()))
        self._counters.add(losses.BEGINS_MISSED, int((same & (begin["kind"] == IN) & (end["kind"] == IN)).sum()))
        intervals = np.zeros(int(paired.sum()), INTERVAL)
        for name in ("pid", "tid", "kind", "preempted", "ran_since"):
            intervals[name] = begin[name][paired]
        intervals["begin"], intervals["end"] = begin["time"][paired], end["time"][paired]
        intervals["cpu"] = end["cpu"][paired]
        last = events[np.append(~same, True)[: len(events)]]
        self.last = last[last["kind"] != GONE]
        return intervals

    def off_cpu(self) -> Rows:
        """Return the last event (EVENT) of each thread that is off the CPU by the records drained so far."""
        events = self._events()
        last = events[np.append(events["tid"][1:] != events["tid"][:-1], True)[: len(events)]]
        off: Rows = last[(last["kind"] == OUT) | (last["kind"] == BEFORE)]
        return off

    def unfinished(self, end_ns: int) -> Rows:
        """Return the INTERVAL of each thread that still lasts at `end_ns`. Call after `take` of all events."""
        intervals = np.zeros(len(self.last), INTERVAL)
        for name in ("pid", "tid", "kind", "preempted", "cpu", "ran_since"):
            intervals[name] = self.last[name]
        intervals["begin"], intervals["end"] = self.last["time"], np.maximum(self.last["time"], end_ns)
        return intervals
