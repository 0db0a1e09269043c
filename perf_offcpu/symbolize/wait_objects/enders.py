# SPDX-License-Identifier: Apache-2.0
"""Find who ended the waits for locks and semaphores: threads that wait for them as well, or others.

Threads that end each other's waits share a lock; an object whose waits only others end passes work.
A wait that ended as its thread did says neither: an exit wakes all threads of its process.
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.model.columns import I64, U16, Bool
from perf_offcpu.model.lookup import rows_at
from perf_offcpu.model.profile import ObjectFact, Objects
from perf_offcpu.model.recording import SUM_FLAGS, Recording, SampleFlag

_NOT_ENDED = SampleFlag.WAKER_INTERRUPT | SampleFlag.STILL_BLOCKED | SUM_FLAGS
_KINDS = (ObjectKind.FUTEX, ObjectKind.SEMAPHORES)
_EXIT_NS = 1_000_000


def enders_of(recording: Recording, entry: I64, objects: Objects) -> U16:
    """Return uint16[objects]: what is known of who ended the waits for each object, ObjectFact.

    Args:
        entry: int64[samples], the object of each sample; -1 for none.
    """
    samples, kind = recording.samples, objects.kind
    found = np.zeros(len(kind), np.uint16)
    rows = np.flatnonzero((entry >= 0) & np.isin(np.append(kind, 0)[entry], _KINDS) & ~samples.has(SUM_FLAGS))
    if not len(rows):
        return found
    # Processes that share a word have an object each, of one name. Condition variables and rwlocks have two
    # words, next to each other.
    shared = objects.shared | (kind == ObjectKind.SEMAPHORES)
    word = np.where(shared, objects.name, objects.address >> np.uint64(3))
    both = np.stack([np.where(shared, -1, objects.pid), word.astype(np.int64)], axis=1)
    different, number = np.unique(both, axis=0, return_inverse=True)
    number, groups = number.reshape(-1), len(different)
    thing = number[entry[rows]]
    waits = np.unique(thing.astype(np.int64) << 32 | samples.tid[rows])
    several = np.bincount(waits >> 32, minlength=groups) > 1
    ended = ~samples.has(_NOT_ENDED)[rows] & (samples.waker_tid[rows] > 0) & ~_exits(recording, rows)
    ended &= shared[entry[rows]] | (samples.waker_pid[rows] == samples.pid[rows])  # else it was a signal
    waker_tid, waker_pid, thing = samples.waker_tid[rows][ended], samples.waker_pid[rows][ended], thing[ended]
    is_peer = np.isin(thing.astype(np.int64) << 32 | waker_tid, waits)
    is_stranger = ~is_peer & ~np.isin(waker_pid, samples.pid)
    by = [is_peer, ~is_peer & ~is_stranger, is_stranger]
    peers, others, strangers = (np.bincount(thing[which], minlength=groups) for which in by)
    flags = (
        np.where(several, ObjectFact.SEVERAL, 0)
        | np.where(peers > 0, ObjectFact.BY_PEERS, 0)
        | np.where(others > 0, ObjectFact.BY_OTHERS, 0)
        | np.where(strangers > 0, ObjectFact.BY_STRANGERS, 0)
    )
    flags = flags[number] | np.where(shared, ObjectFact.SHARED, 0)
    return np.where(np.isin(kind, _KINDS), flags, 0).astype(np.uint16)


def _exits(recording: Recording, rows: I64) -> Bool:
    """Return bool[rows]: waits after which the thread only exited."""
    samples, tasks = recording.samples, recording.tasks
    time_ns = samples.time_ns[rows]
    end_ns = np.append(tasks.end_ns, -1)[rows_at(tasks.tid, tasks.begin_ns, samples.tid[rows], time_ns)]
    exits: Bool = (end_ns >= 0) & (np.abs(end_ns - time_ns) <= _EXIT_NS)
    return exits
