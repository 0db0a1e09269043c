# SPDX-License-Identifier: Apache-2.0
"""A new field of the payload costs a member in C, a row in the table, and a column: tried on a copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

EDITS = {
    "bpf/off_cpu.h": ("\tu8 end[];", "\tu32 object;\t\t\t/* what was waited for */\n"),
    "perf_offcpu/abi/offcpu.py": (
        '    source="bpf/off_cpu.h: struct offcpu_extension"',
        '    Field("object", U32, unknown=UNKNOWN_U32, doc="what was waited for"),\n',
    ),
    "perf_offcpu/model/recording.py": (
        '    cgroup: U64 = column("u8", ',
        '    object: I32 = column("i4", "what was waited for", sentinel=-1)\n',
    ),
}
"""File → (before which text, the new line)."""

TRIAL = """
import os, sys
from pathlib import Path
import numpy as np
from builders.recording import BASE, S, USER, comm, event, raw_wait, sample, write
from perf_offcpu.abi.offcpu import BLANK_EXTENSION, EXTENSION
from perf_offcpu.collect.bpf.header import read_header
from perf_offcpu.collect.kernel_totals.sums import sum_samples
from perf_offcpu.decode.load import load_recording
from perf_offcpu.inject.rewrite import rewrite

here, header = Path(sys.argv[1]), read_header(Path("bpf/off_cpu.h"))
assert header.structs["extension"].descr[:19] == EXTENSION.dtype("=").descr, "C is the table"
assert EXTENSION.size() == 92 and header.structs["extension"].itemsize == 96

waits = event("offcpu-time", (3,), BASE | S.RAW)
old = load_recording(sys.argv[2]).samples
assert len(old) and (old.object == -1).all(), "older recordings do not say"

raw = raw_wait(70, 71, 900, [USER, 9])[:-4] + EXTENSION.pack(BLANK_EXTENSION | {"object": 7}) + bytes(8)
(record,) = sum_samples(waits, np.zeros(1, [*header.structs["sum_key"].descr, *header.structs["sum"].descr]),
                        (np.array([0, 0]), np.empty(0, np.uint64)))
recorded, injected = here / "recorded.data", here / "injected.data"
write(recorded, [waits], [comm(waits, 70, 71, "thread"), sample(waits, time=5, raw=raw), record])
assert sorted(load_recording(recorded).samples.object) == [-1, 7]
with open(injected, "wb") as out:
    rewrite(str(recorded), out.fileno(), str(injected))
assert sorted(load_recording(injected).samples.object) == [-1, 7]
"""


def test_three_lines_are_enough(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for name in ("perf_offcpu", "bpf"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (place, line) in EDITS.items():
        text = (copy / name).read_text()
        assert text.count(place) == 1 and line.count("\n") == 1
        (copy / name).write_text(text.replace(place, line + place))
    command = [sys.executable, "-c", TRIAL, tmp_path, ROOT / "tests" / "data" / "demo.data"]
    env = os.environ | {"PYTHONPATH": f"{copy}:{ROOT / 'tests'}"}
    done = subprocess.run(command, check=False, cwd=copy, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
