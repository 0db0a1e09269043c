# SPDX-License-Identifier: Apache-2.0
"""Tables and callchains that grow batch by batch equal those made at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.model import chain_table
from perf_offcpu.model.callchains import Ragged, hash_rows, unique_rows
from perf_offcpu.model.chain_table import ChainTable
from perf_offcpu.model.growing import GrowingArray, GrowingTable
from perf_offcpu.model.recording import Comms

BATCHES = st.lists(st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=8), max_size=6)


def added(batches: list[list[list[int]]]) -> tuple[Ragged, list[int]]:
    table = ChainTable()
    ids = [row for batch in batches for row in table.add(Ragged.from_lists(batch)).tolist()]
    return table.release(), ids


@given(BATCHES)
def test_batches_of_callchains_equal_all_at_once(batches: list[list[list[int]]]) -> None:
    found, ids = added(batches)
    found.check()
    expected, expected_ids = unique_rows(Ragged.from_lists([row for batch in batches for row in batch]))
    assert np.array_equal(found.offsets, expected.offsets)
    assert np.array_equal(found.values, expected.values)
    assert ids == expected_ids.tolist()


def test_a_table_that_grows_finds_what_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_table, "_FIRST_BITS", 1)
    rng = np.random.default_rng(3)
    batches = [rng.integers(0, 9, (40, 3)).tolist() for _ in range(40)]
    found, ids = added(batches)
    rows = [row for batch in batches for row in batch]
    assert [found.row(row).tolist() for row in ids] == rows
    assert len(found) == len({tuple(row) for row in rows})


def test_colliding_hashes_do_not_merge_callchains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_table, "hash_rows", lambda chains: np.zeros(len(chains), np.uint64))
    found, ids = added([[[1]], [[2], [1]], [[3], [2], []]])
    assert [found.row(row).tolist() for row in ids] == [[1], [2], [1], [3], [2], []]
    assert len(found) == 4


@given(st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=4), max_size=9))
def test_a_hash_depends_on_the_words_and_their_order_only(rows: list[list[int]]) -> None:
    hashes = hash_rows(Ragged.from_lists(rows)).tolist()
    assert hashes == [int(hash_rows(Ragged.from_lists([row]))[0]) for row in rows]
    reordered = [row[::-1] for row in rows]
    for row, other, value, turned in zip(rows, reordered, hashes, hash_rows(Ragged.from_lists(reordered)), strict=True):
        assert (value == int(turned)) == (row == other)


def test_a_row_longer_than_a_block_is_hashed_whole() -> None:
    rows = [[1] * 100_000 + [2], [1] * 100_001, [7], [1] * 100_000 + [2]]
    assert len(set(hash_rows(Ragged.from_lists(rows)).tolist())) == 3
    assert unique_rows(Ragged.from_lists(rows))[1].tolist() == [0, 1, 2, 0]


@given(st.lists(st.lists(st.tuples(*[st.integers(0, 2**31 - 1)] * 4), max_size=5), max_size=5))
def test_tables_grow(parts: list[list[tuple[int, int, int, int]]]) -> None:
    growing = GrowingTable(Comms)
    for part in parts:
        growing.append(Comms.from_rows(part))
    assert_joined(growing.release(), parts)


def assert_joined(table: Comms, parts: list[list[tuple[int, int, int, int]]]) -> None:
    table.check()
    expected = Comms.concat(Comms.from_rows(part) for part in parts)
    for name in Comms.columns:
        assert np.array_equal(getattr(table, name), getattr(expected, name))


def test_what_is_looked_at_does_not_move() -> None:
    array = GrowingArray("i4")
    array.append(np.arange(3, dtype=np.int32))
    view = array.view()
    with pytest.raises(BufferError):
        array.append(np.zeros(1 << 20, np.int32))
    assert view.tolist() == array.view().tolist() == [0, 1, 2]


def test_columns_of_many_pages_stay_what_they_were() -> None:
    array = GrowingArray("i8")
    for part in np.split(np.arange(3_000_000), 17 * np.arange(1, 90) ** 2 * 13):
        array.append(part)
    assert len(array) == 3_000_000
    assert np.array_equal(array.release(), np.arange(3_000_000))
    assert len(array) == 0


@given(st.lists(st.lists(st.tuples(*[st.integers(0, 1)] * 4), max_size=4), max_size=6))
def test_columns_grow_that_have_one_value_at_first(parts: list[list[tuple[int, int, int, int]]]) -> None:
    growing = GrowingTable(Comms)
    for part in parts:
        table = Comms.from_rows(part)
        places = [np.arange(first, len(part), 2) for first in (1, 0)]
        growing.interleave([table.take(rows) for rows in places], places)
    table = growing.release()
    assert_joined(table, parts)
    for column in (getattr(table, name) for name in Comms.columns):
        assert len(set(column.tolist())) > 1 or column.strides == (0,) or not len(column)
    assert not len(growing.release())


def test_selected_rows_of_a_column_of_one_value_take_no_memory() -> None:
    table = Comms.sparse(5, tid=np.arange(5))
    for rows in (np.array([3, 1, 1]), np.arange(5) > 1, slice(1, 4)):
        taken = table.take(rows)
        assert taken.tid.tolist() == np.arange(5)[rows].tolist()
        assert taken.pid.strides == (0,) and len(taken.pid) == len(taken.tid)
    assert Comms.sparse(0).take(np.empty(0, np.int64)).pid.shape == (0,)
