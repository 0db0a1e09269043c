# SPDX-License-Identifier: Apache-2.0
"""One clock for everything: CLOCK_MONOTONIC.

bpf_ktime_get_ns() reads it, perf events are told to use it, and programs can read it too. So switch-outs,
wake-ups, sample times, mmaps and a program's own clock_gettime() all lie on one axis.

In a time namespace (containers that were moved, `unshare --time`) clock_gettime() alone is shifted, in every
program in it; what the kernel notes is not. So the shift is taken off again here: see time_namespaces(7).
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path

from perf_offcpu.errors import RecordingError

CLOCKID = time.CLOCK_MONOTONIC
"""For attr.clockid; 1 on Linux."""

_INITIAL_NAMESPACE = "time:[4026531834]"
"""PROC_TIME_INIT_INO of include/linux/proc_ns.h."""


def now_ns() -> int:
    """The recording's clock, ns, as the kernel itself reads it."""
    return time.clock_gettime_ns(CLOCKID) - _namespace_shift_ns()


def wall_clock_pair() -> tuple[int, int]:
    """(CLOCK_REALTIME, CLOCK_MONOTONIC) of the same moment, ns; right to about half of one clock reading."""
    before = now_ns()
    wall = time.clock_gettime_ns(time.CLOCK_REALTIME)
    return wall, (before + now_ns()) // 2


def resolution_ns() -> int:
    """Resolution of the recording's clock, ns, as the kernel states it."""
    return max(1, round(time.clock_getres(CLOCKID) * 1e9))


@functools.cache
def _namespace_shift_ns() -> int:
    """What this process's time namespace adds to CLOCK_MONOTONIC, ns.

    Raises:
        RecordingError: the kernel does not tell: a process that has made a namespace for its children only.
    """
    ours, childrens = (Path("/proc/self/ns", name) for name in ("time", "time_for_children"))
    if not ours.exists() or os.readlink(ours) == _INITIAL_NAMESPACE:  # there is none before Linux 5.6
        return 0
    if os.readlink(ours) != os.readlink(childrens):
        raise RecordingError(
            "this process is in another time namespace than its children, so the kernel's clock is not known "
            "to it: start it anew there (unshare --time --fork)"
        )
    return shift_from_text(Path("/proc/self/timens_offsets").read_text("ascii"))


def shift_from_text(text: str) -> int:
    """What `/proc/PID/timens_offsets` says of CLOCK_MONOTONIC, ns; 0 if it says nothing of it.

    Lines of clock, s and ns, the ns never negative: `monotonic -2 500000000` is -1.5 s.
    """
    for line in text.splitlines():
        name, seconds, nanoseconds = line.split()
        if name == "monotonic":
            return int(seconds) * 10**9 + int(nanoseconds)
    return 0
