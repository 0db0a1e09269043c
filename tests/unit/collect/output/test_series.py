# SPDX-License-Identifier: Apache-2.0
"""The files of a recording from begin to end: new files, pauses with and without one, and what each says; sums, budgets
and descriptions of objects on their way to a file, while programs are waited for."""

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from perf_offcpu import losses
from perf_offcpu.abi.attr import Attr, SampleType
from perf_offcpu.abi.counters import EVENT_ID
from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.collect.bpf.header import read_header
from perf_offcpu.collect.bpf.last_tasks import LastTasks, parse_tasks
from perf_offcpu.collect.bpf.maps import Drained, UserStacks, _side_by_side
from perf_offcpu.collect.control import Requests
from perf_offcpu.collect.counters import Counter, Span, counters_event
from perf_offcpu.collect.events.evsels import SAMPLE_TYPE, Support
from perf_offcpu.collect.existing.inventory import KnownTasks
from perf_offcpu.collect.existing.kernel_maps import KernelMaps
from perf_offcpu.collect.existing.maps import MappedBuildIds
from perf_offcpu.collect.kernel_totals.user_stacks import Unread
from perf_offcpu.collect.kernel_totals.waits import BATCH
from perf_offcpu.collect.options import RecordOptions, Rotation
from perf_offcpu.collect.output import object_table
from perf_offcpu.collect.output.file import Counts, OutputFile, Piece
from perf_offcpu.collect.output.object_table import KnownObjects, ObjectTable
from perf_offcpu.collect.output.series import FileSeries
from perf_offcpu.collect.output.totals import LONGEST_PACE_S, KernelTotals
from perf_offcpu.collect.system.background import Future, in_background, stepping_until
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.targets import Target
from perf_offcpu.decode.load import load_recording
from perf_offcpu.errors import FileFullError
from perf_offcpu.model.recording import Recording
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.resources import bpf_dir

HEADER = read_header(bpf_dir() / "off_cpu.h")
WAITS = SimpleNamespace(attr=Attr(sample_type=SAMPLE_TYPE | SampleType.RAW), ids=(77,))


class Collector:
    """The kernel side, of which nothing comes but one sample that is counted each time it is drained."""

    def __init__(self, options: RecordOptions) -> None:
        self.options, self.events = options, [counters_event(Support())]
        self.counters_event = self.events[0]
        self.known_tasks, self.known_kernel, self.unread = KnownTasks(), KernelMaps(), Unread()
        self.build_ids, self.span, self.samples, self.steps = MappedBuildIds(), Span(0, 0, 0), 0, list[str]()
        spent = SimpleNamespace(longest=None, full=None)
        self.pressure = SimpleNamespace(writing=contextlib.nullcontext, **vars(spent))
        self.rings = SimpleNamespace(data_bytes=4096, fullest=0.0, owner=SimpleNamespace(spec=WAITS))
        config = SimpleNamespace(sum_entries=1024, budget_entries=1024, budget=True)
        self.pythons = SimpleNamespace(offsets={}, pids=frozenset())
        self.task_readings = ()
        self.jvms = SimpleNamespace(ask_all=lambda: None, maps={}, forget_ended=lambda ended: ended)
        self.jvms.awaited_locks = lambda pids: {}
        self.program = SimpleNamespace(config=config, maps=self, last_tasks=self.last_tasks, draws_stacks=False)
        self.header = HEADER
        self.waiting_records = lambda: 3

    def last_tasks(self) -> LastTasks:
        return parse_tasks(b"", HEADER, self.span.end_ns or now_ns(), True)

    def start_drain(self, *, end_of_file: bool = False) -> Future[Drained]:
        sums = _side_by_side(*(np.empty(0, HEADER.structs[name]) for name in ("sum_key", "sum")))
        future = Future[Drained]()
        future.set_result(Drained(sums, UserStacks(), np.empty(0, HEADER.structs["budget"])))
        return future

    def drain(self, sink: OutputFile | None = None) -> Any:
        """Stand for the drain of the rings, and for that of the maps, which has no sink."""
        if sink is None:
            return self.start_drain().result()
        self.samples += 1

    @contextlib.contextmanager
    def side_band_also_to(self, sink: OutputFile) -> Iterator[None]:
        yield

    draws_stacks = False

    def run_stats(self) -> dict[str, Any]:
        return {}

    def take_codes(self) -> Any:
        return ()

    def note_existing(self, records: bytes) -> None:
        pass

    def take_objects(self) -> Any:
        return np.zeros(0, HEADER.structs["object"])

    def counters(self) -> dict[losses.LossCause, Counter]:
        return {losses.SAMPLES: Counter(self.samples)}

    def lost_by_id(self) -> dict[int, int]:
        return {}

    def oncpu_samples(self) -> int:
        return 0

    def set_polled(self, *_: object) -> None: ...

    def copy_all(self) -> None: ...

    def set_control(self, period_ns: int) -> None:
        self.steps.append(f"period {period_ns}")

    def resume(self) -> None:
        self.span = Span(now_ns(), 0, 0)

    def pause(self) -> None:
        self.span = Span(self.span.begin_ns, now_ns(), 0)

    def end(self) -> None:
        if not self.span.end_ns:
            self.pause()
        self.steps.append("end")

    def wake(self) -> None:
        self.steps.append("wake")

    def track(self) -> None:
        self.steps.append("track")


class Place:
    def __init__(self, directory: Path, rotation: Rotation | None, *, objects: bool = True) -> None:
        path = str(directory / "perf.data")
        options = RecordOptions(Target(), output=path, rotation=rotation, off_cpu_period_ns=2000, objects=objects)
        self.collector, self.said, self.directory = Collector(options), list[str](), directory
        signals = cast(Any, SimpleNamespace(rotate=False))
        self.requests = Requests(None, 2000, rotation is not None, signals, self.said.append)
        self.series = FileSeries(options, cast(Any, self.collector), self.requests, self.said.append)
        self.series.current.commit()
        self.collector.resume()

    def pause(self) -> None:
        self.series.end_part(self.collector.pause)
        self.series.current.pause(self.collector.span)

    def end(self) -> list[Recording]:
        self.series.end_part(self.collector.end)
        self.series.current.finish(self.collector.span)
        self.series.sum_up()
        self.series.close()
        return [load_recording(path) for path in sorted(self.directory.iterdir())]


def test_pauses_in_a_file_and_files_that_end_in_one(tmp_path: Path) -> None:
    place = Place(tmp_path, Rotation())
    series = place.series
    place.pause()
    series.resume()
    assert series.summary.files == 1 and place.collector.steps == ["wake"]
    place.pause()
    series.leave()
    assert series.is_between and len(place.said) == 1 and " dump " in place.said[0]
    place.requests.period_ns = 5000
    series.resume()
    assert place.collector.steps == ["wake", "end", "wake", "track", "period 5000"]
    first, second = place.end()
    assert [len(first.meta.parts), len(second.meta.parts)] == [2, 0]
    assert [one.meta.sampling.period_ns for one in (first, second)] == [2000, 5000]
    assert first.meta.end_ns < second.meta.begin_ns
    summary, spans = series.summary, [*first.meta.parts, *second.meta.recorded]
    assert summary.files == 2 and summary.file_bytes > 0
    assert summary.recorded_ns == sum(end - begin for begin, end in spans)


@pytest.mark.parametrize("objects", [True, False])
def test_locks_of_jvms_are_objects(tmp_path: Path, objects: bool) -> None:
    place, asked = Place(tmp_path, None, objects=objects), list[set[int]]()
    place.collector.jvms.awaited_locks = lambda pids: asked.append(pids) or {}
    place.end()
    assert bool(asked) == objects


def test_what_runs_is_looked_at_again_where_records_were_missing(tmp_path: Path) -> None:
    """Tasks that were there are not born again; one that came has its name and maps, target or not."""
    place = Place(tmp_path, None)
    place.series.current.describe(place.series.drain)
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            while Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n":
                time.sleep(0.001)
            before_ns = now_ns()
            place.series.describe_again()
            after_ns = now_ns()
        finally:
            process.kill()
    (recording,) = place.end()
    recording.check()
    of_others = {losses.PROCESSES_DENIED, losses.GROUPS_LEFT_OUT}
    assert recording.losses.keys() <= of_others, "of other users, or of the first process"

    def lives(tid: int) -> list[int]:
        return recording.tasks.begin_ns[recording.tasks.tid == tid].tolist()

    (begin_ns,) = lives(process.pid)
    assert lives(os.getpid()) == [0] and before_ns <= begin_ns <= after_ns
    mine = np.flatnonzero(recording.comms.tid == process.pid)
    assert [recording.strings[row] for row in recording.comms.comm[mine].tolist()] == ["sleep"]
    assert recording.comms.begin_ns[mine].tolist() == [begin_ns]
    (space,) = np.flatnonzero(recording.spaces.pid == process.pid).tolist()
    dsos = recording.maps.dso[recording.maps.space == space]
    assert "sleep" in {Path(recording.strings[row]).name for row in recording.dsos.path[dsos].tolist()}


@pytest.mark.parametrize("pausing", [False, True])
def test_files_follow_each_other_without_a_gap(tmp_path: Path, pausing: bool) -> None:
    place = Place(tmp_path, Rotation(size_bytes=1))
    place.series.rotate_if_due(Rotation(size_bytes=1))
    place.series.rotate_if_due(Rotation(size_bytes=1))
    assert place.series.summary.files == 2, "the file before still lacks its sums"
    if pausing:
        place.pause()
        place.series.resume()
    else:
        place.series.write_due()
    assert len(place.said) == 1
    first, second = place.end()
    assert first.meta.parts == () and len(second.meta.parts) == 2 * pausing
    assert first.meta.end_ns == second.meta.begin_ns
    # Each sample is counted in one file; what is drained in a pause or at the end may come after the account.
    assert 0 < sum(one.meta.sampling.waits for one in (first, second)) <= place.collector.samples


def test_end_in_a_pause(tmp_path: Path) -> None:
    place = Place(tmp_path, None)
    place.pause()
    place.series.finish_paused()
    place.series.sum_up()
    place.series.close()
    recording = load_recording(tmp_path / "perf.data")
    assert recording.meta.parts == () and recording.meta.begin_ns == place.collector.span.begin_ns
    assert place.series.summary.file_bytes > 0


@pytest.mark.parametrize("pausing", [False, True])
def test_full_disk_in_a_pause_takes_totals_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pausing: bool) -> None:
    place, taken = Place(tmp_path, None), list[None]()
    totals = place.series._totals
    remaining = totals.remaining

    def noted() -> Any:
        taken.append(None)
        return remaining()

    monkeypatch.setattr(totals, "remaining", noted)
    if pausing:
        place.pause()
    place.series.finish_somehow()
    place.series.close()
    recording = load_recording(tmp_path / "perf.data")
    assert recording.losses[losses.RECORDS_UNWRITTEN] == 3 and recording.meta.parts == ()
    assert len(taken) == (not pausing)


class LosingCollector(Collector):
    """Each time that it is asked, three more records have been lost."""

    lost_records = 0

    def lost_by_id(self) -> dict[int, int]:
        self.lost_records += 3
        return {EVENT_ID: self.lost_records}


def test_span_and_losses_of_all_parts_are_in_the_file(tmp_path: Path) -> None:
    options = RecordOptions(Target())
    collector: Any = LosingCollector(options)
    file = OutputFile(options, collector, str(tmp_path / "perf.data"), Target())
    file.commit()
    spans = [(1000, 2000), (3000, 4000), (5000, 6000)]
    for begin_ns, end_ns in spans[:-1]:
        file.pause(Span(begin_ns, end_ns, 0))
        file.resume()
    file.finish(Span(*spans[-1], 0))
    file.close()
    recording = load_recording(tmp_path / "perf.data")
    assert recording.meta.parts == tuple(spans)
    assert recording.losses[losses.LOST_SAMPLES] == collector.lost_records, "in no account or in two"
    with PerfDataReader.open(tmp_path / "perf.data") as reader:
        assert reader.features.values(Feature.SAMPLE_TIME) == {"first": 1000, "last": 6000}


def test_counts_of_a_part_are_differences_but_for_the_highest_threshold() -> None:
    before = Counts({losses.SAMPLES: Counter(3, 30), losses.THRESHOLD_RAISED: Counter(2, 900)}, {1: 5})
    now = Counts({losses.SAMPLES: Counter(7, 50), losses.THRESHOLD_RAISED: Counter(3, 900)}, {1: 6, 2: 4})
    counters = {losses.SAMPLES: Counter(4, 20), losses.THRESHOLD_RAISED: Counter(1, 900)}
    assert now.since(before) == Counts(counters, {1: 1, 2: 4}) and now.since(None) is now


SUMS, BUDGETS = losses.SUMS_UNWRITTEN, losses.BUDGETS_UNWRITTEN
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
