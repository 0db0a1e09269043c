# SPDX-License-Identifier: Apache-2.0
"""The pid/tid pair of upstream's raw off-cpu samples: which half is which?

perf from 6.16 on writes sums as {tgid, tid} but samples sent directly as {tid, tgid}. The recording itself
knows better: COMM, FORK and EXIT records say which process each thread belongs to. Only where they are
silent does the path decide: a dummy time means a sum.
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.model.columns import I32, Bool, distinct, is_among
from perf_offcpu.model.recording import SampleFlag, Samples, Tasks


def count_foreign_ids(samples: Samples, tasks: Tasks) -> int:
    """How many off-cpu samples have thread ids that no other record of the recording has.

    BPF programs, upstream's and ours, give the ids of the first pid namespace; COMM, FORK and the like those
    of the recorder's. Where these are two, nothing fits together, and names are missing.
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
    """int32[n]: the process of each thread, -1 unknown."""
    if not len(tasks):
        return np.full(len(tids), -1, np.int32)
    order = np.argsort(tasks.tid, kind="stable")
    known = tasks.tid[order]
    slot = np.minimum(np.searchsorted(known, tids), len(known) - 1)
    return np.where(known[slot] == tids, tasks.pid[order][slot], -1).astype(np.int32)
