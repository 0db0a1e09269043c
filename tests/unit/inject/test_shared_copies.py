# SPDX-License-Identifier: Apache-2.0
"""Samples that refer to the copy of a stack in another sample, before or after them."""

import struct
from pathlib import Path
from typing import Any

import pytest
from builders.injected import inject
from builders.recording import BASE, USER, S, comm, event, sample, side, write

from perf_offcpu import losses
from perf_offcpu.abi import offcpu
from perf_offcpu.abi.records import RecordType
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import Recording
from perf_offcpu.objects.search import Search
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.unwind.unwinder import unwind

# bp, sp and ip: code of no file is unwound by frame pointers
SPEC = event("offcpu-time", (1,), BASE | S.RAW | S.REGS_USER | S.STACK_USER, sample_regs_user=0b111000000)
CODE, STACK, KNOWN, MISSING = 0x7000_0000, 0x7FF0_0000, 2**64 - 1, 77
FRAMES = [CODE + 0x10, CODE + 0x20, CODE + 0x30]
REGISTERS = (STACK + 16, STACK, FRAMES[0])
WORDS = struct.pack("<8Q", 1, 2, STACK + 32, FRAMES[1], 0, FRAMES[2], 0, 0)


def wait(time: int, caller: int, stack: bytes, tid: int = 8) -> bytes:
    """A wait with registers, the top of its stack, and a frame-pointer walk that went wrong."""
    values = {"pid": 7, "tid": tid, "offcpu_ns": 1000, "callchain": [USER, FRAMES[0]], "cgroup": 0}
    told = offcpu.BLANK_EXTENSION | {"kind": offcpu.Kind.WAIT, "caller": caller}
    raw = offcpu.PAYLOAD.pack(values) + offcpu.EXTENSION.pack(told) + bytes(4)
    registers: dict[str, Any] = {"regs_user_abi": 2, "regs_user": REGISTERS}
    copy = dict[str, Any](stack_user_size=len(stack), stack_user=stack, stack_user_dyn_size=len(stack))
    return sample(SPEC, pid=7, tid=tid, time=time, period=1000, raw=raw, **registers, **copy)


def reference(time: int, caller: int, tid: int = 8) -> bytes:
    return wait(time, caller, WORDS[: offcpu.REFERENCE_BYTES], tid)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Before and after the copy, from another thread, and to a copy that is nowhere."""
    code = {"pid": 7, "tid": 7, "addr": CODE, "len": 0x1000, "pgoff": 0, "filename": b"//anon"}
    records = [
        comm(SPEC, 7, 7, "main"), comm(SPEC, 7, 8, "worker"),
        side(SPEC, RecordType.MMAP, 2, time=1, **code),
        reference(10, KNOWN), wait(20, KNOWN, WORDS), reference(30, KNOWN, tid=7), reference(40, MISSING),
        wait(50, 0, WORDS),
    ]  # fmt: skip
    return write(tmp_path / "x.data", [SPEC], records)


def user_frames(recording: Recording) -> list[list[int]]:
    chains = unwind(recording).callchains
    rows = unwind(recording).samples.callchain.tolist()
    return [[word for word in chains.row(row).tolist() if word != USER] for row in rows]


EXPECTED = [FRAMES, FRAMES, FRAMES, FRAMES[:1], FRAMES]


def test_each_sample_has_the_stack_of_the_copy(path: Path) -> None:
    recording = load_recording(path, snapshots=True)
    assert user_frames(recording) == EXPECTED
    assert len(recording.snapshots) == 2
    assert recording.losses == {losses.CALLERS_NOT_COPIED: 1}


def test_without_copies_nothing_is_missing(path: Path) -> None:
    assert not load_recording(path).losses


def test_inject_unwinds_a_copy_that_comes_later(path: Path) -> None:
    done = inject(path, path.with_suffix(".out"), search=Search())
    assert done.losses == {losses.CALLERS_NOT_COPIED: 1}
    assert user_frames(load_recording(path.with_suffix(".out"), snapshots=True)) == EXPECTED


def test_for_perfs_unwinder_samples_with_a_reference_are_unwound_and_have_no_registers(path: Path) -> None:
    out = path.with_suffix(".out")
    inject(path, out, search=Search(), keep_stacks=True)
    with PerfDataReader.open(out) as reader:
        sizes = [size for chunk in reader.chunks() for size in chunk.sizes[chunk.types == 9].tolist()]
    registers, copy = 8 * len(REGISTERS), len(WORDS) + 8
    frames = 2 * 8 * (len(FRAMES) + 1)  # in the callchain and in the payload, with the marker
    assert sizes[1] - sizes[0] == registers + copy - frames
    assert user_frames(load_recording(out, snapshots=True)) == EXPECTED
