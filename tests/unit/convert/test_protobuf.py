# SPDX-License-Identifier: Apache-2.0
"""The encoders of columns, to protobuf and JSON, against plain ones and Google's library."""

import json
from decimal import Decimal

import numpy as np
import pytest
from builders.push.published import classes, parse
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.convert.encode import protobuf as pb
from perf_offcpu.convert.encode.text_columns import array_items

TABLE_OF_ROWS = """
Table: 1 rows Row*
Row: 3 number uint64, 7 seven string, 8 real double, 200 name string
"""
MESSAGES = classes("test", TABLE_OF_ROWS)
TABLE, ROW = MESSAGES["Table"], MESSAGES["Row"]
NUMBERS = st.lists(st.integers(0, 2**64 - 1), max_size=20)


@given(NUMBERS)
def test_columns_of_numbers_are_single_numbers_in_a_row(values: list[int]) -> None:
    """A row is as long as the largest number, and readers take it for that number."""
    rows = pb.varints(np.array(values, np.uint64))
    longest = max((len(pb.varint(value)) for value in values), default=1)
    assert rows.lengths.tolist() == [longest] * len(values)
    texts = [rows.flat()[begin : begin + longest] for begin in range(0, longest * len(values), longest)]
    assert [parse(ROW, pb.varint(3 << 3) + text).number for text in texts] == values


@given(NUMBERS, st.data())
def test_messages_of_messages(values: list[int], data: st.DataObject) -> None:
    present = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))), np.bool_)
    column = np.array(values, np.uint64)
    names = pb.from_bytes([b"", b"x" * 200, "größe".encode()])
    pick = np.arange(len(values)) % 3
    body = pb.joined(
        pb.numbers(3, column).where(present), pb.messages(200, names.take(pick)),
        pb.constant(pb.field(7, "seven"), len(values)), pb.fixed64(8, column.astype(np.float64)),
    )  # fmt: skip
    rows = parse(TABLE, pb.messages(1, body).flat()).rows
    assert len(rows) == len(values)
    for row, value, there, name in zip(rows, values, present.tolist(), pick.tolist(), strict=True):
        text = ["", "x" * 200, "größe"][name]
        assert (row.number, row.name, row.seven, row.real) == (value if there else 0, text, "seven", float(value))


@given(
    st.lists(st.lists(st.binary(max_size=20), min_size=3, max_size=3), max_size=8), st.binary(max_size=20), st.data()
)
def test_strings_of_any_lengths_side_by_side(texts: list[list[bytes]], same: bytes, data: st.DataObject) -> None:
    """Short strings, long strings, and mixtures of both, whose last words reach into the strings after them."""
    columns = [pb.from_bytes(list(column)) for column in zip(*texts, strict=True)] if texts else [pb.from_bytes([])]
    present = np.array(data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts))), np.bool_)
    place = data.draw(st.integers(0, len(columns)))
    masked = [columns[0].where(present), *columns[1:]]
    rows = pb.joined(*masked[:place], pb.constant(same, len(texts)), *masked[place:])
    expected = [[text[0] if there else b"", *text[1:]] for text, there in zip(texts, present.tolist(), strict=True)]
    for text in expected:
        text.insert(place, same)
    assert rows.flat() == b"".join(part for text in expected for part in text)
    assert rows.lengths.tolist() == [sum(map(len, text)) for text in expected]


def test_ranges_of_rows() -> None:
    rows = pb.numbers(1, np.array([1, 300, 2, 70_000]))
    texts = pb.ragged(rows, np.array([0, 2, 2, 4]))
    assert [len(text) for text in texts] == [8, 0, 8] and b"".join(texts) == rows.flat()
    assert [parse(classes("test", "Only: 1 number uint64")["Only"], text).number for text in texts] == [300, 0, 70_000]


def test_negative_numbers_and_bytes_that_are_no_text() -> None:
    assert parse(ROW, pb.field(3, -1)).number == 2**64 - 1 and parse(ROW, pb.field(7, "a\udcff")).seven == "a?"


def written(values: list[int], decimals: int = 0, null: list[bool] | None = None) -> list[object]:
    parts = array_items(np.array(values, np.int64), decimals, None if null is None else np.array(null))
    parsed: list[object] = json.loads(f"[{''.join(parts)}]", parse_float=Decimal)
    return parsed


EDGES = [0, 1, 9, 10, 999_999, 1_000_000, 1_000_001, 2**53 + 1, 2**63 - 1]


@pytest.mark.parametrize("decimals", [0, 3, 6])
def test_every_number_is_exact(decimals: int) -> None:
    rng = np.random.default_rng(7)
    values = [*EDGES, *(rng.integers(0, 2**62, 40_000) >> rng.integers(0, 62, 40_000)).tolist()]
    assert written(values, decimals) == [Decimal(value).scaleb(-decimals) for value in values]


def test_decimals_null_and_negative_numbers() -> None:
    assert "".join(array_items(np.array([1_500, 7, 0]), 3)) == "1.500,0.007,0.000"
    with pytest.raises(ValueError, match="negative"):
        list(array_items(np.array([3, -1])))
    assert written([5, -1, 12_345_678, -1], null=[False, True, False, True]) == [5, None, 12_345_678, None]
    assert written([-1], null=[True]) == [None] and written([]) == []
    assert written([-1] * 20_000, null=[True] * 20_000) == [None] * 20_000
