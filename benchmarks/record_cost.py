# SPDX-License-Identifier: Apache-2.0
"""Measure a recorded program:  sudo python benchmarks/record_cost.py [--rounds N] [--cpu CPUS] [--only TEXT]

`perf bench sched pipe`, whose two tasks pass a byte and do nothing else, runs in many short rounds,
alternately bare and under the recorder in one of several ways. Each recorded run is compared with the bare
runs before and after it, so that other load affects both. Prints the median of these ratios and the range
of the middle half, for wall clock and for the CPU time of the benchmark's process, which other load affects
less (it includes start and exit, about 10 ms in both kinds of run).

`--cpu 0` keeps both tasks on one CPU: the worst case for a recorder, as they never idle. `--cpu 0,1` gives
each its own CPU, with a program that does the same (benchmarks/wait_pair.c, compiled with gcc): they wake
each other across CPUs, where an operation takes longer anyway. `--cpu any` is the plain `perf bench sched
pipe`: the scheduler chooses.

A row with losses (column "lost", over all rounds; a "!" before the ratio) does not count: a wait that finds
the ring full costs less than a sample. Two rows show a lower bound for such recorders: BPF programs that
return at once at the same hooks, and one walk of each user stack. The column "/ empty" has each median as a
ratio to that of the programs that return at once. bpftrace and libbpf-tools' offcputime run in the same
rounds where they are installed (benchmarks/other_tools.py). Files go to memory (/dev/shm) unless
--output names a place; then the disk is idle before each run (sync). The cost of the BPF programs comes from
a last run of each way, because counting it costs, too. `--messaging` also runs `perf bench sched messaging`,
400 tasks.
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
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import other_tools  # noqa: E402
import references  # noqa: E402
from other_tools import Stats  # noqa: E402

from perf_offcpu import losses  # noqa: E402
from perf_offcpu.collect.session import record  # noqa: E402
from perf_offcpu.commands.record.command import add_parser  # noqa: E402
from perf_offcpu.commands.record.options import options_of  # noqa: E402
from perf_offcpu.commands.shared.parsers import Parser  # noqa: E402

STATS = Path("/proc/sys/kernel/bpf_stats_enabled")
EVERY = ["--off-cpu-thresh", "0"]
FP = [*EVERY, "--call-graph", "fp"]
WAYS = {
    "sums (default)": [],
    "sums, -e none": ["-e", "none"],
    "sums, whole system (-a)": ["-a"],
    "all on (-a, wakers' stacks)": ["-a", "--waker-stacks", "--all-cgroups", "--kernel-threads"],
    "sums, --no-wakers": ["--no-wakers"],
    "sums without stacks": ["--short-waits", "threads"],
    "sampled by length, 1 ms": ["--off-cpu-period", "1"],
    "every wait, fp": FP,
    "every wait, no kernel stacks": [*FP, "--no-kernel-callchains"],
    "every wait, fp, wakers' stacks": [*FP, "--waker-stacks"],
    "every wait, copies by need": [*EVERY, "--call-graph", "cfi"],
}
EMPTY = "(programs that do nothing)"
REFERENCES = {EMPTY: references.doing_nothing, "(one walk at switch-out)": partial(references.walking, 1)}
MESSAGING = ["perf", "bench", "--format=simple", "sched", "messaging", "-g", "10", "-l", "400"]

Row = dict[str, Any]


def recorded(options: list[str], command: list[str], directory: Path) -> Row:
    """Run a command under a recorder in another process; return its account of both."""
    if not directory.is_relative_to("/dev/shm"):
        os.sync()
    path = directory / "cost.data"
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        os.dup2(writer, 1)
        try:
            _record([*options, "-o", str(path), "--", *command])
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writer)
    with open(reader) as output:
        lines = output.read().splitlines()
    if os.waitpid(child, 0)[1]:
        raise SystemExit(f"recording with {' '.join(options)} failed")
    *words, last = lines
    path.unlink()
    row: Row = json.loads(last)
    return row | {"seconds": float(words[-1].split()[-1])}


def _record(argv: list[str]) -> None:
    """Record with the options `argv` and print a JSON object about recorder and recording."""
    parser = Parser()
    subparsers: Any = parser.add_subparsers()
    add_parser(subparsers)
    summary = record(options_of(parser.parse_args(["record", *argv]), argv), lambda text: None)
    row = {
        "samples": summary.events(losses.SAMPLES),
        "sums": summary.sums,
        "oncpu": summary.oncpu_samples,
        "lost": sum(summary.losses().values()),
        "losses": {cause.text: count for cause, count in summary.losses().items()},
        "bytes": summary.file_bytes,
        "cpu_s": summary.cpu_s,
        "fullest": summary.ring_fullest,
        "programs": summary.programs,
        "command_cpu_s": cpu_of_children(),
    }
    print(json.dumps(row))


def with_reference(reference: Callable[[], AbstractContextManager[Stats]], command: list[str]) -> Row:
    """Run a command next to reference programs; return the same account."""
    with reference():
        seconds, cpu_s = bare(command)
    nothing = dict.fromkeys(("samples", "sums", "oncpu", "lost", "bytes", "cpu_s", "fullest"), 0)
    return nothing | {"seconds": seconds, "command_cpu_s": cpu_s}


def cpu_of_children() -> float:
    """Return the CPU seconds of terminated child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def bare(command: list[str]) -> tuple[float, float]:
    """Return seconds as the benchmark prints them, and CPU seconds of its process."""
    before = cpu_of_children()
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(output.split()[-1]), cpu_of_children() - before


@contextmanager
def bpf_stats() -> Iterator[None]:
    """Let the kernel time BPF programs during the block."""
    before = STATS.read_text()
    STATS.write_text("1")
    try:
        yield
    finally:
        STATS.write_text(before)


@contextmanager
def other_tool(command: list[str]) -> Iterator[Stats]:
    """Run another profiler during the block; the kernel times programs only until it has begun."""
    with ExitStack() as tool:
        with bpf_stats():
            stats = tool.enter_context(other_tools.at_work(command))
        yield stats


def pipe_benchmark(loops: int, cpu: str, pair: str) -> list[str]:
    """Return the command of the pipe benchmark on one CPU, on two (program `pair`), or on any."""
    if "," in cpu:
        return [pair, "pipe", *cpu.split(","), str(loops)]
    pinned = [] if cpu == "any" else ["taskset", "-c", cpu]
    return [*pinned, "perf", "bench", "--format=simple", "sched", "pipe", "-l", str(loops)]


def rounds_of(
    ways: Mapping[str, Callable[[], Row]], command: list[str], rounds: int
) -> tuple[list[float], dict[str, list[Row]]]:
    """Return (seconds of all bare runs, rows of each way with ratios to the bare runs around them)."""
    plain, rows = [bare(command)], {way: list[Row]() for way in ways}
    order = list(ways.items())
    for number in range(rounds):
        first = number % len(order)  # so that no way always follows the same one
        for way, run in order[first:] + order[:first]:
            row = run()
            plain.append(bare(command))
            seconds, cpu_s = (sum(pair) / 2 for pair in zip(*plain[-2:], strict=True))
            ratios = {"ratio": row["seconds"] / seconds, "cpu_ratio": row["command_cpu_s"] / cpu_s}
            rows[way].append(row | ratios)
    return [seconds for seconds, _ in plain], rows


def show(plain: list[float], rows: dict[str, list[Row]], loops: int) -> None:
    """Print one line per way: time, ratio, what was recorded and lost."""

    def time(seconds: list[float]) -> str:
        low, middle, high = (f(seconds) / loops * 1e6 for f in (min, statistics.median, max))
        return f"{middle:.2f} ({low:.2f}-{high:.2f})"

    def ratio(some: list[Row], key: str) -> str:
        low, middle, high = statistics.quantiles([row[key] for row in some], n=4)
        return f"{middle:.3f} ({low:.3f}-{high:.3f})"

    print(f"{'':<30} {'us/operation':>20} {'to bare (middle half)':>23} {'/ empty':>7}", end="")
    print(f" {'CPU time to bare':>20}", end="")
    print(f" {'lost':>7} {'waits':>7} {'on-CPU':>6} {'MB':>7} {'B/wait':>6} {'CPU s':>6} {'ring':>5}")
    print(f"{'bare':<30} {time(plain):>20}")
    empty = statistics.median(row["ratio"] for row in rows[EMPTY])
    for way, some in rows.items():
        lost = sum(row["lost"] for row in some)
        times = f"{'! ' if lost else ''}{ratio(some, 'ratio')}"
        print(f"{way:<30} {time([row['seconds'] for row in some]):>20} {times:>23} ", end="")
        print(f"{statistics.median(row['ratio'] for row in some) / empty:>7.2f} ", end="")
        print(f"{ratio(some, 'cpu_ratio'):>20} {lost:>7} {recorder_columns(some)}")


def recorder_columns(rows: list[Row]) -> str:
    """Return medians of the amounts recorded in one way, and of the recorder's own costs."""

    def median(value: Callable[[Row], float]) -> float:
        return statistics.median(map(value, rows))

    each = median(lambda row: row["bytes"] / row["samples"] if row["samples"] > 1000 else 0.0)
    return (
        f"{median(lambda row: row['samples'] + row['sums']):>7.0f} {median(lambda row: row['oncpu']):>6.0f} "
        f"{median(lambda row: row['bytes']) / 1e6:>7.2f} {f'{each:.0f}' if each else '-':>6} "
        f"{median(lambda row: row['cpu_s']):>6.2f} {median(lambda row: row['fullest']):>5.0%}"
    )


def cost_in_bpf(ways: dict[str, list[str]], command: list[str], directory: Path) -> None:
    """Return ns per run of each BPF program, as the kernel times them."""
    print("\nBPF programs, ns a run (kernel.bpf_stats_enabled), and runs")
    with bpf_stats():
        for way, options in ways.items():
            programs = recorded(options, command, directory)["programs"]
            shown = [f"{name.removeprefix('offcpu_')} {ns / n:.0f} ({n})" for name, (n, ns) in programs.items() if n]
            print(f"  {way:<30} {', '.join(shown)}")


def messaging(runs: int, directory: Path) -> None:
    """Record 400 busy tasks with every wait as a sample; print the losses."""
    print("\nperf bench sched messaging -g 10 -l 400, every wait a sample, rings at their default size")
    for _ in range(runs):
        (plain, _), row = bare(MESSAGING), recorded(EVERY, MESSAGING, directory)
        lost = ", ".join(f"{count} {what}" for what, count in row["losses"].items()) or "nothing"
        taken = f"{row['samples']} samples, {row['sums']} sums, lost {lost}"
        recorder = f"rings at most {row['fullest']:.0%} full, recorder {row['cpu_s']:.2f} s of CPU"
        print(f"  bare {plain:.2f} s, recorded {row['seconds']:.2f} s; {taken}; {recorder}")


def main() -> None:
    """Run everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="rounds of all ways (default: 20)")
    parser.add_argument("--loops", type=int, default=50_000, help="operations of the pipe benchmark (default: 50000)")
    parser.add_argument("--cpu", default="0", help="CPUs of the benchmark: 0 (default), 0,1 or any")
    parser.add_argument("--only", default="", help="measure only ways with this text in their names")
    parser.add_argument("--output", type=Path, default=Path("/dev/shm"), help="directory for recordings")
    parser.add_argument("--messaging", action="store_true", help="also run perf bench sched messaging with 400 tasks")
    args = parser.parse_args()
    if args.rounds < 2:
        parser.error("--rounds: 2 or more, for a middle half")
    ways = {name: options for name, options in WAYS.items() if args.only in name}
    with tempfile.TemporaryDirectory(dir=args.output) as name:
        directory = Path(name).resolve()
        pair = references.wait_pair(directory) if "," in args.cpu else ""
        pipe = pipe_benchmark(args.loops, args.cpu, pair)
        for options in ways.values():  # compiled, and in memory
            recorded(options, pipe_benchmark(100, args.cpu, pair), directory)
        print(f"{' '.join(pipe)}: {args.rounds} rounds, recordings in {args.output}")
        runs: dict[str, Callable[[], Row]] = {
            way: partial(recorded, options, pipe, directory) for way, options in ways.items()
        }
        tools, missing = other_tools.installed()
        for sentence in missing:
            print(sentence)
        beside: dict[str, Any] = REFERENCES | {f"({way})": partial(other_tool, tools[way]) for way in tools}
        runs |= {way: partial(with_reference, reference, pipe) for way, reference in beside.items()}
        show(*rounds_of(runs, pipe, args.rounds), args.loops)
        cost_in_bpf(ways, pipe, directory)
        if args.messaging:
            messaging(2, directory)


if __name__ == "__main__":
    main()
