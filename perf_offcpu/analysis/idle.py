# SPDX-License-Identifier: Apache-2.0
"""Idle threads: those that merely wait for work, and drown out the others on a whole machine.

A wait is one *for work* if somebody else ends it by handing in the next piece: poll and its like, accept(),
signals, a terminal, condition variables and semaphores, and what a kernel thread does between its jobs.
Disks, locks, data on a socket or pipe, children and sleeps are none: something is under way, or nobody calls.

A thread is *idle* if at least 99 % of its time, waits and CPU samples together, were waits for work. A busy
server's event loop is none. Documentation/wait-classes.md tells it to people.
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.analysis.classify import Waits
from perf_offcpu.analysis.group import group, sum_by
from perf_offcpu.model.columns import Bool
from perf_offcpu.model.profile import Profile

IDLE_PERCENT = 99


def of_idle_threads(profile: Profile, waits: Waits) -> Bool:
    """bool[samples]: which samples are of idle threads.

    Args:
        profile: all samples of the threads, of all events.
        waits: `classify(profile)`.
    """
    samples = profile.samples
    first, of = group(samples.tid, samples.pid)
    counts_time = np.array([*(event.unit == "ns" for event in profile.evsels), False])[samples.evsel]
    period = np.where(counts_time, samples.period, 0)
    all_time = sum_by(of, period, len(first))
    for_work = sum_by(np.where(waits.for_work, of, -1), period, len(first))
    # Without products of whole sums: they could leave 63 bits.
    idle: Bool = (for_work > 0) & (all_time - for_work <= all_time // 100 * (100 - IDLE_PERCENT))
    return idle[of]
