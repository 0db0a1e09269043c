# SPDX-License-Identifier: Apache-2.0
"""inject --switches, samples that refer to the copy of a stack in another one, and payloads as inject writes them."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.chains import chains_of
from builders.compare import sample_rows
from builders.converted import inject
from builders.foreign import big_endian
from builders.program import run as perf_offcpu
from builders.recording import BASE, USER, S, comm, event, sample, side, write
from builders.switching import SwitchTable, write_switches

from perf_offcpu import losses
from perf_offcpu.abi import offcpu as abi
from perf_offcpu.abi.records import RecordType
from perf_offcpu.binary.columnar import Columns, Rows
from perf_offcpu.binary.layout import Order
from perf_offcpu.decode.load import load_recording
from perf_offcpu.decode.retype import retype
from perf_offcpu.inject.samples import made_extensions, payloads, with_walk_ends
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.recording import Recording, SampleFlag, Samples
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
    told = abi.BLANK_EXTENSION | {"kind": abi.Kind.WAIT, "caller": caller}
    raw = abi.PAYLOAD.pack(values) + abi.EXTENSION.pack(told) + bytes(4)
    registers: dict[str, Any] = {"regs_user_abi": 2, "regs_user": REGISTERS}
    copy = dict[str, Any](stack_user_size=len(stack), stack_user=stack, stack_user_dyn_size=len(stack))
    return sample(SPEC, pid=7, tid=tid, time=time, period=1000, raw=raw, **registers, **copy)


def reference(time: int, caller: int, tid: int = 8) -> bytes:
    return wait(time, caller, WORDS[: abi.REFERENCE_BYTES], tid)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Before and after the copy, from another thread, and to a copy that is nowhere."""
    code = {"pid": 7, "tid": 7, "addr": CODE, "len": 0x1000, "pgoff": 0, "filename": b"//anon"}
    records = [
        comm(SPEC, 7, 7, "main"), comm(SPEC, 7, 8, "worker"), side(SPEC, RecordType.MMAP, 2, time=1, **code),
        reference(10, KNOWN), wait(20, KNOWN, WORDS), reference(30, KNOWN, tid=7), reference(40, MISSING),
        wait(50, 0, WORDS),
    ]  # fmt: skip
    return write(tmp_path / "x.data", [SPEC], records)


def user_frames(recording: Recording) -> list[list[int]]:
    return [[word for word in chain if word != USER] for chain in chains_of(unwind(recording))]


EXPECTED = [FRAMES, FRAMES, FRAMES, FRAMES[:1], FRAMES]


def test_each_sample_has_the_stack_of_the_copy(path: Path) -> None:
    recording = load_recording(path, snapshots=True)
    assert user_frames(recording) == EXPECTED
    assert len(recording.snapshots) == 2
    assert recording.losses == {losses.CALLERS_NOT_COPIED: 1}
    assert not load_recording(path).losses, "without copies nothing is missing"


def test_inject_unwinds_a_copy_that_comes_later(path: Path) -> None:
    assert inject(path, path.with_suffix(".out"), search=Search()).losses == {losses.CALLERS_NOT_COPIED: 1}
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


LOST, CUT, KERNEL = abi.Lost.USER_STACK, abi.Lost.USER_STACK_CUT, abi.Lost.KERNEL_STACK_CUT


def extension(lost: int, order: Order) -> list[int]:
    return np.frombuffer(abi.EXTENSION.pack(abi.BLANK_EXTENSION | {"lost": lost}, order), f"{order}u8").tolist()


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("cut", "before", "after"), [
    (True, 0, CUT), (False, CUT | LOST | KERNEL, KERNEL), (True, LOST | KERNEL, CUT | KERNEL),
])  # fmt: skip
def test_what_is_noted_of_user_stacks(order: Order, cut: bool, before: int, after: int) -> None:
    """Rows 0 and 2 were unwound, row 1 was not, and row 3 has no extension."""
    rows = [extension(before, order), extension(LOST, order), [*extension(before, order), 7], []]
    found = with_walk_ends(Ragged.from_lists(rows), np.array([0, 2, 3]), np.full(3, cut), order)
    expected = [extension(after, order), rows[1], [*extension(after, order), 7], []]
    assert [found.row(row).tolist() for row in range(4)] == expected


@pytest.mark.parametrize("order", ["<", ">"])
def test_payloads_are_read_as_they_are_written(order: Order) -> None:
    samples = Samples.filled(
        2, pid=[7, 8], tid=[9, 10], period=[1000, 2000], cgroup=[5, 6], count=[1, 4], state=[1, 2],
        syscall=[230, -1], wakeup_ns=[400, -1], waker_tid=[3, -1], runq_ns=[10, -1], longest_ns=[-1, 700],
        flags=[SampleFlag.OFFCPU | SampleFlag.PREEMPTED, SampleFlag.OFFCPU | SampleFlag.AGGREGATED],
    )  # fmt: skip
    chains, wakers = Ragged.from_lists([[2**64 - 512, 1], []]), Ragged.from_lists([[], [2**64 - 128, 2]])
    offsets, data = payloads(samples, chains, made_extensions(samples, wakers, order), order)["raw"]
    raw = {"raw": Rows(offsets[:-1], np.diff(offsets), 1)}
    batch, valid = retype(data, Columns(np.ones(2, np.bool_), {}, raw), samples, order, Losses())
    assert valid.all() and not batch.from_upstream.any()
    for name in ("pid", "tid", "period", "cgroup", "count", "state", "syscall", "wakeup_ns", "waker_tid"):
        assert getattr(batch.samples, name).tolist() == getattr(samples, name).tolist(), name
    assert batch.samples.runq_ns.tolist() == [10, -1] and batch.samples.longest_ns.tolist() == [-1, 700]
    assert batch.samples.flags.tolist() == samples.flags.tolist()
    assert [batch.callchains.row(row).tolist() for row in range(3)] == [[2**64 - 512, 1], [], [2**64 - 128, 2]]
    assert batch.samples.waker_callchain.tolist() == [-1, 2]


FIXTURE = Path(__file__).parents[2] / "data" / "perf-7.2" / "sched.data"
MS = 1_000_000


@pytest.fixture
def injected(tmp_path: Path) -> Path:
    done = inject(FIXTURE, tmp_path / "out.data", switches=True)
    assert done.waits == 145
    assert done.losses[losses.BEGIN_UNKNOWN] == load_recording(FIXTURE).losses[losses.BEGIN_UNKNOWN]
    return tmp_path / "out.data"


def test_the_output_says_what_the_reader_finds(injected: Path) -> None:
    found, written = load_recording(FIXTURE), load_recording(injected)
    written.check()
    assert [evsel.name for evsel in written.evsels] == [evsel.name for evsel in found.evsels]
    assert sample_rows(written) == sample_rows(found)
    samples = found.samples
    assert (samples.waker_callchain >= 0).any() and (samples.waker_tid == 0).any()


def test_once_is_enough_and_only_if_asked_for(injected: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.data"
    assert inject(injected, again, switches=True).waits == 0
    assert sample_rows(load_recording(again)) == sample_rows(load_recording(injected))
    assert inject(FIXTURE, again).waits == 0
    assert "offcpu-time" not in [evsel.name for evsel in load_recording(again, switches=False).evsels]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("chains", [True, False])
def test_both_byte_orders(order: Order, chains: bool, tmp_path: Path) -> None:
    rows = [(10 * MS, 0, 7, 0, 1), (12 * MS, 0, 0, 7, 0), (13 * MS, 0, 7, 0, 2), (17 * MS, 0, 0, 7, 0)]
    stacks = Ragged.from_lists([[2**64 - 128, 2**63 + row] for row in range(4)]) if chains else Ragged()
    write_switches(tmp_path / "perf.data", SwitchTable.of(zip(*rows, strict=True), stacks), order=order)
    assert inject(tmp_path / "perf.data", tmp_path / "out.data", switches=True).waits == 2
    found, written = load_recording(tmp_path / "perf.data"), load_recording(tmp_path / "out.data")
    assert found.samples.period.tolist()[-3:] == written.samples.period.tolist()[-3:]
    assert sample_rows(found) == sample_rows(written)


def test_a_copy_of_the_other_byte_order(injected: Path, tmp_path: Path) -> None:
    """Raw data of tracepoints is turned field by field."""
    big = tmp_path / "big.data"
    big.write_bytes(big_endian(FIXTURE))
    assert inject(big, tmp_path / "big.out.data", switches=True).waits == 145
    assert sample_rows(load_recording(tmp_path / "big.out.data")) == sample_rows(load_recording(injected))


def test_the_option(tmp_path: Path) -> None:
    done = perf_offcpu("inject", "-v", "-f", "--switches", "-i", FIXTURE, "-o", tmp_path / "out.data")
    assert "145 waits between context switches added" in done.stderr
