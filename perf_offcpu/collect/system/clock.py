# SPDX-License-Identifier: Apache-2.0
"""The clock of a recording: CLOCK_MONOTONIC. bpf_ktime_get_ns() reads it, perf events use it (attr.clockid), and
programs can read it. So switch-outs, wake-ups, sample times, mmaps and a program's own clock_gettime() all lie on one
axis. In a time namespace (containers that were moved, `unshare --time`) clock_gettime() is shifted, the times that the
kernel notes are not. The shift is subtracted here: see time_namespaces(7)."""

# direct in this module: links and files of /proc/self
import functools
import os
import time
from pathlib import Path

from perf_offcpu.errors import RecordingError

CLOCKID = time.CLOCK_MONOTONIC  # for attr.clockid; 1 on Linux

_INITIAL_NAMESPACE = "time:[4026531834]"  # PROC_TIME_INIT_INO of include/linux/proc_ns.h


def now_ns() -> int:
    """Return the time of the recording's clock, ns, as the kernel notes it (outside of any time namespace)."""
    return time.clock_gettime_ns(CLOCKID) - _namespace_shift_ns()


def wall_clock_pair() -> tuple[int, int]:
    """Return (CLOCK_REALTIME, the recording's clock) of one moment, ns; exact to half the time of a clock reading."""
    before = now_ns()
    wall = time.clock_gettime_ns(time.CLOCK_REALTIME)
    return wall, (before + now_ns()) // 2


@functools.cache
def _namespace_shift_ns() -> int:
    """Return the offset of CLOCK_MONOTONIC in this process's time namespace, ns. Raises RecordingError: the offset is
    unknown, as this process has made a namespace for its children only."""
    ours, childrens = (Path("/proc/self/ns", name) for name in ("time", "time_for_children"))
    if not ours.exists() or os.readlink(ours) == _INITIAL_NAMESPACE:  # there is none before Linux 5.6
        return 0
    if os.readlink(ours) != os.readlink(childrens):
        raise RecordingError(
            "this process is in another time namespace than its children, so the kernel's clock is not known "
            "to it: start it again there (unshare --time --fork)"
        )
    return shift_from_text(Path("/proc/self/timens_offsets").read_text("ascii"))


def shift_from_text(text: str) -> int:
    """Return the offset of CLOCK_MONOTONIC in the text of /proc/PID/timens_offsets, ns; 0 if it has none. A line has
    clock, s and ns, and ns is never negative: `monotonic -2 500000000` is -1.5 s."""
    for line in text.splitlines():
        name, seconds, nanoseconds = line.split()
        if name == "monotonic":
            return int(seconds) * 10**9 + int(nanoseconds)
    return 0
