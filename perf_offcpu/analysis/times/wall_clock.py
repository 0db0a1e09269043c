# SPDX-License-Identifier: Apache-2.0
"""Make wall-clock profiles: on-CPU and off-CPU samples together, in ns.

Events that count time are in ns already. Each sample taken at a frequency (`-F 99 -e cycles`) stands for a fixed time,
10^9 / frequency ns. Samples taken after a number of occurrences have no time. Of several on-CPU events only one is
added, because otherwise a thread would run twice at a time: the first event that counts time, else the first with a
frequency.

Unless preemption was recorded as waits, only the budgets of threads tell how long it was. That time is divided evenly
among the stacks of a thread's on-CPU samples: where it ran, it was preempted.

Stacks of event loops' waits get a further leaf, the thing that their tasks await, if it was read (`task_times`)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perf_offcpu.abi.attr import AttrFlag
from perf_offcpu.analysis.selection.select import event_rows
from perf_offcpu.analysis.task_times import with_loop_tasks
from perf_offcpu.analysis.times.cpu_waits import CpuWaits
from perf_offcpu.analysis.times.timeline import timeline_of
from perf_offcpu.errors import UsageError
from perf_offcpu.model.columns import distinct
from perf_offcpu.model.profile import Profile, ProfileSamples
from perf_offcpu.model.recording import SUM_FLAGS, Evsel, SampleFlag

_NS_PER_S = 10**9


def wall_clock(profile: Profile, names: Sequence[str] = (), *, whole_lives: bool = False) -> Profile:
    """Return the samples of waits and of one on-CPU event, with weights in ns. `names`: events to use in place of all
    off-CPU events and the one on-CPU event. `whole_lives`: the profile has all samples of each thread; add waits for a
    CPU from their budgets. Raise UsageError if an event does not exist, or has no time."""
    chosen = event_rows(profile, names).tolist() if names else _usual(profile)
    hopeless = [profile.evsels[row].name for row in chosen if not _sample_ns(profile.evsels[row])]
    if hopeless:
        raise UsageError(f"{hopeless[0]} was sampled neither by time nor at a frequency: its samples stand for no time")
    samples = profile.samples
    period, evsels = samples.period.copy(), list(profile.evsels)
    for row in chosen:
        event = profile.evsels[row]
        if event.unit != "ns":
            period[samples.evsel == row] = _sample_ns(event)
            evsels[row] = replace(event, unit="ns")
    scaled = replace(profile, samples=samples.with_columns(period=period), evsels=evsels)
    selected = with_loop_tasks(scaled.select(np.isin(samples.evsel, np.array(chosen, np.int32))))
    return _with_preemption(selected) if whole_lives and not names else selected


def _with_preemption(profile: Profile) -> Profile:
    """Return the profile plus off-cpu sums: for each on-CPU sample an equal part of its thread's `CpuWaits.queued`."""
    samples, timeline = profile.samples, timeline_of(profile)
    rows, offcpu = np.flatnonzero(~profile.is_offcpu()), np.flatnonzero(profile.is_offcpu())
    track = timeline.track[rows]
    rows, track = rows[order := np.argsort(track, kind="stable")], track[order]
    number = np.bincount(track, minlength=len(timeline.tracks))[track]
    rank = np.arange(len(track)) - np.searchsorted(track, track)
    share, rest = np.divmod(CpuWaits(profile, timeline.tracks).queued[track], np.maximum(number, 1))
    period = share + (rank < rest)
    rows, period = rows[period > 0], period[period > 0]
    if not len(rows) or not len(offcpu):
        return profile
    sums = samples.take(rows).with_columns(
        period=period,
        evsel=np.full(len(rows), samples.evsel[offcpu[0]]),
        flags=np.full(len(rows), SampleFlag.OFFCPU | SampleFlag.PREEMPTED | SUM_FLAGS, samples.flags.dtype),
    )
    return replace(profile, samples=ProfileSamples.concat([samples, sums]))


def _usual(profile: Profile) -> list[int]:
    """Return rows in evsels, of events with samples: all off-cpu events, and the first on-CPU event that counts time,
    else the first one sampled at a frequency, else the first."""
    offcpu: list[int] = distinct(profile.samples.evsel[profile.is_offcpu()]).tolist()
    oncpu = [row for row in distinct(profile.samples.evsel).tolist() if row >= 0 and row not in offcpu]
    fitting = [row for row in oncpu if profile.evsels[row].unit == "ns"]
    fitting += [row for row in oncpu if _sample_ns(profile.evsels[row])]
    return offcpu + (fitting[:1] or oncpu[:1])


def _sample_ns(event: Evsel) -> int:
    """Return the ns that a sample taken at a frequency stands for; 1 if the event's periods are ns; 0 if not known."""
    if event.unit == "ns":
        return 1
    attr = event.attr
    frequency = attr.sample_period if attr.flags & AttrFlag.FREQ else 0
    return _NS_PER_S // frequency if frequency else 0
