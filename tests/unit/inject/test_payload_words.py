# SPDX-License-Identifier: Apache-2.0
"""Payloads with other callchains in them: all else stays, and what was cut is noted."""

from __future__ import annotations

import numpy as np
import pytest

from perf_offcpu.abi import offcpu as abi
from perf_offcpu.binary.layout import Order
from perf_offcpu.inject.payload_words import with_other_chains
from perf_offcpu.model.callchains import Ragged

NOTHING = {name: 0 for name in ("flags", "prev_state", "syscall", "wakeup_ns", "waker_pid", "waker_tid")}
NOTHING |= {name: 0 for name in ("switch_out_ns", "longest_ns", "runq_ns", "waker_nr", "kind")}
STACK, CUT, KERNEL = abi.Lost.USER_STACK, abi.Lost.USER_STACK_CUT, abi.Lost.KERNEL_STACK_CUT


def payload(chain: list[int], lost: int, order: Order) -> list[int]:
    head = abi.PAYLOAD.pack({"pid": 1, "tid": 2, "offcpu_ns": 3, "callchain": chain, "cgroup": 4}, order)
    fixed = {"magic": abi.EXTENSION_MAGIC, "version": 1, "nwords": abi.EXTENSION_WORDS, "count": 1}
    extension = abi.EXTENSION.pack({**NOTHING, **fixed, "lost": lost}, order)
    return np.frombuffer(head + extension, f"{order}u8").tolist()


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("cut", "before", "after"),
    [
        (1, 0, CUT),
        (0, CUT | STACK | KERNEL, KERNEL),
        (1, STACK | KERNEL, CUT | KERNEL),
        (-1, CUT | STACK, CUT | STACK),
        (-1, 0, 0),
    ],
)
def test_what_is_noted_of_user_stacks(order: Order, cut: int, before: int, after: int) -> None:
    chains = [[7, 8, 9], [], [5]]
    old = Ragged.from_lists([payload(chain, before, order) for chain in chains])
    new = Ragged.from_lists([[1], [2, 3], []])
    found = with_other_chains(old, new, np.full(3, cut, np.int8), order)
    assert [found.row(row).tolist() for row in range(3)] == [
        payload(chain, after, order) for chain in ([1], [2, 3], [])
    ]


def test_without_an_extension_nothing_is_noted() -> None:
    old = Ragged.from_lists([payload([7], 0, "<")[:5], payload([7, 8], 0, "<")])
    found = with_other_chains(old, Ragged.from_lists([[1, 2], [3]]), np.ones(2, np.int8), "<")
    assert found.row(0).tolist() == payload([1, 2], 0, "<")[:6]
    assert found.row(1).tolist() == payload([3], CUT, "<")
