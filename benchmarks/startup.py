# SPDX-License-Identifier: Apache-2.0
"""How long users wait for nothing:  sudo python benchmarks/startup.py [--runs N]

`record -- true` cold (nothing kept: bcc compiles), warm (the compiled program is kept), without any cache;
then `report` and `convert --folded` of that recording. Each in a process of its own, in turn; medians of wall
clock and CPU time, and the largest memory. Python's own start is listed for comparison.

Figures of one run of this script can be compared with each other, hardly with those of another day.
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


def run(command: list[str], environment: dict[str, str]) -> tuple[float, float, int]:
    """(seconds, CPU seconds, largest resident KiB) of a command and its children."""
    begin = time.monotonic()
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    pid = os.posix_spawn(command[0], command, environment, file_actions=silent)
    _, status, usage = os.wait4(pid, 0)
    if status:
        sys.exit(f"{' '.join(command)} ends with {os.waitstatus_to_exitcode(status)}")
    return time.monotonic() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="runs of each (default 5)")
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as directory:
        cache, recording = Path(directory, "cache"), str(Path(directory, "perf.data"))
        common = os.environ | {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(ROOT)}
        record = [*PROGRAM, "record", "-q", "-o", recording, "--", "true"]
        without = common | {"PERF_OFFCPU_CACHE_BYTES": "0"}
        ways = {
            "python -c pass": ([sys.executable, "-c", "pass"], common),
            "record, cold": (record, common),
            "record, warm": (record, common),
            "record, no cache": (record, without),
            "report": ([*PROGRAM, "report", "-i", recording], common),
            "convert --folded": ([*PROGRAM, "convert", "--folded", "-o", "-", "-i", recording], common),
        }
        found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in ways}
        for _ in range(runs):
            shutil.rmtree(cache, ignore_errors=True)
            for name, (command, environment) in ways.items():
                found[name].append(run(command, environment))
    print(f"{'':18}{'s':>8}{'CPU s':>8}{'MB':>8}")
    for name, rows in found.items():
        wall, cpu = (statistics.median(row[at] for row in rows) for at in (0, 1))
        print(f"{name:18}{wall:8.2f}{cpu:8.2f}{max(row[2] for row in rows) / 1000:8.0f}")


if __name__ == "__main__":
    main()
