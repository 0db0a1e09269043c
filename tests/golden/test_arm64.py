# SPDX-License-Identifier: Apache-2.0
"""Recordings of an arm64 machine, read on any machine: perf-offcpu's, and perf's with its output."""

import lzma
from pathlib import Path

import numpy as np
import pytest
from builders.perf_text import parse

from perf_offcpu.cli import main
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import SampleFlag

DATA = Path(__file__).parents[1] / "data" / "arm64"
SYMBOLS = ["-f", "--symfs", str(DATA / "symfs"), "--kallsyms", str(DATA / "kallsyms")]
PROGRAM, KERNEL = "/results/waiter", "[kernel.kallsyms]"
ENTRY = "el0t_64_sync;el0t_64_sync_handler;el0_svc;do_el0_svc;el0_svc_common.constprop.0;invoke_syscall;"

# Thread: the functions in which it waits, of the program and of the kernel.
WAITS = {
    "sleeper": ("run_worker;sleep_worker;sleep_round;sleep_for", "__arm64_sys_clock_nanosleep;"),
    "pipe-reader": ("run_worker;pipe_reader_worker;receive_letter;read_byte", "__arm64_sys_read;"),
    "poller": ("run_worker;poll_worker;poll_round;poll_silence", "__arm64_sys_ppoll;"),
    "locker-b": ("run_worker;lock_worker_b;enter_ledger;wait_for_lock", "__arm64_sys_futex;"),
    "syncer": ("run_worker;sync_worker;commit_journal;sync_journal", "__arm64_sys_fsync"),
}


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    out = tmp_path_factory.mktemp("arm64") / "folded"
    assert main(["convert", "--folded", "-i", str(DATA / "own.data"), "-o", str(out), *SYMBOLS]) == 0
    lines = (line.rpartition(" ") for line in out.read_text().splitlines())
    return {stack: int(ns) for stack, _, ns in lines}


@pytest.mark.parametrize("comm", WAITS)
def test_a_wait_has_its_stack_from_the_program_into_the_kernel(folded: dict[str, int], comm: str) -> None:
    user, kernel = WAITS[comm]
    stacks = [stack for stack in folded if stack.startswith(f"{comm};") and f";{user};" in stack]
    assert any(f"{ENTRY}{kernel}" in f"{stack};" for stack in stacks)


def test_no_time_is_lost(folded: dict[str, int]) -> None:
    recording = load_recording(DATA / "own.data")
    offcpu = recording.samples.flags & SampleFlag.OFFCPU > 0
    assert sum(folded.values()) == recording.samples.period[offcpu].sum() > 10**9
    assert np.unique(recording.samples.pid[offcpu]).size == 1


def test_system_calls_have_their_names_on_arm64(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "-i", str(DATA / "own.data"), *SYMBOLS]) == 0
    shown = capsys.readouterr().out
    assert "aarch64" in shown
    assert {"clock_nanosleep()", "futex()"} <= set(shown.split())


def test_names_are_perfs(capsys: pytest.CaptureFixture[str]) -> None:
    """Names of the kernel and the program; there is no copy of the machine's libc."""
    assert main(["script", "-i", str(DATA / "perf.data"), *SYMBOLS]) == 0
    ours = parse(capsys.readouterr().out)
    theirs = parse(lzma.decompress((DATA / "perf.script.txt.xz").read_bytes()).decode())
    assert len(ours) == len(theirs) > 100
    for own, perf in zip(ours, theirs, strict=True):
        assert (own.tid, own.time, own.period) == (perf.tid, perf.time, perf.period)
    # By address: perf adds the caller of a leaf, which it takes from a register, to the frames of the chain.
    places = {(one.ip, one.dso): one.sym for sample in theirs for one in sample.frames}
    frames = [one for sample in ours for one in sample.frames if one.dso in (PROGRAM, KERNEL)]
    assert all(one.sym == places[one.ip, one.dso] for one in frames)
    assert len([one for one in frames if one.dso == KERNEL]) > 500
    assert len([one for one in frames if one.dso == PROGRAM]) > 50
