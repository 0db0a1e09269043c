# SPDX-License-Identifier: Apache-2.0
"""Measure `report` of large recordings:  python benchmarks/report.py [--samples N] [--perf] [FILE ...]

Without FILE, recordings of N and 2 N samples are made (default 2.5 million, callchains of 30 frames, see
tests/builders/large_recording.py), and deleted at the end. Each run is a new process. Prints the least CPU
time (user + system) of several runs and the largest memory, for a million samples, too: time and memory are
to grow with the number of samples, not faster. With --perf, `perf report` of the same recording after
`inject` follows; it takes minutes. Marks are the project's goals for 2.5 million samples.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

PROGRAM = [sys.executable, "-m", "perf_offcpu"]
MARK_S, MARK_MB, MARK_SAMPLES = 3.5, 500, 2_500_000


class Cost(NamedTuple):
    """CPU seconds, user and system, and the largest resident MB."""

    cpu_s: float
    memory_mb: float


def cost_of(command: Sequence[str | Path]) -> Cost:
    """Run a command and return what it cost."""
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pid = os.posix_spawnp(command[0], [*map(str, command)], environment, file_actions=silent)
    _, status, usage = os.wait4(pid, 0)
    if status:
        sys.exit(f"{command} ends with {os.waitstatus_to_exitcode(status)}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000)


def measure(path: Path, samples: int, runs: int, with_perf: bool) -> None:
    """Print the rows of a recording."""
    costs = [cost_of([*PROGRAM, "report", "-i", path]) for _ in range(runs)]
    show("perf-offcpu report", samples, Cost(min(costs)[0], max(cost.memory_mb for cost in costs)))
    if with_perf:
        with tempfile.NamedTemporaryFile(suffix=".data", dir=path.parent) as plain:
            subprocess.run([*PROGRAM, "inject", "-f", "-i", path, "-o", plain.name], check=True, cwd=ROOT)
            show("perf report", samples, cost_of(["perf", "report", "--stdio", "-i", plain.name]))


def show(name: str, samples: int, cost: Cost) -> None:
    """Print a row."""
    millions = samples / 1e6
    print(
        f"{name:<20}{samples:>10}{cost.cpu_s:>9.2f}{cost.memory_mb:>9.0f}"
        f"{cost.cpu_s / millions:>14.2f}{cost.memory_mb / millions:>14.0f}"
    )


def count_samples(path: str) -> int:
    """Return the number of samples of a recording."""
    from perf_offcpu.decode.load import load_recording

    return len(load_recording(path).samples)


def main() -> None:
    """Make recordings if none is given, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--samples", type=int, default=MARK_SAMPLES)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--perf", action="store_true", help="measure perf report, too")
    args = parser.parse_args()
    print(f"{'':<20}{'samples':>10}{'CPU s':>9}{'MB':>9}{'CPU s/million':>14}{'MB/million':>14}")
    for file in args.files:
        measure(Path(file), count_samples(file), args.runs, args.perf)
    for samples in () if args.files else (args.samples, 2 * args.samples):
        from builders.large_recording import write_large_recording

        with tempfile.NamedTemporaryFile(suffix=".data") as file:
            write_large_recording(Path(file.name), samples, processes=8, deferred=0, storm=0, stacks=2000, depth=30)
            measure(Path(file.name), samples, args.runs, args.perf)
    print(f"mark for {MARK_SAMPLES} samples: {MARK_S} s of CPU, {MARK_MB} MB")


if __name__ == "__main__":
    main()
