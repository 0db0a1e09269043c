# SPDX-License-Identifier: Apache-2.0
"""Records put together: random joins against the same done byte by byte."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perf_offcpu.abi.attr import SampleType
from perf_offcpu.abi.records import RECORD_HEADER, RecordType
from perf_offcpu.abi.sample import SampleShape
from perf_offcpu.binary.fields import Order
from perf_offcpu.losses import Losses
from perf_offcpu.perfdata.scan import Chunk, Scanner
from perf_offcpu.perfdata.write.columns import bytes_of, chunk_of_samples, sample_records, woven
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
    result = woven([*others, (kept, chunk.take(kept))])
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
    assert bytes(bytes_of(woven([(np.arange(len(chunk))[::-1], chunk)]))) == b"".join(reversed(records))


def test_samples_as_a_chunk() -> None:
    shape = SampleShape(SampleType.TIME | SampleType.RAW)
    raw = (np.array([0, 4, 16]), np.arange(16, dtype=np.uint8))
    miscs = np.array([1, 2], np.uint16)
    for order in ("<", ">"):
        columns: dict[str, Any] = {"time": np.array([5, 6]), "raw": raw}
        chunk = chunk_of_samples(*sample_records(shape, miscs, columns, 2, order), miscs)
        again = scanned(bytes(bytes_of(chunk)), order)
        for name in ("starts", "types", "miscs", "sizes"):
            assert getattr(chunk, name).tolist() == getattr(again, name).tolist()
    none = chunk_of_samples(np.zeros(1, np.int64), np.empty(0, np.uint8), miscs[:0])
    assert (len(none), bytes(bytes_of(none))) == (0, b"")
