# SPDX-License-Identifier: Apache-2.0
"""A coverage-guided fuzzer for the reader: `python tests/fuzz/reader.py [-max_total_time=S] [CORPUS]`.

Needs atheris (`pip install atheris`), which this project otherwise does not. It begins with the small
recordings of tests/builders/zoo.py that are not too large for it; options are libFuzzer's. An input that
raises anything but our own errors ends the run and is written to crash-*; give it as argument to see it
again. Every fourth input, by its length, is dumped and injected, too, and every fourth printed."""

import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

import atheris  # noqa: E402

with atheris.instrument_imports(include=["perf_offcpu"]):
    from perf_offcpu.decode import load  # noqa: F401
    from perf_offcpu.inject import rewrite  # noqa: F401
    from perf_offcpu.perfdata import dump, reader  # noqa: F401

from builders.mutations import survive  # noqa: E402
from builders.zoo import recordings  # noqa: E402

LARGEST = 6_000


def one_input(data: bytes) -> None:
    """Read it; every fourth, by its length, is dumped and injected, too, and every fourth shown."""
    survive(data, rewriting=len(data) % 4 == 0, showing=len(data) % 4 == 1)


def main() -> None:
    given = [word for word in sys.argv[1:] if not word.startswith("-")]
    with tempfile.TemporaryDirectory() as directory:
        for name, data in recordings().items():
            if len(data) <= LARGEST:
                (Path(directory) / name).write_bytes(data)
        seeds = [] if given else [directory]
        atheris.Setup([*sys.argv, f"-max_len={LARGEST}", *seeds], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
