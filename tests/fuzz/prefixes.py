# SPDX-License-Identifier: Apache-2.0
"""Read each prefix of each small recording: `python tests/fuzz/prefixes.py [--step N] [NAME ...]`.

A recorder can be killed, and a disk full, at any byte. Printed is what raised anything but our own errors;
the exit status is 1 if there was any. Each prefix is opened and cut into records. Those that give the same
records, events and features as one before are the same to everything behind the reader; of all others,
everything is made: columns, dump, inject, script, report, folded stacks."""

import argparse
import os
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from builders.mutations import content, survive  # noqa: E402
from builders.zoo import recordings  # noqa: E402


def failures(name: str, data: bytes, step: int) -> int:
    begin, failed, seen, read = time.process_time(), 0, set[bytes](), 0
    fd = os.memfd_create("prefix")
    for size in range(0, len(data) + 1, step):
        os.pwrite(fd, data[max(0, size - step) : size], max(0, size - step))
        try:
            what = content(f"/proc/self/fd/{fd}")
            if what in seen:
                continue
            seen.add(what)
            read += 1
            survive(data[:size])
        except Exception as problem:
            failed += 1
            print(f"{name}, {size} bytes: {problem!r}", flush=True)
    os.close(fd)
    took = f"{time.process_time() - begin:.0f} s of CPU"
    print(f"{name}: {len(data) // step + 1} prefixes, {read} of them different, {took}", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--step", type=int, default=1)
    args = parser.parse_args()
    chosen = {name: data for name, data in recordings().items() if name in args.names or not args.names}
    failed = [failures(name, data, args.step) for name, data in chosen.items()]
    return min(1, sum(failed))


if __name__ == "__main__":
    sys.exit(main())
