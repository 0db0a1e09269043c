# SPDX-License-Identifier: Apache-2.0
"""Python functions in the stacks of threads that were still blocked, at the calls of the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import Strings
from perf_offcpu.model.profile import Frames
from perf_offcpu.model.recording import PythonFrames, Recording, SampleFlag, Samples
from perf_offcpu.symbolize.symbolizer import with_python_functions

BLOCKED = SampleFlag.OFFCPU | SampleFlag.STILL_BLOCKED
C_FUNCTIONS = ["sem_wait", "_PyEval_EvalFrameDefault", "vectorcall", "_PyEval_EvalFrameDefault.cold", "main"]
Function = tuple[str, int]
"""Name and call."""


def shown(functions: list[Function], *, since: int = 5, chain: list[int] | None = None) -> list[str]:
    """Stack of a thread that waits since 5, root first, with functions of a wait, leaf first."""
    strings = Strings(["/srv/app.py", *C_FUNCTIONS, *(name for name, _ in functions)])
    rows = [(8, since, strings.find(name), strings.find("/srv/app.py"), 3, call) for name, call in functions]
    columns = {"tid": [8], "switch_out_ns": [5], "flags": [int(BLOCKED)], "callchain": [0]}
    recording = Recording(
        samples=Samples.filled(1, **columns), strings=strings, python=PythonFrames.from_rows(rows)
    )
    frames = Frames.filled(5, symbol=[strings.find(name) for name in C_FUNCTIONS])
    chains = Ragged.from_lists([chain or [0, 1, 2, 3, 4]])
    frames, chains, pair_of = with_python_functions(
        recording, frames, chains, np.array([0, -1], np.int32), strings
    )
    frames.check(recording)
    rows_of = chains.row(int(pair_of[0])).astype(int).tolist()[::-1]
    assert pair_of[1] == -1
    python = [row for row in rows_of if row >= len(C_FUNCTIONS)]
    assert all(frames.line[row] == 3 for row in python)
    assert all(strings[int(frames.file[row])] == "/srv/app.py" for row in python)
    return [strings[int(frames.symbol[row])] for row in rows_of]


MAIN, OUTER, _, INNER, LEAF = C_FUNCTIONS[::-1]


def test_functions_stand_above_the_call_of_the_interpreter_that_runs_them() -> None:
    functions = [("take", 2), ("run", 1), ("start", 1)]
    expected = [MAIN, OUTER, "start (app.py)", "run (app.py)", "vectorcall", INNER, "take (app.py)", LEAF]
    assert shown(functions) == expected


def test_all_stand_above_the_last_call_if_there_are_others() -> None:
    assert shown([("take", 3), ("run", 2)])[-4:] == [INNER, "run (app.py)", "take (app.py)", LEAF]


def test_functions_of_another_wait_or_without_an_interpreter_stay_out() -> None:
    assert shown([("take", 1)], since=6) == C_FUNCTIONS[::-1]
    assert shown([("take", 1)], chain=[0, 2, 4]) == [MAIN, "vectorcall", LEAF]


@pytest.mark.parametrize("calls", [(2, 0), (0, 0), (10**9 - 1, 1)])
def test_any_numbers_of_calls_leave_all_frames(calls: tuple[int, int]) -> None:
    found = shown([("take", calls[0]), ("run", calls[1])])
    assert sorted(found) == sorted([*C_FUNCTIONS, "take (app.py)", "run (app.py)"])
