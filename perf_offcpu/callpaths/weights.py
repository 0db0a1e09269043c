# SPDX-License-Identifier: Apache-2.0
"""Weights of a profile for an output: title, unit, integers in a coarser unit, buckets of lengths."""

import numpy as np

from perf_offcpu.errors import UsageError
from perf_offcpu.model.columns import I64, distinct
from perf_offcpu.model.profile import TASK_READING, Profile
from perf_offcpu.model.recording import Evsel
from perf_offcpu.text import printable
from perf_offcpu.units import UNITS

EDGES = (0, *(step * 10**power for power in range(3, 16) for step in (1, 2, 5)))
"""Lower edges of buckets of lengths, ns: 0, 1 us, 2 us, 5 us, … Each bucket ends just below the next edge."""


def events_of(profile: Profile) -> list[Evsel]:
    """Return the events whose samples are in the profile, in file order."""
    return [profile.evsels[row] for row in distinct(profile.samples.evsel).tolist() if row >= 0]


def title_of(profile: Profile, title: str = "") -> str:
    """Return `title`; if it is "", a title made of the kind of the samples, events, machine and command; printable."""
    if title:
        return printable(title)
    off = profile.is_offcpu()
    others = "Time of tasks" if profile.other_samples == TASK_READING else "CPU samples"
    subject = "Off-CPU time" if off.all() else others if not off.any() else "Off-CPU and CPU time"
    if profile.meta.sampling and off.any():
        subject += f", estimated from a sample for each {profile.meta.sampling.period_text} of waiting"
    events = ", ".join(event.name for event in events_of(profile))
    host = f" on {profile.meta.hostname}" if profile.meta.hostname else ""
    command = f": {' '.join(profile.meta.cmdline)}" if profile.meta.cmdline else ""
    return printable(f"{subject} ({events or 'no samples'}){host}{command}")


def unit_of(profile: Profile) -> str:
    """Return the unit of all weights of a profile: "ns", or "" for occurrences. Raise UsageError if its events have
    different units, so that a sum would mean nothing."""
    units = {event.unit: event.name for event in events_of(profile)}
    if len(units) > 1:
        parts = " and ".join(f"{name} ({unit or 'events'})" for unit, name in sorted(units.items()))
        raise UsageError(f"weights of {parts} do not add up: choose events of one unit with --event")
    return next(iter(units), "")


def unit_factor(profile: Profile, unit: str) -> int:
    """Return the number by which weights are divided for a `unit` of time (10^6 for "ms"); 1 for "". Raise UsageError
    if a unit is given and the profile's weights are not in ns."""
    own = unit_of(profile)
    if unit and own != "ns" and len(profile.samples):
        names = ", ".join(event.name for event in events_of(profile))
        raise UsageError(f"{names} is not counted in time: --unit {unit} does not apply")
    return UNITS[unit] if unit else 1


def in_units(weights: I64, factor: int) -> I64:
    """Divide weights by `factor` to integers that sum to the rounded quotient of the total. Each is rounded down; then
    the weights with the largest remainders (at a tie the earlier) get one more each, until the total is right. So every
    weight is off by less than one, the total by at most a half."""
    quotients, rest = np.divmod(weights, factor)
    missing = (int(rest.sum()) + factor // 2) // factor
    quotients[np.argsort(-rest, kind="stable")[:missing]] += 1
    return quotients


_NS = ((10**9, "s"), (10**6, "ms"), (10**3, "us"))


def amount(value: int, unit: str) -> str:
    """Format a weight: ns as s, ms or us with three decimals (`1.234 ms`), others as `VALUE UNIT`."""
    if unit == "ns":
        for size, name in _NS:
            if abs(value) >= size:
                return f"{value / size:.3f} {name}"
    return f"{value} {unit}"


def share(weight: int, total: int) -> float:
    """Return a weight in percent of the total, with three decimals."""
    return round(100 * weight / max(total, 1), 3)
