# SPDX-License-Identifier: Apache-2.0
"""Where and when a recording was made: on this kernel, until when, with which processes.

Files of this machine name addresses of a recording only if they were the ones that were mapped. These
functions answer the questions that decide it.
"""

from __future__ import annotations

import os
from typing import Final

import numpy as np

from perf_offcpu.model.columns import distinct
from perf_offcpu.model.recording import Meta, Recording
from perf_offcpu.objects.elf.image import find_build_id

NOTES: Final = "/sys/kernel/notes"
_ALLOWANCE_NS: Final = 2 * 10**9


def kernel_build_id(path: str = NOTES) -> bytes:
    """Return the running kernel's build-id, b"" if the kernel does not show one."""
    try:
        with open(path, "rb") as file:
            return find_build_id(file.read(1 << 16), "<" if np.little_endian else ">")
    except OSError:
        return b""


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
