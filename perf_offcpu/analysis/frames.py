# SPDX-License-Identifier: Apache-2.0
"""Properties of frames that analyses and views share."""

from __future__ import annotations

from perf_offcpu.abi.records import CpuMode
from perf_offcpu.model.columns import Bool
from perf_offcpu.model.profile import Frames


def is_kernel(frames: Frames) -> Bool:
    """Return bool[len(frames)]: which frames are kernel code, the host's or a guest's."""
    kernel: Bool = (frames.cpumode == CpuMode.KERNEL) | (frames.cpumode == CpuMode.GUEST_KERNEL)
    return kernel
