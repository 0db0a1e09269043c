# SPDX-License-Identifier: Apache-2.0
"""Measure deriving waits from context switches:  python benchmarks/switches.py [--switches N]

A synthetic machine of 16 CPUs switches between 4000 threads and idle. `pairing` is the interval arithmetic
(columns in, samples out), also with as many wake-ups as switches; `reading` is load_recording on a file of
such tracepoints, without and with waits. Prints the best of several runs and the peak memory of the
process. The mark is the project's goal.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / room) for room in ("", "tests")]

from builders.switching import SwitchTable, write_switches  # noqa: E402

from perf_offcpu.decode.load import load_recording  # noqa: E402
from perf_offcpu.decode.switches.events import Switches, SwitchKind  # noqa: E402
from perf_offcpu.decode.switches.waits import wait_samples  # noqa: E402
from perf_offcpu.losses import Losses  # noqa: E402
from perf_offcpu.model.callchains import Ragged  # noqa: E402
from perf_offcpu.model.columns import I64  # noqa: E402
from perf_offcpu.model.recording import Tasks  # noqa: E402

CPUS = 16
THREADS = 4000
STACKS = 5000
DEPTH = 16
BEGIN_NS = 10**12
MARK_S = 1.0


def machine(switches: int, seed: int = 1) -> SwitchTable:
    """Return rows of sched_switch, CPU after CPU; a CPU is idle a third of the time."""
    rng = np.random.default_rng(seed)
    tries = int(switches / CPUS * 1.13)  # some would switch to the running thread
    parts = [_cpu(rng, cpu, tries) for cpu in range(CPUS)]
    time_ns, cpu, prev, after = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    chains = rng.integers(0x7F00_0000_0000, 0x7FFF_0000_0000, (STACKS, DEPTH), np.uint64)
    chains[:, 0] = 2**64 - 512  # PERF_CONTEXT_USER
    used = rng.integers(0, STACKS, len(time_ns))
    offsets = np.arange(len(time_ns) + 1) * DEPTH
    state = np.where(prev == 0, 0, rng.choice([0, 1, 2, 0x80], len(time_ns)))
    return SwitchTable(time_ns, cpu, prev, after, state, Ragged(offsets, chains[used].reshape(-1)))


def _cpu(rng: np.random.Generator, cpu: int, switches: int) -> tuple[I64, I64, I64, I64]:
    """Return (times, CPU, previous threads, next threads); threads stay on their CPU."""
    after = rng.integers(0, THREADS // CPUS, switches) * CPUS + cpu + 1000
    after[rng.random(switches) < 1 / 3] = 0
    prev = np.concatenate([[0], after[:-1]])
    changes = prev != after
    times = BEGIN_NS + np.cumsum(rng.integers(500, 40_000, switches))
    return times[changes], np.full(int(changes.sum()), cpu), prev[changes], after[changes]


def as_switches(table: SwitchTable, wakeups: bool) -> Switches:
    """Return the rows as the decoder does, with a wake-up for each switch if wanted."""
    rows = Switches.filled(
        len(table),
        kind=np.full(len(table), SwitchKind.SWITCH),
        time_ns=table.time_ns,
        cpu=table.cpu,
        tid=table.prev_pid,
        next_tid=table.next_pid,
        state=np.where(table.prev_state == 0x80, 0x402, table.prev_state),
        preempted=table.prev_state == 0,
        pid=table.prev_pid,
        current=table.prev_pid,
        callchain=np.zeros(len(table)),
    )
    if not wakeups:
        return rows
    woken = rows.with_columns(kind=np.full(len(rows), SwitchKind.WAKING, np.uint8), tid=rows.next_tid)
    return Switches.concat([rows, woken.with_columns(time_ns=rows.time_ns - 100)])


def best_of(runs: int, task: Callable[[], int]) -> tuple[float, int]:
    """Return (seconds of the fastest run, number of waits)."""
    seconds, found = [], 0
    for _ in range(runs):
        begin = time.perf_counter()
        found = task()
        seconds.append(time.perf_counter() - begin)
    return min(seconds), found


def pairing(rows: Switches) -> Callable[[], int]:
    """Run the interval arithmetic."""
    last_ns = int(rows.time_ns.max())
    return lambda: len(wait_samples(rows, Tasks(), last_ns, 0, Losses()))


def reading(path: Path, switches: bool) -> Callable[[], int]:
    """Load a file."""

    def run() -> int:
        samples = load_recording(path, switches=switches).samples
        return int((samples.switch_out_ns >= 0).sum())

    return run


def main() -> None:
    """Print a line per task."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--switches", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    table = machine(args.switches)
    tasks: list[tuple[str, Callable[[], int], float | None]] = [
        ("pairing", pairing(as_switches(table, wakeups=False)), MARK_S),
        ("pairing, wake-ups", pairing(as_switches(table, wakeups=True)), MARK_S),
    ]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "perf.data"
        write_switches(path, table)
        print(f"{len(table)} switches, {path.stat().st_size >> 20} MB")
        tasks += [("reading, no waits", reading(path, False), None), ("reading", reading(path, True), None)]
        print(f"{'task':<20}{'best s':>9}{'mark s':>9}{'waits':>10}")
        for name, task, mark in tasks:
            seconds, waits = best_of(args.runs, task)
            print(f"{name:<20}{seconds:>9.3f}{'' if mark is None else mark:>9}{waits:>10}")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")


if __name__ == "__main__":
    main()
