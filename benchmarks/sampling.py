# SPDX-License-Identifier: Apache-2.0
"""Compare samples of waits with all waits:  sudo python benchmarks/sampling.py [--runs N] [COMMAND...]

Two recorders see the same run of COMMAND: one records every wait (`--off-cpu-thresh 0`), the other samples by
length (`--off-cpu-period`). For each stack with at least 1 % of the time of all waits: its time by both, and
the difference in standard errors. A wait of the length L has the weight L rounded up or down to whole periods
P, so that the variance of its weight is r(P - r), with r = L modulo P; those of a stack add up. The last line
has the bias of the sum over all runs, and how many stacks were within 3 standard errors.

Without COMMAND: `perf bench sched messaging`, whose 200 threads wait briefly, and tests/workload/waiter.c.
"""

from __future__ import annotations

import argparse
import math
import os
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

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from perf_offcpu.model.profile import Profile  # noqa: E402
from perf_offcpu.model.recording import SampleFlag  # noqa: E402
from perf_offcpu.symbolize.load import load_profile  # noqa: E402
from perf_offcpu.symbolize.options import SymbolizeOptions  # noqa: E402

MS = 10**6
SHARE = 0.01
ERRORS = 3

Stack = tuple[str, ...]


@dataclass
class Tally:
    """Time of a stack by both recorders, and the variance to expect, in ns and ns²."""

    exact: int = 0
    estimate: int = 0
    variance: float = 0.0


@dataclass
class Run:
    """The stacks of one run, and its sums."""

    stacks: dict[Stack, Tally] = field(default_factory=lambda: defaultdict(Tally))
    exact_waits: int = 0
    estimated_waits: int = 0

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


def run_once(command: Sequence[str], period_ms: float, directory: Path) -> Run:
    """Record one run of a command by both recorders."""
    every, sampled = directory / "every.data", directory / "sampled.data"
    # The shell waits for SIGCONT, then becomes the command; both recorders know it by then.
    shell = subprocess.Popen(
        ["sh", "-c", 'kill -STOP $$; exec "$@"', "sh", *command], stdout=subprocess.DEVNULL, cwd=directory
    )
    os.waitpid(shell.pid, os.WUNTRACED)
    with (
        recorder(every, shell.pid, "--off-cpu-thresh", "0"),
        recorder(sampled, shell.pid, "--off-cpu-period", str(period_ms)),
    ):
        os.kill(shell.pid, signal.SIGCONT)
        shell.wait(120)
    return compare(load(every), load(sampled), round(period_ms * MS))


def load(path: Path) -> Profile:
    """Return the profile of a recording."""
    return load_profile([str(path)], SymbolizeOptions(inline=False))


def compare(exact: Profile, sampled: Profile, period: int) -> Run:
    """Return the tallies of all stacks; waits that did not begin and end in the recording are left out."""
    run = Run()
    for profile, is_exact in ((exact, True), (sampled, False)):
        samples, names = profile.samples, names_of(profile)
        partial = samples.has(SampleFlag.STILL_BLOCKED | SampleFlag.BEGAN_BEFORE)
        for row in np.flatnonzero(profile.is_offcpu() & ~partial).tolist():
            stack, weight = names[row], int(samples.period[row])
            if is_exact:
                rest = weight % period
                tally = run.stacks[stack]
                tally.exact += weight
                tally.variance += rest * (period - rest)
                run.exact_waits += int(samples.count[row])
            else:
                run.stacks[stack].estimate += weight
                run.estimated_waits += int(samples.count[row])
    return run


def names_of(profile: Profile) -> list[Stack]:
    """Return comm and kernel functions of each sample, which both recorders take alike."""
    frames, stacks, strings = profile.frames, profile.stacks, profile.strings
    known: dict[int, Stack] = {-1: ()}

    def functions(row: int) -> Stack:
        if row not in known:
            name = strings[int(frames.symbol[stacks.frame[row]])] or "?"
            known[row] = (*functions(int(stacks.parent[row])), name)
        return known[row]

    samples = profile.samples
    pairs = zip(samples.comm.tolist(), samples.stack.tolist(), strict=True)
    return [(strings[comm], *functions(stack)) for comm, stack in pairs]


def default_commands(directory: Path) -> list[list[str]]:
    """Return the commands without an argument."""
    waiter = directory / "waiter"
    subprocess.run([ROOT / "tests/workload/build.sh", waiter], check=True)
    return [["perf", "bench", "sched", "messaging", "-t", "-g", "5", "-l", "2000"], [str(waiter)]]


def main() -> int:
    """Run all, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--period", type=float, default=1.0, metavar="MS")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        directory = Path(name)
        for command in [args.command] if args.command else default_commands(directory):
            report(command, [run_once(command, args.period, directory) for _ in range(args.runs)])
    return 0


def report(command: Sequence[str], runs: list[Run]) -> None:
    """Print the stacks of the first run, and the totals of all."""
    print(f"\n{' '.join(command)}: {len(runs)} runs")
    print("exact ms   by samples   difference   standard errors   stack of the first run")
    for stack, one in sorted(runs[0].heavy().items(), key=lambda item: -item[1].exact):
        difference, error = one.estimate - one.exact, math.sqrt(one.variance) or 1.0
        where = ";".join([stack[0], *stack[-3:]])
        print(
            f"{one.exact / MS:8.1f}   {one.estimate / MS:10.1f}   {difference / one.exact:+10.2%}   "
            f"{difference / error:+15.2f}   {where}"
        )
    heavy = [one for run in runs for one in run.heavy().values()]
    inside = sum(abs(one.estimate - one.exact) <= ERRORS * math.sqrt(one.variance) for one in heavy)
    everything = [one for run in runs for one in run.stacks.values()]
    exact, estimate = sum(one.exact for one in everything), sum(one.estimate for one in everything)
    waits, guessed = sum(run.exact_waits for run in runs), sum(run.estimated_waits for run in runs)
    print(
        f"within {ERRORS} standard errors: {inside} of {len(heavy)} stacks; "
        f"sum of all {(estimate - exact) / exact:+.4%}; waits {(guessed - waits) / waits:+.2%} of {waits}"
    )


if __name__ == "__main__":
    sys.exit(main())
