# SPDX-License-Identifier: Apache-2.0
"""Write the two counters of a Perfetto trace: threads blocked, and threads waiting for a CPU. A recording with many
waits has their means over short steps instead of each change, which no screen could show."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.analysis.timeline import Timeline
from perf_offcpu.analysis.wakeups import Wakeups
from perf_offcpu.convert.encode.protobuf import field, fixed64, numbers
from perf_offcpu.convert.encode.text_columns import blocks
from perf_offcpu.convert.perfetto.packets import BLOCKED_UUID, COUNTER, RUNNABLE_UUID, events, packet
from perf_offcpu.model.columns import I64

MOST_CHANGES = 1 << 17
"""Waits of which each change is written."""
_STEPS = 1 << 16
_BLOCK = 1 << 15  # events that are encoded at once


def counter_packets(timeline: Timeline, wakeups: Wakeups) -> Iterator[bytes]:
    """Yield the packets of both counters' tracks and of their values."""
    waits = timeline.waits
    begin, queued, end = timeline.begin_ns[waits], wakeups.queued_ns[waits], timeline.end_ns[waits]
    for uuid, name, opens, closes in (
        (BLOCKED_UUID, "threads blocked", begin, queued),
        (RUNNABLE_UUID, "threads runnable", queued, end),
    ):
        lasts = opens < closes
        since, until = opens[lasts], closes[lasts]
        means = len(since) > MOST_CHANGES
        step_ns = -(-int(until.max() - since.min()) // _STEPS) if means else 0
        time_ns, value = mean_counts(since, until, step_ns) if means else counts(since, until)
        label = f"{name}, mean of each {step_ns / 1000:.1f} us" if means else name
        yield packet(field(60, field(1, uuid) + field(2, label) + field(8, field(3, 2))))
        for rows in blocks(np.arange(len(time_ns)), _BLOCK):
            values = fixed64(44, value[rows]) if means else numbers(30, value[rows].astype(np.int64))
            yield events(time_ns[rows] + timeline.origin_ns, COUNTER, np.full(len(rows), uuid), values)


def counts(since: I64, until: I64) -> tuple[I64, NDArray[np.float64]]:
    """Return int64[m], float64[m]: the times at which the intervals from `since` to `until` begin or end, ascending,
    and the number open from then on."""
    times = np.concatenate([since, until])
    times <<= 1
    times[len(since) :] |= 1  # the lowest bit says which
    times.sort()
    number = np.cumsum(1 - 2 * (times & 1), dtype=np.float64)
    times >>= 1
    last = np.append(times[1:] != times[:-1], True)[: len(times)]
    return times[last], number[last]


def mean_counts(since: I64, until: I64, step_ns: int) -> tuple[I64, NDArray[np.float64]]:
    """Return int64[m], float64[m]: the begin of each step of `step_ns`, and the mean number of intervals open in it.
    After the last step the number is 0. Mean times step, added up, is the time of all intervals."""
    first = int(since.min())
    steps = int(until.max() - first) // step_ns + 1
    open_ns, number = np.zeros(steps), np.zeros(steps, np.int64)
    for times, sign in ((since - first, 1), (until - first, -1)):
        step = times // step_ns
        number += sign * np.bincount(step, minlength=steps)
        open_ns += sign * np.bincount(step, (step + 1) * step_ns - times, steps)
    open_ns += (np.cumsum(number) - number) * step_ns
    return first + step_ns * np.arange(steps + 1), np.append(open_ns / step_ns, 0.0)
