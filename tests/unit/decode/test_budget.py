# SPDX-License-Identifier: Apache-2.0
"""What a recorder says of itself: accounts of parts of a file, and budgets of threads, also damaged ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.recording import sample, write

from perf_offcpu import losses
from perf_offcpu.abi.counters import (
    BUDGET,
    BUDGET_MAGIC,
    BUDGET_VERSION,
    BUDGETS,
    COUNTERS,
    MAGIC,
    VERSION,
    budgets_layout,
)
from perf_offcpu.abi.features import Feature
from perf_offcpu.binary.fields import Order
from perf_offcpu.collect.counters import counters_event
from perf_offcpu.collect.events.evsels import Support
from perf_offcpu.decode.account import CollectorAccount, read_budgets
from perf_offcpu.decode.continued import joined_budget, without_continued
from perf_offcpu.decode.load import load_recording
from perf_offcpu.losses import Losses
from perf_offcpu.model.recording import SampleFlag, Samples
from perf_offcpu.perfdata.features import feature_body, text_body

EVENT = counters_event(Support())
TIMES = [name for name in BUDGET.dtype("<").names or () if name.endswith("_ns")]
SPENT = [name for name in TIMES if name not in ("begin_ns", "end_ns")]
WALL_NS = 10**18
HEAD = BUDGETS.offset("budgets")
BLOCKED = SampleFlag.OFFCPU | SampleFlag.STILL_BLOCKED


def row(tid: int, begin: int, end: int, **spent: int) -> dict[str, Any]:
    values = {"pid": 7, "tid": tid, "begin_ns": begin, "end_ns": end, "switches": 3}
    return values | {name: 0 for name in SPENT} | spent


def block(*rows: dict[str, Any], order: Order = "<") -> bytes:
    return BUDGETS.pack({"magic": BUDGET_MAGIC, "version": BUDGET_VERSION, "budgets": list(rows)}, order)


def file(path: Path, *payloads: bytes, host: str = "here") -> Path:
    records = [sample(EVENT, time=100, pid=1, tid=1, raw=payload + bytes(4)) for payload in payloads]
    clock = feature_body(Feature.CLOCK_DATA, version=1, clockid=1, wall_clock=WALL_NS, clockid_time=0)
    features: dict[int, bytes] = {Feature.HOSTNAME: text_body(host), Feature.CLOCK_DATA: clock}
    return write(path, [EVENT], records, features)


def test_budgets_of_version_1_have_no_throttled_time() -> None:
    rows = BUDGET.prefix(BUDGET.offset("throttled_ns")).dtype("<")
    old = np.array([(7, 8, 5, 15, 3, 0, 10, *[0] * 8), (7, 9, 5, 25, 3, 0, 0, 20, *[0] * 7)], rows)
    payload = b"OFCB" + bytes([1, 0, 2, 0]) + old.tobytes()
    budget = read_budgets(payload, "<")
    assert budget is not None
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
    budget = read_budgets(payload, order)
    assert budget is not None
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
    assert read_budgets(payload + bytes(4), order) is not None  # as samples are padded


def test_a_block_with_nobody_is_sound() -> None:
    budget = read_budgets(block(), "<")
    assert budget is not None and len(budget) == 0


@pytest.mark.parametrize("spoilt", [
    {"end_ns": 4}, {"end_ns": 2**62}, {"begin_ns": 2**64 - 1, "end_ns": 2**64 - 1}, {"running_ns": 2**63},
    {"other_ns": 2**62}, {"stopped_ns": 2**64 - 1}, {"traced_ns": 2**63}, {"switches": 2**64 - 1},
])  # fmt: skip
def test_a_row_that_cannot_be_is_left_out_and_its_neighbours_stay(spoilt: dict[str, int]) -> None:
    payload = block(row(8, 5, 9), row(9, 5, 9) | spoilt, row(10, 5, 9))
    budget = read_budgets(payload, "<")
    assert budget is not None and budget.tid.tolist() == [8, 10]


def test_ids_and_times_at_the_limit_stay_in_their_types() -> None:
    most = 2**62 - 1
    budget = read_budgets(block(row(2**32 - 1, 0, most, stopped_ns=most, traced_ns=most)), "<")
    assert budget is not None
    assert (budget.tid.tolist(), budget.stopped_ns.tolist()) == ([-1], [2 * most])


def test_rows_are_sorted_by_thread_and_time() -> None:
    parts = [read_budgets(block(*rows), "<") for rows in ([row(9, 30, 40), row(8, 50, 60)], [row(9, 10, 20)])]
    budget, _ = joined_budget([part for part in parts if part is not None])
    assert budget.tid.tolist() == [8, 9, 9]
    assert budget.begin_ns.tolist() == [50, 10, 30]
    assert len(joined_budget([])[0]) == 0


def test_what_files_in_turn_have_of_a_life_is_one_row() -> None:
    """Not so what separate recordings have: they do not go on at the very ns."""
    first = block(row(8, 5, 9, running_ns=3, switches=1), row(9, 5, 9), row(10, 5, 9))
    second = block(row(8, 9, 9, switches=0), row(8, 9, 20, running_ns=4, stopped_ns=2, switches=2), row(9, 10, 20))
    parts = [read_budgets(payload, "<") for payload in (second, first)]
    budget, borders = joined_budget([part for part in parts if part is not None])
    assert budget.tid.tolist() == [8, 9, 9, 10]
    assert budget.begin_ns.tolist() == [5, 5, 10, 5]
    assert budget.end_ns.tolist() == [20, 9, 20, 9]
    assert budget.running_ns[0] == 7 and budget.stopped_ns[0] == 2 and budget.switches[0] == 3
    assert list(zip(*(column.tolist() for column in borders), strict=True)) == [(8, 9), (8, 9)]
    again, none = joined_budget([budget])
    assert len(again) == 4 and len(none[0]) == 0
    samples = Samples.filled(
        5,
        tid=np.array([8, 8, 8, 9, 10], np.int32),
        time_ns=np.array([9, 9, 20, 9, 9]),
        flags=np.array([BLOCKED, SampleFlag.OFFCPU, BLOCKED, BLOCKED, BLOCKED], np.uint32),
    )
    kept = without_continued(samples, borders, end_ns=20)
    assert moments(kept) == [(8, 9), (8, 20), (9, 9), (10, 9)]
    assert kept.flags[0] == SampleFlag.OFFCPU and len(without_continued(samples, none, end_ns=20)) == 5


def moments(samples: Samples) -> list[tuple[int, int]]:
    return list(zip(samples.tid.tolist(), samples.time_ns.tolist(), strict=True))


def test_damaged_blocks_of_a_file_are_counted_and_the_others_are_read(tmp_path: Path) -> None:
    sound = block(row(8, 5, 9))
    too_many = sound[: HEAD - 2] + (2).to_bytes(2, "little") + sound[HEAD:]
    recording = load_recording(file(tmp_path / "a", too_many, sound, sound[:12]))
    assert recording.budget.tid.tolist() == [8]
    assert recording.losses == {losses.BAD_SAMPLE: 2}


def test_a_wait_that_is_told_again_counts_once() -> None:
    """Also where the budget that should go on is lost; what the last file tells stays."""
    samples = Samples.filled(
        5,
        tid=np.array([8, 9, 8, 9, 10], np.int32),
        time_ns=np.array([50, 50, 70, 90, 90]),
        switch_out_ns=np.array([20, 20, 20, 60, 10]),
        flags=np.array([BLOCKED, BLOCKED, SampleFlag.OFFCPU, BLOCKED, BLOCKED], np.uint32),
    )
    none = joined_budget([])[1]
    assert moments(without_continued(samples, none, end_ns=90)) == [(9, 50), (8, 70), (9, 90), (10, 90)]


def counters(begin_ns: int, end_ns: int, **counts: tuple[int, int]) -> bytes:
    """Return the payload of an account; `counts` are (events, ns) by the names of causes ("_" for "-")."""
    rows = [
        {"events": events, "ns": ns, "name": name.replace("_", "-").encode()} for name, (events, ns) in counts.items()
    ]
    values = {"magic": MAGIC, "version": VERSION, "nr": len(rows), "counters": rows}
    return COUNTERS.pack(values | {"begin_ns": begin_ns, "end_ns": end_ns, "threshold_ns": 0}, "<")


def account_of(*payloads: bytes) -> CollectorAccount:
    account, damaged = CollectorAccount(), Losses()
    account.take(payloads, "<", damaged)
    assert not damaged
    return account


@pytest.mark.parametrize(("spans", "parts"), [
    ([], ()), ([(5, 9)], ()), ([(5, 9), (9, 12)], ()), ([(5, 9), (10, 12)], ((5, 9), (10, 12))),
    ([(20, 30), (5, 9), (6, 10), (20, 30)], ((5, 10), (20, 30))),
    ([(5, 9), (40, 30), (10, 12)], ((5, 9), (10, 12))),
])  # fmt: skip
def test_parts_are_the_times_between_pauses(spans: list[tuple[int, int]], parts: tuple[tuple[int, int], ...]) -> None:
    account = account_of(*(counters(*span) for span in spans))
    assert account.parts() == parts
    if spans:
        assert (account.begin_ns, account.end_ns) == (min(spans)[0], max(end for _, end in spans))


def test_counters_of_all_parts_are_added() -> None:
    first = counters(1, 2, samples=(3, 70), sampling_period=(1, 20), threshold_raised=(4, 900))
    second = counters(3, 4, samples=(5, 30), sampling_period=(1, 20), threshold_raised=(1, 400))
    account = account_of(first, second)
    assert account.notes[losses.SAMPLES.name] == (8, 100)
    assert account.notes[losses.SAMPLING_PERIOD.name][1] == 20
    assert account.notes[losses.THRESHOLD_RAISED.name] == (5, 900)
