# SPDX-License-Identifier: Apache-2.0
"""Copies of user stacks for samples that came without them, from another reading of the same recording.

perf's Python handlers get neither registers nor stack bytes. What perf handed over is found again among the
samples of its input file, of which it may be a part only (`perf script --comm`, `--time`).
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.model.columns import I64
from perf_offcpu.model.recording import Recording, Samples


def with_snapshots_of(recording: Recording, whole: Recording) -> Recording:
    """The recording with `whole`'s snapshots; samples that `whole` does not have stay without one.

    Args:
        recording: samples in time order, left unchanged.
        whole: the recording that they are from, in time order, too.
    """
    theirs, ours = _keys(whole.samples), _keys(recording.samples)
    keys, place = np.unique(np.concatenate([theirs, ours]), return_inverse=True)
    row_of = np.full(len(keys), -1, np.int64)
    row_of[place[: len(theirs)]] = np.arange(len(theirs))
    row = row_of[place[len(theirs) :]]
    snapshot = np.where(row >= 0, whole.samples.snapshot[row], np.int32(-1)).astype(np.int32)
    samples = recording.samples.with_columns(snapshot=snapshot)
    return recording.replaced(samples=samples, snapshots=whole.snapshots)


def _keys(samples: Samples) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """What tells samples apart: time, thread, event, and the how-manieth of its like."""
    order = np.lexsort((samples.evsel, samples.tid, samples.time_ns))
    columns = (samples.time_ns, samples.tid, samples.evsel)
    new = np.ones(len(samples), np.bool_)
    if len(samples) > 1:
        new[1:] = np.any([column[order][1:] != column[order][:-1] for column in columns], axis=0)
    first: I64 = np.maximum.accumulate(np.where(new, np.arange(len(samples)), 0))
    keys = np.zeros(len(samples), [("time", "i8"), ("tid", "i4"), ("evsel", "i4"), ("rank", "i8")])
    keys["time"], keys["tid"], keys["evsel"] = columns
    keys["rank"][order] = np.arange(len(samples)) - first
    return keys
