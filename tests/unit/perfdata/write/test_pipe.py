# SPDX-License-Identifier: Apache-2.0
"""PipeWriter: what the form has no room for. (What it has room for: tests/roundtrip, tests/golden.)"""

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from builders.recording import BASE, FEATURES, comm, event, sample

from perf_offcpu import losses
from perf_offcpu.abi.features import Feature
from perf_offcpu.errors import FormatError, RecordingError, UsageError
from perf_offcpu.inject.header import RewriteOptions
from perf_offcpu.inject.rewrite import rewrite
from perf_offcpu.losses import Losses
from perf_offcpu.perfdata.features import BuildId, build_id_body, event_desc_body
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.write.pipe import PipeWriter

CLOCK = event("cpu-clock", (1, 2), BASE)


def test_everything_of_the_header_arrives(perf_data: Path) -> None:
    build_ids = [BuildId(-1, 2, "ab" * 20, b"/bin/a"), BuildId(-1, 1, "cd" * 16, b"[kernel.kallsyms]")]
    features = FEATURES | {Feature.BUILD_ID: build_id_body(build_ids), Feature.EVENT_DESC: event_desc_body([CLOCK])}
    features |= {Feature.TRACING_DATA: b"formats of 18 byte"}
    with open(perf_data, "wb", buffering=0) as file:
        writer = PipeWriter(file.fileno(), [CLOCK], features, "pipe")
        writer.append(comm(CLOCK, 7, 7, "seven"), sample(CLOCK, tid=7, time=5))
        writer.finish(features)
    with PerfDataReader.open(perf_data) as reader:
        kinds = [kind for chunk in reader.chunks() for kind in chunk.types.tolist()]
        assert reader.head.is_pipe
        (spec,) = reader.events.specs
        assert (spec.name, spec.ids, spec.attr) == (CLOCK.name, CLOCK.ids, CLOCK.attr)
        assert reader.features.build_ids() == build_ids
        assert reader.features.bodies[Feature.TRACING_DATA][:18] == b"formats of 18 byte"
        assert reader.features.text(Feature.HOSTNAME) == "here"
    assert kinds[-2:] == [3, 9]


def test_features_beyond_a_record_are_left_out(tmp_path: Path) -> None:
    counters = Losses()
    with open(tmp_path / "pipe", "wb", buffering=0) as file:
        PipeWriter(file.fileno(), [CLOCK], FEATURES | {Feature.CPU_TOPOLOGY: bytes(70_000)}, "pipe", counters=counters)
    assert counters == {losses.LARGE_FEATURE: 1}


def test_more_ids_than_a_record_holds_and_a_full_device() -> None:
    many = replace(CLOCK, ids=tuple(range(1, 10_000)))
    with pytest.raises(UsageError, match="has 9999 ids, the pipe form has room for 8174"):
        PipeWriter(-1, [many], {}, "pipe")
    with (
        open("/dev/full", "wb", buffering=0) as full,
        pytest.raises(RecordingError, match="^out: cannot write the recording: No space left"),
    ):
        PipeWriter(full.fileno(), [CLOCK], FEATURES, "out")


# Reading twice what can be read once.


def test_a_fifo_is_copied(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    content = (Path(__file__).parents[3] / "data" / "perf-7.2" / "pipe.data").read_bytes()
    writer = threading.Thread(target=fifo.write_bytes, args=(content,), daemon=True)
    with open(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), "rb"):
        writer.start()
        with PerfDataReader.repeatable(fifo) as again:
            counts = []
            for _ in range(2):
                reader = again()
                assert reader.path == str(fifo)
                counts.append(sum(len(chunk) for chunk in reader.chunks()))
        writer.join()
    assert counts[0] == counts[1] > 500


def test_what_is_no_recording_is_named_as_the_user_does(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no recording of anything")
    for name in ("text", "nothing"):
        with pytest.raises(FormatError, match=f"^{tmp_path / name}: "):
            rewrite(str(tmp_path / name), -1, "out", RewriteOptions())
