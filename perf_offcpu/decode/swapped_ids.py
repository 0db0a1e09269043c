# SPDX-License-Identifier: Apache-2.0
"""Repair the pid/tid pair of upstream's raw off-cpu samples, which is swapped in some.

perf from 6.16 on writes sums as {tgid, tid} but samples sent directly as {tid, tgid}. The COMM, FORK and EXIT
records name the process of each thread; of other threads samples with a dummy time are taken for sums.
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.model.columns import I32, Bool, distinct, is_among
from perf_offcpu.model.recording import SampleFlag, Samples, Tasks


def count_foreign_ids(samples: Samples, tasks: Tasks) -> int:
    """Count the off-cpu samples with thread ids that no other record of the recording has.

    BPF programs write ids of the first pid namespace, COMM, FORK and other records have ids of the
    recorder's. Where these differ, names are missing.
    """
    if not len(tasks):
        return 0
    waits = samples.tid[samples.has(SampleFlag.OFFCPU)]
    return int((~is_among(waits, distinct(tasks.tid)) & (waits > 0)).sum())


def repair_ids(samples: Samples, from_upstream: Bool, tasks: Tasks) -> Samples:
    """Put pid and tid of upstream's off-cpu samples in order; others pass unchanged.

    Args:
        samples: `pid` holds the payload's low half, `tid` its high half, where `from_upstream`.
        tasks: every thread that the recording knows, whatever the time.

    Returns:
        The samples with pid = tgid; exchanged ones are flagged REPAIRED_IDS.
    """
    if not from_upstream.any():
        return samples
    low, high = samples.pid, samples.tid
    tgid_of_low, tgid_of_high = _tgid(tasks, low), _tgid(tasks, high)
    is_right = (tgid_of_high == low) & ((tgid_of_low == low) | (tgid_of_low < 0))
    is_swapped = (tgid_of_low == high) & ((tgid_of_high == high) | (tgid_of_high < 0))
    is_sum = samples.has(SampleFlag.UNTIMED)
    swap = from_upstream & (low != high) & np.where(is_right | is_swapped, is_swapped, ~is_sum)
    return samples.with_columns(
        pid=np.where(swap, high, low),
        tid=np.where(swap, low, high),
        flags=samples.flags | np.where(swap, np.uint32(SampleFlag.REPAIRED_IDS), np.uint32(0)),
    )


def _tgid(tasks: Tasks, tids: I32) -> I32:
    """Return int32[n]: the process of each thread, -1 unknown."""
    slot, none = np.searchsorted(tasks.tid, tids), np.int32(-1)
    known = np.append(tasks.tid, none)[slot] == tids
    return np.where(known, np.append(tasks.pid, none)[slot], none)
