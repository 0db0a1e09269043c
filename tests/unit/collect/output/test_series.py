# SPDX-License-Identifier: Apache-2.0
"""The files of a recording from begin to end: new files, pauses with and without one, and what each says."""

import contextlib
import os
import subprocess
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
from perf_offcpu.collect.options import RecordOptions, Rotation
from perf_offcpu.collect.output.file import Counts, OutputFile
from perf_offcpu.collect.output.series import FileSeries
from perf_offcpu.collect.system.background import Future
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.targets import Target
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import Recording
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
        self.jvms.lock_owners = lambda pids: {}
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
    def __init__(self, directory: Path, rotation: Rotation | None) -> None:
        path = str(directory / "perf.data")
        options = RecordOptions(Target(), output=path, rotation=rotation, off_cpu_period_ns=2000)
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
