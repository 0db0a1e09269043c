# SPDX-License-Identifier: Apache-2.0
"""One clock for everything: CLOCK_MONOTONIC.

bpf_ktime_get_ns() reads it, perf events are told to use it, and programs can read it too. So switch-outs,
wake-ups, sample times, mmaps and a program's own clock_gettime() all lie on one axis.
"""

from __future__ import annotations

import time

CLOCKID = time.CLOCK_MONOTONIC
"""For attr.clockid; 1 on Linux."""


def now_ns() -> int:
    """The recording's clock, ns."""
    return time.clock_gettime_ns(CLOCKID)


def wall_clock_pair() -> tuple[int, int]:
    """(CLOCK_REALTIME, CLOCK_MONOTONIC) of the same moment, ns; right to about half of one clock reading."""
    before = now_ns()
    wall = time.clock_gettime_ns(time.CLOCK_REALTIME)
    return wall, (before + now_ns()) // 2


def resolution_ns() -> int:
    """Resolution of the recording's clock, ns, as the kernel states it."""
    return max(1, round(time.clock_getres(CLOCKID) * 1e9))
