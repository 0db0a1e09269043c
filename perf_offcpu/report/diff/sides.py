# SPDX-License-Identifier: Apache-2.0
"""Prepare the two recordings of a comparison, and the unit of work to which their weights are related."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perf_offcpu.analysis.causes import Causes, causes_of
from perf_offcpu.analysis.classes.classify import Waits, classify
from perf_offcpu.analysis.idle import of_idle_threads
from perf_offcpu.analysis.select import event_rows
from perf_offcpu.analysis.time_windows import Window
from perf_offcpu.callpaths.weights import unit_of
from perf_offcpu.errors import UsageError
from perf_offcpu.model.columns import Bool
from perf_offcpu.model.profile import Profile
from perf_offcpu.report.diff.noise import RecordedTime
from perf_offcpu.report.summary import shows_waits
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable


@frozen
class Per:
    """The amount of work to which weights are related."""

    name: str  # "second" of recorded time, "run", "unit" of work
    program: str = ""  # that both recorded, where that decided for "run"
    units: tuple[float, float] = (1.0, 1.0)  # units of work of the old and of the new recording

    @property
    def is_steady(self) -> bool:
        """Return True if a load went on, False if a program ran from its start to its end."""
        return self.name != "run"


@frozen
class Side:
    """One of the two recordings."""

    profile: Profile
    subject: Profile  # the samples that are compared
    is_offcpu: bool
    waits: Waits
    causes: Causes
    idle: Bool  # bool[samples of subject], of threads that merely wait for work
    recorded: RecordedTime
    scale: float  # turns weights into weights per second, unit or run

    @property
    def source(self) -> str:
        """Return the name of the recording."""
        return printable(self.profile.meta.source) or "the recording"


def side_of(
    profile: Profile, events: Sequence[str], per: Per, units: float, windows: Sequence[Window], *, whole: bool
) -> Side:
    """Prepare a recording.

    Args:
        events: names of the events to compare.
        per, units: to what weights are related, and the units of work in this recording.
        windows: that were selected.
        whole: the profile has all samples of each thread; else no thread is judged idle.
    """
    rows = event_rows(profile, events)
    chosen = np.isin(profile.samples.evsel, rows)
    subject = profile.select(chosen)
    waits = classify(subject)
    recorded = RecordedTime.of(profile.meta, windows)
    if per.name == "second" and not recorded.total_ns:
        raise UsageError(f"{profile.meta.source}: its duration is not known: compare with --per run")
    for_work = np.zeros(len(chosen), np.bool_)
    for_work[chosen] = waits.for_work
    idle = of_idle_threads(profile, for_work)[chosen] if whole else np.zeros(int(chosen.sum()), np.bool_)
    return Side(
        profile,
        subject,
        shows_waits(subject, [profile.evsels[row] for row in rows.tolist()]),
        waits,
        causes_of(subject, waits),
        idle,
        recorded,
        1e9 / recorded.total_ns if per.name == "second" else 1 / units,
    )


def common_unit(old: Side, new: Side) -> str:
    """Return the unit of the weights of both.

    Raises:
        UsageError: they have no samples of one kind.
    """
    for one, other in ((old, new), (new, old)):
        if other.is_offcpu and not one.is_offcpu:
            events = ", ".join(printable(event.name) for event in one.profile.evsels) or "none"
            raise UsageError(f"{one.source} has no off-cpu samples to compare (its events: {events})")
    sides = [side for side in (old, new) if len(side.subject.samples)]
    if not sides:
        raise UsageError(f"{old.source} and {new.source} have no samples to compare")
    units = {unit_of(side.subject) for side in sides}
    if len(units) > 1:
        raise UsageError(
            f"the events of {old.source} and {new.source} have different units: name one with --event"
        )
    return units.pop()
