# SPDX-License-Identifier: Apache-2.0
"""What unwinding costs: `python benchmarks/unwinding.py [RECORDING [FILE...]]`.

Three figures, in seconds of CPU: 200 000 samples of 20 frames, with tables at hand; the tables of large files
(default: node, if it is there) from nothing; and, for a recording of `perf record --call-graph dwarf`,
reading and unwinding it beside `perf script`.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / room) for room in ("", "tests")]

from builders.cfi import X86, section, table_of  # noqa: E402

from perf_offcpu.abi.cfi import Cfa  # noqa: E402
from perf_offcpu.decode.load import load_recording  # noqa: E402
from perf_offcpu.model.callchains import Ragged, offsets_of  # noqa: E402
from perf_offcpu.model.recording import Dsos, Maps, Meta, Recording, Samples, Spaces  # noqa: E402
from perf_offcpu.model.snapshots import Snapshots  # noqa: E402
from perf_offcpu.symbolize import unwind as module  # noqa: E402
from perf_offcpu.symbolize.cfi_lookup import FileTable  # noqa: E402
from perf_offcpu.symbolize.cfi_table import build_table, frame_sections  # noqa: E402
from perf_offcpu.symbolize.elf_image import open_elf  # noqa: E402
from perf_offcpu.symbolize.search import Search  # noqa: E402

SAMPLES, FRAMES, FUNCTIONS = 200_000, 20, 2_000
CODE, STACK, SIZE = 0x400000, 0x7FF000, 0x100


def made_recording() -> tuple[Recording, FileTable]:
    """Samples whose every frame is 24 bytes of one of FUNCTIONS functions; the last one's is the root."""
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
    return recording, FileTable(table, lambda offsets: offsets + np.uint64(CODE))


def speed() -> None:
    """The first figure."""
    recording, table = made_recording()

    class Tables:
        def __init__(self, *_: object) -> None:
            pass

        def of_dso(self, _: int) -> FileTable:
            return table

    module.FrameTables = Tables  # type: ignore[misc, assignment]
    begin = time.process_time()
    unwound = module.unwind(recording)
    spent = time.process_time() - begin
    frames = int(unwound.callchains.lengths[unwound.samples.callchain].sum()) - SAMPLES
    assert frames == SAMPLES * FRAMES and not unwound.losses
    each = spent / frames * 1e9
    print(f"{SAMPLES} samples of {FRAMES} frames, all different: {spent:.2f} s, {each:.0f} ns a frame")


def tables(paths: list[str]) -> None:
    """The second figure."""
    for path in paths:
        begin = time.process_time()
        with open_elf(path) as image:
            table = build_table(frame_sections(image), X86)
        spent = time.process_time() - begin
        print(f"{path}, {os.path.getsize(path) / 1e6:.0f} MB: {len(table)} rows in {spent:.2f} s")


def beside_perf(path: str) -> None:
    """The third figure."""
    begin = time.process_time()
    recording = load_recording(path, snapshots=True)
    samples = int((recording.samples.snapshot >= 0).sum())
    module.unwind(recording, Search.usual())
    ours = time.process_time() - begin
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = ["perf", "script", "-i", path, "--no-inline", "-F", "ip,sym"]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    theirs = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{path}, {samples} stacks: read and unwound in {ours:.2f} s, by perf script in {theirs:.2f} s")


if __name__ == "__main__":
    if sys.argv[1:2]:
        beside_perf(sys.argv[1])
    tables(sys.argv[2:] or [path for path in ("/usr/bin/node",) if os.path.exists(path)])
    speed()
