# SPDX-License-Identifier: Apache-2.0
"""A file with pauses: an account for each time between them, and the span of all."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from perf_offcpu import losses
from perf_offcpu.abi.counters import EVENT_ID
from perf_offcpu.abi.features import Feature
from perf_offcpu.collect.counters import Counter, Span, counters_event
from perf_offcpu.collect.events.evsels import Support
from perf_offcpu.collect.existing.kernel_maps import KnownKernel
from perf_offcpu.collect.existing.mapped_files import MappedBuildIds
from perf_offcpu.collect.existing.proc import KnownTasks
from perf_offcpu.collect.options import RecordOptions
from perf_offcpu.collect.output.file import Counts, OutputFile
from perf_offcpu.collect.targets import Target
from perf_offcpu.decode.load import load_recording
from perf_offcpu.perfdata.reader import PerfDataReader

EVENT = counters_event(Support())
LOST_AT_EACH_LOOK = 3


class Collector:
    """The collector, as far as a file knows it; each time that it is asked, more records have been lost."""

    def __init__(self) -> None:
        self.events, self.counters_event = [EVENT], EVENT
        self.known_tasks, self.known_kernel = KnownTasks(), KnownKernel()
        self.build_ids = MappedBuildIds()
        self.pressure = SimpleNamespace(writing=contextlib.nullcontext)
        self.lost = 0

    def counters(self) -> dict[losses.LossCause, Counter]:
        return {losses.SAMPLES: Counter(1)}

    def lost_by_id(self) -> dict[int, int]:
        self.lost += LOST_AT_EACH_LOOK
        return {EVENT_ID: self.lost}


def test_span_and_losses_of_all_parts_are_in_the_file(tmp_path: Path) -> None:
    collector: Any = Collector()
    file = OutputFile(RecordOptions(Target()), collector, str(tmp_path / "perf.data"), Target())
    file.commit()
    spans = [(1000, 2000), (3000, 4000), (5000, 6000)]
    for begin_ns, end_ns in spans[:-1]:
        file.pause(Span(begin_ns, end_ns, 0))
        file.resume()
    file.finish(Span(*spans[-1], 0))
    file.close()
    recording = load_recording(tmp_path / "perf.data")
    assert recording.meta.parts == tuple(spans)
    assert recording.losses[losses.LOST_SAMPLES] == collector.lost, "in no account or in two"
    with PerfDataReader.open(tmp_path / "perf.data") as reader:
        assert reader.features.values(Feature.SAMPLE_TIME) == {"first": 1000, "last": 6000}


def test_counts_of_a_part_are_differences_but_for_the_highest_threshold() -> None:
    before = Counts({losses.SAMPLES: Counter(3, 30), losses.THRESHOLD_RAISED: Counter(2, 900)}, {1: 5})
    now = Counts({losses.SAMPLES: Counter(7, 50), losses.THRESHOLD_RAISED: Counter(3, 900)}, {1: 6, 2: 4})
    counters = {losses.SAMPLES: Counter(4, 20), losses.THRESHOLD_RAISED: Counter(1, 900)}
    assert now.since(before) == Counts(counters, {1: 1, 2: 4})
    assert now.since(None) is now


def test_file_that_ends_in_a_pause_has_no_further_account(tmp_path: Path) -> None:
    collector: Any = Collector()
    file = OutputFile(RecordOptions(Target()), collector, str(tmp_path / "perf.data"), Target())
    file.commit()
    file.pause(Span(1000, 2000, 0))
    file.finish(Span(1000, 2000, 0))
    file.close()
    meta = load_recording(tmp_path / "perf.data").meta
    assert (meta.begin_ns, meta.end_ns, meta.parts) == (1000, 2000, ())
