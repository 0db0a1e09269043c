# SPDX-License-Identifier: Apache-2.0
"""Losses in the file and in the last line."""

import os

from perf_offcpu import losses
from perf_offcpu.abi.counters import COUNTERS, EVENT_ID, MAGIC
from perf_offcpu.abi.records import RECORD_HEADER, RecordType
from perf_offcpu.abi.sample import SAMPLE
from perf_offcpu.collect.counters import Counter, Span, counters_event, counters_sample
from perf_offcpu.collect.events.evsels import Support
from perf_offcpu.collect.summary import Summary
from perf_offcpu.commands.record.command import summary_lines

COUNTED = {
    losses.SAMPLES: Counter(7, 7_000_000), losses.WAITS_LOST: Counter(2, 999), losses.SUM_MAP_FULL: Counter(3, 5),
    losses.MISSED_RUNS: Counter(0),
}  # fmt: skip


def test_counters_are_one_raw_sample() -> None:
    event = counters_event(Support())
    data = counters_sample(event, Span(100, 200, 1_000_000), COUNTED)
    assert RECORD_HEADER.unpack(data) == {"type": RecordType.SAMPLE, "misc": 2, "size": len(data)}
    assert len(data) % 8 == 0
    sample = SAMPLE.unpack(data, shape=event.shape, start=8)
    wanted = {"identifier": EVENT_ID, "pid": os.getpid(), "tid": os.getpid(), "time": 200, "period": 0}
    assert {name: sample[name] for name in wanted} == wanted and event.ids == (EVENT_ID,)
    values = COUNTERS.unpack(sample["raw"])
    names = ("magic", "begin_ns", "end_ns", "threshold_ns")
    assert [values[name] for name in names] == [MAGIC, 100, 200, 1_000_000]
    rows = {row["name"].rstrip(b"\0").decode(): Counter(row["events"], row["ns"]) for row in values["counters"]}
    assert {losses.CAUSES[name]: counter for name, counter in rows.items()} == COUNTED


def test_only_what_is_missing_is_a_loss() -> None:
    assert Summary("out", lost_records=5, counters=COUNTED).losses() == {losses.LOST_RECORDS: 5, losses.WAITS_LOST: 2}
    assert Summary("out", counters={losses.SAMPLES: Counter(1)}).losses() == {}


def test_last_lines() -> None:
    summary = Summary("out", file_bytes=3 << 19, sums=4, oncpu_samples=5, counters=COUNTED)
    written = "Captured and wrote 1.500 MB out (7 off-cpu samples, 4 sums, 5 on-CPU samples)"
    assert summary_lines(summary) == [
        f"[ perf-offcpu record: {written} ]",
        "[ perf-offcpu record: lost: 2 waits neither sampled nor summed ]",
    ]
    assert len(summary_lines(Summary("out"))) == 1
    (line,) = summary_lines(Summary("out", still_blocked=3, counters={losses.SAMPLES: Counter(7)}))
    assert line.endswith("(10 off-cpu samples, 3 of them still blocked, 0 sums, 0 on-CPU samples) ]")
