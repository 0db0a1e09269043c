# SPDX-License-Identifier: Apache-2.0
"""Sums and budgets as samples: what they hold, whole lives and shares, by the kernel's own figures. Exact sums of short
waits, shared among the stacks of the waits drawn from them."""

from typing import Any

import numpy as np
import pytest
from builders.examples import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from perf_offcpu.abi.attr import Attr, SampleType
from perf_offcpu.abi.offcpu import BLANK_EXTENSION, EXTENSION, EXTENSION_SIZE, PAYLOAD, Kind, WaitFlag
from perf_offcpu.abi.records import RECORD_HEADER, RecordType
from perf_offcpu.abi.sample import SAMPLE
from perf_offcpu.collect.bpf.header import read_header
from perf_offcpu.collect.bpf.last_tasks import LastTasks, parse_tasks
from perf_offcpu.collect.events.evsels import SAMPLE_TYPE
from perf_offcpu.collect.kernel_totals.budgets import BudgetShares, by_kernel_figures
from perf_offcpu.collect.kernel_totals.waits import first_addresses, sum_samples, with_marker
from perf_offcpu.collect.output.totals import DrawnStacks
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.resources import bpf_dir

HEADER = read_header(bpf_dir() / "off_cpu.h")
MODES = HEADER.enums["mode"]
RUNNING, RUNNABLE, ASLEEP = (MODES.index(name) for name in ("running", "runnable", "interruptible"))


def budget(tid: int, begin: int, end: int, **spent: int) -> NDArray[Any]:
    """What is not said of its time it slept."""
    row = np.zeros(1, HEADER.structs["budget"])
    row["pid"], row["tid"], row["begin_ns"], row["end_ns"] = 7, tid, begin, end
    row["switches"] = end - begin
    for name, value in spent.items():
        row["ns"][0, MODES.index(name)] = value
    row["ns"][0, ASLEEP] += np.uint64(end - begin - sum(spent.values()))
    return row


def told(shares: NDArray[Any]) -> list[tuple[int, ...]]:
    """(tid, begin, end, running, asleep, switches) of each."""
    columns = (shares["ns"][:, RUNNING], shares["ns"][:, ASLEEP], shares["switches"])
    names = (shares[name] for name in ("tid", "begin_ns", "end_ns"))
    return list(zip(*(column.tolist() for column in (*names, *columns)), strict=True))


def test_files_share_a_life_without_gap_or_overlap() -> None:
    shares = BudgetShares(MODES)
    first = np.concatenate([budget(8, 5, 100, running=15), budget(9, 50, 100)])
    assert told(shares.share(first, noting=True)) == [(8, 5, 100, 15, 80, 95), (9, 50, 100, 0, 50, 50)]
    second = np.concatenate([budget(8, 5, 200, running=25), budget(9, 150, 200)])  # 9 ended; another has its number
    assert told(shares.share(second, noting=True)) == [(8, 100, 200, 10, 90, 100), (9, 150, 200, 0, 50, 50)]
    ended = np.concatenate([budget(9, 50, 120, running=7), budget(8, 5, 230, running=30)])
    assert told(shares.share(ended)) == [(9, 100, 120, 7, 13, 20), (8, 200, 230, 5, 25, 30)]
    assert first["ns"][0, RUNNING] == 15, "what the kernel gave stays as it was"


def test_what_is_known_better_later_makes_nothing_negative() -> None:
    """The wait seemed to be over at 60; a second wake-up showed that it was not."""
    shares = BudgetShares(MODES)
    shares.share(budget(8, 0, 100, runnable=40), noting=True)
    share = shares.share(budget(8, 0, 110, runnable=5))
    assert share["ns"][0, RUNNABLE] == 0 and share["ns"][0].sum() == 10
    ended_before_the_look = shares.share(budget(8, 0, 99, runnable=40))
    assert ended_before_the_look["end_ns"] == 100 and ended_before_the_look["ns"].sum() == 0


def look(*waits: tuple[int, int, int]) -> LastTasks:
    """Waits (tid, since, mode) and a budget for each."""
    tasks = np.zeros(len(waits), HEADER.structs["last"])
    tasks["tid"], tasks["switch_out_ns"], tasks["mode"] = np.array(waits).T
    tasks["waits"] = tasks["mode"] > RUNNABLE
    nothing = stacks(*([] for _ in waits))
    return LastTasks(100, tasks, nothing, nothing, np.concatenate([budget(tid, 0, 100) for tid, _, _ in waits]))


def test_only_what_stood_still_is_sure() -> None:
    now = look((1, 50, ASLEEP), (2, 50, ASLEEP), (3, 60, RUNNING), (4, 50, ASLEEP), (5, 50, ASLEEP))
    later = look((1, 50, ASLEEP), (2, 99, ASLEEP), (3, 99, ASLEEP), (5, 50, RUNNING))
    now.budgets["ns"][1, RUNNING] += np.uint64(1)  # changed between the header and the budget
    sure = now.unless_disturbed(later, drained_ns=55)
    assert sure.tasks["tid"][sure.waiting()].tolist() == [1]
    assert sure.budgets["tid"].tolist() == [1, 3, 4, 5, 2]
    assert sure.budgets["ns"][4, RUNNING] == 0, "of the later look"
    assert len(now.waiting()) == 4


def test_what_began_after_the_end_is_no_wait() -> None:
    """Not even one of 0 ns: the iterator looks at tasks while they go on."""
    tasks = np.zeros(4, HEADER.structs["last"])
    tasks["tid"], tasks["waits"], tasks["switch_out_ns"] = [1, 2, 3, 4], 1, [98, 99, 100, 101]
    last = parse_tasks(tasks.tobytes(), HEADER, 100, False)
    assert last.tasks["tid"].tolist() == [1, 2, 3, 4] and last.tasks["tid"][last.waiting()].tolist() == [1, 2]


def test_what_began_after_the_rings_were_emptied_is_for_the_next_file() -> None:
    """The records that name a thread born since are still in the rings."""
    now = look((1, 50, ASLEEP), (2, 56, ASLEEP))
    now.budgets["begin_ns"][1], now.budgets["ns"][1] = 56, 0
    now.budgets["ns"][1, ASLEEP] = 44
    sure = now.unless_disturbed(now, drained_ns=55)
    assert sure.tasks["tid"][sure.waiting()].tolist() == [1] and sure.budgets["tid"].tolist() == [1]


def test_tasks_stand_still_if_they_have_not_been_switched() -> None:
    tasks = np.zeros(3, HEADER.structs["last"])
    tasks["tid"], tasks["nr_switches"] = [1, 2, 3], [7, 8, 9]
    later = tasks[:2].copy()
    later["nr_switches"][1] += 1
    first, second = (parse_tasks(rows.tobytes(), HEADER, 100, with_budget=False) for rows in (tasks, later))
    assert first.stand_still(second).tolist() == [True, False, False]


def switched(switches: int, ran: int, queued: int, **ns: int) -> NDArray[Any]:
    row = np.zeros(1, HEADER.structs["budget"])
    row["switches"], row["begin_ns"], row["end_ns"] = switches, 1000, 1000 + sum(ns.values())
    row["ran_before_ns"], row["ran_ns"] = 500, 500 + ran
    row["queued_before_ns"], row["queued_ns"] = 70, 70 + queued
    for name, value in ns.items():
        row["ns"][0, MODES.index(name)] = value
    return row


def corrected(row: NDArray[Any]) -> dict[str, int]:
    (found,) = by_kernel_figures(row, MODES)
    assert found["ns"].sum() == found["end_ns"] - found["begin_ns"]
    return {name: int(ns) for name, ns in zip(MODES, found["ns"].tolist(), strict=False) if ns}


NEARLY_ALL = {"running": 990, "runnable": 10}


@pytest.mark.parametrize(("figures", "counted", "expected"), examples("unit/collect/examples.txt", "figures"))
def test_the_kernels_figures_correct_what_was_counted(figures: str, counted: str, expected: str) -> None:
    before, after = (
        {n: int(ns) for n, ns in (word.split("=") for word in text.split())} for text in (counted, expected)
    )
    assert corrected(switched(*map(int, figures.split()), **before)) == after


def test_own_counts_stay_where_the_kernel_has_none() -> None:
    row = switched(3, 0, 0, **NEARLY_ALL)
    for name in ("ran_before_ns", "ran_ns", "queued_before_ns", "queued_ns"):
        row[name] = 0
    assert corrected(row) == NEARLY_ALL


def test_threads_that_run_or_wait_for_a_cpu_at_the_end() -> None:
    """The kernel's figures go up to the last switch, and the program adds the time from there. What the kernel counted
    since then, when a thread went to another queue (95, after 70 at the switch), is part of that time."""
    tasks = np.zeros(3, HEADER.structs["last"])
    tasks["mode"] = [MODES.index(name) for name in ("running", "preempted", "interruptible")]
    tasks["switch_out_ns"], tasks["wakeup_ns"], tasks["queued_ns"] = 1000, [0, 0, 1060], 95
    row = switched(5, 500, 0, running=600, runnable=50, interruptible=100)
    lasts = [tasks[at : at + 1].tobytes() + row.tobytes() for at in range(3)]
    row["ran_before_ns"] = row["ran_ns"] = 0
    lasts.append(tasks[:1].tobytes() + row.tobytes())
    found = parse_tasks(b"".join(lasts), HEADER, 1100, with_budget=True).budgets
    assert found["ran_ns"].tolist() == [1100, 1000, 1000, 0]
    assert found["queued_ns"].tolist() == [95, 170, 110, 95]


def test_proportions_of_long_lives_add_up_to_the_ns() -> None:
    days = 10**15 + 1
    row = switched(10**9, days // 3, days // 7, running=days // 3, runnable=7, preempted=days // 7,
                   interruptible=days // 11, idle=days // 13)  # fmt: skip
    assert corrected(row)["running"] == days // 3


USER = 2**64 - 512
EVENT = EventSpec(Attr(sample_type=SAMPLE_TYPE | SampleType.RAW), "offcpu-time", (77, 78))
ROW = np.dtype([
    ("pid", "u4"), ("tid", "u4"), ("state", "u4"), ("syscall", "i4"), ("flags", "u4"), ("cgroup", "u8"),
    ("stack", "u8"), ("total_ns", "u8"), ("count", "u8"), ("longest_ns", "u8"), ("first_switch_out_ns", "u8"),
    ("last_switch_in_ns", "u8"), ("runq_ns", "u8"), ("woken", "u4"), ("lost", "u4"), ("caller", "u8"),
    ("object_id", "u8"),
])  # fmt: skip


def stacks(*each: list[int]) -> Ragged:
    return Ragged.from_lists(list(each))


def unpacked(data: bytes) -> list[dict[str, Any]]:
    """The samples in `data`, each with its payload and extension."""
    records, offset = [], 0
    while offset < len(data):
        header = RECORD_HEADER.unpack(data, start=offset)
        assert header["type"] == RecordType.SAMPLE and header["size"] % 8 == 0
        values = SAMPLE.unpack(data, shape=EVENT.shape, start=offset + 8, end=offset + header["size"])
        payload, end = PAYLOAD.unpack_from(values["raw"], "<", None, 0, len(values["raw"]))
        extension = EXTENSION.unpack(values["raw"], start=end)
        assert values["raw"][end + EXTENSION_SIZE :] == bytes(4)
        records.append({"header": values, "payload": payload, "extension": extension})
        offset += header["size"]
    return records


def test_every_field_arrives() -> None:
    sums = np.zeros(2, ROW)
    sums[0] = (10, 11, 0x2001, 202, 0, 4096, 5, 3_000_000, 7, 900_000, 1000, 2000, 55_000, 6, 0, 7, 9)
    sums[1] = (10, 12, 0, -1, 5, 0, 0, 2**40, 2**33, 2**39, 1, 2**62, 0, 0, 1, 0, 0)
    ((_, data),) = sum_samples(EVENT, sums, stacks([0x400, 2**47 - 1, 0x500], []))
    first, second = unpacked(data)
    header = {"identifier": 77, "ip": 0x400, "pid": 10, "tid": 11, "time": 2000, "cpu": 0, "period": 3_000_000}
    assert {name: first["header"][name] for name in header} == header
    assert first["payload"] == {
        "pid": 10, "tid": 11, "offcpu_ns": 3_000_000, "nr": 4, "callchain": [USER, 0x400, 2**47 - 1, 0x500],
        "cgroup": 4096,
    }  # fmt: skip
    assert first["extension"] == BLANK_EXTENSION | {
        "kind": Kind.SUM, "state": 0x2001, "syscall": 202, "count": 7, "switch_out_ns": 1000,
        "longest_ns": 900_000, "runq_ns": 55_000, "caller": 7, "object_id": 9,
    }  # fmt: skip
    assert (second["header"]["ip"], second["header"]["time"]) == (0, 2**62)
    assert second["payload"]["callchain"] == []
    assert (second["extension"]["count"], second["extension"]["lost"]) == (2**33, 1)
    assert (second["extension"]["syscall"], second["extension"]["flags"]) == (-1, 5)
    assert second["extension"]["runq_ns"] == 2**64 - 1


def test_many_sums_come_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perf_offcpu.collect.kernel_totals.waits.BATCH", 100)
    sums = np.zeros(250, ROW)
    sums["tid"], sums["total_ns"] = np.arange(250), np.arange(250) * 1000
    chains = [list(range(tid, tid + tid % 7)) for tid in range(250)]
    pieces = [piece for _, piece in sum_samples(EVENT, sums, stacks(*chains))]
    samples = [sample for piece in pieces for sample in unpacked(piece)]
    assert len(pieces) == 3 and [sample["payload"]["tid"] for sample in samples] == list(range(250))
    assert [sample["payload"]["callchain"][1:] for sample in samples] == chains
    assert sum(sample["header"]["period"] for sample in samples) == 1000 * 250 * 249 // 2
    assert list(sum_samples(EVENT, np.zeros(0, ROW), stacks())) == []


def test_marker_stands_before_frames_only() -> None:
    marked = with_marker(USER, stacks([], [1, 2], [], [3]))
    assert (marked.offsets.tolist(), marked.values.tolist()) == ([0, 0, 3, 3, 5], [USER, 1, 2, USER, 3])
    assert first_addresses(marked).tolist() == [0, 1, 0, 3]
    assert first_addresses(stacks([])).tolist() == [0]


def test_shares_add_up_to_the_last_life_though_a_look_was_wrong() -> None:
    """A thread seen while it comes to a CPU may have its wait for it twice; the next share makes that good."""
    shares = BudgetShares(MODES)
    lives = [
        budget(8, 0, 100, running=10, runnable=20),
        budget(8, 0, 200, running=20, runnable=110),  # 50 too much
        budget(8, 0, 230, running=30, runnable=70, unknown=5, stopped=5),
        budget(8, 0, 400, running=40, runnable=150, unknown=5, stopped=5),
    ]
    summed = np.zeros_like(lives[0]["ns"])
    for life, passed in zip(lives, (100, 100, 30, 170), strict=True):
        share = shares.share(life, noting=True)
        summed += share["ns"]
        assert share["ns"].sum() == passed == share["end_ns"] - share["begin_ns"]
    assert summed.tolist() == lives[-1]["ns"].tolist()


def test_a_thread_that_some_looks_miss_has_no_time_twice() -> None:
    """Looks leave out a budget that changes while it is read; on a busy machine several in a row."""
    shares = BudgetShares(MODES)
    shares.share(np.concatenate([budget(8, 0, 100, running=15), budget(9, 0, 100)]), noting=True)
    for end in (200, 300, 400):
        shares.share(budget(9, 0, end), noting=True)
    assert told(shares.share(budget(8, 0, 500, running=25))) == [(8, 100, 500, 10, 390, 400)]
    assert told(shares.share(budget(9, 0, 500))) == [(9, 400, 500, 0, 100, 100)]


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
