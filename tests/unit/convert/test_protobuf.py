# SPDX-License-Identifier: Apache-2.0
"""The encoder of columns, against a plain one and against Google's library."""

from __future__ import annotations

import numpy as np
from builders.push.published import classes, parse
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.convert.encode.protobuf import (
    constant,
    field,
    fixed64,
    from_bytes,
    joined,
    messages,
    numbers,
    ragged,
    varint,
    varints,
)

TABLE_OF_ROWS = """
Table: 1 rows Row*
Row: 3 number uint64, 7 seven string, 8 real double, 200 name string
"""
MESSAGES = classes("test", TABLE_OF_ROWS)
TABLE, ROW = MESSAGES["Table"], MESSAGES["Row"]
NUMBERS = st.lists(st.integers(0, 2**64 - 1), max_size=20)


@given(NUMBERS)
def test_columns_of_numbers_are_single_numbers_in_a_row(values: list[int]) -> None:
    rows = varints(np.array(values, np.uint64))
    assert rows.flat() == b"".join(map(varint, values))
    assert rows.lengths.tolist() == [len(varint(value)) for value in values]


@given(NUMBERS, st.data())
def test_messages_of_messages(values: list[int], data: st.DataObject) -> None:
    present = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))), np.bool_
    )
    column = np.array(values, np.uint64)
    names = from_bytes([b"", b"x" * 200, "größe".encode()])
    pick = np.arange(len(values)) % 3
    body = joined(
        numbers(3, column).where(present),
        messages(200, names.take(pick)),
        constant(field(7, "seven"), len(values)),
        fixed64(8, column.astype(np.float64)),
    )
    rows = parse(TABLE, messages(1, body).flat()).rows
    assert len(rows) == len(values)
    for row, value, there, name in zip(rows, values, present.tolist(), pick.tolist(), strict=True):
        text = ["", "x" * 200, "größe"][name]
        assert (row.number, row.name, row.seven, row.real) == (
            value if there else 0,
            text,
            "seven",
            float(value),
        )


def test_ranges_of_rows() -> None:
    rows = numbers(1, np.array([1, 300, 2, 70_000]))
    assert ragged(rows, np.array([0, 2, 2, 4])) == [
        field(1, 1) + field(1, 300),
        b"",
        field(1, 2) + field(1, 70_000),
    ]


def test_negative_numbers_and_bytes_that_are_no_text() -> None:
    assert parse(ROW, field(3, -1)).number == 2**64 - 1
    assert parse(ROW, field(7, "a\udcff")).seven == "a?"
