# SPDX-License-Identifier: Apache-2.0
"""Tell pools of resources from queues of work: a queue of connections, say. Both are waited for in the same functions.
At a pool, only threads that take items put some, and by that end each other's waits."""

from collections.abc import Sequence

import numpy as np

from perf_offcpu.analysis.classes.program_rules import BROUGHT
from perf_offcpu.model.columns import I32, Bool, group, is_one_of
from perf_offcpu.model.profile import Profile, ProgramRule
from perf_offcpu.model.recording import SUM_FLAGS, SampleFlag
from perf_offcpu.symbolize.wait_objects.lock_facts import RARE, in_circle


def waits_for_pools(profile: Profile, rule: I32, rules: Sequence[ProgramRule]) -> Bool:
    """Return bool[samples]: True for waits for an item of a pool, such as a connection that other threads give back.
    Waits by rules with the condition "brought" are such if threads that wait at the same place (process and stack)
    ended nearly all waits there, in a circle; in a pipeline, threads wake each other in no circle. `rule`:
    int32[samples], index into `rules`; -1 none."""
    samples = profile.samples
    may_be = np.array([*(rule.condition == BROUGHT for rule in rules), False])[rule] & (samples.stack >= 0)
    ended = may_be & (samples.waker_tid > 0) & ~samples.has(SampleFlag.WAKER_INTERRUPT | SUM_FLAGS)
    rows = np.flatnonzero(ended & (samples.waker_tid != samples.tid))
    if not len(rows):
        return np.zeros(len(samples), np.bool_)
    first, place = group(samples.pid, np.where(may_be, samples.stack, np.int32(-1)))
    thread = group(np.append(place, place[rows]), np.append(samples.tid, samples.waker_tid[rows]))[1]
    sleeper, waker = thread[: len(samples)], thread[len(samples) :]
    by_taker = is_one_of(waker, waker[is_one_of(waker, sleeper[may_be]) & in_circle(waker, sleeper[rows])])
    takers, others = (np.bincount(place[rows], is_ender, len(first)) for is_ender in (by_taker, ~by_taker))
    of_pool: Bool = may_be & ((takers > 0) & (others * RARE < takers))[place]
    return of_pool
