# SPDX-License-Identifier: Apache-2.0
"""Run a check for many seeded numbers, within bounds of time and memory, for the programs of this folder."""

import argparse
import multiprocessing
import resource
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

HANG_S = 10.0  # CPU time after which a check is interrupted

Check = Callable[[int], tuple[str, float]]
"""Return what was read, and the longest CPU time of a step; raise if it went wrong."""


def parser(doc: str, count: int) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=doc.partition("\n")[0])
    made.add_argument("--count", type=int, default=count)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--jobs", type=int, default=1)
    made.add_argument("--seconds", type=float, default=2.0, help="most CPU time for one step")
    made.add_argument("--memory", type=int, default=1024, help="most MB that a process may have")
    made.add_argument("--only", type=int, help="run one number again, with a traceback")
    made.add_argument("--save", type=Path, help="directory for inputs that failed")
    return made


def run(args: argparse.Namespace, check: Check, data_of: Callable[[int], bytes]) -> int:
    """Check `args.count` numbers from `args.seed` on, print failures, and return the number of failures."""
    if args.only is not None:
        check(args.only)
        return 0
    begin, failures, longest = time.monotonic(), Counter[str](), (0.0, 0)
    numbers = range(args.seed, args.seed + args.count)
    with multiprocessing.get_context("fork").Pool(args.jobs, _bound, (args.memory << 20,)) as pool:
        for number, name, seconds, raised in pool.imap_unordered(partial(_outcome, check), numbers, 50):
            longest = max(longest, (seconds, number))
            problem = f"took {seconds:.1f} s" if seconds > args.seconds else raised
            if problem and not failures[problem]:
                print(f"{number} ({name}): {problem}", flush=True)
            if problem:
                failures[problem] += 1
            if problem and args.save:
                (args.save / f"{number}.data").write_bytes(data_of(number))
    for problem, count in failures.most_common():
        print(f"{count} times {problem}")
    took = time.monotonic() - begin
    print(f"{args.count} mutations in {took:.0f} s; slowest step {longest[0]:.2f} s (number {longest[1]})")
    return failures.total()


def _bound(memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    signal.signal(signal.SIGVTALRM, _interrupt)


def _interrupt(number: int, frame: object) -> None:
    raise TimeoutError(f"not finished after {HANG_S} s")


def _outcome(check: Check, number: int) -> tuple[int, str, float, str]:
    """Return (number, name, longest time in s, what failed; "" if all is well)."""
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG_S)
    try:
        return number, *check(number), ""
    except Exception as problem:
        place = traceback.extract_tb(problem.__traceback__)[-1]
        return number, "", 0.0, f"{problem!r} at {place.filename}:{place.lineno}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
