# SPDX-License-Identifier: Apache-2.0
"""Splitting bytes into records: pieces of any size, odd sizes, blobs, damage."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu import losses
from perf_offcpu.losses import Losses
from perf_offcpu.perfdata.scan import Scanner


def record(kind: int, payload: bytes, order: str = "<") -> bytes:
    return struct.pack(f"{order}IHH", kind, 0, 8 + len(payload)) + payload


def scan(pieces: list[bytes], order: Any = "<") -> tuple[list[tuple[int, bytes, int]], Losses]:
    """Return (type, payload, file offset) of each record, and the counted damage."""
    counters = Losses()
    scanner = Scanner(order, counters, 1000)
    found = [
        (int(chunk.types[row]), bytes(chunk.record(row))[8:], chunk.file_offset + int(chunk.starts[row]))
        for piece in pieces
        for chunk in scanner.feed(piece)
        for row in range(len(chunk))
    ]
    scanner.finish()
    return found, counters


STREAM = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([3, 9, 10]), st.integers(0, 6).map(lambda n: 8 * n)),
        st.tuples(st.sampled_from([80, 81]), st.integers(0, 50)),
    ),
    max_size=12,
)


@given(STREAM, st.sampled_from(["<", ">"]), st.integers(1, 100))
def test_records_survive_any_piece_size(stream: list[tuple[int, int]], order: Any, step: int) -> None:
    records = [(kind, bytes(index % 251 for _ in range(size))) for index, (kind, size) in enumerate(stream)]
    data = b"".join(record(kind, payload, order) for kind, payload in records)
    found, counters = scan([data[at : at + step] for at in range(0, len(data), step)], order)
    assert [(kind, payload) for kind, payload, _ in found] == records
    assert not counters
    places = [offset for *_, offset in found]
    assert places == [1000 + sum(8 + len(p) for _, p in records[:i]) for i in range(len(records))]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 1500)), max_size=5), st.sampled_from(["<", ">"]))
def test_runs_of_records_of_one_size(runs: list[tuple[int, int]], order: Any) -> None:
    sizes = [8 * words for words, count in runs for _ in range(count)]
    data = b"".join(record(9, bytes(size), order) for size in sizes)
    found, counters = scan([data, b"cut"], order)
    assert [len(payload) for _, payload, _ in found] == sizes
    assert dict(counters) == {losses.FILE_CUT: 3}
    cut, counters = scan([data[:-1]], order)  # the last one is not whole
    assert cut == found[:-1]
    assert not counters or list(counters) == [losses.FILE_CUT]


@pytest.mark.parametrize(
    ("kind", "payload"), [(66, struct.pack("<I", 16)), (71, struct.pack("<QQQQQ", 16, 0, 0, 0, 0))]
)
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_bytes_behind_a_record_that_belong_to_it_are_skipped(kind: int, payload: bytes, step: int) -> None:
    data = record(3, bytes(8)) + record(kind, payload) + b"\xff" * 16 + record(9, bytes(8))
    found, counters = scan([data[at : at + step] for at in range(0, len(data), step)])
    assert [entry[0] for entry in found] == [3, kind, 9]
    assert not counters


@pytest.mark.parametrize("size", [0, 4, 7, 12])
def test_impossible_size_stops_and_counts_the_rest(size: int) -> None:
    data = record(3, bytes(8)) + struct.pack("<IHH", 9, 0, size) + bytes(24)
    found, counters = scan([data, bytes(8)])
    assert [entry[0] for entry in found] == [3]
    assert counters == {losses.BAD_SIZE: 40}


@pytest.mark.parametrize("cut", range(1, 24))
def test_a_cut_record_is_counted_not_read(cut: int) -> None:
    data = record(3, bytes(8)) + record(9, bytes(16))[:cut]
    found, counters = scan([data])
    assert [entry[0] for entry in found] == [3]
    assert counters == {losses.FILE_CUT: cut}
