# SPDX-License-Identifier: Apache-2.0
"""Recordings with pauses that are joined: their recorded time, their sums, and who is still blocked."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.abi.attr import Attr
from perf_offcpu.decode.continued import at_pauses
from perf_offcpu.decode.join import JoinOptions, join_by_host
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import Evsel, Meta, Recording, SampleFlag, Samples, Spans
from perf_offcpu.report.thread_budgets import budget_table
from perf_offcpu.symbolize.load import join_profiles
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize

PERF = Path(__file__).resolve().parents[2] / "data/perf-7.2"
STEP = 8  # times are multiples of half of it, plus the number of the file (0 to 3): no two waits begin at once


@dataclass(frozen=True)
class Wait:
    tid: int
    begin: int
    end: int
    blocked: bool


@dataclass(frozen=True)
class File:
    spans: Spans
    waits: tuple[Wait, ...]

    def blocked_at_end(self) -> set[tuple[int, int]]:
        return {(one.tid, one.end) for one in self.waits if one.blocked and one.end == self.spans[-1][1]}

    def recording(self) -> Recording:
        waits = sorted(self.waits, key=lambda one: one.end)
        flags = [SampleFlag.OFFCPU | (SampleFlag.STILL_BLOCKED if one.blocked else 0) for one in waits]
        samples = Samples.filled(
            len(waits), evsel=0, pid=1, tid=[one.tid for one in waits], time_ns=[one.end for one in waits],
            switch_out_ns=[one.begin for one in waits], period=[one.end - one.begin for one in waits], flags=flags,
        )  # fmt: skip
        parts = self.spans if len(self.spans) > 1 else ()
        begin, end = self.spans[0][0], self.spans[-1][1]
        times: dict[str, Any] = {"begin_ns": begin, "end_ns": end, "first_ns": begin, "last_ns": end}
        meta = Meta(hostname="h", clockid=1, nr_cpus=1, source="f", parts=parts, **times)
        return Recording(samples=at_pauses(samples, parts), evsels=[Evsel("offcpu-time", Attr(), "ns")], meta=meta)


@st.composite
def a_file(draw: st.DrawFn, number: int) -> File:
    edges = draw(st.lists(st.integers(1, 60), min_size=2, max_size=8, unique=True))
    edges = [STEP * edge + number for edge in sorted(edges[: len(edges) // 2 * 2])]
    spans = tuple(zip(edges[::2], edges[1::2], strict=True))
    waits = []
    for begin, end in spans:
        for tid in draw(st.sets(st.integers(1, 4))):
            still, woken = draw(st.booleans()), (begin + end) // 2
            waits += [] if still and draw(st.booleans()) else [Wait(tid, begin, woken, False)]
            waits += [Wait(tid, woken, end, True)] if still else []
    return File(spans, tuple(waits))


FILES = st.integers(1, 4).flatmap(lambda number: st.tuples(*(a_file(at) for at in range(number))))


def still_blocked(recording: Recording) -> list[tuple[int, int]]:
    samples = symbolize(recording, SymbolizeOptions())
    rows = np.flatnonzero(samples.is_still_blocked())
    return list(zip(samples.samples.tid[rows].tolist(), samples.samples.time_ns[rows].tolist(), strict=True))


def united(files: Sequence[File]) -> Recording:
    (one,) = join_by_host([file.recording() for file in files])
    one.recording.check()
    return one.recording


@given(FILES)
def test_joined_recordings_have_the_recorded_time_of_all(files: tuple[File, ...]) -> None:
    meta = united(files).meta
    covered = np.zeros(STEP * 62, np.bool_)
    for begin, end in (span for file in files for span in file.spans):
        covered[begin:end] = True
    for begin, end in meta.recorded:
        assert covered[begin:end].all() and not covered[begin - 1] and not covered[end]
    assert sum(end - begin for begin, end in meta.recorded) == covered.sum()
    assert meta.paused_ns == (~covered[meta.begin_ns : meta.end_ns]).sum()
    assert united(files[::-1]).meta.recorded == meta.recorded


@given(FILES)
def test_joined_recordings_keep_every_wait_and_know_who_is_still_blocked(files: tuple[File, ...]) -> None:
    """A thread is blocked at the end if it is at the end of the last recording that saw it."""
    recording, waits = united(files), [wait for file in files for wait in file.waits]
    assert recording.samples.period.sum() == sum(wait.end - wait.begin for wait in waits)
    assert recording.samples.has(SampleFlag.STILL_BLOCKED).sum() == sum(wait.blocked for wait in waits)
    last = {wait.tid: wait.end for wait in sorted(waits, key=lambda wait: wait.end)}
    ends = set[tuple[int, int]]().union(*(file.blocked_at_end() for file in files))
    assert sorted(still_blocked(recording)) == sorted(ends & set(last.items()))
    assert set(still_blocked(united(files[::-1]))) == set(still_blocked(recording))


@pytest.mark.parametrize("names", [*combinations(("atend", "direct", "hybrid", "pipe", "sched"), 2)])
def test_real_recordings_joined(names: tuple[str, ...]) -> None:
    """Of one boot, one after the other, by perf: sums, and the time between them, are those of the files."""
    files = [load_recording(PERF / f"{name}.data") for name in names]
    (one,) = join_by_host(files)
    assert one.recording.samples.period.sum() == sum(int(file.samples.period.sum()) for file in files)
    spans = sorted(file.meta.recorded[0] for file in files if file.meta.first_ns >= 0)
    assert one.recording.meta.recorded == tuple(spans)
    assert one.recording.meta.paused_ns == sum(b[0] - a[1] for a, b in zip(spans, spans[1:], strict=False))


def test_threads_of_a_host_live_while_it_is_recorded() -> None:
    """Budgets derived from waits: of each host those of its own recording, however long the other one is."""
    files = [load_recording(PERF / f"{name}.data") for name in ("sched", "direct")]
    files = [file.replaced(meta=replace(file.meta, hostname=name)) for name, file in zip("ab", files, strict=True)]
    begin, end = files[1].meta.recorded[0]
    files[1].meta.parts = ((begin, begin + 10**8), (begin + 2 * 10**8, end))
    alone = [budget_table(symbolize(file, SymbolizeOptions())) for file in files]
    both = budget_table(join_profiles(files, SymbolizeOptions(), JoinOptions(from_start=True), merge=True))
    assert both and both.derived and both.total
    totals = [table.total for table in alone if table and table.total]
    assert both.total.wall == sum(total.wall for total in totals) and len(totals) == 2
    assert both.total.threads == sum(total.threads for total in totals)
