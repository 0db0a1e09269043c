# SPDX-License-Identifier: Apache-2.0
"""Write thread states and counters of a Perfetto trace: the waits as the scheduler sees them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perf_offcpu.analysis.group import stable_order
from perf_offcpu.analysis.states import STATES, state_codes
from perf_offcpu.analysis.timeline import Timeline
from perf_offcpu.analysis.wakeups import Wakeups
from perf_offcpu.convert.encode.protobuf import field, from_bytes, numbers
from perf_offcpu.convert.encode.text_columns import blocks
from perf_offcpu.convert.perfetto.packets import BLOCKED_UUID, COUNTER, RUNNABLE_UUID, events, task_states
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag

BLOCK = 1 << 15
"""Events that are encoded at once."""
_RUNNABLE, _RUNNING = 2, 3
_TASK_STATES = {"R": _RUNNABLE, "S": 4, "D": 5, "I": 4, "T": 6, "t": 6, "P": 4}
"""Letter → GenericKernelTaskStateEvent.TaskStateEnum; other states are not written."""


def state_packets(profile: Profile, timeline: Timeline, wakeups: Wakeups) -> Iterator[bytes]:
    """Return the state of each thread from switch-out, from wake-up and from switch-in on.

    The CPU that a thread left is not in a sample: it is the CPU on which it went on after its previous wait.
    """
    samples = profile.samples
    asleep = np.array([_TASK_STATES.get(state.letter, 0) for state in STATES])[state_codes(samples)]
    waits = np.flatnonzero(timeline.waits & (asleep > 0) & (samples.tid > 0))
    cpu = np.maximum(samples.cpu.astype(np.int64), 0)
    left = _previous(timeline.track[waits], cpu[waits])
    comms = from_bytes([field(2, track.comm) for track in timeline.tracks] or [b""])
    went_on = (samples.flags[waits] & np.uint32(SampleFlag.STILL_BLOCKED)) == 0
    queued = (wakeups.queued_ns[waits] < timeline.end_ns[waits]) & (asleep[waits] != _RUNNABLE)
    everyone = np.ones(len(waits), np.bool_)
    went_on &= samples.cpu[waits] >= 0
    for time_ns, state, at, chosen in (
        (timeline.begin_ns[waits], asleep[waits], left, everyone),
        (wakeups.queued_ns[waits], np.full(len(waits), _RUNNABLE), left, queued),
        (timeline.end_ns[waits], np.full(len(waits), _RUNNING), cpu[waits], went_on),
    ):
        for rows in blocks(chosen, BLOCK):
            comm = comms.take(timeline.track[waits[rows]])
            tid = samples.tid[waits[rows]].astype(np.int64)
            yield task_states(time_ns[rows] + timeline.origin_ns, state[rows], tid, at[rows], comm)


def counter_packets(timeline: Timeline, wakeups: Wakeups) -> Iterator[bytes]:
    """Return the number of threads that were blocked, and that waited for a CPU, at each change."""
    waits = timeline.waits
    begin, queued, end = timeline.begin_ns[waits], wakeups.queued_ns[waits], timeline.end_ns[waits]
    for uuid, since, until in ((BLOCKED_UUID, begin, queued), (RUNNABLE_UUID, queued, end)):
        some = since < until
        time_ns, value = _counts(since[some], until[some])
        for rows in blocks(np.ones(len(time_ns), np.bool_), BLOCK):
            track = np.full(len(rows), uuid)
            yield events(time_ns[rows] + timeline.origin_ns, COUNTER, track, numbers(30, value[rows]))


def _counts(since: I64, until: I64) -> tuple[I64, I64]:
    """Return the times at which the number of open intervals changes, and the number from then on."""
    times = np.concatenate([since, until])
    order = np.argsort(times, kind="stable")
    change = np.where(order < len(since), 1, -1)
    time_ns, number = times[order], np.cumsum(change)
    last = np.append(time_ns[1:] != time_ns[:-1], True)[: len(time_ns)]
    return time_ns[last], number[last]


def _previous(track: I64, values: I64) -> I64:
    """Return the previous value of the same track, in the order of rows; for the first its own."""
    order = stable_order(track)
    before = np.append(order[:1], order[:-1])
    result = values.copy()
    result[order] = np.where(track[before] == track[order], values[before], values[order])
    return result
