# SPDX-License-Identifier: Apache-2.0
"""Records put together: random joins against the same done byte by byte; what the form of pipes has no room for."""

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.recording import BASE, FEATURES, comm, event, sample
from hypothesis import given, settings
from hypothesis import strategies as st

from perf_offcpu import losses
from perf_offcpu.abi.attr import SampleType
from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.records import RECORD_HEADER, RecordType
from perf_offcpu.abi.sample import SampleShape
from perf_offcpu.binary.layout import Order
from perf_offcpu.errors import FormatError, RecordingError, UsageError
from perf_offcpu.inject.header import RewriteOptions
from perf_offcpu.inject.rewrite import rewrite
from perf_offcpu.losses import Losses
from perf_offcpu.perfdata.features import BuildId, build_id_body, event_desc_body
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.scan import Chunk, Scanner
from perf_offcpu.perfdata.write.columns import bytes_of, merged_records, sample_chunk
from perf_offcpu.perfdata.write.pipe import PipeWriter
from perf_offcpu.perfdata.write.writer import frame_record

WORDS = st.lists(st.integers(0, 2**64 - 1), max_size=6)


def packed(words: list[int]) -> bytes:
    return b"".join(word.to_bytes(8, "little") for word in words)


def scanned(data: bytes, order: Order = "<") -> Chunk:
    (chunk,) = Scanner(order, Losses()).feed(data)
    return chunk


@settings(deadline=None)
@given(st.lists(st.tuples(WORDS, st.booleans(), st.lists(WORDS, max_size=2)), min_size=1, max_size=6))
def test_records_stand_where_they_are_put(rows: Any) -> None:
    """Each row of the chunk: its payload, whether it stays, and what is put before it."""
    own = [frame_record(RecordType.COMM, 0, packed(words)) for words, _, _ in rows]
    chunk, kept = scanned(b"".join(own)), np.flatnonzero([stays for _, stays, _ in rows])
    places = np.array([row for row, (_, _, put) in enumerate(rows) for _ in put], np.int64)
    put = [frame_record(RecordType.FORK, 3, packed(words)) for _, _, put in rows for words in put]
    others = [(places, scanned(b"".join(put)))] if put else []
    expected, left = [], list(put)
    for record, (_, stays, _before) in zip(own, rows, strict=True):
        expected += [left.pop(0) for _ in _before]
        expected += [record] if stays else []
    result = merged_records([*others, (kept, chunk.take(kept))])
    assert bytes(bytes_of(result)) == b"".join(expected)
    assert [bytes(result.record(row)) for row in range(len(result))] == expected
    if expected:
        again = scanned(b"".join(expected))
        assert result.types.tolist() == again.types.tolist() and result.miscs.tolist() == again.miscs.tolist()


@settings(deadline=None)
@given(st.lists(st.tuples(WORDS, st.integers(0, 9)), min_size=1, max_size=6))
def test_records_at_any_place(rows: Any) -> None:
    """Records after others of odd sizes, as headers of pipes have."""
    data, wanted = b"", []
    for words, odd in rows:
        data += RECORD_HEADER.pack({"type": RecordType.HEADER_FEATURE, "misc": 0, "size": 8 + odd}) + bytes(odd)
        wanted.append(frame_record(RecordType.COMM, 0, packed(words)))
        data += wanted[-1]
    chunk = scanned(data)
    assert bytes(bytes_of(chunk.take(np.flatnonzero(chunk.types == RecordType.COMM)))) == b"".join(wanted)


def test_many_records_of_many_sizes() -> None:
    """Sizes that are hardly ever the same are moved word by word."""
    records = [frame_record(RecordType.COMM, 0, bytes([size % 256]) * 8 * size) for size in range(1, 300)]
    chunk = scanned(b"".join(records))
    assert bytes(bytes_of(merged_records([(np.arange(len(chunk))[::-1], chunk)]))) == b"".join(reversed(records))


def test_samples_as_a_chunk() -> None:
    shape = SampleShape(SampleType.TIME | SampleType.RAW)
    raw = (np.array([0, 4, 16]), np.arange(16, dtype=np.uint8))
    miscs = np.array([1, 2], np.uint16)
    for order in ("<", ">"):
        columns: dict[str, Any] = {"time": np.array([5, 6]), "raw": raw}
        chunk = sample_chunk(shape, miscs, columns, 2, order)
        again = scanned(bytes(bytes_of(chunk)), order)
        for name in ("starts", "types", "miscs", "sizes"):
            assert getattr(chunk, name).tolist() == getattr(again, name).tolist()
    none = sample_chunk(shape, miscs[:0], {"time": [], "raw": (np.zeros(1, np.int64), raw[1][:0])}, 0, "<")
    assert (len(none), bytes(bytes_of(none))) == (0, b"")


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
