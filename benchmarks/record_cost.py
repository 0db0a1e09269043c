# SPDX-License-Identifier: Apache-2.0
"""What recording costs, and whether it keeps up:  sudo python benchmarks/record_cost.py [--runs N] [--cpu N]

`perf bench sched pipe` does nothing but switch: two tasks hand a byte to and fro. It runs bare and under the
recorder in several ways, in turn, so that whatever else the machine does meets all of them; medians count.
Both tasks stay on one CPU: left alone they find themselves on one or on two from run to run, and a wake-up
across CPUs takes ten times as long, which hides everything else (`--cpu any` shows it).
What the BPF programs cost comes from runs of their own, because counting it costs, too. Then `perf bench
sched messaging`, 400 tasks, with every wait a sample: is anything lost?

Figures of one run of this script can be compared with each other, hardly with those of another day.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

STATS = Path("/proc/sys/kernel/bpf_stats_enabled")
WAYS = {
    "sums (default)": [],
    "sums, -e none": ["-e", "none"],
    "sums, everybody (-a)": ["-a"],
    "every wait (threshold 0)": ["--off-cpu-thresh", "0"],
    "every wait, no kernel stacks": ["--off-cpu-thresh", "0", "--no-kernel-callchains"],
    "every wait, frame pointers": ["--off-cpu-thresh", "0", "--call-graph", "fp"],
    "every wait, copies of 2 KB": ["--off-cpu-thresh", "0", "--call-graph", "cfi,2048"],
    "every wait, copies of 4 KB": ["--off-cpu-thresh", "0", "--call-graph", "cfi,4096"],
    "every wait, copies of 8 KB": ["--off-cpu-thresh", "0", "--call-graph", "cfi,8192"],
}
MESSAGING = ["perf", "bench", "--format=simple", "sched", "messaging", "-g", "10", "-l", "400"]


def recorded(options: list[str], command: list[str]) -> dict[str, Any]:
    """Run a command under a recorder in a process of its own; what `child` prints of it."""
    program = [sys.executable, __file__, "--child", *options, "--", *command]
    done = subprocess.run(program, check=True, capture_output=True, text=True)
    *output, last = done.stdout.splitlines()
    figures: dict[str, Any] = json.loads(last)
    return figures | {"seconds": float(output[-1])}


def child(argv: list[str]) -> None:
    """Record as `argv` says, and print one JSON object about recorder and recording."""
    from perf_offcpu.collect.session import record
    from perf_offcpu.commands.record import add_parser, options_of

    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    summary = record(options_of(parser.parse_args(["record", *argv]), argv), lambda text: None)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    samples, size = summary.events("samples"), summary.file_bytes
    print(
        json.dumps(
            {
                "samples": samples,
                "sums": summary.sums,
                "on-cpu": summary.oncpu_samples,
                "losses": summary.losses(),
                "bytes": size,
                "cpu_s": summary.cpu_s,
                "total_cpu_s": usage.ru_utime + usage.ru_stime,
                "peak_mb": usage.ru_maxrss / 1024,
                "fullest": summary.ring_fullest,
                "programs": summary.programs,
            }
        )
    )


def bare(command: list[str]) -> float:
    """Seconds that the benchmark says it took."""
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


@contextmanager
def bpf_stats() -> Iterator[None]:
    """Have the kernel time BPF programs."""
    before = STATS.read_text()
    STATS.write_text("1")
    try:
        yield
    finally:
        STATS.write_text(before)


def spread(values: list[float], unit: Callable[[float], str]) -> str:
    """Median, and the extremes."""
    return f"{unit(statistics.median(values))} ({unit(min(values))}-{unit(max(values))})"


def pipe_benchmark(loops: int, cpu: str) -> list[str]:
    """The command line of the pipe benchmark on one CPU, or on `any`."""
    pinned = [] if cpu == "any" else ["taskset", "-c", cpu]
    return [*pinned, "perf", "bench", "--format=simple", "sched", "pipe", "-l", str(loops)]


def cost_of_switches(command: list[str], runs: int, loops: int) -> None:
    """Time per operation of the pipe benchmark, bare and recorded in each way."""
    seconds: dict[str, list[float]] = {"bare": [], **{way: [] for way in WAYS}}
    figures: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for _ in range(runs):
        seconds["bare"].append(bare(command))
        for way, options in WAYS.items():
            figures[way].append(recorded(options, command))
            seconds[way].append(figures[way][-1]["seconds"])
    print(f"{' '.join(command)}\nus per operation (two switches), median of {runs} (extremes)")
    plain = statistics.median(seconds["bare"])
    for way, values in seconds.items():
        times = spread([value / loops * 1e6 for value in values], lambda us: f"{us:.2f}")
        print(f"  {way:<30} {times:>24}  x {statistics.median(values) / plain:.3f}")
    print("\nthe recorder, median of the same runs")
    head = (
        "samples",
        "sums",
        "on-CPU",
        "lost",
        "file MB",
        "B/sample",
        "CPU s",
        "with setup",
        "peak MB",
        "ring",
    )
    print(f"  {'':<30} " + " ".join(f"{text:>10}" for text in head))
    for way, rows in figures.items():
        print(f"  {way:<30} " + " ".join(f"{text:>10}" for text in recorder_row(rows)))


def recorder_row(rows: list[dict[str, Any]]) -> list[str]:
    """The figures of one way to record."""

    def median(key: str) -> float:
        return statistics.median(float(row[key]) for row in rows)

    records = max(1.0, median("samples") + median("sums") + median("on-cpu"))
    lost = max(sum(row["losses"].values()) for row in rows)
    return [
        f"{median('samples'):.0f}",
        f"{median('sums'):.0f}",
        f"{median('on-cpu'):.0f}",
        str(lost),
        f"{median('bytes') / 1e6:.2f}",
        f"{median('bytes') / records:.0f}" if records > 1000 else "-",
        f"{median('cpu_s'):.3f}",
        f"{median('total_cpu_s'):.2f}",
        f"{median('peak_mb'):.0f}",
        f"{median('fullest'):.0%}",
    ]


def cost_in_bpf(command: list[str]) -> None:
    """ns a run of each BPF program, in runs with the kernel's own clock around them."""
    print("\nBPF programs, ns a run (kernel.bpf_stats_enabled), and runs")
    with bpf_stats():
        for way, options in WAYS.items():
            programs = recorded(options, command)["programs"]
            shown = [
                f"{name.removeprefix('offcpu_')} {ns / n:.0f} ({n})"
                for name, (n, ns) in programs.items()
                if n
            ]
            print(f"  {way:<30} {', '.join(shown)}")


def messaging(runs: int) -> None:
    """Whether 400 busy tasks lose anything when every wait is a sample."""
    print("\nperf bench sched messaging -g 10 -l 400, every wait a sample, rings at their default size")
    for _ in range(runs):
        plain, row = bare(MESSAGING), recorded(["--off-cpu-thresh", "0"], MESSAGING)
        lost = ", ".join(f"{count} {what}" for what, count in row["losses"].items()) or "nothing"
        taken = f"{row['samples']} samples, {row['sums']} sums, lost {lost}"
        recorder = f"rings at most {row['fullest']:.0%} full, recorder {row['cpu_s']:.2f} s of CPU"
        print(f"  bare {plain:.2f} s, recorded {row['seconds']:.2f} s; {taken}; {recorder}")


def main() -> None:
    """Run everything and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="runs of each kind (default: 5)")
    parser.add_argument("--loops", type=int, default=200_000, help="of the pipe benchmark (default: 200000)")
    parser.add_argument("--cpu", default="0", help="where the pipe benchmark runs (default: 0), or any")
    args = parser.parse_args()
    pipe = pipe_benchmark(args.loops, args.cpu)
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        cost_of_switches(pipe, args.runs, args.loops)
        cost_in_bpf(pipe)
        messaging(max(1, args.runs // 2))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
    else:
        main()
