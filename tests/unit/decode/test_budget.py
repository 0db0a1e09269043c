# SPDX-License-Identifier: Apache-2.0
"""What a recorder says of itself: accounts of parts of a file, and budgets of threads, also damaged ones."""

from pathlib import Path

import numpy as np
import pytest
from builders.accounts import SPENT, counters, told
from builders.accounts import budget as row
from builders.accounts import budgets as block
from builders.hosts import host
from builders.recording import write
from builders.wait_objects import COUNTERS

from perf_offcpu import losses
from perf_offcpu.abi.counters import BUDGET, BUDGETS, budgets_layout
from perf_offcpu.binary.fields import Order
from perf_offcpu.decode.account import CollectorAccount, read_budgets
from perf_offcpu.decode.continued import joined_budget, without_continued
from perf_offcpu.decode.load import load_recording
from perf_offcpu.losses import Losses
from perf_offcpu.model.recording import Budget, SampleFlag, Samples

HEAD = BUDGETS.offset("budgets")
WALL_NS = 10**18
BLOCKED = SampleFlag.OFFCPU | SampleFlag.STILL_BLOCKED


def file(path: Path, *payloads: bytes) -> Path:
    return write(path, [COUNTERS], map(told, payloads), host("here", WALL_NS))


def read(payload: bytes, order: Order = "<") -> Budget:
    budget = read_budgets(payload, order)
    assert budget is not None
    return budget


def test_budgets_of_version_1_have_no_throttled_time() -> None:
    rows = BUDGET.prefix(BUDGET.offset("throttled_ns")).dtype("<")
    old = np.array([(7, 8, 5, 15, 3, 0, 10, *[0] * 8), (7, 9, 5, 25, 3, 0, 0, 20, *[0] * 7)], rows)
    payload = b"OFCB" + bytes([1, 0, 2, 0]) + old.tobytes()
    budget = read(payload)
    assert (budget.tid.tolist(), budget.throttled_ns.tolist()) == ([8, 9], [0, 0])
    assert (budget.running_ns.tolist(), budget.runnable_ns.tolist()) == ([10, 0], [0, 20])
    values, end, problem = budgets_layout(payload, "<").unpack_sound(payload, "<", None, 0, len(payload))
    assert (end, problem) == (len(payload), None)
    assert [(one["tid"], one["end_ns"]) for one in values["budgets"]] == [(8, 15), (9, 25)]


@pytest.mark.parametrize("order", ["<", ">"])
def test_every_time_comes_to_its_column(order: Order) -> None:
    spent = {name: 10**at for at, name in enumerate(SPENT)}
    payload = block(row(8, 5, 5 + sum(spent.values()), **spent), order=order)
    account = CollectorAccount()
    account.take([payload], "<", Losses())
    account.take([payload], ">", Losses())
    assert len(account.budgets) == 1  # in its own order
    budget = read(payload, order)
    budget.check()
    assert (budget.tid.tolist(), budget.pid.tolist(), budget.switches.tolist()) == ([8], [7], [3])
    for name in SPENT:
        if name not in ("unknown_ns", "stopped_ns", "traced_ns"):
            assert getattr(budget, name).tolist() == [spent[name]], name
    assert budget.stopped_ns.tolist() == [spent["stopped_ns"] + spent["traced_ns"]]


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_block_that_is_cut_is_none_at_all(order: Order) -> None:
    payload = block(row(8, 5, 9), row(9, 5, 9), order=order)
    assert all(read_budgets(payload[:length], order) is None for length in range(len(payload)))
    assert len(read(payload + bytes(4), order)) == 2  # as samples are padded
    assert len(read(block(order=order), order)) == 0
    most = 2**62 - 1  # ids and times at the limit stay in their types
    budget = read(block(row(2**32 - 1, 0, most, stopped_ns=most, traced_ns=most)))
    assert (budget.tid.tolist(), budget.stopped_ns.tolist()) == ([-1], [2 * most])


@pytest.mark.parametrize("spoilt", [
    {"end_ns": 4}, {"end_ns": 2**62}, {"begin_ns": 2**64 - 1, "end_ns": 2**64 - 1}, {"running_ns": 2**63},
    {"other_ns": 2**62}, {"stopped_ns": 2**64 - 1}, {"traced_ns": 2**63}, {"switches": 2**64 - 1},
])  # fmt: skip
def test_a_row_that_cannot_be_is_left_out_and_its_neighbours_stay(spoilt: dict[str, int]) -> None:
    assert read(block(row(8, 5, 9), row(9, 5, 9) | spoilt, row(10, 5, 9))).tid.tolist() == [8, 10]


def test_rows_are_sorted_by_thread_and_time() -> None:
    budget, _ = joined_budget([read(block(row(9, 30, 40), row(8, 50, 60))), read(block(row(9, 10, 20)))])
    assert (budget.tid.tolist(), budget.begin_ns.tolist()) == ([8, 9, 9], [50, 10, 30])
    assert len(joined_budget([])[0]) == 0


def test_what_files_in_turn_have_of_a_life_is_one_row() -> None:
    """Not so what separate recordings have: they do not go on at the very ns."""
    first = block(row(8, 5, 9, running_ns=3, switches=1), row(9, 5, 9), row(10, 5, 9))
    second = block(row(8, 9, 9, switches=0), row(8, 9, 20, running_ns=4, stopped_ns=2, switches=2), row(9, 10, 20))
    budget, borders = joined_budget([read(second), read(first)])
    assert (budget.tid.tolist(), budget.begin_ns.tolist()) == ([8, 9, 9, 10], [5, 5, 10, 5])
    assert budget.end_ns.tolist() == [20, 9, 20, 9]
    assert budget.running_ns[0] == 7 and budget.stopped_ns[0] == 2 and budget.switches[0] == 3
    assert list(zip(*(column.tolist() for column in borders), strict=True)) == [(8, 9), (8, 9)]
    again, none = joined_budget([budget])
    assert len(again) == 4 and len(none[0]) == 0
    samples = Samples.filled(
        5, tid=np.array([8, 8, 8, 9, 10], np.int32), time_ns=np.array([9, 9, 20, 9, 9]),
        flags=np.array([BLOCKED, SampleFlag.OFFCPU, BLOCKED, BLOCKED, BLOCKED], np.uint32),
    )  # fmt: skip
    kept = without_continued(samples, borders, end_ns=20)
    assert moments(kept) == [(8, 9), (8, 20), (9, 9), (10, 9)]
    assert kept.flags[0] == SampleFlag.OFFCPU and len(without_continued(samples, none, end_ns=20)) == 5


def moments(samples: Samples) -> list[tuple[int, int]]:
    return list(zip(samples.tid.tolist(), samples.time_ns.tolist(), strict=True))


def test_damaged_blocks_of_a_file_are_counted_and_the_others_are_read(tmp_path: Path) -> None:
    sound = block(row(8, 5, 9))
    too_many = sound[: HEAD - 2] + (2).to_bytes(2, "little") + sound[HEAD:]
    recording = load_recording(file(tmp_path / "a", too_many, sound, sound[:12]))
    assert (recording.budget.tid.tolist(), recording.losses) == ([8], {losses.BAD_SAMPLE: 2})


def test_a_wait_that_is_told_again_counts_once() -> None:
    """Also where the budget that should go on is lost; what the last file tells stays."""
    samples = Samples.filled(
        5, tid=np.array([8, 9, 8, 9, 10], np.int32), time_ns=np.array([50, 50, 70, 90, 90]),
        switch_out_ns=np.array([20, 20, 20, 60, 10]),
        flags=np.array([BLOCKED, BLOCKED, SampleFlag.OFFCPU, BLOCKED, BLOCKED], np.uint32),
    )  # fmt: skip
    assert moments(without_continued(samples, joined_budget([])[1], end_ns=90)) == [(9, 50), (8, 70), (9, 90), (10, 90)]


def account_of(*payloads: bytes) -> CollectorAccount:
    account, damaged = CollectorAccount(), Losses()
    account.take(payloads, "<", damaged)
    assert not damaged
    return account


@pytest.mark.parametrize(("spans", "parts"), [
    ([], ()), ([(5, 9)], ()), ([(5, 9), (9, 12)], ()), ([(5, 9), (10, 12)], ((5, 9), (10, 12))),
    ([(20, 30), (5, 9), (6, 10), (20, 30)], ((5, 10), (20, 30))), ([(5, 9), (40, 30), (10, 12)], ((5, 9), (10, 12))),
])  # fmt: skip
def test_parts_are_the_times_between_pauses(spans: list[tuple[int, int]], parts: tuple[tuple[int, int], ...]) -> None:
    account = account_of(*(counters(*span) for span in spans))
    assert account.parts() == parts
    if spans:
        assert (account.begin_ns, account.end_ns) == (min(spans)[0], max(end for _, end in spans))


def test_counters_of_all_parts_are_added() -> None:
    first = counters(1, 2, samples=(3, 70), sampling_period=(1, 20), threshold_raised=(4, 900))
    account = account_of(first, counters(3, 4, samples=(5, 30), sampling_period=(1, 20), threshold_raised=(1, 400)))
    assert account.notes[losses.SAMPLES.name] == (8, 100)
    assert account.notes[losses.SAMPLING_PERIOD.name][1] == 20
    assert account.notes[losses.THRESHOLD_RAISED.name] == (5, 900)
