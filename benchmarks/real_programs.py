# SPDX-License-Identifier: Apache-2.0
"""Compare the first cause of reports with the truth, for real programs: `real_programs.py [--write] [NAME…]`.

benchmarks/real_programs.toml has the scenarios. Each runs in a directory of its own, `$D`; its truth comes
from somewhere else than this project: the kernel's schedstat and cpu.stat, the program's own statistics.

A scenario is right at once if the first row of the first screen says the cause, in the table if another row
does, else wrong. The exit status is the number of wrong ones. All of it runs at nice -10, and what has another
cause than a CPU with real-time priority: else waiting for a CPU is the true cause of each on a busy machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "Documentation" / "real-programs.md"
PROGRAM = f"{sys.executable} -m perf_offcpu"
READY_S, BEFORE_S, SECONDS, MOST_S = 60, 0.5, 4, 300
PRIORITY = -10
FIRST = f"[ ! -w /proc/$$/autogroup ] || echo {PRIORITY} >/proc/$$/autogroup\n"  # of sessions, nice(1) only inside
URGENT = "chrt --pid --rr 1 $$\n"
FUNCTIONS = r"""
# sched PID…: how long the threads of processes ran and waited for a CPU so far, by the kernel's schedstat.
sched() {
    for pid in "$@"; do cat /proc/$pid/task/*/schedstat; done |
        awk '{ ran += $1 / 1e9; waited += $2 / 1e9 }
            END { printf "ran %.1f s, waited for a CPU %.1f s\n", ran, waited }'
}
# tree PID: a process with all that it and its children have forked.
tree() { echo $1; for child in $(cat /proc/$1/task/*/children); do tree $child; done; }
# asleep PID…: what the threads of processes are in, by the kernel's own word, with their number.
asleep() {
    for pid in "$@"; do for task in /proc/$pid/task/*; do
        echo "$(sed -n 's/^State:\t\(.\).*/\1/p' $task/status) $(cat $task/wchan)"; done; done |
        sort | uniq -c | sort -rn |
        awk '{ printf "%s%s x %s %s", sep, $1, $2, $3; sep = ", " } END { print "" }'
}
"""


class Scenario(NamedTuple):
    """A program, its load, and what the first row has to say."""

    name: str
    cause: str  # in words
    right: str  # regular expression that the row matches
    target: str  # of record
    serve: str = ""
    ready: str = "true"
    load: str = ""
    truth: str = ""
    packages: str = ""
    urgent: bool = False  # runs with real-time priority


AT_ONCE = "right at once"


class Outcome(NamedTuple):
    """A scenario, its truth, and the first rows of the report."""

    scenario: Scenario
    truth: str
    rows: list[str]

    @property
    def place(self) -> str:
        """Where the cause stands."""
        hits = [bool(re.search(self.scenario.right, row)) for row in self.rows]
        return AT_ONCE if hits[:1] == [True] else "in the table" if any(hits) else "wrong"


def scenarios() -> list[Scenario]:
    """Return the scenarios of the table."""
    with (HERE / "real_programs.toml").open("rb") as file:
        return [Scenario(**row) for row in tomllib.load(file)["scenario"]]


@contextmanager
def running(script: str, environment: dict[str, str], begin: str = FIRST) -> Iterator[subprocess.Popen[bytes]]:
    """Run a script in a session of its own, which is killed at the end.

    Args:
        begin: what it does first.
    """
    with (Path(environment["D"]) / "output").open("ab") as output:
        process = subprocess.Popen(
            ["bash", "-c", FUNCTIONS + begin + script],
            env=environment,
            cwd=environment["D"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in session(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
                    os.kill(pid, signal.SIGCONT)
            time.sleep(0.3)
        process.wait()


def session(leader: int) -> list[int]:
    """Return the pids of a session."""
    found = []
    for name in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            if os.getsid(int(name)) == leader:
                found.append(int(name))
    return found


def shell(script: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a script to its end."""
    return subprocess.run(
        ["bash", "-c", FUNCTIONS + script],
        env=environment,
        cwd=environment["D"],
        capture_output=True,
        text=True,
        check=False,
        timeout=MOST_S,
    )


def outcome(scenario: Scenario) -> Outcome:
    """Record a scenario and report on it."""
    with tempfile.TemporaryDirectory(prefix="real-programs.", dir="/var/tmp", ignore_cleanup_errors=True) as place:
        os.chmod(place, 0o777)
        environment = {**os.environ, "D": place, "LC_ALL": "C.UTF-8", "PYTHONPATH": str(HERE.parent)}
        begin = FIRST + URGENT if scenario.urgent else FIRST
        with running(scenario.serve, environment, begin):
            until = time.monotonic() + READY_S
            while shell(scenario.ready, environment).returncode:
                assert time.monotonic() < until, (scenario.name, Path(place, "output").read_text()[-2000:])
                time.sleep(0.2)
            with running(scenario.load or "true", environment, begin):
                time.sleep(BEFORE_S)
                until_end = "" if scenario.target.startswith("--") else f"--duration {SECONDS}"
                line = f"exec {PROGRAM} record -q -o perf.data {until_end} {scenario.target}"
                with running(line, environment) as recorder:
                    time.sleep(SECONDS / 2)
                    truth = shell(scenario.truth, environment).stdout
                    recorder.wait(MOST_S)
        report = shell(f"{PROGRAM} report -i perf.data --json", environment)
        return Outcome(scenario, " ".join(truth.split()), rows(report))


def rows(report: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the rows of the causes, or a sentence if there are none; first what held up tasks of an event loop, as on
    the screen."""
    if report.returncode:
        return [report.stderr.strip()]
    document = json.loads(report.stdout)
    verdict, loops = document["verdict"], document["event_loop_times"]
    held_up = [f"{row['tasks']:.3g} tasks wait for {row['waits_for']}, held by {row['held_by']}" for row in loops]
    lines = [] if verdict is None else verdict["lines"]
    below = itertools.dropwhile(lambda line: not line.startswith("Share"), lines)
    table = [" ".join(line.split()) for line in itertools.takewhile(bool, itertools.islice(below, 1, None))]
    causes = itertools.takewhile(lambda line: not line.startswith("Not counted"), table)
    return [*held_up, next(causes, "no cause"), *table[1:]]


def page(outcomes: list[Outcome]) -> str:
    """Return the page of the results."""
    counts = Counter(one.place for one in outcomes)
    numbers = ", ".join(f"{counts[place]} {place}" for place in (AT_ONCE, "in the table", "wrong"))
    rows = "\n".join(
        f"- {one.scenario.name} ({one.scenario.cause})"
        + ("" if one.place == AT_ONCE else f": {one.place}; first row: {one.rows[0]}")
        for one in outcomes
    )
    return f"""# Real programs

Real programs that are slow for a known reason, and whether the first row of the report names it ("right at once").
`scripts/real-programs --write` makes this page, and prints the rows and the truth by other means;
benchmarks/real_programs.toml has the commands.

{len(outcomes)} scenarios on Linux {platform.release()} with {os.cpu_count()} CPUs: {numbers}.

Each program, and what it waits for:

{rows}
"""


def main() -> int:
    """Run the chosen scenarios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="scenarios whose names begin so; all by default")
    parser.add_argument("--write", action="store_true", help=f"make {PAGE.name}")
    parser.add_argument("--packages", action="store_true", help="print the packages, and end")
    args = parser.parse_args()
    chosen = [one for one in scenarios() if not args.names or one.name.startswith(tuple(args.names))]
    if args.packages:
        print(*sorted({package for one in chosen for package in one.packages.split()}))
        return 0
    os.nice(PRIORITY - os.nice(0))
    outcomes = []
    for scenario in chosen:
        try:
            outcomes.append(outcome(scenario))
        except (AssertionError, subprocess.TimeoutExpired) as problem:
            outcomes.append(Outcome(scenario, "", [f"not run: {str(problem)[:300]}"]))
        print(f"{outcomes[-1].place:13} {scenario.name}\n{'':13} truth: {outcomes[-1].truth}", flush=True)
        for row in outcomes[-1].rows[:3]:
            print(f"{'':13} {row}", flush=True)
    if args.write:
        PAGE.write_text(page(outcomes))
    return sum(one.place == "wrong" for one in outcomes)


if __name__ == "__main__":
    sys.exit(main())
