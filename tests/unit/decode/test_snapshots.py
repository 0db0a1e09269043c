# SPDX-License-Identifier: Apache-2.0
"""Copies of user stacks are found again where they lie, also by samples that refer to another's copy."""

import errno
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from perf_offcpu import losses
from perf_offcpu.abi.attr import SampleType
from perf_offcpu.abi.sample import SAMPLE, SampleShape
from perf_offcpu.binary.columnar import read_columns
from perf_offcpu.decode.snapshot_store import CallerRows, SnapshotStore, with_callers
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Snapshots
from perf_offcpu.model.columns import I32, U64
from perf_offcpu.perfdata.scan import Chunk

SHAPE = SampleShape(SampleType.REGS_USER | SampleType.STACK_USER, sample_regs_user=0b1100_0000)


def sample(abi: int, registers: tuple[int, ...], words: list[int], used: int) -> bytes:
    out = struct.pack("<Q", abi) + struct.pack(f"<{len(registers)}Q", *registers)
    out += struct.pack(f"<Q{len(words)}Q", 8 * len(words), *words)
    return out + (struct.pack("<Q", used) if words else b"")


SAMPLES = [
    sample(2, (1, 2), [10, 11, 12, 13], 24),
    sample(0, (), [], 0),  # a kernel thread
    sample(1, (5, 6), [1, 2], 16),  # a 32-bit task
    sample(2, (3, 4), [20, 21], 2**63),  # a lie
    sample(2, (8, 9), [], 0),
]


def chunk_of(samples: list[bytes], begin: int = 0, origin: str = "") -> Chunk:
    """Samples without headers, at an offset of their file."""
    sizes = np.array([len(one) for one in samples])
    kinds = np.zeros(len(samples), np.uint32), np.zeros(len(samples), np.uint16)
    return Chunk(np.frombuffer(b"".join(samples), np.uint8), np.cumsum(sizes) - sizes, *kinds, sizes, begin, origin)


def add(store: SnapshotStore, chunk: Chunk) -> list[int]:
    columns = read_columns(SAMPLE, chunk.data, chunk.starts, chunk.starts + chunk.sizes, "<", SHAPE)
    assert columns.ok.all()
    return store.add(chunk, columns, SHAPE.sample_regs_user, columns.ok, "<").tolist()


def stacks_of(snapshots: Snapshots, rows: list[int]) -> list[list[int]]:
    found = snapshots.read_stacks(np.array(rows))
    ends = found.begins + found.lengths
    return [found.words[low:high].tolist() for low, high in zip(found.begins, ends, strict=True)]


@pytest.mark.parametrize("memory", [1 << 20, 100, 16, 0])
def test_snapshots_hold_what_was_copied(memory: int) -> None:
    store = SnapshotStore(Losses(), memory)
    numbers = add(store, chunk_of(SAMPLES))
    add(store, chunk_of(SAMPLES))
    snapshots = store.release()
    snapshots.check()
    assert numbers == [0, -1, -1, 1, -1]
    assert snapshots.mask.tolist() == [SHAPE.sample_regs_user] * 4
    assert [snapshots.registers.row(i).tolist() for i in range(4)] == [[1, 2], [3, 4]] * 2
    assert stacks_of(snapshots, [0, 1, 2, 3]) == [[10, 11, 12], [20, 21]] * 2
    assert stacks_of(snapshots, [3, 0]) == [[20, 21], [10, 11, 12]]


@pytest.mark.parametrize("gap", [0, 4, 1 << 20])
def test_stacks_stay_in_the_files_that_they_are_in(tmp_path: Path, gap: int) -> None:
    """Two files, and a pipe between them; samples at any distance and alignment."""
    begins = (100, 100 + len(b"".join(SAMPLES)) + gap)
    for name in ("", "data.1"):
        with open(tmp_path / f"file{name}", "wb") as file:
            for begin in begins:
                file.seek(begin)
                file.write(b"".join(SAMPLES))

    def reopen(origin: str) -> int | None:
        return None if origin == "zstd" else os.open(tmp_path / f"file{origin}", os.O_RDONLY)

    store = SnapshotStore(Losses(), 0, reopen)
    for origin, begin in [("", begins[0]), ("", begins[1]), ("zstd", 0), ("data.1", begins[0])]:
        add(store, chunk_of(SAMPLES, begin, origin))
    snapshots = store.release()
    snapshots.check()
    both = [[10, 11, 12], [20, 21]]
    assert stacks_of(snapshots, [0, 1, 2, 3]) == both * 2
    assert stacks_of(snapshots, list(range(8))) == both * 4
    assert stacks_of(snapshots, [7, 1, 4, 4, 0]) == [both[row % 2] for row in (7, 1, 4, 4, 0)]
    assert stacks_of(snapshots, []) == []


def test_what_the_file_has_lost_meanwhile_is_missing(perf_data: Path) -> None:
    perf_data.write_bytes(b"".join(SAMPLES))
    store = SnapshotStore(Losses(), 0, lambda _: os.open(perf_data, os.O_RDONLY))
    add(store, chunk_of(SAMPLES))
    snapshots = store.release()
    os.truncate(perf_data, len(b"".join(SAMPLES[:3])) + 8 * 4 + 3)  # three bytes into the first word of the second
    assert stacks_of(snapshots, [0, 1]) == [[10, 11, 12], []]
    os.truncate(perf_data, 0)
    assert stacks_of(snapshots, [0, 1]) == [[], []]


def test_a_full_disk_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    write, room = os.pwrite, [0]

    def limited(fd: int, data: bytes, offset: int) -> int:
        if offset >= room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[: room[0] - offset], offset)

    monkeypatch.setattr(os, "pwrite", limited)
    counters = Losses()
    store = SnapshotStore(counters, 8)
    assert add(store, chunk_of(SAMPLES[:1])) == [-1]
    assert counters == {losses.NO_ROOM_FOR_STACKS: 1}
    room[0] = 12  # a word and a half: what is written of the first one is written over
    assert add(store, chunk_of(SAMPLES[:1])) == [-1]
    room[0] = 1 << 20
    assert add(store, chunk_of(SAMPLES[:1])) == [0]
    assert stacks_of(store.release(), [0]) == [[10, 11, 12]]


HIGHEST = 2**64 - 1


def callers(*numbers: int) -> U64:
    return np.array(numbers, np.uint64)


def snapshots(*rows: int) -> I32:
    return np.array(rows, np.int32)


def test_samples_get_the_first_snapshot_of_their_caller_and_others_stay_as_they_are() -> None:
    rows = with_callers(snapshots(7, -1, -1, 3, -1), callers(HIGHEST, HIGHEST, 0, 0, HIGHEST), CallerRows())
    assert rows.tolist() == [7, 7, -1, 3, 7] and rows.dtype == np.int32
    assert with_callers(snapshots(), callers(), CallerRows()).tolist() == []
    known = CallerRows()
    assert with_callers(snapshots(0, 1, 2), callers(5, 6, 5), known).tolist() == [0, 1, 2]
    assert with_callers(snapshots(-1, 3, -1), callers(5, 6, 6), known).tolist() == [0, 3, 1]


def test_a_copy_may_come_after_the_samples_that_refer_to_it_or_never() -> None:
    known, counters = CallerRows(), Losses()
    early = [with_callers(snapshots(-1, -1), callers(5, 6), known) for _ in range(2)]
    late = with_callers(snapshots(0, -1, 1), callers(6, 0, 5), known)
    found = known.settled(np.concatenate([*early, late]), counters)
    assert found.tolist() == [1, 0, 1, 0, 0, -1, 1]
    assert found.dtype == np.int32 and not counters
    assert known.settled(with_callers(snapshots(-1, 1, -1), callers(4, 7, 4), known), counters).tolist() == [-1, 1, -1]
    assert dict(counters) == {losses.CALLERS_NOT_COPIED: 2}
