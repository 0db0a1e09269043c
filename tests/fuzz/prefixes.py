# SPDX-License-Identifier: Apache-2.0
"""Read each prefix of each small recording: `python tests/fuzz/prefixes.py [--step N] [NAME ...]`.

A recorder can be killed, and a disk full, at any byte. Printed is what raised anything but our own errors;
the exit status is 1 if there was any. With all of them it takes an hour or so; --step 64 a minute.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from builders.mutations import survive  # noqa: E402
from builders.zoo import recordings  # noqa: E402


def failures(name: str, data: bytes, step: int) -> int:
    """How many prefixes of a recording fail."""
    begin, failed = time.monotonic(), 0
    for size in range(0, len(data) + 1, step):
        try:
            survive(data[:size], rewriting=size % 16 == 0)
        except Exception as problem:
            failed += 1
            print(f"{name}, {size} bytes: {problem!r}", flush=True)
    print(f"{name}: {len(data) // step + 1} prefixes, {time.monotonic() - begin:.0f} s", flush=True)
    return failed


def main() -> int:
    """Read them all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--step", type=int, default=1)
    args = parser.parse_args()
    chosen = {name: data for name, data in recordings().items() if name in args.names or not args.names}
    failed = [failures(name, data, args.step) for name, data in chosen.items()]
    return min(1, sum(failed))


if __name__ == "__main__":
    sys.exit(main())
