# SPDX-License-Identifier: Apache-2.0
"""`perf-offcpu record` on a busy machine: the recorder waits for nothing while rings fill."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from builders.program import PATIENCE
from kernel.recorder import run

from perf_offcpu.decode.load import load_recording

LONGEST_MS = 250 * PATIENCE  # 26 to 75 ms were measured; a host may take the CPU away for as long again
PIPES = 16


@contextmanager
def many_switches(seconds: float) -> Iterator[None]:
    """Run pairs of tasks that do nothing but wake each other: an RCU grace period takes up to a minute."""
    command = ["timeout", str(seconds), "perf", "bench", "sched", "pipe", "-l", "1000000000"]
    benches = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(PIPES)]
    try:
        yield
    finally:
        for bench in benches:
            bench.terminate()  # timeout passes it on
            bench.wait()


@pytest.mark.parametrize(("options", "seconds"), [
    (["--off-cpu-thresh", "0", "--call-graph", "fp"], 1), (["--switch-output=1s"], 3.5),
], ids=["every wait", "several files"])  # fmt: skip
def test_rings_are_emptied_all_the_time(tmp_path: Path, options: list[str], seconds: float) -> None:
    # Longer than the recorder needs to start, record and end, but for the kernel's removal of its programs.
    with many_switches(seconds + 3 * PATIENCE):
        done = run("-v", "-a", *options, "--duration", str(seconds), cwd=tmp_path)
    longest = re.search(r"longest time between two drains of the rings: (\d+) ms", done.stderr)
    recorded = re.search(r"recorded for ([\d.]+) s", done.stderr)
    assert longest and recorded and "lost in full rings" not in done.stderr
    assert int(longest[1]) < LONGEST_MS, done.stderr
    assert float(recorded[1]) < seconds + 1 * PATIENCE, "the wait for programs at the end is not recorded"
    metas = [load_recording(path).meta for path in sorted(tmp_path.glob("perf.data*"))]
    assert [one.end_ns for one in metas[:-1]] == [one.begin_ns for one in metas[1:]]
    assert (len(metas) > 2) == ("--switch-output=1s" in options)
