# SPDX-License-Identifier: Apache-2.0
"""Make the table of Documentation/overhead.md:  sudo python benchmarks/overhead.py [--rounds N] [--write]

`perf bench sched pipe` on one CPU, which only switches between two tasks, runs under each recorder in turn:
first to compare its time with the bare runs before and after it (as record_cost.py does), then while the
kernel counts the run time of the BPF programs (as bpf_cost.py does). Prints one Markdown table with medians,
and the machine, commit and date. `--write` puts it into the page. Takes about 5 minutes for 8 rounds; run it
on an idle machine.

bpftrace and libbpf-tools' offcputime are rows where they are installed. `--perf PERF` adds `PERF record
--off-cpu` of a perf that was built with BPF skeletons, which Debian's is not.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import bpf_cost
import other_tools
import record_cost
import references
from other_tools import Stats

from perf_offcpu.collect.bpf import syscall as bpf_syscall
from perf_offcpu.collect.bpf.attr import Command
from perf_offcpu.collect.system.cpus import online_cpus

PAGE = record_cost.ROOT / "Documentation" / "overhead.md"
BEGIN, END = "<!-- begin: benchmarks/overhead.py -->", "<!-- end -->"

Form = Callable[[], AbstractContextManager[Stats]]
TWO_WALKS = "two walks of the user stack at each switch-out, as `perf record --off-cpu` makes"
PERF = "`perf record --off-cpu`"
REFERENCES: dict[str, Form] = {
    "BPF programs that return at once, at the same hooks": references.doing_nothing,
    "one walk of the user stack at each switch-out, summed": partial(references.walking, 1),
    TWO_WALKS: partial(references.walking, 2),
}
OURS = {
    "**the default**": ("stacks drawn, budget, wakers", []),
    "`--short-waits stacks`": ("sums by stack and caller, budget, wakers", ["--short-waits", "stacks"]),
    "`--short-waits threads`": ("sums without stacks, budget, wakers", ["--short-waits", "threads"]),
    "`--off-cpu-period 1`": ("sampled by length, 1 ms", ["--off-cpu-period", "1"]),
    "`--lock-owners`": ("sums by stack and caller, lock owners", ["--lock-owners"]),
    "`--off-cpu-thresh 0 --call-graph fp`": ("every wait a sample", record_cost.FP),
    "the same with `--waker-stacks`": ("every wait, wakers' stacks", [*record_cost.FP, "--waker-stacks"]),
}
"""Row → (form of bpf_cost.py, options of `record`)."""


@dataclass(slots=True)
class Cells:
    """Figures of a row."""

    ns_per_switch: float
    us_per_operation: float
    ratio: list[float]
    lost: int = 0


def measure(forms: dict[str, Form], loops: int, rounds: int) -> dict[str, Cells]:
    """Run the benchmark bare and under each recorder; return figures by row, those of bare runs first."""
    *others, cpu = online_cpus()
    os.sched_setaffinity(0, others or [cpu])
    pipe = record_cost.pipe_benchmark(loops, str(cpu), "")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        directory = Path(name)
        ways = {row: partial(record_cost.with_reference, form, pipe) for row, form in forms.items()}
        for row, (_, options) in OURS.items():
            record_cost.recorded(options, record_cost.pipe_benchmark(100, str(cpu), ""), directory)
            ways[row] = partial(record_cost.recorded, options, pipe, directory)
        bare, rows = record_cost.rounds_of(ways, pipe, rounds)
    counted = {row: bpf_cost.FORMS[form] for row, (form, _) in OURS.items()} | forms
    stats_on = bpf_syscall.call(Command.ENABLE_STATS, bpf_cost.EnableStats(type=0))
    runs = [
        {row: bpf_cost.measure(form, pipe, loops).ns_per_switch for row, form in counted.items()} for _ in range(rounds)
    ]
    os.close(stats_on)
    table = {"not recorded": Cells(0, statistics.median(bare) / loops * 1e6, [])}
    for row in [*REFERENCES, *OURS, *(row for row in forms if row not in REFERENCES)]:
        table[row] = Cells(
            statistics.median(run[row] for run in runs),
            statistics.median(one["seconds"] for one in rows[row]) / loops * 1e6,
            statistics.quantiles([one["ratio"] for one in rows[row]], n=4),
            sum(one["lost"] for one in rows[row]),
        )
    return table


def markdown(table: dict[str, Cells], rounds: int) -> str:
    """Return the table with a sentence on where and when it was measured."""
    commit = subprocess.check_output(["git", "rev-parse", "--short=7", "HEAD"], text=True, cwd=record_cost.ROOT)
    perf = subprocess.check_output(["perf", "--version"], text=True).split()[-1]
    cpu = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    load = os.getloadavg()[1]
    base = PERF if PERF in table else TWO_WALKS
    lines = [
        f"{datetime.date.today()}, commit {commit.strip()}, Linux {platform.release().partition('-')[0]},",
        f"{os.cpu_count()} CPUs ({cpu[1] if cpu else platform.machine()}), perf {perf}; {rounds} rounds; "
        f"load average {load:.1f}.",
        "",
        f"| recorded | ns of BPF per switch | ratio to {base} | us per operation | ratio to bare |",
        "|---|---:|---:|---:|---:|",
    ]
    for row, cells in table.items():
        name = f"{row} ({cells.lost} lost: does not count)" if cells.lost else row
        if cells.ratio:
            low, middle, high = cells.ratio
            part = cells.ns_per_switch / table[base].ns_per_switch
            in_bpf, ratio = (f"{cells.ns_per_switch:.0f} | {part:.2f}", f"{middle:.2f} ({low:.2f}-{high:.2f})")
        else:
            in_bpf, ratio = "0 | 0", "1"
        lines.append(f"| {name} | {in_bpf} | {cells.us_per_operation:.2f} | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table, and write it into the page if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--loops", type=int, default=50_000, help="operations of the pipe benchmark")
    parser.add_argument("--perf", metavar="PERF", help="a perf whose `record --off-cpu` works")
    parser.add_argument("--write", action="store_true", help=f"replace the table of {PAGE.name}")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: 2 or more, for a middle half")
    tools, missing = other_tools.installed()
    print(*missing, sep="\n")
    forms = REFERENCES | {name: partial(other_tools.at_work, command) for name, command in tools.items()}
    if options.perf:
        command = [options.perf, "record", "--off-cpu", "-g", "-a", "-e", "dummy", "-o", "/dev/null"]
        forms[PERF] = partial(other_tools.at_work, command)
    text = markdown(measure(forms, options.loops, options.rounds), options.rounds)
    print(text)
    if options.write:
        page = PAGE.read_text()
        before, after = page.partition(BEGIN)[0], page.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    main()
