# SPDX-License-Identifier: Apache-2.0
"""Read and show damaged recordings: `python tests/fuzz/mutate.py [--count N] [--seed S] [--jobs J]`.

Each number from the seed on makes one damaged copy of one small recording (tests/builders/zoo.py). It is read; every
16th is dumped and injected, every 32nd printed in several forms, too. Printed is what raised anything but our own
errors, took longer than `--seconds`, or more memory than `--memory`; the exit status is the number of such failures (at
most 100). `--only N` runs one number again, with a traceback; `--save DIR` keeps what failed."""

import random
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

import runner  # noqa: E402
from builders.mutations import mutated, survive  # noqa: E402
from builders.zoo import recordings  # noqa: E402

ZOO = recordings()
SMALL = sorted(name for name, data in ZOO.items() if len(data) < 8192)
LARGE = sorted(ZOO.keys() - set(SMALL))


def damaged(number: int) -> tuple[str, bytes]:
    """The recording of a number: which one it was, and the copy. Eleven of twelve are small ones: read three times as
    fast, and most of their bytes matter."""
    rng = random.Random(number)
    names = SMALL if number % 12 else LARGE
    name = names[number // 12 % len(names)] if names is LARGE else names[number % len(names)]
    return name, mutated(ZOO[name], rng)


def check(number: int) -> tuple[str, float]:
    name, data = damaged(number)
    return name, survive(data, rewriting=number % 16 == 0, showing=number % 32 == 1)


def main() -> int:
    args = runner.parser(__doc__, 100_000).parse_args()
    return min(100, runner.run(args, check, lambda number: damaged(number)[1]))


if __name__ == "__main__":
    sys.exit(main())
