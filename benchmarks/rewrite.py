# SPDX-License-Identifier: Apache-2.0
"""Measure CPU time and memory of inject:  python benchmarks/rewrite.py [--samples N]

Each row is a new process, so that peak memory is its own: inject with all stages, inject that only copies,
and inject into compressed records. The recording (see tests/builders/large_recording.py; about 300 MB by
default) is made, and deleted at the end.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / room) for room in ("", "tests")]

from perf_offcpu.inject.header import RewriteOptions  # noqa: E402
from perf_offcpu.inject.rewrite import rewrite  # noqa: E402

WORK: dict[str, Callable[[list[str], int], object]] = {
    "inject": lambda paths, fd: rewrite(paths[0], fd, "out"),
    "inject --no-retype --no-merge-callchains": lambda paths, fd: rewrite(
        paths[0], fd, "out", RewriteOptions(retype=False, merge=False)
    ),
    "inject -z": lambda paths, fd: rewrite(paths[0], fd, "out", RewriteOptions(compress=True)),
}


def main() -> None:
    """Run all rows, or one in a child process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--samples", type=int, default=1_000_000, help="samples of the recording (default: %(default)s)"
    )
    parser.add_argument("--row", nargs="+", metavar="WORK PATH", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        _measure(args.row[0], args.row[1:])
        return
    from builders.large_recording import write_large_recording

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "perf.data"
        write_large_recording(path, args.samples, seed=0)
        print(f"{'':42} {'CPU s':>6} {'MB/s':>6} {'peak MB':>8}")
        for name in WORK:
            subprocess.run([sys.executable, __file__, "--row", name, path], check=True)


def _measure(name: str, paths: list[str]) -> None:
    size = sum(map(os.path.getsize, paths))
    with tempfile.TemporaryFile(dir=Path(paths[0]).parent) as out:
        begin = time.process_time()
        WORK[name](paths, out.fileno())
        seconds = time.process_time() - begin
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{name:42} {seconds:6.2f} {size / 1e6 / seconds:6.0f} {peak_mb:8}", flush=True)


if __name__ == "__main__":
    main()
