# SPDX-License-Identifier: Apache-2.0
"""Measure ns of BPF per context switch:  sudo python benchmarks/bpf_cost.py [--rounds N] [--loops N]

`perf bench sched pipe`, which only switches between two tasks, runs on one CPU under each form of the
program in turn, for several rounds; the kernel counts the programs' run time (BPF_ENABLE_STATS). The table
has medians over the rounds, of all programs together. With `--waits epoll` or `mutex` the two tasks wait in
epoll_wait(), or for locks (benchmarks/wait_pair.c, compiled with gcc).

Small reference programs run in the same rounds (reference.bpf.c): one walk of the user stack at every
switch-out; two walks, as `perf record --off-cpu` makes; and programs that return at once. bpftrace and
libbpf-tools' offcputime run too where they are installed (benchmarks/other_tools.py); `bare` is the benchmark
without any program. Compare the ratios: figures of different days, machines or kernels are not comparable.

All forms record states and system calls. Marks, as ratios to one walk: sums without stacks at most 0.6 with
the budget, 0.9 with wakers, too; sums by stack 1.1.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import other_tools
import references
from other_tools import Stats

from perf_offcpu.binary.layout import Buffer
from perf_offcpu.collect.bpf import syscall as bpf_syscall
from perf_offcpu.collect.bpf.attr import Command
from perf_offcpu.collect.bpf.config import OffCpuConfig, ShortWaits, Targets
from perf_offcpu.collect.bpf.program import OffCpuProgram
from perf_offcpu.collect.events.evsels import offcpu_attr, probe_support
from perf_offcpu.collect.rings.rings import Rings
from perf_offcpu.collect.system.cpus import online_cpus

NEVER = 10**12
MS = 10**6
RING_BYTES = 4 << 20


class Nowhere:
    """Sink that discards the content of the rings."""

    def append(self, *pieces: Buffer) -> None:
        """Discard."""


@contextmanager
def drained_rings(program: OffCpuProgram) -> Iterator[None]:
    """Provide rings for the program's samples, drained continuously from another CPU."""
    cpus = online_cpus()
    support = probe_support(cpus[0])
    rings = Rings("offcpu-time", lambda wakeup: offcpu_attr(support, wakeup), cpus, RING_BYTES, print)
    for cpu, fd in rings.owner.fds.items():
        program.maps.set_output(cpu, fd)
    rings.owner.enable()
    end = threading.Event()

    def drain() -> None:
        while not end.wait(0.005):
            rings.drain(Nowhere())

    drainer = threading.Thread(target=drain)
    drainer.start()
    try:
        yield
    finally:
        end.set()
        drainer.join()
        rings.close()


@contextmanager
def ours(config: OffCpuConfig) -> Iterator[Stats]:
    """Attach the programs of perf-offcpu."""
    with OffCpuProgram(config) as program, drained_rings(program):
        program.attach()
        program.enable()
        yield lambda: {name: (s.run_cnt, s.run_time_ns) for name, s in program.run_stats().items()}
        counters = program.counters()
        if counters["ring_full"]:
            print(f"the ring was full for {counters['ring_full']} samples", file=sys.stderr)


class EnableStats(ctypes.Structure):
    """Arguments of ENABLE_STATS: all programs are timed while the descriptor is open."""

    _fields_: ClassVar = [("type", ctypes.c_uint32)]


BARE: dict[str, Any] = {"budget": False, "wakers": False}
THREADS: dict[str, Any] = {"short_waits": ShortWaits.THREADS}
DROP: dict[str, Any] = {"short_waits": ShortWaits.DROP}
STACKS: dict[str, Any] = {"threshold_ns": NEVER, "short_waits": ShortWaits.STACKS}

FORMS: dict[str, Callable[[], AbstractContextManager[Stats]]] = {
    "reference: two walks at switch-out": lambda: references.walking(2),
    "reference: one walk at switch-out": lambda: references.walking(1),
    "reference: programs that do nothing": references.doing_nothing,
    "sums by stack": lambda: ours(OffCpuConfig(**STACKS, **BARE)),
    "sums by stack, budget": lambda: ours(OffCpuConfig(**STACKS, wakers=False)),
    "sums by stack, budget, wakers": lambda: ours(OffCpuConfig(**STACKS)),
    "sums by stack and caller": lambda: ours(OffCpuConfig(**STACKS, copy_bytes=8192, **BARE)),
    "sums by stack and caller, budget, wakers": lambda: ours(OffCpuConfig(**STACKS, copy_bytes=8192)),
    "sums by stack and caller, lock owners": lambda: ours(OffCpuConfig(**STACKS, copy_bytes=8192, lock_owners=True)),
    "stacks drawn, budget, wakers": lambda: ours(OffCpuConfig(threshold_ns=NEVER, copy_bytes=8192)),
    "sums without stacks": lambda: ours(OffCpuConfig(threshold_ns=NEVER, **THREADS, **BARE)),
    "sums without stacks, budget": lambda: ours(OffCpuConfig(threshold_ns=NEVER, **THREADS, wakers=False)),
    "sums without stacks, budget, wakers": lambda: ours(OffCpuConfig(threshold_ns=NEVER, **THREADS)),
    "dropped, budget, wakers": lambda: ours(OffCpuConfig(threshold_ns=NEVER, **DROP)),
    "sampled by length, 1 ms": lambda: ours(OffCpuConfig(off_cpu_period_ns=MS)),
    "sampled by length, 1 ms, no wakers": lambda: ours(OffCpuConfig(off_cpu_period_ns=MS, wakers=False)),
    "sampled by length, 10 ms": lambda: ours(OffCpuConfig(off_cpu_period_ns=10 * MS)),
    "every wait a sample": lambda: ours(OffCpuConfig(threshold_ns=0)),
    "every wait, no objects": lambda: ours(OffCpuConfig(threshold_ns=0, objects=False)),
    "every wait, lock owners": lambda: ours(OffCpuConfig(threshold_ns=0, lock_owners=True)),
    "every wait, no kernel stacks": lambda: ours(OffCpuConfig(threshold_ns=0, kernel_stacks=False)),
    "every wait, wakers' stacks": lambda: ours(OffCpuConfig(threshold_ns=0, waker_stacks=True)),
    "threads that no target selects": lambda: ours(OffCpuConfig(targets=Targets.PIDS)),
    "in sched_switch: sums by stack": lambda: ours(OffCpuConfig(**STACKS, in_switch=True)),
    "in sched_switch: without stacks": lambda: ours(OffCpuConfig(threshold_ns=NEVER, in_switch=True, **THREADS)),
    "in sched_switch: every wait": lambda: ours(OffCpuConfig(threshold_ns=0, in_switch=True)),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the benchmark under one form."""

    us_per_operation: float
    ns_per_switch: float = 0.0
    ns_per_run: dict[str, float] = field(default_factory=dict)


def command_of(waits: str, loops: int, cpu: int, directory: Path) -> list[str]:
    """Return the command that waits and wakes; it prints its seconds last. Both tasks are on one CPU."""
    if waits == "pipe":
        return f"taskset -c {cpu} perf bench --format=simple sched pipe -l {loops}".split()
    return [references.wait_pair(directory), waits, str(cpu), str(cpu), str(loops)]


def us_of(command: list[str], loops: int) -> float:
    """Return us per operation, which is two switches."""
    return float(subprocess.check_output(command, text=True).split()[-1]) / loops * 1e6


def measure(form: Callable[[], AbstractContextManager[Stats]], command: list[str], loops: int) -> Run:
    """Run the benchmark under one form."""
    with form() as stats:
        before = stats()
        us = us_of(command, loops)
        after = stats()
    used = {name: (runs - before[name][0], ns - before[name][1]) for name, (runs, ns) in after.items()}
    switches = max(runs for runs, _ in used.values())
    each = {name.removeprefix("offcpu_"): ns / runs for name, (runs, ns) in used.items() if runs}
    return Run(us, sum(ns for _, ns in used.values()) / switches, each)


def show(runs: dict[str, list[Run]]) -> None:
    """Print one line per form: medians, and ratios to the references."""
    cost = {name: statistics.median(run.ns_per_switch for run in some) for name, some in runs.items()}
    two, one = (cost[name] for name in FORMS if "walk" in name)
    print(f"{'':36}{'ns/switch':>9}{'/ two walks':>12}{'/ one walk':>12}{'us/op':>8}  ns a run")
    for name, some in runs.items():
        us = statistics.median(run.us_per_operation for run in some)
        parts = {part: statistics.median(r.ns_per_run[part] for r in some) for part in some[0].ns_per_run}
        detail = "  ".join(f"{part} {ns:.0f}" for part, ns in parts.items())
        ratios = f"{cost[name] / two:12.2f}{cost[name] / one:12.2f}"
        print(f"{name:36}{cost[name]:9.0f}{ratios}{us:8.2f}  {detail}")


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--loops", type=int, default=50_000)
    parser.add_argument("--waits", choices=("pipe", "epoll", "mutex"), default="pipe", help="what is waited for")
    parser.add_argument("--only", default="", help="measure only forms with this text in their names")
    options = parser.parse_args()
    *others, cpu = online_cpus()
    os.sched_setaffinity(0, others or [cpu])
    tools, missing = other_tools.installed()
    for sentence in missing:
        print(sentence)
    others_forms = {name: partial(other_tools.at_work, command) for name, command in tools.items()}
    forms = {name: form for name, form in (FORMS | others_forms).items() if options.only in name}
    forms |= {name: form for name, form in FORMS.items() if name.startswith("reference")}
    runs: dict[str, list[Run]] = {name: [] for name in ["bare", *forms]}
    stats_on = bpf_syscall.call(Command.ENABLE_STATS, EnableStats(type=0))  # BPF_STATS_RUN_TIME
    with tempfile.TemporaryDirectory() as directory:
        command = command_of(options.waits, options.loops, cpu, Path(directory))
        for _ in range(options.rounds):
            runs["bare"].append(Run(us_of(command, options.loops)))
            for name, form in forms.items():
                runs[name].append(measure(form, command, options.loops))
    os.close(stats_on)
    show(runs)


if __name__ == "__main__":
    main()
