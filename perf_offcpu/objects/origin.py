# SPDX-License-Identifier: Apache-2.0
"""Tell where and when a recording was made: on which kernel, until when, with which processes.

Files of this machine name addresses of a recording only if they are the files that were mapped then. These
functions answer the questions that decide it.
"""

from __future__ import annotations

import os
from typing import Final

from perf_offcpu.build_ids import kernel_build_id
from perf_offcpu.model.columns import distinct
from perf_offcpu.model.recording import Meta, Recording

_ALLOWANCE_NS: Final = 2 * 10**9


def is_running_kernel(meta: Meta) -> bool:
    """Return whether the recording was made on the running kernel: compare build-ids, else releases."""
    if meta.kernel_build_id:
        return kernel_build_id().hex() == meta.kernel_build_id
    return bool(meta.os_release) and meta.os_release == os.uname().release


def pids_of_dso(recording: Recording, dso: int) -> list[int]:
    """Return the pids of the processes that had a dso mapped, ascending."""
    spaces = distinct(recording.maps.space[recording.maps.dso == dso])
    pids: list[int] = distinct(recording.spaces.pid[spaces[spaces >= 0]]).tolist()
    return [pid for pid in pids if pid > 0]


def recorded_until(meta: Meta) -> int:
    """Return the wall-clock time in ns at which the recording was complete, 2 s added; 0 if unknown."""
    if meta.wall_clock_ns and meta.last_ns > 0:
        return meta.wall_clock_ns + meta.last_ns - meta.wall_clock_at_ns + _ALLOWANCE_NS
    try:
        return os.stat(meta.source).st_mtime_ns + _ALLOWANCE_NS if meta.source else 0
    except (OSError, ValueError):
        return 0
