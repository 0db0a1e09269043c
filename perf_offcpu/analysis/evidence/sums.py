# SPDX-License-Identifier: Apache-2.0
"""Give sums of short waits the class of similar single waits.

A sum has neither a kernel stack nor an object, and read() alone does not tell a pipe from a file. A single
wait of the same process, in the same system call, called from the same place of the program, does. If such
single waits have several classes, the most frequent class is used. Waits for a CPU are not considered.
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.group import group
from perf_offcpu.model.columns import I64, U8, Bool
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SUM_FLAGS

_FOR_CPU = (WaitClass.RUNQUEUE, WaitClass.THROTTLED)


def like_single_waits(profile: Profile, wait_class: U8, for_work: Bool, undecided: Bool) -> tuple[U8, Bool]:
    """Return class and purpose of each sample; sums of class OTHER get those of similar single waits.

    Args:
        wait_class, for_work: class and purpose of each sample so far.
        undecided: bool[samples], True where no rule of a program has decided.
    """
    samples = profile.samples
    is_wait, is_sum = profile.is_offcpu(), samples.has(SUM_FLAGS)
    known = is_wait & (samples.syscall >= 0) & (samples.stack >= 0)
    sums = np.flatnonzero(known & is_sum & undecided & (wait_class == WaitClass.OTHER))
    single = np.flatnonzero(known & ~is_sum & ~np.isin(wait_class, _FOR_CPU))
    if not len(sums) or not len(single):
        return wait_class, for_work
    rows = np.concatenate([sums, single])
    caller = _user_leaf(profile)[samples.stack[rows]]
    first, of = group(samples.pid[rows], samples.syscall[rows], caller)
    answer = wait_class[single].astype(np.int64) * 2 + for_work[single]
    one, pair = group(of[len(sums) :], answer)
    most = np.full(len(first), -1, np.int64)
    for at in np.argsort(np.bincount(pair), kind="stable").tolist():  # the most frequent is written last
        most[of[len(sums) + one[at]]] = answer[one[at]]
    found = np.where(caller[: len(sums)] >= 0, most[of[: len(sums)]], -1)
    wait_class, for_work = wait_class.copy(), for_work.copy()
    wait_class[sums[found >= 0]] = found[found >= 0] // 2
    for_work[sums[found >= 0]] = found[found >= 0] % 2 == 1
    return wait_class, for_work


def _user_leaf(profile: Profile) -> I64:
    """Return int64[stacks]: the innermost node of the user's part of each stack; -1 for none."""
    parent = profile.stacks.parent.astype(np.int64)
    is_kernel = profile.frames.is_kernel()[profile.stacks.frame]
    leaf = np.where(is_kernel, parent, np.arange(len(parent)))
    while True:
        at = np.flatnonzero((leaf >= 0) & np.append(is_kernel, False)[leaf])
        if not len(at):
            return leaf
        leaf[at] = leaf[leaf[at]]
