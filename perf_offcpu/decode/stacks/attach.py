# SPDX-License-Identifier: Apache-2.0
"""Attach copies of user stacks to samples that came without them, from another reading of the recording.

perf's Python handlers get neither registers nor stack bytes. Their samples are looked up in perf's input
file, which may hold more (`perf script --comm`, `--time`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.model.columns import I64
from perf_offcpu.model.recording import Recording, Samples


def with_snapshots_of(recording: Recording, whole: Recording) -> Recording:
    """Return the recording with `whole`'s snapshots; samples that `whole` does not have get none.

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


def _keys(samples: Samples) -> NDArray[Any]:
    """Return the keys of samples: time, thread, event, and the ordinal among equal ones."""
    columns: dict[str, NDArray[Any]] = {"evsel": samples.evsel, "tid": samples.tid, "time": samples.time_ns}
    order = np.lexsort(tuple(columns.values()))
    new = np.ones(len(samples), np.bool_)
    ordered = [column[order] for column in columns.values()]
    new[1:] = np.any([column[1:] != column[:-1] for column in ordered], axis=0)
    first: I64 = np.maximum.accumulate(np.where(new, np.arange(len(samples)), 0))
    keys = np.zeros(len(samples), [("time", "i8"), ("tid", "i4"), ("evsel", "i4"), ("ordinal", "i8")])
    for name, column in columns.items():
        keys[name] = column
    keys["ordinal"][order] = np.arange(len(samples)) - first
    return keys
