# SPDX-License-Identifier: Apache-2.0
"""Copies of user stacks are gathered from samples, in memory or in a file, as far as they were copied."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from perf_offcpu.abi.attr import SampleType
from perf_offcpu.abi.sample import SAMPLE, SampleShape
from perf_offcpu.columnar import read_columns
from perf_offcpu.decode.snapshots import NO_ROOM, SnapshotStore
from perf_offcpu.model.snapshots import Snapshots
from perf_offcpu.perfdata.losses import Losses

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


def gathered(memory: int, counters: Losses) -> tuple[list[int], Snapshots]:
    data = np.frombuffer(b"".join(SAMPLES), np.uint8)
    ends = np.cumsum([len(one) for one in SAMPLES])
    columns = read_columns(SAMPLE, data, ends - [len(one) for one in SAMPLES], ends, "<", SHAPE)
    assert columns.ok.all()
    store = SnapshotStore(counters, memory)
    numbers = store.add(data, columns, SHAPE.sample_regs_user, columns.ok, "<").tolist()
    store.add(data, columns, SHAPE.sample_regs_user, columns.ok, "<")
    return numbers, store.release()


@pytest.mark.parametrize("memory", [1 << 20, 100, 16, 0])
def test_snapshots_hold_what_was_copied(memory: int) -> None:
    numbers, snapshots = gathered(memory, Losses())
    snapshots.check()
    assert numbers == [0, -1, -1, 1, -1]
    assert snapshots.mask.tolist() == [SHAPE.sample_regs_user] * 4
    assert [snapshots.registers.row(i).tolist() for i in range(4)] == [[1, 2], [3, 4]] * 2
    assert [snapshots.stack.row(i).tolist() for i in range(4)] == [[10, 11, 12], [20, 21]] * 2


def test_a_full_disk_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def write(self, _: object) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", Full)
    counters = Losses()
    data = np.frombuffer(SAMPLES[0], np.uint8)
    columns = read_columns(SAMPLE, data, np.array([0]), np.array([len(data)]), "<", SHAPE)
    store = SnapshotStore(counters, 8)
    assert store.add(data, columns, 0xC0, columns.ok, "<").tolist() == [-1]
    assert counters == {NO_ROOM: 1}
