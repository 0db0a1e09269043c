# SPDX-License-Identifier: Apache-2.0
"""A coverage-guided fuzzer for frame rules: `python tests/fuzz/frames.py [-max_total_time=S] [CORPUS]`. Needs atheris
(`pip install atheris`). An input is a section .eh_frame; its table is made, and a few stacks whose words point into its
code are unwound by it. Any exception ends the run."""

import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

import atheris  # noqa: E402
import numpy as np  # noqa: E402

with atheris.instrument_imports(include=["perf_offcpu.unwind"]):
    from perf_offcpu.unwind.lookup import CfiLookup, FileTable, Rules
    from perf_offcpu.unwind.state import Threads
    from perf_offcpu.unwind.step import MAX_FRAMES, MAX_GENERAL, walk_up

from builders.cfi import X86, section, table_of  # noqa: E402

from perf_offcpu.model.callchains import StackWords  # noqa: E402
from perf_offcpu.model.recording import Dsos, Maps, Recording, Spaces  # noqa: E402

STACK, WALKS, WORDS = 0x7FF000, 16, 64


def one_input(data: bytes) -> None:
    table = table_of(data)
    assert bool((table.start[1:] > table.start[:-1]).all())
    maps = Maps.filled(1, end=np.array([2**63], np.uint64), dso=np.array([0]))
    recording = Recording(spaces=Spaces.filled(1), maps=maps, dsos=Dsos.filled(1))
    lookup = CfiLookup(recording, Rules(X86), lambda *_: FileTable(table, lambda offsets: offsets, ""))
    places = np.append(table.start, np.uint64(1)) + np.uint64(1)
    words = np.resize(places, WALKS * WORDS)
    values = np.full((X86.count, WALKS), STACK, np.uint64)
    values[X86.pc] = np.resize(places, WALKS)
    known = np.full(WALKS, 2**17 - 1, np.uint64)
    stacks = StackWords(words, np.arange(WALKS) * WORDS, np.full(WALKS, WORDS))
    own = np.ones(WALKS, np.bool_)
    chains, _ = walk_up(lookup, Threads(np.zeros(WALKS, np.int32), values, known, stacks, own), [MAX_GENERAL])
    assert int(chains.lengths.max()) <= MAX_FRAMES


def main() -> None:
    given = [word for word in sys.argv[1:] if not word.startswith("-")]
    with tempfile.TemporaryDirectory() as directory:
        usual = bytes([0x41, 0x0E, 16, 0x86, 2, 0x43, 0x0D, 6, 0x0A, 0x45, 0x0C, 7, 8, 0x0B])
        (Path(directory) / "seed").write_bytes(section((0x1000, 64, usual), (0x2000, 64, bytes([7, 16]))))
        atheris.Setup([*sys.argv, "-max_len=4096", *([] if given else [directory])], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
