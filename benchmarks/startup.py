# SPDX-License-Identifier: Apache-2.0
"""Measure short commands:  sudo python benchmarks/startup.py [--runs N] [-i RECORDING]

`report` and `convert --folded` of a recording in turns with `perf report`; without -i also `record -- true`
with an empty cache (bcc compiles), with a filled one and with none; that recording is then read. Prints
medians of wall clock and of CPU time (user + system of the process and its children), the largest
memory, and the median of CPU time as a multiple of perf's in the same round; Python's own start is listed for
comparison.

A first round, which writes Python's bytecode as an installation does, is not counted. Compare figures of
one run of this script only with each other.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = [sys.executable, "-m", "perf_offcpu"]
PERF = "perf report"

Way = tuple[list[str], dict[str, str]]
Cost = tuple[float, float, int]


def run(command: list[str], environment: dict[str, str]) -> Cost:
    """Return (seconds, CPU seconds, largest resident KiB) of a command and its children."""
    begin = time.monotonic()
    silent = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
    pid = os.posix_spawnp(command[0], command, environment, file_actions=silent)
    _, status, usage = os.wait4(pid, 0)
    if status:
        sys.exit(f"{' '.join(command)} ends with {os.waitstatus_to_exitcode(status)}")
    return time.monotonic() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss


def environment_of(directory: str) -> dict[str, str]:
    """Return the environment with the caches of the program and of Python in a directory."""
    common = os.environ | {"XDG_CACHE_HOME": f"{directory}/cache", "PYTHONPYCACHEPREFIX": f"{directory}/pyc"}
    common.pop("PYTHONDONTWRITEBYTECODE", None)
    return common | {"PYTHONPATH": str(ROOT)}


def ways_to_record(recording: str, common: dict[str, str]) -> dict[str, Way]:
    """Return the commands that record."""
    record = [*PROGRAM, "record", "-q", "-o", recording, "--", "true"]
    return {
        "record, cold": (record, common),
        "record, warm": (record, common),
        "record, no cache": (record, common | {"PERF_OFFCPU_CACHE_BYTES": "0"}),
    }


def ways_to_read(recording: str, common: dict[str, str]) -> dict[str, Way]:
    """Return the commands that read."""
    return {
        "report": ([*PROGRAM, "report", "-f", "-i", recording], common),
        "convert --folded": ([*PROGRAM, "convert", "--folded", "-f", "-o", "-", "-i", recording], common),
        PERF: (["perf", "report", "--stdio", "-f", "-i", recording], common),
    }


def show(name: str, costs: list[Cost], perf: list[Cost]) -> None:
    """Print one line of the table."""
    wall, cpu = (statistics.median(cost[at] for cost in costs) for at in (0, 1))
    times = statistics.median(cost[1] / other[1] for cost, other in zip(costs, perf, strict=True))
    print(f"{name:18}{wall:8.3f}{cpu:8.3f}{max(cost[2] for cost in costs) / 1000:8.0f}{times:8.1f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each (default 5)")
    parser.add_argument("-i", "--input", metavar="FILE", help="read this recording, and record nothing")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        common, recording = environment_of(directory), args.input or f"{directory}/perf.data"
        ways = {"python -c pass": ([sys.executable, "-c", "pass"], common)}
        ways |= {} if args.input else ways_to_record(recording, common)
        ways |= ways_to_read(recording, common)
        found: dict[str, list[Cost]] = {name: [] for name in ways}
        for _ in range(1 + args.runs):
            if not args.input:
                shutil.rmtree(f"{directory}/cache", ignore_errors=True)
            for name, (command, environment) in ways.items():
                found[name].append(run(command, environment))
    print(f"{'':18}{'s':>8}{'CPU s':>8}{'MB':>8}{'x perf':>8}")
    for name, costs in found.items():
        show(name, costs[1:], found[PERF][1:])


if __name__ == "__main__":
    main()
