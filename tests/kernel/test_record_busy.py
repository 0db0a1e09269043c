# SPDX-License-Identifier: Apache-2.0
"""`perf-offcpu record` on a busy machine: the recorder waits for nothing while rings fill."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from builders.program import PATIENCE
from kernel.recorder import MS, off_cpu, run

from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import SampleFlag

LONGEST_MS = 250 * PATIENCE  # 26 to 75 ms were measured; a host may take the CPU away for as long again


@contextmanager
def many_switches(seconds: float) -> Iterator[None]:
    """Run pairs of tasks that do nothing but wake each other: an RCU grace period takes up to a minute."""
    command = ["timeout", str(seconds), "perf", "bench", "sched", "pipe", "-l", "1000000000"]
    benches = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(16)]
    try:
        yield
    finally:
        for bench in benches:
            bench.terminate()  # timeout passes it on
            bench.wait()


@pytest.mark.long
@pytest.mark.parametrize(("options", "seconds"), [
    pytest.param(["--off-cpu-thresh", "0", "--call-graph", "fp"], 1, id="every wait"),
    pytest.param(["--switch-output=1s"], 2, id="several files"),
])  # fmt: skip
def test_rings_are_emptied_all_the_time(tmp_path: Path, options: list[str], seconds: float) -> None:
    # Longer than the recorder needs to start, record and end, but for the kernel's removal of its programs.
    with many_switches(seconds + 3 * PATIENCE):
        done = run("-v", "-a", *options, "--duration", str(seconds), cwd=tmp_path)
    # Not the time for which it had no CPU, which is that of the load.
    spent = re.search(r"the rings: \d+ ms \((\d+) busy, \d+ without a CPU, (\d+) for the file, (\d+) for", done.stderr)
    assert spent and "lost in full rings" not in done.stderr
    assert sum(map(int, spent.groups())) < LONGEST_MS, done.stderr
    recordings = [load_recording(path) for path in sorted(tmp_path.glob("perf.data*"))]
    metas = [recording.meta for recording in recordings]
    assert [one.end_ns for one in metas[:-1]] == [one.begin_ns for one in metas[1:]]
    assert (len(metas) > 1) == ("--switch-output=1s" in options)
    samples = recordings[-1].samples
    ended = off_cpu(recordings[-1]) & ~samples.has(SampleFlag.AGGREGATED) & ~samples.has(SampleFlag.STILL_BLOCKED)
    since_ns = metas[-1].end_ns - int(samples.time_ns[ended].max())
    assert since_ns < LONGEST_MS * MS, "the wait for programs at the end is not recorded"
