# SPDX-License-Identifier: Apache-2.0
"""Time and memory of `fleet` on a large dataset:  python benchmarks/fleet_queries.py DATASET [--service NAME]

DATASET is what benchmarks/fleet_rows.py writes: for a day of 1000 hosts with 200 million waits,

    python benchmarks/fleet_rows.py DATASET --rows 206000000

Each view runs as a command of its own: cold (files are dropped from the page cache first), then warm. Printed
are wall time, CPU time and peak memory of the command, start of Python included, and whether the first took
at most 5 s and 2 GB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_SECONDS, MOST_BYTES = 5.0, 2 << 30


def main() -> int:
    """Run all views and return 1 if the first is too slow or too large."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--service", default="checkout")
    parser.add_argument("--only-first", action="store_true", help="the heaviest stacks of the service alone")
    args = parser.parse_args()
    dataset, of_service = str(args.dataset), ("--label", f"service={args.service}")
    views = {
        f"top stacks of {args.service}": ("top", dataset, *of_service),
        f"report of {args.service} by comm, class": ("report", dataset, *of_service, "--sort", "comm,class"),
        "report of all hosts": ("report", dataset),
        "top stacks of all hosts": ("top", dataset),
        "hosts unlike the others": ("diff", dataset),
    }
    files = [path for path in args.dataset.rglob("*.parquet")]
    size = sum(path.stat().st_size for path in files)
    print(f"{len(files)} files, {size / 1e9:.2f} GB, {os.cpu_count()} CPUs")
    print(f"{'':44} {'wall s':>7} {'CPU s':>7} {'MB':>6}")
    worst = (0.0, 0)
    for name, words in views.items():
        for state in ("cold", "warm"):
            if state == "cold":
                drop(files)
            seconds, cpu, peak = run(words)
            print(f"{name + ', ' + state:44} {seconds:7.2f} {cpu:7.2f} {peak >> 20:6}", flush=True)
            if name.startswith("top stacks of " + args.service):
                worst = max(worst[0], seconds), max(worst[1], peak)
        if args.only_first:
            break
    within = worst[0] <= MOST_SECONDS and worst[1] <= MOST_BYTES
    print(f"within {MOST_SECONDS:.0f} s and {MOST_BYTES >> 30} GB: {'yes' if within else 'no'}")
    return 0 if within else 1


def drop(files: list[Path]) -> None:
    """Drop the files from the page cache."""
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run(words: tuple[str, ...]) -> tuple[float, float, int]:
    """Run a view of fleet; return wall time, CPU time and peak memory (bytes)."""
    command = [sys.executable, "-m", "perf_offcpu", "fleet", *words, "--no-pager"]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - began
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
