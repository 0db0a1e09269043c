# SPDX-License-Identifier: Apache-2.0
"""Make the table of Documentation/overhead.md:  sudo python benchmarks/overhead.py [--rounds N] [--perf PERF] [--write]

Each recorder records `perf bench sched pipe` on one CPU, which only switches between two tasks, as a command:
`RECORDER -- perf bench …`. In each round all take turns, twice: once while the kernel counts the run time of
the BPF programs, and once without, for the benchmark's own time. Prints a Markdown table of medians, and the
spread of the ns. `--write` puts it into the page. Takes about 25 s a round; run it on an idle machine.

`--perf PERF` names a perf that was built with BPF skeletons, which Debian's is not (in its source, tools/perf:
`make BUILD_BPF_SKEL=1`), and adds `PERF record --off-cpu -g`. Without it the ratios are to the default's ns.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bpf_cost import EnableStats  # noqa: E402

from perf_offcpu.collect.bpf import syscall as bpf_syscall  # noqa: E402
from perf_offcpu.collect.bpf.attr import Command, ObjectId, ProgramInfo  # noqa: E402
from perf_offcpu.collect.system.cpus import online_cpus  # noqa: E402

PAGE = ROOT / "Documentation" / "overhead.md"
BEGIN, END = "<!-- begin: benchmarks/overhead.py -->", "<!-- end -->"
DEFAULT, BARE = "**the default**", "not recorded"
OURS = [sys.executable, "-P", "-m", "perf_offcpu", "record", "-q"]
FP = ["--off-cpu-thresh", "0", "--call-graph", "fp"]
OPTIONS = {
    DEFAULT: [],
    "`--short-waits stacks`": ["--short-waits", "stacks"],
    "`--short-waits threads`": ["--short-waits", "threads"],
    "`--off-cpu-period 1`": ["--off-cpu-period", "1"],
    "`--lock-owners`": ["--lock-owners"],
    "`--off-cpu-thresh 0 --call-graph fp`": FP,
    "the same with `--waker-stacks`": [*FP, "--waker-stacks"],
}


@dataclass(slots=True)
class Runs:
    """The runs under one recorder."""

    ns: list[float] = field(default_factory=list)  # of BPF per switch
    us: list[float] = field(default_factory=list)  # per operation of the benchmark


def run_stats() -> dict[int, tuple[int, int]]:
    """Return id → (runs, ns) of all BPF programs that are loaded."""
    found: dict[int, tuple[int, int]] = {}
    place = ObjectId(start_id=0)
    while True:
        try:
            bpf_syscall.call(Command.PROG_GET_NEXT_ID, place)
        except OSError:
            return found
        place.start_id = place.next_id
        with contextlib.suppress(OSError):
            fd = bpf_syscall.call(Command.PROG_GET_FD_BY_ID, ObjectId(start_id=place.start_id))
            info = bpf_syscall.read_info(fd, ProgramInfo())
            found[place.start_id] = info.run_cnt, info.run_time_ns
            os.close(fd)


def ns_per_switch(command: list[str]) -> float:
    """Run a command; return the ns per switch of the BPF programs that it loads, as seen last."""
    before, seen, end = set(run_stats()), dict[int, tuple[int, int]](), threading.Event()

    def watch() -> None:
        while not end.wait(0.1):
            seen.update({number: stat for number, stat in run_stats().items() if number not in before})

    watcher = threading.Thread(target=watch)
    watcher.start()
    us_of(command, 1)
    end.set()
    watcher.join()
    switches = max((runs for runs, _ in seen.values()), default=0)
    return sum(ns for runs, ns in seen.values() if runs * 1000 > switches) / max(switches, 1)


def us_of(command: list[str], loops: int) -> float:
    """Run a command; return the us per operation that the benchmark prints."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    return float(re.findall(r"^\d+\.\d+$", done.stdout, re.MULTILINE)[-1]) / loops * 1e6


@contextlib.contextmanager
def counting() -> Iterator[None]:
    """Have the kernel count the run time of BPF programs."""
    fd = bpf_syscall.call(Command.ENABLE_STATS, EnableStats(type=0))  # BPF_STATS_RUN_TIME
    try:
        yield
    finally:
        os.close(fd)


def measure(perf: str, loops: int, rounds: int, directory: Path) -> dict[str, Runs]:
    """Run the benchmark under each recorder; `perf`: "" for none."""
    *_, cpu = online_cpus()
    bench = ["taskset", "-c", str(cpu), *f"perf bench --format=simple sched pipe -l {loops}".split()]
    ways = {name: [*OURS, "-o", str(directory / "data"), *options, "--"] for name, options in OPTIONS.items()}
    if perf:
        command = [perf, "record", "--off-cpu", "-g", "-o", str(directory / "perf"), "--"]
        ways = {"`perf record --off-cpu -g`": command} | ways
    runs = {name: Runs() for name in (BARE, *ways)}
    for _ in range(rounds):
        runs[BARE].us.append(us_of(bench, loops))
        for name, way in ways.items():
            with counting():
                runs[name].ns.append(ns_per_switch([*way, *bench]))
            runs[name].us.append(us_of([*way, *bench], loops))
    return runs


def markdown(runs: dict[str, Runs], perf: str) -> str:
    """Return the table with a sentence on where and when it was measured."""
    commit = subprocess.check_output(["git", "rev-parse", "--short=7", "HEAD"], text=True, cwd=ROOT)
    version = subprocess.check_output([perf or "perf", "--version"], text=True).split()[-1]
    cpu = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    rounds, base = len(runs[BARE].us), next(name for name in runs if name != BARE)
    bare = statistics.median(runs[BARE].us)
    lines = [
        f"{datetime.date.today()}, commit {commit.strip()}, Linux {platform.release().partition('-')[0]}, "
        f"{os.cpu_count()} CPUs",
        f"({cpu[1] if cpu else platform.machine()}), perf {version}; {rounds} rounds; "
        f"load average {os.getloadavg()[1]:.1f}.",
        "",
        "| recorded | ns of BPF per switch | ratio to perf | us per operation | ratio to bare |",
        "|---|---:|---:|---:|---:|",
        f"| {BARE} | 0 | 0 | {bare:.2f} | 1 |",
    ]
    for name, run in runs.items():
        if name != BARE:
            ns, us = statistics.median(run.ns), statistics.median(run.us)
            ratio = ns / statistics.median(runs[base].ns)
            spread = f"{ns:.0f} ({min(run.ns):.0f} to {max(run.ns):.0f})"
            lines.append(f"| {name} | {spread} | {ratio:.2f} | {us:.2f} | {us / bare:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table, and write it into the page if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--loops", type=int, default=150_000, help="operations of the pipe benchmark")
    parser.add_argument("--perf", default="", metavar="PERF", help="a perf whose `record --off-cpu` works")
    parser.add_argument("--write", action="store_true", help=f"replace the table of {PAGE.name}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        text = markdown(measure(options.perf, options.loops, options.rounds, Path(directory)), options.perf)
    print(text)
    if options.write:
        page = PAGE.read_text()
        before, after = page.partition(BEGIN)[0], page.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    main()
