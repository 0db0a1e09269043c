# SPDX-License-Identifier: Apache-2.0
"""Measure unwinding:  python benchmarks/unwinding.py [speed] [tables[=FILE]] [perf[=RECORDING]]

Prints CPU seconds, by default of all three:

speed    200 000 samples of 20 frames, with tables in memory
tables   making the tables of a large file (default: node, if installed)
perf     `perf-offcpu convert --folded` in turns with `perf script`, on a recording of
         `perf record --call-graph dwarf` (default: two are made, of tests/workload/stacks/busy.cpp)
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / room) for room in ("", "tests")]

from builders.cfi import X86, section, table_of  # noqa: E402

from perf_offcpu.binary.columnar import offsets_of  # noqa: E402
from perf_offcpu.decode.load import load_recording  # noqa: E402
from perf_offcpu.model.callchains import Ragged, Snapshots  # noqa: E402
from perf_offcpu.model.recording import Dsos, Maps, Meta, Recording, Samples, Spaces  # noqa: E402
from perf_offcpu.objects.elf.image import open_elf  # noqa: E402
from perf_offcpu.unwind import unwinder as module  # noqa: E402
from perf_offcpu.unwind.cfi.program import Cfa  # noqa: E402
from perf_offcpu.unwind.cfi.table import build_table, frame_sections  # noqa: E402
from perf_offcpu.unwind.lookup import FileTable  # noqa: E402

SECONDS, ROUNDS = (1.6, 14), 5
SAMPLES, FRAMES, FUNCTIONS = 200_000, 20, 2_000
CODE, STACK, SIZE = 0x400000, 0x7FF000, 0x100


def made_recording() -> tuple[Recording, FileTable]:
    """Return samples with frames of 24 bytes of FUNCTIONS functions; the last function is the root."""
    body = bytes([Cfa.DEF_CFA_OFFSET, 24, 0x80 | 3, 2])
    functions = [(CODE + SIZE * row, SIZE, body) for row in range(FUNCTIONS)]
    root = CODE + SIZE * FUNCTIONS
    table = table_of(section(*functions, (root, SIZE, bytes([Cfa.UNDEFINED, 16]))))
    random = np.random.default_rng(6)
    callers = CODE + SIZE * random.integers(FUNCTIONS, size=(SAMPLES, FRAMES)) + 8 * random.integers(1, 16)
    callers[:, -1] = root + 8
    stacks = np.zeros((SAMPLES, FRAMES, 3), np.uint64)
    stacks[:, :-1, 2] = callers[:, 1:]
    registers = np.empty((SAMPLES, 3), np.uint64)
    registers[:, 0], registers[:, 1], registers[:, 2] = 0, STACK, callers[:, 0]
    rows = np.arange(SAMPLES)
    recording = Recording(
        samples=Samples.filled(SAMPLES, time_ns=rows, space=np.zeros(SAMPLES), snapshot=rows),
        snapshots=Snapshots(
            np.full(SAMPLES, 0b1_1100_0000, np.uint64),
            Ragged(offsets_of(np.full(SAMPLES, 3)), registers.reshape(-1)),
            Ragged(offsets_of(np.full(SAMPLES, 3 * FRAMES)), stacks.reshape(-1)),
        ),
        spaces=Spaces.filled(1),
        maps=Maps.filled(
            1, start=np.array([CODE], np.uint64), end=np.array([root + SIZE], np.uint64), dso=np.array([0])
        ),
        dsos=Dsos.filled(1),
        meta=Meta(arch="x86_64"),
    )
    return recording, FileTable(table, lambda offsets: offsets + np.uint64(CODE), "")


def speed() -> None:
    """Measure unwinding with tables in memory."""
    recording, table = made_recording()

    class Tables:
        def __init__(self, *_: object) -> None:
            pass

        def of_dso(self, *_: object) -> FileTable:
            return table

    module.FrameTables = Tables  # type: ignore[attr-defined, assignment]
    begin = time.process_time()
    unwound = module.unwind(recording)
    spent = time.process_time() - begin
    frames = int(unwound.callchains.lengths[unwound.samples.callchain].sum()) - SAMPLES
    assert frames == SAMPLES * FRAMES and not unwound.losses
    each = spent / frames * 1e9
    print(f"{SAMPLES} samples of {FRAMES} frames, all different: {spent:.2f} s, {each:.0f} ns a frame")


def tables(path: str) -> None:
    """Measure making the tables of a file."""
    begin = time.process_time()
    with open_elf(path) as image:
        table = build_table(frame_sections(image), X86)
    spent = time.process_time() - begin
    print(f"{path}, {os.path.getsize(path) / 1e6:.0f} MB: {len(table)} rows in {spent:.2f} s")


def with_perf(path: str) -> None:
    """Measure a recording in turns with perf script."""
    recording = load_recording(path, snapshots=True)
    stacks, words = len(recording.snapshots), int(recording.snapshots.stack.lengths.sum())
    print(f"{path}: {stacks} stacks, {8 * words / 1e6:.0f} MB of them; {ROUNDS} rounds in turns:")
    ours = [sys.executable, "-m", "perf_offcpu", "convert", "--folded", "-i", path, "-o", os.devnull]
    perf = ["perf", "script", "-i", path]
    fields = ["-F", "ip,sym"]
    with_inlined = [ours, [*perf, *fields]]
    commands = with_inlined + [[*command, "--no-inline"] for command in with_inlined]
    spent = [[cpu_seconds(command) for command in commands] for _ in range(ROUNDS)]
    for command, each in zip(commands, zip(*spent, strict=True), strict=True):
        shown = " ".join(command).replace(sys.executable, "python").replace(path, "…")
        print(f"  {statistics.median(each):6.2f} s ({min(each):.2f} to {max(each):.2f})  {shown}")


def cpu_seconds(command: list[str]) -> float:
    """Return user and system time of a command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def recordings(directory: str) -> list[str]:
    """Make two recordings of a C++ program."""
    program = f"{directory}/busy"
    source = Path(__file__).resolve().parents[1] / "tests/workload/stacks/busy.cpp"
    build = ["g++", "-O2", "-g", "-fomit-frame-pointer", "-pthread", "-o", program, str(source)]
    subprocess.run(build, check=True)
    made = []
    for seconds in SECONDS:
        made.append(f"{directory}/{seconds}s.data")
        how = ["-q", "-m", "16384", "-e", "cpu-clock", "-F", "12000", "--call-graph", "dwarf,4096"]
        subprocess.run(["perf", "record", *how, "-o", made[-1], program, str(seconds)], check=True, capture_output=True)
    return made


def main() -> None:
    """Run the named measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurements", nargs="*")
    os.environ["DEBUGINFOD_URLS"] = ""
    asked = dict(word.partition("=")[::2] for word in parser.parse_args().measurements) or {
        "tables": "",
        "speed": "",
        "perf": "",
    }
    if "tables" in asked and os.path.exists(file := asked["tables"] or "/usr/bin/node"):
        tables(file)
    if "speed" in asked:
        speed()
    if "perf" in asked:
        with tempfile.TemporaryDirectory() as directory:
            for path in [asked["perf"]] if asked["perf"] else recordings(directory):
                with_perf(path)


if __name__ == "__main__":
    main()
