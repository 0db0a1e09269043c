# SPDX-License-Identifier: Apache-2.0
"""Time and memory of `fleet` on a large dataset:  python benchmarks/fleet_queries.py DATASET [--service NAME]

DATASET is what benchmarks/fleet_rows.py writes: for a day of 1000 hosts with 200 million waits,

    python benchmarks/fleet_rows.py DATASET --rows 206000000

For 200 agents that wrote segments of three minutes for an hour, --compact then merges them as agents do, each its own
files, and after that all, each time with two of the views again:

    python benchmarks/fleet_rows.py DATASET RECORDING --hosts 200 --hours 1 --rows 2400000 --segment-minutes 3
    python benchmarks/fleet_queries.py DATASET --compact [--engine 'spark:local-cluster[2,1,1500]']

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

from pyarrow.parquet import ParquetFile

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from perf_offcpu.dataset.compact import compact_host  # noqa: E402
from perf_offcpu.dataset.dataset import open_dataset  # noqa: E402

MOST_SECONDS, MOST_BYTES = 5.0, 2 << 30


def main() -> int:
    """Run all views and return 1 if the first of the last round is too slow or too large."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--service", default="checkout")
    parser.add_argument("--engine", default="duckdb")
    parser.add_argument("--compact", action="store_true", help="merge files, with the views before and after")
    parser.add_argument("--only-first", action="store_true", help="the heaviest stacks of the service alone")
    args = parser.parse_args()
    asked = str(args.dataset), "--engine", args.engine
    of_service = ("--label", f"service={args.service}")
    views = {
        f"top stacks of {args.service}": ("top", *asked, *of_service),
        f"report of {args.service} by comm, class": ("report", *asked, *of_service, "--sort", "comm,class"),
        "report of all hosts": ("report", *asked),
        "top stacks of all hosts": ("top", *asked),
        "hosts unlike the others": ("diff", *asked),
        "versions compared": ("diff", *asked, "--label", "version=2.0", "--baseline", "version=1.9"),
    }
    if not args.compact:
        return measure(args, views)
    views = {name: views[name] for name in ("report of all hosts", "versions compared")}
    measure(args, views)
    merge_own(args.dataset)
    measure(args, views)
    seconds, cpu, peak = run(("compact", str(args.dataset)))
    print(f"fleet compact: {seconds:.1f} s, {cpu:.1f} s of CPU, {peak >> 20} MB")
    return measure(args, views)


def merge_own(path: Path) -> None:
    """Merge the files of each host in each hour, as its agent does; print the cost."""
    dataset = open_dataset(str(path))
    hours = sorted({hour for hour, _ in dataset.folders("hosts")})
    files = dataset.files("hosts")
    rows = [row for file in files for row in ParquetFile(file).read(["host_id", "boot_id"]).to_pylist()]
    began, before, count = time.monotonic(), os.times(), 0
    hosts = sorted({(row["host_id"], row["boot_id"]) for row in rows})
    for host in hosts:
        count += sum(compact_host(dataset, hour, *host).files for hour in hours)
    seconds, cpu_s = time.monotonic() - began, sum(os.times()[:2]) - sum(before[:2])
    print(f"{len(hosts)} agents merged {count} files: {seconds:.1f} s, {cpu_s:.1f} s of CPU", end=", ")
    print(f"{1000 * cpu_s / max(count, 1):.2f} ms a file, {cpu_s / len(hosts) / len(hours):.2f} s a host and hour")


def measure(args: argparse.Namespace, views: dict[str, tuple[str, ...]]) -> int:
    """Run all views; return 1 if the first is too slow or too large."""
    files = [path for path in args.dataset.rglob("*.parquet")]
    size = sum(path.stat().st_size for path in files)
    print(f"{len(files)} files, {size / 1e9:.2f} GB, {os.cpu_count()} CPUs")
    print(f"{'':44} {'wall s':>7} {'CPU s':>7} {'MB':>6}")
    worst = (0.0, 0)
    for name, words in views.items():
        for state in ("warm",) if args.compact else ("cold", "warm"):
            if state == "cold":
                drop(files)
            seconds, cpu, peak = run(words)
            print(f"{name + ', ' + state:44} {seconds:7.2f} {cpu:7.2f} {peak >> 20:6}", flush=True)
            if name.startswith("top stacks of " + args.service):
                worst = max(worst[0], seconds), max(worst[1], peak)
        if args.only_first:
            break
    within = worst[0] <= MOST_SECONDS and worst[1] <= MOST_BYTES
    if args.compact:
        return 0
    print(f"within {MOST_SECONDS:.0f} s and {MOST_BYTES >> 30} GB: {'yes' if within else 'no'}")
    return 0 if within else 1


def drop(files: list[Path]) -> None:
    """Drop the files from the page cache."""
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run(words: tuple[str, ...]) -> tuple[float, float, int]:
    """Run a view of fleet; return wall time, CPU time and peak memory (bytes)."""
    command = [sys.executable, "-m", "perf_offcpu", "fleet", *words]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - began
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
