# SPDX-License-Identifier: Apache-2.0
"""Make waits of SWITCH records while recording goes on: a wait lasts from a switch-out to the next switch-in of its
thread. Rings of CPUs are drained one after the other, so records are sorted by time, and the latest ones are
kept until the next drain."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi.records import Misc, RecordType
from perf_offcpu.abi.sample import TRAILER
from perf_offcpu.binary.columnar import read_columns
from perf_offcpu.binary.fields import Buffer
from perf_offcpu.collect.events.evsels import SAMPLE_TYPE
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.unprivileged.chains import KernelChains
from perf_offcpu.losses import Losses
from perf_offcpu.perfdata.scan import Chunk, Scanner
from perf_offcpu.perfdata.write.columns import bytes_of

Rows = NDArray[Any]

EVENT: Final = np.dtype(
    [("pid", "u4"), ("tid", "u4"), ("time", "i8"), ("cpu", "u4"), ("kind", "u1"), ("preempted", "u1")]
    + [("ran_since", "i8")],
    align=True,
)
IN, OUT, GONE, BEFORE = range(4)
"""Kinds of events: switch-in, switch-out, end of the thread, off the CPU since before the recording."""
INTERVAL: Final = np.dtype(
    [("pid", "u4"), ("tid", "u4"), ("begin", "i8"), ("end", "i8"), ("cpu", "u4"), ("kind", "u1"), ("preempted", "u1")]
    + [("ran_since", "i8")],
    align=True,
)
"""Time of a thread between two switches; `kind` is that of the event at its begin: IN for time on a CPU. `ran_since` is
the time of the event before that (0: not known)."""
_SWITCHES: Final = (int(RecordType.SWITCH), int(RecordType.EXIT), int(RecordType.LOST))


class SwitchLog:
    """Take SWITCH records out of drained records; a sink of rings. `tasks`: thread → process, of the threads that exist
    at `begin_ns`. `counters`: counts damaged records and missing switches. `chains`: takes the samples of context
    switches. `others`: all other records, which the caller removes and passes to `SideBand`. `samples`: number of
    on-CPU samples put into `others` so far."""

    def __init__(self, tasks: dict[int, int], begin_ns: int, counters: Losses, chains: KernelChains) -> None:
        self.others: list[Buffer] = []
        self.samples, self._counters, self._chains = 0, counters, chains
        self._last = np.zeros(len(tasks), EVENT)  # the last event of each thread
        self._last["tid"], self._last["pid"] = list(tasks), list(tasks.values())
        self._last["time"], self._last["kind"] = begin_ns, BEFORE
        self._new: list[Rows] = []

    def append(self, *pieces: Buffer) -> None:
        """Take whole records."""
        for chunk in Scanner(NATIVE, self._counters).feed(b"".join(pieces)):
            samples = np.flatnonzero(chunk.types == RecordType.SAMPLE)
            switches = self._chains.take_from(chunk, samples)
            self.samples += len(samples) - len(switches)
            is_switch = np.isin(chunk.types, _SWITCHES)
            self._note(chunk.take(np.flatnonzero(is_switch)))
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
        is_out = chunk.miscs & np.uint16(Misc.SWITCH_OUT) != 0
        rows["kind"] = np.where(is_out, OUT, IN)
        rows["kind"][chunk.types == RecordType.EXIT] = GONE
        rows["preempted"] = chunk.miscs & np.uint16(Misc.SWITCH_OUT_PREEMPT) != 0
        if (chunk.types == RecordType.LOST).any():
            # Threads may have run since: what they did last is not known.
            self._last, self._new = self._last[:0], []
            self._chains.clear()
        self._new.append(rows[chunk.types != RecordType.LOST])

    def take(self, before_ns: int) -> Rows:
        """Return the intervals (INTERVAL) that ended before `before_ns`, the time before the drain of all rings."""
        events = np.concatenate([self._last, *self._new])
        late = events["time"] >= before_ns
        self._new = [events[late]]
        events = events[~late]
        events = events[np.lexsort((events["time"], events["tid"]))]
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
        self._last = last[last["kind"] != GONE]
        return intervals

    def forget_chains(self) -> None:
        """Forget callchains of waits that `take` has returned."""
        self._chains.forget(self._last)

    def off_cpu(self) -> Rows:
        """Return the last event (EVENT) of each thread that is off the CPU, as far as records tell."""
        events = np.concatenate([self._last, *self._new])
        events = events[np.lexsort((events["time"], events["tid"]))]
        last = events[np.append(events["tid"][1:] != events["tid"][:-1], True)[: len(events)]]
        off: Rows = last[(last["kind"] == OUT) | (last["kind"] == BEFORE)]
        return off

    def unfinished(self, end_ns: int) -> Rows:
        """Return the intervals (INTERVAL), after `take` of all events, that last at `end_ns`."""
        intervals = np.zeros(len(self._last), INTERVAL)
        for name in ("pid", "tid", "kind", "preempted", "cpu", "ran_since"):
            intervals[name] = self._last[name]
        intervals["begin"], intervals["end"] = self._last["time"], np.maximum(self._last["time"], end_ns)
        return intervals
