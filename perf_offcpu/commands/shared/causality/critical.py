# SPDX-License-Identifier: Apache-2.0
"""Make the critical path of a command line."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from perf_offcpu.commands.shared.profile import every_wait_from_args, selection_from_args
from perf_offcpu.errors import UsageError

if TYPE_CHECKING:
    from perf_offcpu.analysis.timeline import Timeline
    from perf_offcpu.causality.critical_path import CriticalPath
    from perf_offcpu.model.profile import Profile

HELP = """
--critical-path: of the thread that --tid, --pid or --comm names (default: the first one): its time, and
  whom it waited for
"""
_OTHERS = ("state", "class", "cpu", "cgroup", "min_dur", "object", "lock", "event")


def critical_path_from_args(args: argparse.Namespace) -> tuple[Profile, Timeline, CriticalPath]:
    """Read all threads, and follow the path of the thread of --tid, --pid and --comm, within --time.

    Raises:
        UsageError: there is no such thread; or an option selects samples, which would leave gaps in the path.
    """
    from perf_offcpu.analysis.interpreters import fold_interpreters
    from perf_offcpu.analysis.timeline import timeline_of
    from perf_offcpu.causality.critical_path import critical_path
    from perf_offcpu.causality.window import choose_thread, window_of

    given = [name for name in _OTHERS if getattr(args, "wait_class" if name == "class" else name)]
    if args.idle != "show":
        given.append("idle")
    if given:
        option = given[0].replace("_", "-")
        raise UsageError(f"--critical-path takes --tid, --pid, --comm and --time, not --{option}")
    selection = selection_from_args(args)
    profile = every_wait_from_args(args, "--critical-path")
    if args.fold_interpreters:
        profile = fold_interpreters(profile)
    timeline = timeline_of(profile)
    thread = choose_thread(timeline, selection)
    window = window_of(profile, timeline, thread, selection.windows)
    return profile, timeline, critical_path(profile, timeline, thread, *window)
