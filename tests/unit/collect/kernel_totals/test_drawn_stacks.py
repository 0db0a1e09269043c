# SPDX-License-Identifier: Apache-2.0
"""Exact sums of short waits, shared among the stacks of the waits drawn from them."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from perf_offcpu.abi.offcpu import WaitFlag
from perf_offcpu.collect.bpf.header import read_header
from perf_offcpu.collect.output.totals import DrawnStacks
from perf_offcpu.resources import bpf_dir

STRUCTS = read_header(bpf_dir() / "off_cpu.h").structs
DTYPE = np.dtype([field for name in ("sum_key", "sum") for field in STRUCTS[name].descr])
DRAWN = int(WaitFlag.DRAWN)
MS = 10**6


def row(tid: int, total_ns: int, count: int, **more: int) -> NDArray[Any]:
    """Return an exact row; `stack` makes it one of drawn waits."""
    values = {"tid": tid, "pid": tid, "total_ns": total_ns, "count": count, "longest_ns": total_ns // count, **more}
    values["flags"] = more.get("flags", 0) | (DRAWN if "stack" in more else 0)
    made = np.zeros(1, DTYPE)
    for name, value in values.items():
        made[name] = value
    return made


def shared(*rows: NDArray[Any]) -> NDArray[Any]:
    return DrawnStacks().share(np.concatenate([np.zeros(0, DTYPE), *rows]), end_of_file=True)


def test_a_sum_is_divided_by_the_weights_of_its_stacks() -> None:
    exact = row(7, 9_000, 90, first_switch_out_ns=5, last_switch_in_ns=99, runq_ns=900, woken=80)
    result = shared(
        row(7, MS, 10, stack=1), exact, row(7, 2 * MS, 20, stack=2, longest_ns=150), row(7, 5, 1, syscall=3)
    )
    assert result[["total_ns", "count", "stack", "runq_ns", "flags"]].tolist() == [
        (3_000, 30, 1, 300, DRAWN),
        (6_000, 60, 2, 600, DRAWN),
        (5, 1, 0, 0, 0),  # of another system call: no wait of it was drawn
    ]
    assert result["first_switch_out_ns"].tolist() == [5, 5, 0]
    assert result["woken"].tolist() == [80, 80, 0]


def test_the_longest_wait_of_a_sum_counts_once() -> None:
    result = shared(
        row(7, 10_000, 4, longest_ns=6_000),
        row(7, MS, 9, stack=1, longest_ns=20),
        row(7, MS, 9, stack=2, longest_ns=30),
    )
    assert result["longest_ns"].tolist() == [20, 5_000]  # the sum's own, but not more than the stack's whole time


def test_no_stack_without_a_wait() -> None:
    weights = [row(7, MS, 1, stack=stack) for stack in range(1, 6)]
    result = shared(row(7, 500, 2), *weights)
    assert len(result) == 2
    assert np.all(result["count"] == 1)
    assert result["total_ns"].sum() == 500
    assert len(shared(*weights)) == 0  # each drawn wait was sent as a sample


def test_a_sum_waits_for_its_first_drawn_stack() -> None:
    stacks = DrawnStacks()
    other = row(8, 4, 1), row(8, MS, 1, stack=5)
    first = row(7, 100, 2, first_switch_out_ns=1, last_switch_in_ns=2, longest_ns=60)
    assert stacks.share(np.concatenate([first, *other]), end_of_file=False)["tid"].tolist() == [8]
    later = row(7, 50, 3, first_switch_out_ns=8, last_switch_in_ns=9, longest_ns=20), row(7, MS, 1, stack=6)
    result = stacks.share(np.concatenate(later), end_of_file=False)
    times = ["total_ns", "count", "first_switch_out_ns", "last_switch_in_ns", "longest_ns", "stack"]
    assert result[times].tolist() == [(150, 5, 1, 9, 60, 6)]
    assert len(stacks.share(np.concatenate([first, *other]), end_of_file=False)) == 1
    assert len(stacks.share(np.zeros(0, DTYPE), end_of_file=False)) == 0
    assert len(DrawnStacks(False).share(first, end_of_file=False)) == 1
    assert stacks.share(np.zeros(0, DTYPE), end_of_file=True)[times].tolist() == [(100, 2, 1, 2, 60, 0)]


ROWS = st.tuples(*(st.integers(*bounds) for bounds in ((1, 3), (0, 1), (0, 4), (1, 2**45), (1, 2**30))))


@given(st.lists(ROWS, max_size=40), st.integers(1, 5))
def test_times_and_numbers_of_each_sum_are_conserved(rows: list[tuple[int, ...]], drains: int) -> None:
    made = [
        row(tid, max(ns, count), count, flags=flags, runq_ns=ns // 2, **({"stack": stack} if stack else {}))
        for tid, flags, stack, ns, count in rows
    ]
    stacks, parts = DrawnStacks(), np.array_split(np.concatenate([np.zeros(0, DTYPE), *made]), drains)
    results = [stacks.share(part, end_of_file=part is parts[-1]) for part in parts]
    before, after = np.concatenate(parts), np.concatenate(results)
    before = before[(before["flags"] & DRAWN) == 0]
    for tid, flags in {(tid, flags) for tid, flags, *_ in rows}:
        of_sum = [
            part[(part["tid"] == tid) & ((part["flags"] & ~np.uint32(DRAWN)) == flags)] for part in (before, after)
        ]
        for name in ("total_ns", "count"):
            assert of_sum[0][name].sum() == of_sum[1][name].sum()
    assert np.all(after["count"] > 0)
    assert np.all(after["runq_ns"] <= after["total_ns"])
