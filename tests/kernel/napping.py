# SPDX-License-Identifier: Apache-2.0
"""Run the program napper (napper.c) under the BPF program, and look up names of recorded addresses. `napper` counts its
own waits by the kernel's counter of voluntary context switches and measures them with the clock that the BPF program
uses, so the expected figures are measured, never assumed."""

import bisect
import platform
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from builders.program import PATIENCE
from kernel.bpf_output import Rings, Wait, parse

from perf_offcpu.collect.bpf.config import OffCpuConfig, Targets
from perf_offcpu.collect.bpf.program import OffCpuProgram
from perf_offcpu.collect.output.totals import DrawnStacks

NEVER = 10**12  # a threshold that no wait reaches
ROUNDS = 20
MS = 1_000_000
NANOSLEEP = {"x86_64": 230}.get(platform.machine(), 115)  # clock_nanosleep

ENDS_IN_SLEEPER = b"\0btf_trace_sched_exit_tp\0" in Path("/sys/kernel/btf/vmlinux").read_bytes()
"""This kernel can end waits in the sleeper's own context (Linux 6.16)."""

_needs_exit = pytest.mark.skipif(not ENDS_IN_SLEEPER, reason="this kernel has no sched_exit_tp")


usual = pytest.mark.parametrize("in_switch", [
    pytest.param(False, id="sched_exit_tp", marks=_needs_exit),
    pytest.param(True, id="sched_switch", marks=[pytest.mark.long] * ENDS_IN_SLEEPER),
])  # fmt: skip
"""The form of this kernel: with the other one the test is a further example."""


@dataclass(frozen=True)
class Tally:
    kind: str
    pid: int
    tid: int
    syscall: int
    waits: int
    preemptions: int
    ns: int


class Napper:
    watched_ns = 0  # time from which it is recorded, on CLOCK_MONOTONIC

    def __init__(self, program: Path, *arguments: str, rounds: int = ROUNDS) -> None:
        self.process = subprocess.Popen(
            [program, str(rounds), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if not arguments:
            self._line("ready")

    @property
    def pid(self) -> int:
        return self.process.pid

    def _line(self, expected: str | None = None) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert expected in (None, line)
        return line

    def go(self) -> list[Tally]:
        """Let it do its rounds and return its counts; it lives on until `end`."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        lines = list(iter(self._line, "done"))
        return [Tally(kind, *map(int, rest)) for kind, *rest in map(str.split, lines)]

    def end(self) -> None:
        self.process.communicate(timeout=10)


@contextmanager
def recording(config: OffCpuConfig, pages: int = 256) -> Iterator[tuple[OffCpuProgram, Rings]]:
    """Attach the program, with rings of so many pages, 0 for none; it is not yet enabled."""
    with Rings(pages) as rings, OffCpuProgram(config) as program:
        for cpu, ring in rings.rings.items():
            program.maps.set_output(cpu, ring.fd)
        program.attach()
        yield program, rings


@contextmanager
def watched(
    napper: Path, *, pages: int = 256, rounds: int = ROUNDS, **options: Any
) -> Iterator[tuple[Napper, OffCpuProgram, Rings]]:
    """Start a napper, which waits for `go`, and enable the program, with options of OffCpuConfig, for its pid."""
    one = Napper(napper, rounds=rounds)
    with recording(OffCpuConfig(targets=Targets.PIDS, **options), pages) as (program, rings):
        program.maps.add_target(one.pid)
        one.watched_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        program.enable()
        yield one, program, rings
    one.end()


def waits_of(rings: Rings) -> list[Wait]:
    """Return the waits that began while the program was enabled."""
    return parted(rings)[0]


def parted(rings: Rings) -> tuple[list[Wait], list[Wait]]:
    """Return (waits that began while the program was enabled, waits that began before)."""
    waits = [parse(body) for body in rings.bodies()]
    return [w for w in waits if w.kind != 4], [w for w in waits if w.kind == 4]


def drained_sums(program: OffCpuProgram) -> Any:
    """Return the sums as the recorder writes them: each with the stacks of the waits drawn from it."""
    return DrawnStacks().share(program.maps.drain().sums, end_of_file=True)


def record_napper(napper: Path, **options: Any) -> tuple[list[Tally], list[Wait], Any, dict[str, int]]:
    """Record one run with options of `watched`; return (its counts, samples, sums, counters)."""
    with watched(napper, **options) as (one, program, rings):
        tallies = one.go()
        program.disable()
        (waits, before), sums, counters = parted(rings), drained_sums(program), program.counters()
    # Its main thread waited for the word to go.
    assert {w.tid for w in before} <= {one.pid} and len(before) <= 1
    counters["samples"] -= len(before)
    counters["samples_ns"] -= sum(w.ns for w in before)
    return tallies, waits, sums, counters


@cache
def kernel_symbols() -> tuple[list[int], list[str]]:
    rows = (line.split() for line in Path("/proc/kallsyms").read_text().splitlines())
    functions = sorted((int(address, 16), name) for address, kind, name, *_ in rows if kind in "tTwW")
    return [address for address, _ in functions], [name for _, name in functions]


def kernel_name(address: int) -> str:
    addresses, names = kernel_symbols()
    return names[bisect.bisect_right(addresses, address - 1) - 1]


@cache
def program_symbols(program: Path) -> dict[str, tuple[int, int]]:
    lines = subprocess.check_output(["nm", "-S", "--defined-only", program], text=True).splitlines()
    rows = [line.split() for line in lines if len(line.split()) == 4]
    return {name: (int(start, 16), int(start, 16) + int(size, 16)) for start, size, _kind, name in rows}


def is_in(program: Path, function: str, address: int) -> bool:
    start, end = program_symbols(program)[function]
    return start < address <= end


def about(total_ns: int, tally: Tally) -> bool:
    """Compare with 2 % or 200 us a wait, and with the time that preemption next to its waits may have taken. The way
    from reading the clock to the switch and back takes longer on slower machines."""
    beside = max(0.02 * tally.ns, 200_000 * tally.waits * PATIENCE) + 10 * MS * (tally.preemptions + 1) * PATIENCE
    return -0.02 * tally.ns <= tally.ns - total_ns <= beside


class Balance:
    """Compare the waits of the program with those that threads counted themselves. Where waits end in sched_switch, the
    kernel may not report an end: on some kernels the switch-outs of some tasks pass no tracepoint (perf's own
    sched:sched_switch misses them, too). The program counts such an end when the task waits again, so ends may be
    missing, but not silently. Where waits end in sched_exit_tp none may be missing."""

    def __init__(self, counters: dict[str, int], in_switch: bool = False) -> None:
        assert in_switch or not counters["ends_missed"]
        self._may_miss = counters["ends_missed"] + in_switch  # one, maybe, after which no other wait came
        self._missed = 0

    def check(self, tally: Tally, waits: int, total_ns: int | None = None, around: int = 0) -> None:
        """Check the waits of a thread; `around` of them may lie outside the part that it counted."""
        assert waits <= tally.waits + around, tally
        self._missed += max(0, tally.waits - waits)
        assert self._missed <= self._may_miss, tally
        if total_ns is not None and waits == tally.waits:
            assert about(total_ns, tally), tally

    def check_all(self, tallies: list[Tally], sums: Any, waits: list[Wait]) -> None:
        """Check the number of waits in sums and samples of all threads that wait in known ways."""
        for tally in tallies:
            if tally.kind in ("nap", "blink", "futex", "pipe"):
                summed = int(sums["count"][sums["tid"] == tally.tid].sum())
                self.check(tally, summed + sum(wait.tid == tally.tid for wait in waits), around=2)


def python(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def read_int(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())
