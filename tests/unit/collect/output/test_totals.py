# SPDX-License-Identifier: Apache-2.0
"""Sums, budgets and descriptions of objects on their way to a file, while programs are waited for."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perf_offcpu import losses
from perf_offcpu.abi.attr import Attr, SampleType
from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.collect.bpf.header import read_header
from perf_offcpu.collect.bpf.maps import Drained, UserStacks, _side_by_side
from perf_offcpu.collect.counters import Counter
from perf_offcpu.collect.events.evsels import SAMPLE_TYPE
from perf_offcpu.collect.kernel_totals.user_stacks import Unread
from perf_offcpu.collect.kernel_totals.waits import BATCH
from perf_offcpu.collect.output import object_table
from perf_offcpu.collect.output.file import Piece
from perf_offcpu.collect.output.object_table import KnownObjects, ObjectTable
from perf_offcpu.collect.output.totals import LONGEST_PACE_S, KernelTotals
from perf_offcpu.collect.system.background import Future, in_background, stepping_until
from perf_offcpu.errors import FileFullError
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.resources import bpf_dir

SUMS, BUDGETS = losses.SUMS_UNWRITTEN, losses.BUDGETS_UNWRITTEN
HEADER = read_header(bpf_dir() / "off_cpu.h")
EVENT = EventSpec(Attr(sample_type=SAMPLE_TYPE | SampleType.RAW), "offcpu-time", (77, 78))


def drained(sums: int = 0, budgets: int = 0) -> Drained:
    rows = _side_by_side(*(np.zeros(sums, HEADER.structs[name]) for name in ("sum_key", "sum")))
    rows["total_ns"] = np.arange(sums) + 1
    return Drained(rows, UserStacks(), np.zeros(budgets, HEADER.structs["budget"]))


class Kernel:
    """The collector, as far as totals know it; `future` is the drain that was begun last."""

    def __init__(self) -> None:
        self.begun, self.future = 0, Future[Drained]()
        self.counters_event = EVENT
        self.rings = SimpleNamespace(owner=SimpleNamespace(spec=EVENT))
        self.task_readings = ()
        config = SimpleNamespace(sum_entries=16384, budget_entries=16384)
        self.program = SimpleNamespace(config=config, maps=self, draws_stacks=False)
        self.header = HEADER

    def start_drain(self, *, end_of_file: bool) -> Future[Drained]:
        self.begun, self.future = self.begun + 1, Future()
        return self.future


class File:
    """Takes some pieces, and of one more some records."""

    def __init__(self, pieces: int = 1000, records: int = 0) -> None:
        self.left, self.records, self.taken = pieces, records, list[bytes]()

    def append(self, piece: bytes) -> None:
        if not self.left:
            size = int.from_bytes(piece[6:8], "little")
            raise FileFullError("full", self.records * size, self.records)
        self.left -= 1
        self.taken.append(piece)


def begin(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, list[str]]:
    """Return a kernel and totals that are due, and the list of drains of the rings."""
    kernel: Any = Kernel()
    drains: list[str] = []
    totals = KernelTotals(kernel, lambda: drains.append("rings"))
    later = time.monotonic() + LONGEST_PACE_S
    monkeypatch.setattr(time, "monotonic", lambda: later)
    return kernel, totals, drains


def test_where_programs_never_end_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, totals, _ = begin(monkeypatch)
    file: Any = File()
    for _ in range(100):
        totals.write_if_due(file)
    assert kernel.begun == 1 and totals.is_pending and not totals.is_ready and file.taken == []


def test_sums_and_budgets_are_written_once_programs_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, totals, drains = begin(monkeypatch)
    file: Any = File()
    totals.write_if_due(file)
    kernel.future.set_result(drained(sums=BATCH + 1, budgets=3))
    totals.write_if_due(file)
    totals.write_if_due(file)
    assert kernel.begun == 1 and not totals.is_pending, "the next is not due yet"
    assert totals.sums == BATCH + 1 and len(file.taken) == 3
    assert len(drains) == 1 + 3, "before all, for the callers' stacks, and after each piece"


def test_the_end_of_a_file_empties_rings_until_programs_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, totals, drains = begin(monkeypatch)
    file: Any = File()
    totals.start()
    waiting = in_background(lambda: totals.write(file))
    while len(drains) < 5:
        assert not waiting.done()
    assert file.taken == []
    kernel.future.set_result(drained(sums=1))
    waiting.result()
    assert len(file.taken) == 1


@pytest.mark.parametrize(("file", "left"), [
    (File(pieces=0), [(BUDGETS, 3), (SUMS, BATCH), (SUMS, 2)]),
    (File(pieces=1, records=100), [(SUMS, BATCH - 100), (SUMS, 2)]), (File(pieces=2, records=1), [(SUMS, 1)]),
], ids=["nothing", "a part of a piece", "all but one"])  # fmt: skip
def test_what_is_refused_is_left(monkeypatch: pytest.MonkeyPatch, file: Any, left: list[tuple[Any, int]]) -> None:
    kernel, totals, _ = begin(monkeypatch)
    totals.start()
    kernel.future.set_result(drained(sums=BATCH + 2, budgets=3))
    with pytest.raises(FileFullError):
        totals.write(file)
    pieces = list(totals.unwritten())
    assert [(piece.cause, piece.count.events) for piece in pieces] == left
    missing = sum(number for cause, number in left if cause is SUMS)
    ns = sum(range(BATCH + 3 - missing, BATCH + 3))
    assert sum(piece.count.ns for piece in pieces) == ns, "the last ones are missing"
    assert list(totals.unwritten()) == []


def test_sums_are_left_if_the_rings_before_them_fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel: Any = Kernel()

    def drain() -> None:
        if kernel.future.done():
            raise FileFullError("full", 0, 0)

    totals = KernelTotals(kernel, drain)
    totals.start()
    kernel.future.set_result(drained(sums=2, budgets=3))
    with pytest.raises(FileFullError):
        totals.write(File())  # type: ignore[arg-type]
    assert [piece.count.events for piece in totals.unwritten()] == [3, 2]


def test_a_drain_that_was_begun_is_left_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, totals, _ = begin(monkeypatch)
    totals.start()
    kernel.future.set_result(drained(sums=2))
    assert [piece.count for piece in totals.unwritten()] == [Counter(2, 3)] and not totals.is_pending


def test_things_in_one_record_are_left_together() -> None:
    ns = np.arange(5, dtype=np.uint64)
    assert Piece(SUMS, ns, bytes(50)).rest(20, 2).count == Counter(3, 9)
    batched = Piece(BUDGETS, ns, bytes(50), batched=True)
    assert batched.rest(0, 0).count == Counter(5, 10) and batched.rest(50, 1).count == Counter(0, 0)


def test_an_error_meanwhile_is_raised_after_the_work_has_ended() -> None:
    """The work uses what is closed after an error."""
    steps: list[str] = []

    def work() -> None:
        time.sleep(0.1)
        steps.append("worked")

    def step() -> None:
        steps.append("stepped")
        if len(steps) == 2:
            raise OSError

    with pytest.raises(OSError):
        stepping_until(in_background(work), step)
    assert steps == ["stepped", "stepped", "worked"]
    with pytest.raises(ZeroDivisionError):
        stepping_until(in_background(lambda: 1 // 0), lambda: None)


def pipe(number: int) -> Any:
    row = np.zeros(1, HEADER.structs["object"])
    row["id"], row["kind"] = number, ObjectKind.PIPE
    return row


def test_end_of_file_waits_for_objects_that_wait_for_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    new, named, go_on = [pipe(1)], list[int](), threading.Event()

    def take() -> Any:
        return new.pop() if new else pipe(0)[:0]

    options = SimpleNamespace(object_names=True, is_steady=True)
    collector: Any = SimpleNamespace(options=options, take_objects=take, counters_event=None, unread=Unread())

    def describe(rows: Any, **_: object) -> list[Any]:
        assert go_on.wait(10)
        return [{"id": int(row["id"])} for row in rows]

    def write(objects: list[Any], _: object) -> None:
        named.extend(one["id"] for one in objects)

    # So long that nothing is scanned again before the test ends.
    monkeypatch.setattr(object_table, "STEADY_SCAN_SHARE", 1e-12)
    objects = ObjectTable(collector, go_on.set)
    monkeypatch.setattr(objects._describer, "describe", describe)
    monkeypatch.setattr(objects, "_write", write)
    objects.follow([])
    new.append(pipe(2))
    objects.finish([])
    assert named == [1, 2]


def test_descriptions_are_used_for_some_time_and_then_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now, described = [1000.0], list[int]()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    known = KnownObjects(300.0)

    def describe(rows: Any) -> list[Any]:
        described.extend(rows["id"].tolist())
        return [{"id": number} for number in rows["id"].tolist()]

    for second in range(0, 3000, 10):
        now[0] = 1000.0 + second
        rows = np.concatenate([pipe(7), pipe(1000 + second)])
        assert [one["id"] for one in known.described(rows, describe)] == [7, 1000 + second]
    assert described.count(7) == pytest.approx(3000 / 300, abs=1)
    assert len(known._known) <= 2 * 300 / 10 + 2, "those of processes that have ended do not stay"
