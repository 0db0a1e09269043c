# SPDX-License-Identifier: Apache-2.0
"""symbolize(): samples without callchains, cookies, kept addresses, functions of blocked Python threads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.chains import recording_of_chains

from perf_offcpu.abi.records import CpuMode
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import Strings
from perf_offcpu.model.profile import Frames, Profile
from perf_offcpu.model.recording import PythonFrames, Recording, SampleFlag, Samples, Spaces
from perf_offcpu.model.stacks import frames_of
from perf_offcpu.symbolize import symbolizer
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import COOKIE, symbolize, with_python_functions

KERNEL, USER, WAITING = (int(CallchainContext.KERNEL), int(CallchainContext.USER), int(CallchainContext.USER_DEFERRED))
TEXT = 2**64 - 2**31


@pytest.fixture
def kallsyms(tmp_path: Path) -> str:
    """A kernel with padding in front of its functions, 0x10 bytes long."""
    names = ["_text", "__pfx_first", "first", "__pfx_second", "second", "_etext"]
    places = [0, 0x100, 0x110, 0x200, 0x210, 0x1000]
    path = tmp_path / "kallsyms"
    path.write_text("".join(f"{TEXT + at:x} T {name}\n" for at, name in zip(places, names, strict=True)))
    return str(path)


def recording(chains: list[list[int]], **columns: list[int]) -> Recording:
    """One sample a chain, None of it mapped but two processes' code at different places."""
    mapped = [(space, start, start + 0x1000, 0, "/nowhere/app") for space, start in enumerate((0x1000, 0x5000))]
    return recording_of_chains(chains, *mapped, columns=columns, spaces=Spaces.filled(2, pid=[1, 2]))


def names(profile: Profile, sample: int = 0) -> list[str]:
    """symbol+offset of a sample's frames, leaf first; the dso where there is no symbol."""
    frames, text = profile.frames, profile.strings
    return [
        f"{text[frames.symbol[row]]}+{int(frames.offset[row]):#x}" if frames.symbol[row] else text[frames.dso[row]]
        for row in reversed(frames_of(profile.stacks.parent, profile.stacks.frame, int(profile.samples.stack[sample])))
    ]


@pytest.mark.parametrize(("callers", "shown"), [
    ([0x200], ["first+0xf0"]),  # looked up a byte before, and shown as recorded
    ([0x210, 0x211], ["second+0x0", "second+0x1"]),  # an interrupt: before is padding, in which nothing is called
])  # fmt: skip
def test_return_addresses_belong_to_the_call_before_them(callers: list[int], shown: list[str], kallsyms: str) -> None:
    """The leaf is where the CPU was."""
    chain = [KERNEL, TEXT + 0x120, *(TEXT + at for at in callers)]
    assert names(symbolize(recording([chain]), SymbolizeOptions(kallsyms=kallsyms))) == ["first+0x10", *shown]


def test_a_sample_without_callchain_has_its_address(kallsyms: str) -> None:
    columns: dict[str, Any] = {
        "callchain": [-1, -1, -1, 0, -1], "ip": [TEXT + 0x110, 0x1234, 0, 0x1500, 0x1234], "space": [0] * 5,
        "cpumode": [CpuMode.KERNEL, CpuMode.USER, CpuMode.USER, CpuMode.USER, CpuMode.HYPERVISOR],
    }  # fmt: skip
    profile = symbolize(recording([[]], **columns), SymbolizeOptions(kallsyms=kallsyms))
    profile.check()
    assert [names(profile, row) for row in (0, 1, 3)] == [["first+0x0"], ["/nowhere/app"], ["/nowhere/app"]]
    assert profile.samples.stack[[2, 4]].tolist() == [-1, -1]


def test_a_cookie_is_no_code() -> None:
    """It has the value of an address that is mapped, and is still none."""
    profile = symbolize(recording([[USER, 0x1500], [WAITING, 0x1500]]), SymbolizeOptions(keep_ips=True))
    assert names(profile, 0) == ["/nowhere/app"]
    assert names(profile, 1) == [f"{COOKIE}+0x0"]
    assert profile.frames.ip.tolist() == [0x1500, 0x1500]


def test_the_same_code_of_two_processes_is_one_frame_unless_addresses_are_kept() -> None:
    both = recording([[USER, 0x1500], [USER, 0x5500]], space=[0, 1])
    profile = symbolize(both)
    assert len(profile.frames) == 1
    assert profile.frames.ip.tolist() == [0]
    kept = symbolize(both, SymbolizeOptions(keep_ips=True))
    assert sorted(kept.frames.ip.tolist()) == [0x1500, 0x5500]
    assert kept.frames.address.tolist() == [0x500, 0x500]


def test_blocks_of_samples_share_their_locations(monkeypatch: pytest.MonkeyPatch) -> None:
    chains = [[USER, 0x1500], [USER, 0x5500, 0x1500], []]
    columns = {"callchain": [0, 1, -1, 0, 1, 2, 1], "space": [0, 1, 0, 1, 1, 0, -1]}
    for more in ({}, {"waker_callchain": [-1, 0, 0, -1, 1, -1, -1]}):
        whole = symbolize(recording(chains, **columns, **more))
        monkeypatch.setattr(symbolizer, "_BLOCK", 2)
        profile = symbolize(recording(chains, **columns, **more))
        monkeypatch.undo()
        assert profile.samples.stack.tolist() == whole.samples.stack.tolist()
        assert profile.samples.waker_stack.tolist() == whole.samples.waker_stack.tolist()
        assert (profile.samples.stack >= 0).tolist() == [True, True, False, True, True, False, True]
        assert (profile.samples.waker_stack >= 0).sum() == (3 if more else 0)
        assert names(profile) == names(whole)


BLOCKED = SampleFlag.OFFCPU | SampleFlag.STILL_BLOCKED
C_FUNCTIONS = ["sem_wait", "_PyEval_EvalFrameDefault", "vectorcall", "_PyEval_EvalFrameDefault.cold", "main"]
"""Name and call."""


def shown(functions: list[tuple[str, int]], *, since: int = 5, chain: list[int] | None = None) -> list[str]:
    """Stack of a thread that waits since 5, root first, with functions of a wait, leaf first."""
    strings = Strings(["/srv/app.py", *C_FUNCTIONS, *(name for name, _ in functions)])
    rows = [(8, since, strings.find(name), strings.find("/srv/app.py"), 3, call) for name, call in functions]
    columns = {"tid": [8], "switch_out_ns": [5], "flags": [int(BLOCKED)], "callchain": [0]}
    recording = Recording(samples=Samples.filled(1, **columns), strings=strings, python=PythonFrames.from_rows(rows))
    frames = Frames.filled(5, symbol=[strings.find(name) for name in C_FUNCTIONS])
    chains = Ragged.from_lists([chain or [0, 1, 2, 3, 4]])
    frames, chains, pair_of = with_python_functions(recording, frames, chains, np.array([0, -1], np.int32), strings)
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
    others = shown([("take", 3), ("run", 2)])  # of other calls, too: all stand above the last one
    assert others[-4:] == [INNER, "run (app.py)", "take (app.py)", LEAF]
    assert shown([("take", 1)], since=6) == C_FUNCTIONS[::-1], "of another wait"
    assert shown([("take", 1)], chain=[0, 2, 4]) == [MAIN, "vectorcall", LEAF], "without an interpreter"


@pytest.mark.parametrize("calls", [(2, 0), (0, 0), (10**9 - 1, 1)])
def test_any_numbers_of_calls_leave_all_frames(calls: tuple[int, int]) -> None:
    found = shown([("take", calls[0]), ("run", calls[1])])
    assert sorted(found) == sorted([*C_FUNCTIONS, "take (app.py)", "run (app.py)"])
