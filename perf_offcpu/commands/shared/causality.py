# SPDX-License-Identifier: Apache-2.0
"""Read a recording and follow its waits from thread to thread: cascade, critical path, serialization."""

from __future__ import annotations

import argparse
import dataclasses
import math
from typing import TYPE_CHECKING

from perf_offcpu.commands.shared.profile import every_wait_from_args, folded, selection_from_args, whole_lives
from perf_offcpu.errors import UsageError

if TYPE_CHECKING:
    from perf_offcpu.analysis.times.timeline import Timeline
    from perf_offcpu.causality.cascade import Cascade
    from perf_offcpu.causality.critical_path import CriticalPath
    from perf_offcpu.model.profile import Profile
    from perf_offcpu.model.recording import Budget
    from perf_offcpu.report.serial import SerialReport

_OTHERS = ("state", "class", "cpu", "cgroup", "container", "min_dur", "object", "lock", "event")


def critical_path_from_args(args: argparse.Namespace) -> tuple[Profile, Timeline, CriticalPath]:
    """Read the recording; return profile, timeline and the critical path of the thread that --tid, --pid and --comm
    choose, within --time. Raise UsageError if there is none, or an option selects samples, which leaves gaps."""
    from perf_offcpu.causality.critical_path import choose_thread, critical_path, window_of

    refused = [name for name in _OTHERS if getattr(args, "wait_class" if name == "class" else name)]
    if args.idle != "show":
        refused.append("idle")
    if refused:
        option = refused[0].replace("_", "-")
        raise UsageError(f"--critical-path takes --tid, --pid, --comm and --time, not --{option}")
    selection = selection_from_args(args)
    profile, timeline = _all_threads(args, "--critical-path")
    thread = choose_thread(timeline, selection)
    window = window_of(profile, timeline, thread, selection.windows)
    return profile, timeline, critical_path(profile, timeline, thread, *window)


def _all_threads(args: argparse.Namespace, option: str) -> tuple[Profile, Timeline]:
    """Read all waits of the recording; return profile and timeline. `option`: its name, for errors."""
    from perf_offcpu.analysis.times.timeline import timeline_of

    profile = folded(args, every_wait_from_args(args, option))
    return profile, timeline_of(profile)


def cascade_from_args(args: argparse.Namespace) -> tuple[Profile, Timeline, Cascade, Budget]:
    """Read the recording; return profile, timeline, the cascade of the selected waits, and the budgets of the selected
    threads (empty if an option selects a part of a thread's waits). Weight passes through waits of all threads,
    selected or not. For --bottlenecks, waits of idle threads are not selected."""
    from perf_offcpu.analysis.selection.select import select_samples, selected_rows
    from perf_offcpu.causality.cascade import cascade_of
    from perf_offcpu.model.recording import Budget

    selection = selection_from_args(args)
    option = "--bottlenecks" if getattr(args, "bottlenecks", False) else "--cascade"
    profile, timeline = _all_threads(args, option)
    if option == "--bottlenecks" and selection.idle == "show":
        selection = dataclasses.replace(selection, idle="hide")
    budget = select_samples(profile, selection).budget if whole_lives(args) else Budget()
    return profile, timeline, cascade_of(profile, timeline, selected_rows(profile, selection)), budget


def serial_from_args(args: argparse.Namespace, stacks: int) -> SerialReport:
    """Read the recording; return the report on the times within --time in which few threads of --comm, --pid and --tid
    ran, with at most `stacks` stacks. Raise UsageError if there is no such thread, or an option selects samples."""
    import numpy as np

    from perf_offcpu.causality.critical_path import is_chosen
    from perf_offcpu.report.serial import serial_of

    selection = selection_from_args(args)
    if selection.is_of_waits or selection.cpus or selection.cgroups or selection.containers:
        raise UsageError("--serial counts threads: of the selection it takes --tid, --pid, --comm, --time")
    if args.event or args.diff is not None or args.idle != "show":
        raise UsageError("--serial is about all times of one recording: no --event, --diff, --idle")
    if len(selection.windows) > 1:
        raise UsageError("--serial: --time names more than one window")
    profile, timeline = _all_threads(args, "--serial")
    chosen = np.array([track.tid > 0 and is_chosen(track, selection) for track in timeline.tracks], np.bool_)
    if not timeline.placed[chosen[timeline.track]].any():
        raise UsageError("--serial: the recording has no such thread with samples that have a time")
    window, meta = None, profile.meta
    if selection.windows:
        first, last = selection.windows[0].bounds(meta.first_ns, meta.last_ns)
        window = (math.ceil(max(first, meta.first_ns)), math.floor(min(last, meta.last_ns)))
        if window[0] >= window[1]:
            raise UsageError("--serial: the recording has no samples in that time")
    return serial_of(profile, timeline, chosen, window, stacks)
