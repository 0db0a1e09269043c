# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of the agent: its own CPU time, that of the recorder, and that of the BPF programs (`run_time`)."""

import contextlib
import ctypes
import os
import resource
import time
from typing import Final

from perf_offcpu.agent.cost.run_time import RunTime
from perf_offcpu.agent.recorder import Recorder
from perf_offcpu.files import read_kernel

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_M_MMAP_THRESHOLD: Final = -3
_MMAP_BYTES: Final = 128 << 10  # initial threshold of glibc


def keep_no_free_memory() -> None:
    """Fix the size from which on glibc maps blocks separately, so that freed memory returns to the kernel. Columns of a
    segment take tens of megabytes for a moment. glibc raises this size with each block that it frees, up to 32 MB;
    smaller blocks are then in heaps among others and not returned: after segments of 60 MB an agent keeps 205 MB
    instead of 150. Other C libraries have no such call. Source: mallopt(3)."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


class Cost:
    """CPU time of the agent so far, by part: this process, recorders, BPF programs."""

    def __init__(self) -> None:
        self._recorder_s = self._own_s = 0.0
        self.bpf = RunTime()

    def measure(self, recorder: Recorder | None) -> None:
        """Read the CPU time of this process and of the recorders, for `parts`."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._own_s = time.process_time()
        running_s = recorder.cpu_s() if recorder else 0.0
        # Between two looks a recorder may have been waited for: its time moves from one term to the other.
        self._recorder_s = max(self._recorder_s, ended.ru_utime + ended.ru_stime + running_s)

    def parts(self) -> dict[str, float]:
        """Return part (agent, recorder, bpf) → CPU seconds as measured last; "recorder" includes other children."""
        return {"agent": self._own_s, "recorder": self._recorder_s, "bpf": self.bpf.booked_s}

    def memory(self, recorder: Recorder | None) -> dict[str, int]:
        """Return part (agent, recorder) → resident bytes."""
        return {"agent": resident_bytes("self"), "recorder": resident_bytes(str(recorder.pid)) if recorder else 0}


def resident_bytes(pid: str) -> int:
    """Return the resident bytes of a process (pid, or "self"); 0 if it has ended."""
    try:
        return int(read_kernel(f"/proc/{pid}/statm").split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0
