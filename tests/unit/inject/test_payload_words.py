# SPDX-License-Identifier: Apache-2.0
"""Payloads as they are written: decode reads the same, and what unwinding cut is noted."""

import numpy as np
import pytest

from perf_offcpu.abi import offcpu as abi
from perf_offcpu.binary.columnar import Columns
from perf_offcpu.binary.fields import Order
from perf_offcpu.binary.gather import Rows
from perf_offcpu.decode.retype import retype
from perf_offcpu.inject.payload_words import made_extensions, payloads, with_walk_ends
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.recording import SampleFlag, Samples

STACK, CUT, KERNEL = abi.Lost.USER_STACK, abi.Lost.USER_STACK_CUT, abi.Lost.KERNEL_STACK_CUT


def extension(lost: int, order: Order) -> list[int]:
    packed = abi.EXTENSION.pack(abi.BLANK_EXTENSION | {"lost": lost}, order)
    return np.frombuffer(packed, f"{order}u8").tolist()


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("cut", "before", "after"),
    [(True, 0, CUT), (False, CUT | STACK | KERNEL, KERNEL), (True, STACK | KERNEL, CUT | KERNEL)],
)
def test_what_is_noted_of_user_stacks(order: Order, cut: bool, before: int, after: int) -> None:
    """Rows 0 and 2 were unwound, row 1 was not, and row 3 has no extension."""
    rows = [extension(before, order), extension(STACK, order), [*extension(before, order), 7], []]
    unwound = np.array([0, 2, 3])
    found = with_walk_ends(Ragged.from_lists(rows), unwound, np.full(3, cut), order)
    assert [found.row(row).tolist() for row in range(4)] == [
        extension(after, order), rows[1], [*extension(after, order), 7], [],
    ]  # fmt: skip


@pytest.mark.parametrize("order", ["<", ">"])
def test_payloads_are_read_as_they_are_written(order: Order) -> None:
    samples = Samples.filled(
        2, pid=[7, 8], tid=[9, 10], period=[1000, 2000], cgroup=[5, 6], count=[1, 4], state=[1, 2],
        syscall=[230, -1], wakeup_ns=[400, -1], waker_tid=[3, -1], runq_ns=[10, -1], longest_ns=[-1, 700],
        flags=[SampleFlag.OFFCPU | SampleFlag.PREEMPTED, SampleFlag.OFFCPU | SampleFlag.AGGREGATED],
    )  # fmt: skip
    chains, wakers = Ragged.from_lists([[2**64 - 512, 1], []]), Ragged.from_lists([[], [2**64 - 128, 2]])
    offsets, data = payloads(samples, chains, made_extensions(samples, wakers, order), order)
    raw = {"raw": Rows(offsets[:-1], np.diff(offsets), 1)}
    batch, valid = retype(data, Columns(np.ones(2, np.bool_), {}, raw), samples, order, Losses())
    assert valid.all() and not batch.from_upstream.any()
    for name in ("pid", "tid", "period", "cgroup", "count", "state", "syscall", "wakeup_ns", "waker_tid"):
        assert getattr(batch.samples, name).tolist() == getattr(samples, name).tolist(), name
    assert batch.samples.runq_ns.tolist() == [10, -1] and batch.samples.longest_ns.tolist() == [-1, 700]
    assert batch.samples.flags.tolist() == samples.flags.tolist()
    assert [batch.callchains.row(row).tolist() for row in range(3)] == [
        [2**64 - 512, 1],
        [],
        [2**64 - 128, 2],
    ]
    assert batch.samples.waker_callchain.tolist() == [-1, 2]
