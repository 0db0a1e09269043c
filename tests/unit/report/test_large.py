# SPDX-License-Identifier: Apache-2.0
"""The memory that a report takes grows with the number of samples, by less than the columns of one."""

import subprocess
import sys
from pathlib import Path

from builders.large_recording import write_large_recording

from perf_offcpu.model.recording import Samples

BYTES_PER_SAMPLE = 235
"""That of all columns is 149, and steps need more; 267 before columns of one value took none."""


REPORT = """
import contextlib, os, re, sys
from perf_offcpu.cli import main
with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
    status = main(["report", "-i", sys.argv[1]])
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
sys.exit(status)
"""


def memory_of_report(path: Path) -> int:
    """Return the largest number of resident bytes of `report`, in a process of its own. The kernel's figure for a child
    that has ended (ru_maxrss) begins with that of its parent."""
    done = subprocess.run([sys.executable, "-c", REPORT, str(path)], capture_output=True, text=True, check=True)
    return int(done.stdout) << 10


def test_memory_grows_with_the_samples(tmp_path: Path) -> None:
    counts, memory = (150_000, 450_000), []
    for count in counts:
        path = tmp_path / "x.data"
        write_large_recording(path, count, processes=8, deferred=0, storm=0, stacks=500, depth=30)
        memory.append(memory_of_report(path))
    each = (memory[1] - memory[0]) / (counts[1] - counts[0])
    assert 50 < each < BYTES_PER_SAMPLE
    assert sum(one.dtype.itemsize for one in Samples.columns.values()) < BYTES_PER_SAMPLE
