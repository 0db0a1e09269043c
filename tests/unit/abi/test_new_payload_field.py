# SPDX-License-Identifier: Apache-2.0
"""A new field of the payload costs a member in C, a row in the table, and a column: tried on a copy."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from perf_offcpu.abi.offcpu import EXTENSION

ROOT = Path(__file__).parents[3]

EDITS = {
    "bpf/off_cpu.h": ("\tu8 end[];", "\tu64 spare;\t\t\t/* something new */\n"),
    "perf_offcpu/abi/offcpu.py": ('    source="bpf/off_cpu.h: struct offcpu_extension"',
                                  '    Field("spare", U64, unknown=UNKNOWN_U64, doc="something new"),\n'),
    "perf_offcpu/model/recording.py": ('    cgroup: U64 = column("u8", ',
                                       '    spare: I64 = column("i8", "something new", sentinel=-1)\n'),
}  # fmt: skip
"""File → (before which text, the new line)."""

TRIAL = """
import os, sys
from pathlib import Path
import numpy as np
from builders.recording import BASE, S, USER, comm, event, raw_wait, sample, write
from perf_offcpu.abi.offcpu import BLANK_EXTENSION, EXTENSION
from perf_offcpu.collect.bpf.header import read_header
from perf_offcpu.collect.kernel_totals.waits import sum_samples
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.inject.rewrite import rewrite

columns, size = int(sys.argv[3]) + 1, int(sys.argv[4]) + 8
here, header = Path(sys.argv[1]), read_header(Path("bpf/off_cpu.h"))
assert header.structs["extension"].descr[:columns] == EXTENSION.dtype("=").descr, "C is the table"
assert EXTENSION.size() == header.structs["extension"].itemsize == size

waits = event("offcpu-time", (3,), BASE | S.RAW)
old = load_recording(sys.argv[2]).samples
assert len(old) and (old.spare == -1).all(), "older recordings do not say"

raw = raw_wait(70, 71, 900, [USER, 9])[:-4] + EXTENSION.pack(BLANK_EXTENSION | {"spare": 7})
((_, record),) = sum_samples(waits, np.zeros(1, [*header.structs["sum_key"].descr, *header.structs["sum"].descr]),
                        Ragged(np.array([0, 0])))
recorded, injected = here / "recorded.data", here / "injected.data"
write(recorded, [waits], [comm(waits, 70, 71, "thread"), sample(waits, time=5, raw=raw), record])
assert sorted(load_recording(recorded).samples.spare) == [-1, 7]
with open(injected, "wb") as out:
    rewrite(str(recorded), out.fileno(), str(injected))
assert sorted(load_recording(injected).samples.spare) == [-1, 7]
"""


def test_three_lines_are_enough(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for name in ("perf_offcpu", "bpf"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (place, line) in EDITS.items():
        text = (copy / name).read_text()
        assert text.count(place) == 1 and line.count("\n") == 1
        (copy / name).write_text(text.replace(place, line + place))
    demo, now = ROOT / "tests" / "data" / "demo.data", (len(EXTENSION.fields), EXTENSION.size())
    command: list[str | Path] = [sys.executable, "-c", TRIAL, tmp_path, demo, *map(str, now)]
    env = os.environ | {"PYTHONPATH": f"{copy}:{ROOT / 'tests'}"}
    done = subprocess.run(command, check=False, cwd=copy, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
