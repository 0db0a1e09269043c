# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of the agent: its own CPU time, that of the recorder, and that of the BPF programs. The kernel
measures BPF programs on request only, which costs some ns for each run of a program. So they are measured for one
second of each minute (BPF_ENABLE_STATS, by a descriptor: nothing stays switched on), as time per context switch, and
context switches are counted all the time (/proc/stat)."""

import contextlib
import ctypes
import os
import re
import resource
import time
from typing import Final

from perf_offcpu.agent.recorder import Recorder
from perf_offcpu.files import read_kernel

_BPF_EVERY_S, _BPF_FOR_S = 60.0, 1.0
_RUN_TIME: Final = re.compile(rb"^run_time_ns:\s*(\d+)$", re.MULTILINE)
_SWITCHES: Final = re.compile(rb"^ctxt (\d+)$", re.MULTILINE)
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_M_MMAP_THRESHOLD: Final = -3
_MMAP_BYTES: Final = 128 << 10  # initial threshold of glibc


def keep_no_free_memory() -> None:
    """Fix the threshold above which glibc maps blocks separately, so that freed memory goes back to the kernel. Columns
    of a segment take tens of megabytes for a moment. glibc raises the threshold with each block that it frees, up to 32
    MB; larger ones then lie in heaps between small blocks and are not returned: after segments of 60 MB an agent keeps
    205 MB instead of 150. Other C libraries have no such call. Source: mallopt(3)."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


class Cost:
    """Measures CPU time since the agent began, s, by part: own, recorder, BPF programs."""

    def __init__(self) -> None:
        self._recorder_s = self._own_s = self._bpf_s = 0.0
        self._s_per_switch, self._bpf_at, self._switches = 0.0, float("-inf"), context_switches()
        self._began = time.monotonic(), self._switches

    def measure(self, recorder: Recorder | None) -> None:
        """Read the clocks; once a minute this takes a second."""
        now = time.monotonic()
        is_recording = recorder is not None and recorder.is_recording
        if recorder is not None and is_recording and now - self._bpf_at >= _BPF_EVERY_S:
            self._bpf_at = now
            self._s_per_switch = bpf_time_per_switch(recorder.pid, _BPF_FOR_S)
        self.note_bpf(is_recording)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._own_s = time.process_time()
        running_s = recorder.cpu_s() if recorder else 0.0
        # Between two looks a recorder may have been waited for: its time moves from one term to the other.
        self._recorder_s = max(self._recorder_s, ended.ru_utime + ended.ru_stime + running_s)

    def note_bpf(self, was_recording: bool) -> None:
        """Add the estimated BPF time since the last call; to be called also when recording begins or pauses."""
        before, self._switches = self._switches, context_switches()
        if was_recording:
            self._bpf_s += self._s_per_switch * (self._switches - before)

    def bpf_share(self) -> float:
        """Return the part of a CPU that BPF programs would have taken since the last call, had no pause been made."""
        now, (before_s, before) = time.monotonic(), self._began
        self._began = now, context_switches()
        return self._s_per_switch * (self._began[1] - before) / max(now - before_s, 1e-3)

    def parts(self) -> dict[str, float]:
        """Return part (agent, recorder, bpf) → CPU seconds; "recorder" includes other child processes (demangler)."""
        return {"agent": self._own_s, "recorder": self._recorder_s, "bpf": self._bpf_s}

    def memory(self, recorder: Recorder | None) -> dict[str, int]:
        """Return part (agent, recorder) → resident bytes."""
        return {"agent": resident_bytes("self"), "recorder": resident_bytes(str(recorder.pid)) if recorder else 0}


def resident_bytes(pid: str) -> int:
    """Return the resident bytes of a process (a directory of /proc: "self" or a number); 0 if it has ended."""
    try:
        return int(read_kernel(f"/proc/{pid}/statm").split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def context_switches() -> int:
    """Return the number of context switches of all CPUs since the boot."""
    match = _SWITCHES.search(read_kernel("/proc/stat"))
    return int(match[1]) if match else 0


def bpf_time_per_switch(pid: int, seconds: float) -> float:
    """Measure for `seconds`; return the s that a process's BPF programs take per context switch, 0 if not known."""
    from perf_offcpu.collect.bpf.syscall import enable_stats

    try:
        fd = enable_stats()
    except OSError:
        return 0.0
    try:
        before, switches = _run_times(pid), context_switches()
        time.sleep(seconds)
        switches = context_switches() - switches
        return max(0, _run_times(pid) - before) / 1e9 / switches if switches else 0.0
    finally:
        os.close(fd)


def _run_times(pid: int) -> int:
    """Return the sum of run_time_ns of the BPF programs of which a process has descriptors."""
    total = 0
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fdinfo"):
            with contextlib.suppress(OSError):
                match = _RUN_TIME.search(read_kernel(f"/proc/{pid}/fdinfo/{name}"))
                total += int(match[1]) if match else 0
    return total
