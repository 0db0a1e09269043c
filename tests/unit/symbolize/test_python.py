# SPDX-License-Identifier: Apache-2.0
"""Python functions of waits without a walk of BPF, from their payload to the stack of the wait; the part of the
interpreter that the compiler has put apart."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from builders.accounts import told
from builders.compiled import build
from builders.recording import write
from builders.wait_objects import COUNTERS

from perf_offcpu import losses
from perf_offcpu.cache import DiskCache
from perf_offcpu.collect.python.functions import Functions, functions_payload
from perf_offcpu.decode.account import read_functions
from perf_offcpu.decode.load import load_recording
from perf_offcpu.decode.python_lines import with_functions_on_cpu
from perf_offcpu.decode.python_lines import with_places as decoded
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import Strings
from perf_offcpu.model.profile import Frames
from perf_offcpu.model.recording import Recording, SampleFlag, Samples
from perf_offcpu.objects.elf.image import open_elf
from perf_offcpu.symbolize.calls import interpreter_part
from perf_offcpu.symbolize.python import with_places

BLOCKED = SampleFlag.OFFCPU | SampleFlag.STILL_BLOCKED
C_FUNCTIONS = ["sem_wait", "_PyEval_EvalFrameDefault", "vectorcall", "_PyEval_EvalFrameDefault.cold", "main"]
MAIN, OUTER, _, INNER, LEAF = C_FUNCTIONS[::-1]


def shown(functions: list[tuple[str, int]], *, since: int = 5, chain: list[int] | None = None) -> list[str]:
    """Stack of a thread that waits since 5, root first, with functions of a wait, (name, call), leaf first."""
    strings = Strings(C_FUNCTIONS)
    payload = functions_payload((7, 8, since), [(name, "/srv/app.py", 3, call) for name, call in functions])
    samples = Samples.filled(2, tid=[8, 9], switch_out_ns=[5, 5], flags=[int(BLOCKED)] * 2, callchain=[0, -1])
    samples, places = decoded(samples, Ragged.from_lists([]), {}, read_functions(payload, "<"), strings, Losses())
    recording = Recording(samples=samples, strings=strings, places=places)
    frames = Frames.filled(5, symbol=[strings.find(name) for name in C_FUNCTIONS])
    chains, pair_of = Ragged.from_lists([chain or [0, 1, 2, 3, 4]]), np.array([0, -1], np.int32)
    if len(places):
        frames, chains, pair_of = with_places(recording, frames, chains, pair_of, strings, Losses())
    frames.check(recording)
    rows = chains.row(int(pair_of[0])).astype(int).tolist()[::-1]
    python = [row for row in rows if row >= len(C_FUNCTIONS)]
    assert {(int(frames.line[row]), strings[int(frames.file[row])]) for row in python} <= {(3, "/srv/app.py")}
    assert pair_of[1] == -1
    return [strings[int(frames.symbol[row])] for row in rows]


def test_functions_stand_above_the_call_of_the_interpreter_that_runs_them() -> None:
    functions = [("take", 2), ("run", 1), ("start", 1)]
    expected = [MAIN, OUTER, "start (app.py)", "run (app.py)", "vectorcall", INNER, "take (app.py)", LEAF]
    assert shown(functions) == expected
    assert shown([("take", 1)], since=6) == C_FUNCTIONS[::-1], "of another wait"


@pytest.mark.parametrize("calls", [(2, 0), (0, 0), (10**9 - 1, 1), (3, 2)])
def test_any_numbers_of_calls_leave_all_frames(calls: tuple[int, int]) -> None:
    found = shown([("take", calls[0]), ("run", calls[1])])
    assert sorted(found) == sorted([*C_FUNCTIONS, "take (app.py)", "run (app.py)"])
    assert set(C_FUNCTIONS[::2]) < set(shown([("take", calls[0])], chain=[0, 2, 4])), "without an interpreter"


def test_functions_go_to_the_on_cpu_sample_before_them() -> None:
    """Samples of 20 kHz of thread 8; others, and a sample whose functions were not read, have none."""
    times = {8: [10_000, 50_000, 100_000, 400_000], 9: [52_000]}
    notes = [(8, 40_000, 0), (8, 90_000, 1), (8, 100_000, 2), (7, 53_000, 3), (8, 550_000, 4)]
    tids, time_ns, python = zip(*notes, *((tid, time, -1) for tid in times for time in times[tid]), strict=True)
    flags = [int(SampleFlag.OFFCPU | SampleFlag.ON_CPU_NAMES)] * len(notes) + [0] * 5
    samples = Samples.filled(10, tid=tids, time_ns=time_ns, python=python, flags=flags)
    assert with_functions_on_cpu(samples).python.tolist() == [0, 1, 2, -1, -1]


def test_functions_next_to_the_leaf_are_kept_and_damaged_payloads_counted(tmp_path: Path) -> None:
    frames: Functions = [(f"{number:0900}", "/a.py", 1, 1) for number in range(1000)]
    kept = read_functions(functions_payload((7, 8, 5), frames), "<")[8, 5]
    assert 40 < len(kept) < 60 and kept == frames[: len(kept)]
    assert (
        read_functions(functions_payload((7, 8, 5), [("t\u2028äke", "/b.py", 4, 2)]), "<")[8, 5][0][0] == "t\u2028äke"
    )
    payload = functions_payload((7, 8, 5), [("start", "/a.py", 3, 1)])
    damaged = [payload[:20], payload.replace(b"\t", b" "), payload.replace(b"\t3", b"\t-3")]
    recording = load_recording(write(tmp_path / "in.data", [COUNTERS], map(told, damaged)))
    assert recording.losses == {losses.BAD_SAMPLE: 3}


SOURCE = """
__attribute__((cold, noinline)) int seldom(int number) { return number + 1; }
int NAME(int number)
{
    if (number == 100) number = seldom(7) + seldom(8);
    if (number == 1000) number = seldom(9) * seldom(10);
    if (number == 10000) number = seldom(11) - seldom(12);
    if (number == 7) number = seldom(13) | seldom(14);
    return number;
}
int main(int count, char **arguments) { return NAME(count); }
"""


@pytest.mark.parametrize("name", ["_PyEval_EvalFrameDefault", "another_function"])
def test_the_part_is_found_without_its_symbol(name: str, tmp_path: Path) -> None:
    (tmp_path / "part.c").write_text(SOURCE.replace("NAME", name))
    program, cache = tmp_path / "part", DiskCache(str(tmp_path / "kept"))
    build(tmp_path / "part.c", program, "-O2", "-rdynamic")
    symbols = subprocess.check_output(["nm", "-S", program], text=True).splitlines()
    start, size = next(line.split()[:2] for line in symbols if line.endswith(f" {name}.cold"))
    subprocess.run(["strip", program], check=True)
    part = [int(start, 16), int(start, 16) + int(size, 16)] if name.startswith("_Py") else [0, 0]
    with open_elf(str(program), None) as image:
        assert [interpreter_part(image, kept).tolist() for kept in (None, cache, cache)] == [part] * 3
