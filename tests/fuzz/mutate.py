# SPDX-License-Identifier: Apache-2.0
"""Read and show damaged recordings: `python tests/fuzz/mutate.py [--count N] [--seed S] [--jobs J]`.

Each number from the seed on makes one damaged copy of one small recording (tests/builders/zoo.py). It is
read; every fourth is dumped and injected, every eighth printed in several forms, too. Printed is
what raised anything but our own errors, took longer than `--seconds`, or more memory than `--memory`; the
exit status is the number of such failures (at most 100). `--only N` runs one number again, with a traceback;
`--save DIR` keeps what failed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from builders.mutations import mutated, survive  # noqa: E402
from builders.zoo import recordings  # noqa: E402

ZOO = recordings()
SMALL = sorted(name for name, data in ZOO.items() if len(data) < 8192)
LARGE = sorted(ZOO.keys() - set(SMALL))


def damaged(number: int) -> tuple[str, bytes]:
    """The recording of a number: which one it was, and the copy.

    Eleven of twelve are small ones: read three times as fast, and most of their bytes matter.
    """
    rng = random.Random(number)
    names = SMALL if number % 12 else LARGE
    name = names[number // 12 % len(names)] if names is LARGE else names[number % len(names)]
    return name, mutated(ZOO[name], rng)


def check(number: int) -> tuple[int, str, float, str]:
    """(number, name, longest time in s, what failed; "" if all is well)."""
    name, data = damaged(number)
    try:
        return number, name, survive(data, rewriting=number % 4 == 0, showing=number % 8 == 1), ""
    except Exception as problem:
        place = traceback.extract_tb(problem.__traceback__)[-1]
        return number, name, 0.0, f"{problem!r} at {place.filename}:{place.lineno}"


def main() -> int:
    """Run; the number of failures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="most CPU time for one step")
    parser.add_argument("--memory", type=int, default=1024, help="most MB that a process may have")
    parser.add_argument("--only", type=int)
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()
    if args.only is not None:
        survive(damaged(args.only)[1])
        return 0
    begin, failures, longest = time.monotonic(), Counter[str](), (0.0, 0)
    numbers = range(args.seed, args.seed + args.count)
    limit = args.memory << 20
    with multiprocessing.get_context("fork").Pool(
        args.jobs, lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    ) as pool:
        for number, name, seconds, raised in pool.imap_unordered(check, numbers, chunksize=50):
            longest = max(longest, (seconds, number))
            problem = f"took {seconds:.1f} s" if seconds > args.seconds else raised
            if problem and not failures[problem]:
                print(f"{number} ({name}): {problem}", flush=True)
            if problem:
                failures[problem] += 1
            if problem and args.save:
                (args.save / f"{number}.data").write_bytes(damaged(number)[1])
    for problem, count in failures.most_common():
        print(f"{count} times {problem}")
    took = time.monotonic() - begin
    print(f"{args.count} mutations in {took:.0f} s; slowest step {longest[0]:.2f} s (number {longest[1]})")
    return min(100, failures.total())


if __name__ == "__main__":
    sys.exit(main())
