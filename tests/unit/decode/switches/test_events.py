# SPDX-License-Identifier: Apache-2.0
"""Context switches out of files: raw data by its own description, of old and new kernels; and damage."""

import re
from pathlib import Path
from typing import Any

import pytest
from builders.switching import FORMAT, SwitchTable, write_switches

from perf_offcpu import losses
from perf_offcpu.binary.fields import Order
from perf_offcpu.decode.load import load_recording
from perf_offcpu.losses import LossCause
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.recording import Recording, SampleFlag, Samples
from perf_offcpu.perfdata import reader

# Linux 3.16 on a 32-bit machine: longs of 4 bytes, other offsets, one letter for each bit of the mask.
OLD_FORMAT = """name: sched_switch
ID: 310
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:pid_t prev_pid;\toffset:8;\tsize:4;\tsigned:1;
\tfield:long prev_state;\toffset:12;\tsize:4;\tsigned:1;
\tfield:pid_t next_pid;\toffset:18;\tsize:4;\tsigned:1;

print fmt: "%s%s", REC->prev_state & (1024-1) ? __print_flags(REC->prev_state & (1024-1), "|", { 1, "S"} , \
{ 2, "D" }, { 4, "T" }, { 8, "t" }, { 16, "Z" }, { 32, "X" }, { 64, "x" }, { 128, "K"}, { 256, "W"}, \
{ 512, "P" }) : "R", REC->prev_state & 1024 ? "+" : ""
"""
NEW_STATES = {0: 0, 1: 1, 2: 2, 4: 4, 8: 8, 0x40: 0x40, 0x80: 0x402, 0x100: 0}
OLD_STATES = {0: 0, 1: 1, 2: 2, 2 | 128: 0x102, 4: 4, 8: 8, 512: 0x40, 1024: 0, 1 | 1024: 0}
MS = 1_000_000


def naps(states: list[int]) -> SwitchTable:
    """Thread 7 naps for 1 ms in each state, in turns with the idle thread."""
    rows = []
    for number, state in enumerate(states):
        begin = (10 + 2 * number) * MS
        rows += [(begin, 0, 7, 0, state), (begin + MS, 0, 0, 7, 0)]
    chains = Ragged.from_lists([[2**64 - 128, 2**63 + number] for number in range(len(rows))])
    return SwitchTable.of(zip(*rows, strict=True), chains)


def recorded(path: Path, states: list[int], **options: Any) -> Recording:
    write_switches(path / "perf.data", naps(states), **options)
    recording = load_recording(path / "perf.data")
    recording.check()
    return recording


def waits_of(recording: Recording) -> Samples:
    samples = recording.samples
    return samples.take(samples.has(SampleFlag.OFFCPU))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("text", "states"), [
    (FORMAT, NEW_STATES), (OLD_FORMAT, OLD_STATES),
    (re.sub(r"print fmt:.*", "print fmt: (none)", FORMAT, flags=re.DOTALL), NEW_STATES),
], ids=["new", "old", "no flags"])  # fmt: skip
def test_states_of_any_kernel(tmp_path: Path, text: str, states: dict[int, int], order: Order) -> None:
    waits = waits_of(recorded(tmp_path, list(states), order=order, text=text))
    assert waits.state.tolist() == list(states.values())
    assert waits.period.tolist() == [MS] * len(states)
    assert set(waits.tid.tolist()) == {7}
    assert waits.has(SampleFlag.PREEMPTED).tolist() == [state == 0 for state in states.values()]


def test_death_is_no_wait_and_stacks_are_those_of_the_thread_that_goes_out(tmp_path: Path) -> None:
    recording = recorded(tmp_path, [1, 0x10, 1, 0x20])
    assert not recording.losses
    assert (recording.meta.begin_ns, recording.meta.end_ns, recording.meta.threshold_ns) == (10 * MS, 17 * MS, 0)
    chains = [recording.callchains.row(row).tolist() for row in waits_of(recording).callchain.tolist()]
    assert chains == [[2**64 - 128, 2**63 + number] for number in (0, 4)]


def test_rows_of_many_chunks_keep_their_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PIECE", 1 << 20)
    recording = recorded(tmp_path, [1] * 40_000)
    assert (tmp_path / "perf.data").stat().st_size > 2 << 20, "the reader takes several chunks"
    last = recording.callchains.values[recording.callchains.offsets[waits_of(recording).callchain] + 1]
    assert last.tolist() == [2**63 + 2 * number for number in range(40_000)]


def test_a_tracepoint_that_was_asked_for_twice_counts_once(tmp_path: Path) -> None:
    recording = recorded(tmp_path, [1, 2], events=2)
    assert waits_of(recording).state.tolist() == [1, 2]
    assert len(recording.samples) == 2 * 4 + 2
    assert not recording.losses


@pytest.mark.parametrize(("old", "new", "causes"), [
    (b"prev_pid", b"prev_tid", {losses.BAD_TRACEPOINT: 4}), (b"offset:56", b"offset:99", {losses.BAD_TRACEPOINT: 4}),
    (b"offset:24;\tsize:4", b"offset:24;\tsize:3", {losses.BAD_TRACEPOINT: 4}), (b"ID: 310", b"ID: 311", {}),
    (b"header_page", b"header_cage", {losses.BAD_FEATURE: 1}),
])  # fmt: skip
def test_formats_that_do_not_fit(perf_data: Path, old: bytes, new: bytes, causes: dict[LossCause, int]) -> None:
    """No waits, no exception: samples stay what they are."""
    write_switches(perf_data, naps([1, 2]))
    sound = perf_data.read_bytes()
    assert old in sound
    perf_data.write_bytes(sound.replace(old, new))
    recording = load_recording(perf_data)
    assert len(recording.samples) == 4 and not len(waits_of(recording))
    assert recording.losses == causes
    assert not load_recording(perf_data, switches=False).losses
