# SPDX-License-Identifier: Apache-2.0
"""Make the profile of a selection for pictures, and the title of the picture."""

from __future__ import annotations

from perf_offcpu.errors import UsageError
from perf_offcpu.fleet.profile import KEYS as STACK_KEYS
from perf_offcpu.fleet.profile import profile_of
from perf_offcpu.fleet.queries import Selected, gaps_of, grouped, losses_of, ranked
from perf_offcpu.losses import LossCause, Losses, Stage
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.sampling import Sampling
from perf_offcpu.report.style import plural
from perf_offcpu.text import printable

_GIGA = 10**9


def profile_of_selected(selected: Selected) -> Profile:
    """Return the selected samples as a profile: a row for each comm, stack, state, system call and class.

    Raises:
        UsageError: nothing was selected.
    """
    groups = selected.tables.engine.run(ranked(grouped(selected, STACK_KEYS), None))
    if not groups["stack"]:
        raise UsageError(f"{selected.tables.path}: no samples of {selected.selection.describe()}")
    profile = profile_of(selected.tables, groups, selected.tables.path)
    profile.losses = _missing(selected)
    profile.meta.sampling = Sampling(max((span.period_ns for span in selected.spans), default=0))
    return profile


def _missing(selected: Selected) -> Losses:
    """Return the losses of the selected segments, and the seconds that their hosts did not record."""
    found = Losses()
    for (text, is_loss), count in losses_of(selected).items():
        found.add(LossCause(Stage.SAMPLES, "", text, is_loss=is_loss), count)
    for gap in gaps_of(selected):
        text = f"s that {gap.host} did not record ({gap.cause})"
        found.add(LossCause(Stage.SAMPLES, "", text), -(-gap.ns // _GIGA))
    return found


def title_of(selected: Selected) -> str:
    """Return the title of a picture."""
    hosts = plural(len({span.host_id for span in selected.spans}), "host")
    return printable(f"{selected.tables.path}: {selected.selection.describe()} ({hosts})")
