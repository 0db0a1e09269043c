# SPDX-License-Identifier: Apache-2.0
"""Find idle threads: at least 99 % of their time, waits and CPU samples together, were waits for work. The event loop
of a busy server is not idle. `classes.classify` says which waits are for work."""

import numpy as np

from perf_offcpu.analysis.group import group, sum_by
from perf_offcpu.model.columns import Bool
from perf_offcpu.model.profile import Profile

_IDLE_PERCENT = 99


def of_idle_threads(profile: Profile, for_work: Bool) -> Bool:
    """Return bool[samples]: True for samples of idle threads. `profile`: all samples of the threads, of all events.
    `for_work`: bool[samples], see `classify.Waits`."""
    samples = profile.samples
    first, group_of = group(samples.tid, samples.pid)
    counts_time = np.array([*(event.unit == "ns" for event in profile.evsels), False])[samples.evsel]
    period = samples.period if counts_time.all() else np.where(counts_time, samples.period, 0)
    all_time = sum_by(group_of, period, len(first))
    work_time = sum_by(np.where(for_work, group_of, -1), period, len(first))
    # Without products of whole sums: they could leave 63 bits.
    idle: Bool = (work_time > 0) & (all_time - work_time <= all_time // 100 * (100 - _IDLE_PERCENT))
    return idle[group_of]
