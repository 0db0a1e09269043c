# SPDX-License-Identifier: Apache-2.0
"""Compare samples of waits with all waits:  sudo python benchmarks/sampling.py [--runs N] [PROGRAM...]

Two recorders see the same run of a program: one records every wait (`--off-cpu-thresh 0`), the other samples
by length (`--off-cpu-period`). Printed are

* for each stack of the first run with at least 1 % of the time of all waits: its time by both, and the
  difference in standard errors. A wait of the length L has the weight L rounded up or down to whole periods
  P, so that the variance of its weight is r(P - r), with r = L modulo P; those of a stack add up;
* a histogram of lengths, all runs together: a wait shorter than P is drawn with the chance L / P and then
  stands for P / L waits, so that the variance of its number is P / L - 1, and a quarter of L / P for the
  rounding;
* how many of such stacks of all runs, and bins, were within 3 standard errors (or one period, the most by
  which a single wait is rounded: few waits have no normal distribution), and the bias of the sums of time and
  of waits over all runs, with its standard error;
* with `--short`, instead of all this, the user stacks of waits under 1 ms alone, next to the sums of the default
  form, which takes a stack for each ms P of a thread's short waits (or, with `--short stacks`, next to those of
  `--short-waits stacks`). The variance of the time T of a stack is T times P at most, as if waits were drawn
  independently;
* the same against the totals that the sampling recorder counts itself: what each recorder does in a wait
  makes it longer for the other one, which is no error of the sampling.

PROGRAMs are those of benchmarks/waiting_programs.py; without one, all of them.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from waiting_programs import PROGRAMS  # noqa: E402

from perf_offcpu.model.columns import I64, Bool  # noqa: E402
from perf_offcpu.model.coverage import Sampling  # noqa: E402
from perf_offcpu.model.join import joined_sampling  # noqa: E402
from perf_offcpu.model.profile import Profile  # noqa: E402
from perf_offcpu.model.recording import SampleFlag  # noqa: E402
from perf_offcpu.symbolize.load import load_profile  # noqa: E402
from perf_offcpu.symbolize.options import SymbolizeOptions  # noqa: E402

MS = 10**6
SHARE = 0.01
ERRORS = 3

Stack = tuple[str, ...]
F64 = NDArray[np.float64]


@dataclass
class Tally:
    """Time of a stack by both recorders, and the variance to expect, in ns and ns²."""

    exact: int = 0
    estimate: int = 0
    variance: float = 0.0

    def is_inside(self, period: int) -> bool:
        """Return whether the estimate is within ERRORS standard errors, or one period."""
        return abs(self.estimate - self.exact) <= max(ERRORS * math.sqrt(self.variance), period)


@dataclass
class Bins:
    """Numbers of waits by the power of 2 of their length: counted, estimated, and the variance to expect."""

    exact: F64 = field(default_factory=lambda: np.zeros(64))
    estimate: F64 = field(default_factory=lambda: np.zeros(64))
    variance: F64 = field(default_factory=lambda: np.zeros(64))
    at_edges: F64 = field(default_factory=lambda: np.zeros(64))
    """Waits so close to the edge of their bin that the other recorder may have them in the next one."""

    def add(self, length: I64, period: int) -> None:
        """Count waits."""
        of, near = powers(length), np.minimum(length // 20, 50_000)
        moves = (powers(length - near) != of) | (powers(length + near) != of)
        chance = np.minimum(length / period, 1.0)
        rounding = np.where(chance < 1, chance / 4, 0)
        self.exact += np.bincount(of, minlength=64)
        self.variance += np.bincount(of, 1 / chance - 1 + rounding, 64)
        self.at_edges += np.bincount(of, moves, 64)

    def is_inside(self) -> Bool:
        """Return for each bin whether the estimate is within ERRORS standard errors."""
        slack = ERRORS * np.sqrt(self.variance) + self.at_edges
        return np.abs(self.estimate - self.exact) <= slack


def powers(length: I64) -> I64:
    """Return the power of 2 below each length."""
    return np.floor(np.log2(np.maximum(length, 1))).astype(np.int64)


_INTERPRETED = re.compile(r"_?PyEval_EvalFrame.*|.* \(\S+\)")
"""The interpreter's function, or a function of Python with its file in its place."""


@dataclass
class Run:
    """The stacks of one run."""

    stacks: dict[Stack, Tally] = field(default_factory=lambda: defaultdict(Tally))
    own: Sampling = Sampling()
    """The totals that the sampling recorder itself counted of all waits."""

    def heavy(self) -> dict[Stack, Tally]:
        """Return the stacks with at least SHARE of the time."""
        total = sum(one.exact for one in self.stacks.values())
        return {stack: one for stack, one in self.stacks.items() if one.exact >= SHARE * total}


@contextmanager
def recorder(output: Path, pid: int, *options: str) -> Iterator[None]:
    """Record a stopped process and its children until it ends."""
    ready, signal_ready = os.pipe()
    program = [sys.executable, "-m", "perf_offcpu", "record", "-q", "-e", "none", "-m", "64M"]
    process = subprocess.Popen(
        [*program, "-p", str(pid), "-o", output, "--ready-fd", str(signal_ready), *options],
        pass_fds=[signal_ready],
        cwd=ROOT,
    )
    os.close(signal_ready)
    assert os.read(ready, 6), "the recorder did not begin"
    os.close(ready)
    try:
        yield
    finally:
        process.wait(120)


def run_once(command: Sequence[str], period_ms: float, directory: Path, bins: Bins, short: str) -> Run:
    """Record one run of a command by both recorders."""
    every, sampled = directory / "every.data", directory / "sampled.data"
    # The shell waits for SIGCONT, then becomes the command; both recorders know it by then.
    shell = subprocess.Popen(
        ["sh", "-c", 'kill -STOP $$; exec "$@"', "sh", *command], stdout=subprocess.DEVNULL, cwd=directory
    )
    os.waitpid(shell.pid, os.WUNTRACED)
    forms = ["--off-cpu-thresh", "0"], ["--off-cpu-period", str(period_ms)]
    if short:
        forms = forms[0], ["--short-waits", short]
    with recorder(every, shell.pid, *forms[0]), recorder(sampled, shell.pid, *forms[1]):
        os.kill(shell.pid, signal.SIGCONT)
        shell.wait(120)
    if short:
        return compare_short(load(every), load(sampled))
    return compare(load(every), load(sampled), round(period_ms * MS), bins)


def load(path: Path) -> Profile:
    """Return the profile of a recording."""
    return load_profile([str(path)], SymbolizeOptions(inline=False))


def compare(exact: Profile, sampled: Profile, period: int, bins: Bins) -> Run:
    """Return the tallies of all stacks; waits that did not begin and end in the recording are left out."""
    run = Run(own=sampled.meta.sampling)
    for profile, is_exact in ((exact, True), (sampled, False)):
        samples, names = profile.samples, names_of(profile)
        partial = samples.has(SampleFlag.STILL_BLOCKED | SampleFlag.BEGAN_BEFORE)
        rows = np.flatnonzero(profile.is_offcpu() & ~partial)
        if is_exact:
            bins.add(np.maximum(samples.period[rows], 1), period)
        else:
            bins.estimate += np.bincount(powers(samples.length_ns()[rows]), samples.count[rows], 64)
        for row in rows.tolist():
            tally, weight = run.stacks[names[row]], int(samples.period[row])
            if is_exact:
                rest = weight % period
                tally.exact += weight
                tally.variance += rest * (period - rest)
            else:
                tally.estimate += weight
    return run


def compare_short(exact: Profile, drawn: Profile) -> Run:
    """Return the tallies of all stacks of short waits."""
    run = Run(own=drawn.meta.sampling)
    for profile, is_exact in ((exact, True), (drawn, False)):
        samples, names = profile.samples, names_of(profile, kernel=False)
        is_short = profile.is_offcpu() & (samples.period < MS) & ~samples.has(SampleFlag.STILL_BLOCKED)
        for row in np.flatnonzero(is_short if is_exact else samples.has(SampleFlag.AGGREGATED)).tolist():
            tally, weight = run.stacks[names[row]], int(samples.period[row])
            if is_exact:
                tally.exact += weight
                tally.variance += weight * MS
            else:
                tally.estimate += weight
    return run


def names_of(profile: Profile, *, kernel: bool = True) -> list[Stack]:
    """Return comm and functions of each sample, which both recorders take alike. Without `kernel` functions of Python
    are left out, too: sums have none."""
    frames, stacks, strings = profile.frames, profile.stacks, profile.strings
    known: dict[int, Stack] = {-1: ()}
    is_kernel = frames.is_kernel()

    def functions(row: int) -> Stack:
        if row not in known:
            frame, parent = int(stacks.frame[row]), functions(int(stacks.parent[row]))
            name = strings[int(frames.symbol[frame])] or "?"
            left_out = is_kernel[frame] or _INTERPRETED.fullmatch(name)
            known[row] = parent if left_out and not kernel else (*parent, name)
        return known[row]

    samples = profile.samples
    pairs = zip(samples.comm.tolist(), samples.stack.tolist(), strict=True)
    return [(strings[comm], *functions(stack)) for comm, stack in pairs]


def main() -> int:
    """Run all, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--period", type=float, default=1.0, metavar="MS")
    parser.add_argument("--short", nargs="?", const="sampled", default="", help="compare stacks of waits under 1 ms")
    parser.add_argument("program", nargs="*", help=", ".join(PROGRAMS))
    args = parser.parse_args()
    for name in args.program or PROGRAMS:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
            directory, bins = Path(place), Bins()
            command = PROGRAMS[name](directory)
            runs = [run_once(command, args.period, directory, bins, args.short) for _ in range(args.runs)]
            report(name, runs, bins, round(args.period * MS), args.short)
    return 0


def report(name: str, runs: list[Run], bins: Bins, period: int, short: str) -> None:
    """Print the stacks of the first run, the histogram, and the totals of all."""
    print(f"\n{name}: {len(runs)} runs")
    print("exact ms   by samples   difference   standard errors   stack of the first run")
    for stack, one in sorted(runs[0].heavy().items(), key=lambda item: -item[1].exact):
        difference, error = one.estimate - one.exact, math.sqrt(one.variance) or 1.0
        where = ";".join([stack[0], *stack[-3:]])
        print(
            f"{one.exact / MS:8.1f}   {one.estimate / MS:10.1f}   {difference / one.exact:+10.2%}   "
            f"{difference / error:+15.2f}   {where}"
        )
    heavy = [one for run in runs for one in run.heavy().values()]
    inside = sum(one.is_inside(period) for one in heavy)
    if short:
        print(f"within {ERRORS} standard errors: {inside} of {len(heavy)} stacks", flush=True)
        return
    print("   waits   by samples   standard error   at edges   from us on")
    for power in np.flatnonzero(bins.exact).tolist():
        exact, estimate, edges = (each[power] for each in (bins.exact, bins.estimate, bins.at_edges))
        error = math.sqrt(bins.variance[power])
        print(f"{exact:8.0f}   {estimate:10.0f}   {error:14.1f}   {edges:8.0f}   {2**power / 1000:.1f}")
    filled = bins.exact > 0
    print(
        f"within {ERRORS} standard errors: {inside} of {len(heavy)} stacks, "
        f"{(bins.is_inside() & filled).sum()} of {filled.sum()} bins"
    )
    everything = [one for run in runs for one in run.stacks.values()]
    exact, estimate = sum(one.exact for one in everything), sum(one.estimate for one in everything)
    error = math.sqrt(sum(one.variance for one in everything))
    waits, guessed, spread = bins.exact.sum(), bins.estimate.sum(), math.sqrt(bins.variance.sum())
    print(
        f"sum of all {(estimate - exact) / exact:+.4%} (standard error {error / exact:.4%}); "
        f"waits {(guessed - waits) / waits:+.2%} ({spread / waits:.2%}) of {waits:.0f}"
    )
    own = joined_sampling([run.own for run in runs])
    time, number = own.estimated_ns / own.waits_ns - 1, own.estimated_waits / own.waits - 1
    print(f"against the exact totals of the same recorder: time {time:+.4%}, waits {number:+.2%}")
    time, number = own.waits_ns / exact - 1, own.waits / waits - 1
    print(f"these totals against those of the other: time {time:+.4%}, waits {number:+.2%}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
