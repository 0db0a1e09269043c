# SPDX-License-Identifier: Apache-2.0
"""Measure the time of writing each output format:  python benchmarks/convert.py [--waits N] [--stacks N]

Writes a synthetic profile of a million waits over 50 000 stacks (see tests/builders/large.py) in each
format and as a report. Prints the fastest of several runs, the least CPU time, the size of the output and
the peak memory of the process. Marks are the project's goals.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / room) for room in ("", "tests")]

from builders.large import large_profile  # noqa: E402

from perf_offcpu.convert.registry import FORMATS  # noqa: E402
from perf_offcpu.model.profile import Profile  # noqa: E402
from perf_offcpu.report.document import document  # noqa: E402
from perf_offcpu.report.style import Style  # noqa: E402
from perf_offcpu.report.summary import Limits, summarize  # noqa: E402
from perf_offcpu.report.terminal import render  # noqa: E402

MARKS_S = {
    "html": 5.0,
    "folded": 1.0,
    "speedscope": 3.0,
    "pprof": 3.0,
    "chrome-trace": 10.0,
    "perfetto": 5.0,
    "firefox": 10.0,
    "callgraph": 5.0,
    "report": 1.0,
}
"""Seconds for a million waits over 50 000 stacks; call graph: 20 000 functions."""
GRAPH_FUNCTIONS = 20_000
REPORT_LIMITS = Limits(threads=25, stacks=10)


def formatted(name: str) -> Callable[[Profile], int]:
    """Write one format to a file in memory and return its size."""

    def run(profile: Profile) -> int:
        with tempfile.TemporaryFile("w+b" if FORMATS[name].binary else "w+", dir="/dev/shm") as out:
            FORMATS[name].write(profile, out)
            out.flush()
            return os.fstat(out.fileno()).st_size

    return run


def report(profile: Profile) -> int:
    """Render the report and return its size."""
    return sum(len(line) + 1 for line in render(summarize(profile, limits=REPORT_LIMITS), Style()))


def report_document(profile: Profile) -> int:
    """Make the JSON document of the whole report and return the number of stacks."""
    return len(document(summarize(profile))["stacks"])


def best_of(runs: int, task: Callable[[Profile], int], profile: Profile) -> tuple[float, float, int]:
    """Return (seconds of the fastest run, least CPU seconds, the task's result)."""
    seconds, cpu = [], []
    for _ in range(runs):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        size = task(profile)
        seconds.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - cpu_begin)
    return min(seconds), min(cpu), size


def main() -> None:
    """Print a line per view."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--waits", type=int, default=1_000_000)
    parser.add_argument("--stacks", type=int, default=50_000)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    profile = large_profile(args.waits, args.stacks)
    print(f"{len(profile.samples)} waits, {args.stacks} stacks in {len(profile.stacks)} nodes")
    print(f"{'view':<14}{'best s':>9}{'cpu s':>9}{'mark s':>9}{'output':>14}")
    tasks = {name: formatted(name) for name in FORMATS}
    tasks |= {"report": report, "report --json": report_document}
    for name, task in tasks.items():
        graph = large_profile(args.waits, args.stacks, functions=GRAPH_FUNCTIONS) if name == "callgraph" else None
        seconds, cpu, size = best_of(args.runs, task, graph or profile)
        print(f"{name:<14}{seconds:>9.3f}{cpu:>9.3f}{MARKS_S.get(name, ''):>9}{size:>14}")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")


if __name__ == "__main__":
    main()
