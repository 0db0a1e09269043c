# SPDX-License-Identifier: Apache-2.0
"""Measure CPU time and memory of reading recordings:  python benchmarks/reader.py [--samples N] [FILE ...]

Without FILE a recording of about 1.1 GB (see tests/builders/large_recording.py) is made, and deleted at the
end. Each run is a new process, so that peak memory is its own. Prints the CPU seconds of each stage of the
fastest run, records and megabytes per second, and the peak memory beyond the resulting columns. Marks are
the project's goals.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / room) for room in ("", "tests")]

from perf_offcpu.decode import load  # noqa: E402
from perf_offcpu.decode.batch import BatchCollector  # noqa: E402
from perf_offcpu.decode.samples import SampleDecoder  # noqa: E402
from perf_offcpu.decode.tasks.replay import TaskNotes, TaskReplay  # noqa: E402
from perf_offcpu.model.recording import Recording, Samples  # noqa: E402
from perf_offcpu.perfdata.reader import PerfDataReader  # noqa: E402

SAMPLES_PER_S = 500_000
MEMORY_MB = 300
STAGES: tuple[tuple[str, Any, str], ...] = (
    ("scan", PerfDataReader, "chunks"),
    ("sample columns", SampleDecoder, "decode"),
    ("deferred columns", load, "decode_deferred"),
    ("gather samples", BatchCollector, "add_interleaved"),
    ("gather deferred", BatchCollector, "add"),
    ("task records", load, "task_records"),
    ("task notes", TaskNotes, "take"),
    ("losses", load, "_count_losses"),
    ("task replay", TaskReplay, "replay"),
    ("ordering", Samples, "reorder"),
    ("comms and spaces", TaskReplay, "attribute"),
    ("merge deferred", load, "merge_deferred"),
    ("cut wrong callers", load, "cut_wrong_callers"),
)
"""Stage → module and name of its function. No stage runs inside another."""


class Stopwatch:
    """CPU seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time taken; of a generator, only the time inside it."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.process_time()
            result = function(*args, **kwargs)
            self.add(stage, begin)
            return self.steps(stage, result) if isinstance(result, Iterator) else result

        return timed

    def steps(self, stage: str, items: Iterator[Any]) -> Iterator[Any]:
        """Yield the items of a generator and take its time."""
        while True:
            begin = time.process_time()
            item = next(items, None)
            self.add(stage, begin)
            if item is None:
                return
            yield item

    def add(self, stage: str, begin: float) -> None:
        """Add the time since `begin` to a stage."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.process_time() - begin


def run(path: str, by_stage: bool) -> None:
    """Load a recording in this process and print its costs as JSON."""
    stopwatch = Stopwatch()
    if by_stage:
        for stage, owner, name in STAGES:
            setattr(owner, name, stopwatch.watch(stage, getattr(owner, name)))
    before = resource.getrusage(resource.RUSAGE_SELF)
    begin = time.process_time()
    recording = load.load_recording(path)
    seconds = time.process_time() - begin
    after = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "seconds": seconds,
                "stages": stopwatch.seconds,
                "samples": len(recording.samples),
                "tasks": len(recording.tasks),
                "columns": column_bytes(recording),
                "base": before.ru_maxrss << 10,
                "peak": after.ru_maxrss << 10,
            }
        )
    )


def column_bytes(recording: Recording) -> int:
    """Return the bytes of all columns."""
    tables = (recording.samples, recording.maps, recording.comms, recording.tasks, recording.spaces)
    arrays = [getattr(table, name) for table in tables for name in table.columns]
    return sum(array.nbytes for array in (*arrays, recording.callchains.values, recording.callchains.offsets))


def records_of(path: str) -> int:
    """Return the number of records of a recording."""
    with PerfDataReader.open(path) as reader:
        return sum(len(chunk) for chunk in reader.chunks())


def measure(path: str, runs: int) -> None:
    """Print the table of one recording."""
    size, records = Path(path).stat().st_size, records_of(path)
    plain, staged = (best(path, runs, extra) for extra in ([], ["--stages"]))
    counts = f"{records} records, {plain['samples']} samples, {plain['tasks']} tasks"
    print(f"\n{path}: {size / 1e6:.0f} MB, {counts}")
    print(f"{'stage':<24}{'CPU s':>9}{'records/s':>12}{'MB/s':>9}")
    rows = {**staged["stages"], "everything": plain["seconds"]}
    for stage, seconds in rows.items():
        print(f"{stage:<24}{seconds:>9.2f}{records / seconds:>12.0f}{size / seconds / 1e6:>9.0f}")
    print(f"samples/s  {plain['samples'] / plain['seconds']:>9.0f}   mark {SAMPLES_PER_S}")
    beyond = (plain["peak"] - plain["columns"]) >> 20
    print(f"peak MB beyond the columns ({plain['columns'] >> 20} MB)  {beyond}   mark {MEMORY_MB}")


def best(path: str, runs: int, extra: list[str]) -> dict[str, Any]:
    """Return the fastest of several runs in new processes."""
    command = [sys.executable, __file__, "--once", path, *extra]
    results = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(runs)]
    return min(results, key=lambda result: result["seconds"])


def main() -> None:
    """Make a recording if none is given, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*")
    parser.add_argument(
        "--samples", type=int, default=3_600_000, help="samples of the recording that is made (default: %(default)s)"
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--once", help=argparse.SUPPRESS)
    parser.add_argument("--stages", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.once:
        run(args.once, args.stages)
        return
    for path in args.files:
        measure(path, args.runs)
    if not args.files:
        from builders.large_recording import write_large_recording

        with tempfile.NamedTemporaryFile(suffix=".data") as file:
            write_large_recording(Path(file.name), args.samples)
            measure(file.name, args.runs)


if __name__ == "__main__":
    main()
