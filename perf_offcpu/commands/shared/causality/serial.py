# SPDX-License-Identifier: Apache-2.0
"""Make the report of serialization of a command line."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from perf_offcpu.commands.shared.profile import every_wait_from_args, selection_from_args
from perf_offcpu.errors import UsageError

if TYPE_CHECKING:
    from perf_offcpu.analysis.select import Selection
    from perf_offcpu.analysis.timeline import Track
    from perf_offcpu.report.causality.serial import SerialReport


def serial_from_args(args: argparse.Namespace, stacks: int) -> SerialReport:
    """Read all threads, and count the threads of --comm, --pid and --tid, within --time.

    Raises:
        UsageError: there is no such thread; or an option selects samples, which would leave gaps in runs.
    """
    from perf_offcpu.analysis.interpreters import fold_interpreters
    from perf_offcpu.analysis.timeline import timeline_of
    from perf_offcpu.report.causality.serial import serial_of

    selection = selection_from_args(args)
    if selection.is_of_waits or selection.cpus or selection.cgroups:
        raise UsageError("--serial counts threads: of the selection it takes --tid, --pid, --comm, --time")
    if args.event or args.diff is not None or args.idle != "show":
        raise UsageError("--serial is about all times of one recording: no --event, --diff, --idle")
    if len(selection.windows) > 1:
        raise UsageError("--serial: --time names more than one window")
    import numpy as np

    profile = every_wait_from_args(args, "--serial")
    if args.fold_interpreters:
        profile = fold_interpreters(profile)
    timeline = timeline_of(profile)
    chosen = np.array([_is_chosen(track, selection) for track in timeline.tracks], np.bool_)
    if not timeline.placed[chosen[timeline.track]].any():
        raise UsageError("--serial: the recording has no such thread with samples that have a time")
    window = None
    if selection.windows:
        first, last = selection.windows[0].bounds(profile.meta.first_ns, profile.meta.last_ns)
        window = (
            math.ceil(max(first, profile.meta.first_ns)),
            math.floor(min(last, profile.meta.last_ns)),
        )
        if window[0] >= window[1]:
            raise UsageError("--serial: the recording has no samples in that time")
    return serial_of(profile, timeline, chosen, window, stacks)


def _is_chosen(track: Track, selection: Selection) -> bool:
    return (
        track.tid > 0
        and (not selection.comms or track.comm in selection.comms)
        and (not selection.pids or track.pid in selection.pids)
        and (not selection.tids or track.tid in selection.tids)
    )
