# SPDX-License-Identifier: Apache-2.0
"""Surgery on records: random cuts and joins against the same done byte by byte."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perf_offcpu.abi.records import RECORD_HEADER, RecordType
from perf_offcpu.binary.layout import Order
from perf_offcpu.losses import Losses
from perf_offcpu.perfdata.scan import Chunk, Scanner
from perf_offcpu.perfdata.write.splice import (
    Cut,
    Records,
    aligned,
    chunk_of,
    interleave,
    records_of,
    with_callchains,
)
from perf_offcpu.perfdata.write.writer import RECORD_SIZE_MAX, frame_record

WORDS = st.lists(st.integers(0, 2**64 - 1), max_size=6)
ORDERS: Any = st.sampled_from(["<", ">"])


def packed(words: list[int], order: Order) -> bytes:
    return b"".join(word.to_bytes(8, "little" if order == "<" else "big") for word in words)


def scanned(data: bytes, order: Order) -> Chunk:
    (chunk,) = Scanner(order, Losses()).feed(data)
    return chunk


@settings(deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS, WORDS, WORDS), min_size=1, max_size=5), ORDERS, st.integers(0, 3))
def test_callchains_take_the_place_of_what_was_there(rows: Any, order: Order, more: int) -> None:
    """Each record: what stays in front, what goes, what stays behind; and the new chain."""
    pieces = [[packed(words, order) for words in row[:3]] for row in rows]
    data = b"".join(frame_record(RecordType.SAMPLE, 2, b"".join(parts), order) for parts in pieces)
    chunk = scanned(data, order)
    begin = chunk.starts + 8 + [len(parts[0]) for parts in pieces]
    end = begin + [len(parts[1]) for parts in pieces]
    offsets = np.cumsum([0, *(len(row[3]) for row in rows)])
    values = np.array([word for row in rows for word in row[3]], np.uint64)
    cut = Cut(begin, end, chunk.starts + chunk.sizes)
    records, fits = with_callchains(chunk, np.arange(len(rows)), cut, (offsets, values), order, more)
    assert fits.all()
    payloads = [
        parts[0] + packed([len(row[3]), *row[3]], order) + parts[2] + bytes(8 * more)
        for parts, row in zip(pieces, rows, strict=True)
    ]
    expected = b"".join(frame_record(RecordType.SAMPLE, 2, payload, order) for payload in payloads)
    assert records.tobytes() == expected
    assert scanned(expected, order).record(0) == chunk_of(records, order).record(0)


def test_what_would_be_too_large_is_left_out() -> None:
    data = b"".join(frame_record(RecordType.SAMPLE, 2, bytes([tag]) * 8) for tag in (1, 2, 3))
    chunk = scanned(data, "<")
    lengths = np.array([1, RECORD_SIZE_MAX // 8 - 2, RECORD_SIZE_MAX // 8 - 3])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ends = chunk.starts + chunk.sizes
    cut = Cut(ends, ends, ends)
    records, fits = with_callchains(
        chunk, np.arange(3), cut, (offsets, np.zeros(offsets[-1], np.uint64)), "<"
    )
    assert fits.tolist() == [True, False, True]
    result = chunk_of(records, "<")
    assert [bytes(result.record(row))[8] for row in range(2)] == [1, 3]
    assert result.sizes.tolist() == [32, RECORD_SIZE_MAX]


@settings(deadline=None)
@given(st.lists(st.tuples(WORDS, st.booleans(), st.lists(WORDS, max_size=2)), min_size=1, max_size=6))
def test_records_stand_where_they_are_put(rows: Any) -> None:
    """Each row of the chunk: its payload, whether it stays, and what is put in front of it."""
    own = [frame_record(RecordType.COMM, 0, packed(words, "<")) for words, _, _ in rows]
    chunk = scanned(b"".join(own), "<")
    kept = np.array([stays for _, stays, _ in rows])
    places = np.array([row for row, (_, _, put) in enumerate(rows) for _ in put], np.int64)
    put = [frame_record(RecordType.FORK, 0, packed(words, "<")) for _, _, put in rows for words in put]
    records = records_of(scanned(b"".join(put), "<")) if put else Records()
    expected, left = [], list(put)
    for record, (_, stays, before) in zip(own, rows, strict=True):
        expected += [left.pop(0) for _ in before]
        expected += [record] if stays else []
    assert bytes(interleave(chunk, kept, [(places, records), (places[:0], Records())])) == b"".join(expected)


@settings(deadline=None)
@given(st.lists(st.tuples(WORDS, st.integers(0, 9)), min_size=1, max_size=6))
def test_aligned_records_are_the_same(rows: Any) -> None:
    """Records behind others of odd sizes, as headers of pipes have."""
    data, wanted = b"", []
    for words, odd in rows:
        head = RECORD_HEADER.pack({"type": RecordType.HEADER_FEATURE, "misc": 0, "size": 8 + odd})
        data += head + bytes(odd)
        wanted.append(frame_record(RecordType.COMM, 0, packed(words, "<")))
        data += wanted[-1]
    chunk = scanned(data, "<")
    comms = aligned(chunk.take(np.flatnonzero(chunk.types == RecordType.COMM)))
    assert [bytes(comms.record(row)) for row in range(len(comms))] == wanted
    assert not (comms.starts % 8).any()
    assert records_of(comms).tobytes() == b"".join(wanted)
