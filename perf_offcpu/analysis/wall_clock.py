# SPDX-License-Identifier: Apache-2.0
"""Make wall-clock profiles: on-CPU and off-CPU samples together, in ns.

Events that count time are in ns already. Each sample taken at a frequency (`-F 99 -e cycles`) stands for a
fixed time, 10^9 / frequency ns. Samples taken after a number of occurrences have no time. Of several on-CPU
events only one is added, because otherwise a thread would run twice at a time: the first event that counts
time, else the first with a frequency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perf_offcpu.abi.attr import AttrFlag
from perf_offcpu.analysis.select import event_rows
from perf_offcpu.errors import UsageError
from perf_offcpu.model.columns import distinct
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Evsel

_NS_PER_S = 10**9


def wall_clock(profile: Profile, names: Sequence[str] = ()) -> Profile:
    """Return the samples of waits and of one on-CPU event, with weights in ns.

    Args:
        names: the events to use instead, any number of them.

    Raises:
        UsageError: a named event does not exist or has no time, or there is no event with a time.
    """
    chosen = event_rows(profile, names).tolist() if names else _usual(profile)
    hopeless = [profile.evsels[row].name for row in chosen if not _sample_ns(profile.evsels[row])]
    if hopeless:
        raise UsageError(
            f"{hopeless[0]} was sampled neither by time nor at a frequency: it says nothing of time"
        )
    samples = profile.samples
    period, evsels = samples.period.copy(), list(profile.evsels)
    for row in chosen:
        event = profile.evsels[row]
        if event.unit != "ns":
            period[samples.evsel == row] = _sample_ns(event)
            evsels[row] = replace(event, unit="ns")
    scaled = replace(profile, samples=samples.with_columns(period=period), evsels=evsels)
    return scaled.select(np.isin(samples.evsel, np.array(chosen, np.int32)))


def _usual(profile: Profile) -> list[int]:
    """Return the rows of the off-cpu events, and of the first fitting on-CPU event that has samples."""
    offcpu: list[int] = distinct(profile.samples.evsel[profile.is_offcpu()]).tolist()
    oncpu = [row for row in distinct(profile.samples.evsel).tolist() if row >= 0 and row not in offcpu]
    fitting = [row for row in oncpu if profile.evsels[row].unit == "ns"]
    fitting += [row for row in oncpu if _sample_ns(profile.evsels[row])]
    return offcpu + (fitting[:1] or oncpu[:1])


def _sample_ns(event: Evsel) -> int:
    """Return the ns that a sample stands for: 1 per unit of its period if that is a time, 0 if unknown."""
    if event.unit == "ns":
        return 1
    attr = event.attr
    frequency = attr.sample_period if attr.flags & AttrFlag.FREQ else 0
    return _NS_PER_S // frequency if frequency else 0
