# SPDX-License-Identifier: Apache-2.0
"""Make the cascade of the waits that a command line selects."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from perf_offcpu.commands.shared.profile import every_wait_from_args, selection_from_args

if TYPE_CHECKING:
    from perf_offcpu.analysis.timeline import Timeline
    from perf_offcpu.causality.cascade import Cascade
    from perf_offcpu.model.profile import Profile


def cascade_from_args(args: argparse.Namespace) -> tuple[Profile, Timeline, Cascade]:
    """Read all threads, and pass on the weight of the waits that the selection chooses.

    Their weight passes through waits of all threads, chosen or not.
    """
    from perf_offcpu.analysis.interpreters import fold_interpreters
    from perf_offcpu.analysis.select import selected_rows
    from perf_offcpu.analysis.timeline import timeline_of
    from perf_offcpu.causality.cascade import cascade_of

    selection = selection_from_args(args)
    option = "--bottlenecks" if getattr(args, "bottlenecks", False) else "--cascade"
    profile = every_wait_from_args(args, option)
    if args.fold_interpreters:
        profile = fold_interpreters(profile)
    timeline = timeline_of(profile)
    return profile, timeline, cascade_of(profile, timeline, selected_rows(profile, selection))
