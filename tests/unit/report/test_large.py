# SPDX-License-Identifier: Apache-2.0
"""The memory that a report takes grows with the number of samples, by less than the columns of one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from builders.large_recording import write_large_recording

from perf_offcpu.model.recording import Samples

BYTES_PER_SAMPLE = 235
"""That of all columns is 149, and steps need more; 267 before columns of one value took none."""


def memory_of_report(path: Path) -> int:
    """Return the largest number of resident bytes of `report`, in a process of its own."""
    command = [sys.executable, "-m", "perf_offcpu", "report", "-i", str(path)]
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=silent)
    _, status, usage = os.wait4(pid, 0)
    assert status == 0
    return usage.ru_maxrss << 10


def test_memory_grows_with_the_samples(tmp_path: Path) -> None:
    counts, memory = (300_000, 900_000), []
    for count in counts:
        path = tmp_path / "x.data"
        write_large_recording(path, count, processes=8, deferred=0, storm=0, stacks=500, depth=30)
        memory.append(memory_of_report(path))
    each = (memory[1] - memory[0]) / (counts[1] - counts[0])
    assert 50 < each < BYTES_PER_SAMPLE
    assert sum(one.dtype.itemsize for one in Samples.columns.values()) < BYTES_PER_SAMPLE
