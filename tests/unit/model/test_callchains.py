# SPDX-License-Identifier: Apache-2.0
"""Columns of callchains; mappings of addresses, against a search row by row."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.model import callchains, chain_table
from perf_offcpu.model.callchains import Ragged, build_stack_tree, depths, frames_of, hash_rows, unique_rows
from perf_offcpu.model.chain_table import ChainTable, HashIndex
from perf_offcpu.model.growing import GrowingArray, GrowingTable
from perf_offcpu.model.lookup import NO_MAP, find_mappings, rows_at
from perf_offcpu.model.recording import Comms, Maps, Spaces

ROWS = st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=20)


def lists(rows: Ragged) -> list[list[int]]:
    rows.check()
    return [rows.row(row).tolist() for row in range(len(rows))]


@given(ROWS)
def test_unique_rows_in_order_of_first_appearance(rows: list[list[int]]) -> None:
    unique, ids = unique_rows(Ragged.from_lists(rows))
    seen = list(map(list, dict.fromkeys(map(tuple, rows))))
    assert lists(unique) == seen
    assert [seen[i] for i in ids] == rows


def test_colliding_hashes_do_not_merge_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callchains, "hash_rows", lambda chains: np.zeros(len(chains), np.uint64))
    unique, ids = unique_rows(Ragged.from_lists([[1, 2], [2, 1], [1, 2], []]))
    assert lists(unique) == [[1, 2], [2, 1], []]
    assert ids.tolist() == [0, 1, 0, 2]


@given(ROWS, st.data())
def test_take_and_concat(rows: list[list[int]], data: st.DataObject) -> None:
    ragged = Ragged.from_lists(rows)
    picks = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=5)) if rows else []
    taken = ragged.take(np.array(picks, np.int64))
    assert lists(taken) == [rows[i] for i in picks]
    assert lists(Ragged.concat([ragged, taken])) == rows + lists(taken)


@given(ROWS)
def test_stack_tree_gives_each_chain_back(rows: list[list[int]]) -> None:
    parent, frame, stack = build_stack_tree(Ragged.from_lists(rows))
    assert (parent < np.arange(len(parent))).all()
    for row, node in zip(rows, stack.tolist(), strict=True):
        assert frames_of(parent, frame, node) == row[::-1]
        assert (node == -1) == (not row)
        assert node < 0 or depths(parent)[node] == len(row)
    pairs = set(zip(parent.tolist(), frame.tolist(), strict=True))
    assert len(pairs) == len(parent), "the same frame below the same parent is one node"


@given(st.lists(st.integers(0, 3), max_size=200), st.randoms())
def test_rows_of_few_lengths_are_taken_whole(lengths: list[int], random: Random) -> None:
    """Many rows of one length take another path than few."""
    rows = [[random.getrandbits(64) for _ in range(length)] for length in lengths]
    order = [random.randrange(len(rows)) for _ in rows]
    assert lists(Ragged.from_lists(rows).take(np.array(order, np.int64))) == [rows[row] for row in order]


def test_rows_taken_cut_replaced_and_joined() -> None:
    rows = Ragged.from_lists([[1, 2, 3], [], [4]])
    assert lists(rows.take(np.array([2, -1, 0]))) == [[4], [], [1, 2, 3]]
    assert lists(Ragged().take(np.array([-1, -1]))) == [[], []]
    assert lists(rows.cut(np.array([2, 0, 1]))) == [[1, 2], [], [4]]
    assert lists(rows.replaced(np.array([1]), Ragged.from_lists([[7, 8]]))) == [[1, 2, 3], [7, 8], [4]]
    assert lists(Ragged.hstack([rows, rows.take(np.array([2, 2, -1]))])) == [[1, 2, 3, 4], [4], [4]]


HASHES = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 40))


def as_hashes(values: list[int]) -> np.ndarray:
    return np.array(values, np.uint64)


@given(st.lists(st.lists(HASHES, unique=True, max_size=40), max_size=8), st.lists(HASHES, max_size=40))
def test_it_finds_what_was_added_and_nothing_else(batches: list[list[int]], asked: list[int]) -> None:
    index, known = HashIndex(), dict[int, int]()
    for batch in batches:
        new = [value for value in batch if value not in known]
        rows = range(len(known), len(known) + len(new))
        known.update(zip(new, rows, strict=True))
        assert index.add(as_hashes(new), np.array(rows, np.int32))
    asked = [*asked, *known]
    assert index.find(as_hashes(asked)).tolist() == [known.get(value, -1) for value in asked]


def same_slots(count: int) -> np.ndarray:
    """Hashes with the same slots in every table of up to 2^20: first slot and step are equal."""
    inverse = pow(int(callchains.MIX), -1, 2**64)
    # The product's upper bits are 0 for small products; of those, hashes with equal lower bits.
    found = as_hashes([product * inverse % 2**64 for product in range(1, 1 << 20)])
    low = found & np.uint64(1023)
    return found[low == np.bincount(low.view(np.int64)).argmax()][:count]


def test_hashes_made_to_meet_are_refused_instead_of_looked_for_forever() -> None:
    hashes = same_slots(3 * chain_table.MAX_STEPS)
    assert len(hashes) > 2 * chain_table.MAX_STEPS
    index = HashIndex()
    assert not index.add(hashes, np.arange(len(hashes), dtype=np.int32))
    assert len(index.find(hashes)) == len(hashes)


def test_a_table_whose_index_refuses_goes_on_by_words(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[value] for value in range(3 * chain_table.MAX_STEPS)]
    hashes = dict(zip(range(len(rows)), same_slots(len(rows)).tolist(), strict=True))

    def hash_rows(chains: Ragged) -> np.ndarray:
        return as_hashes([hashes[word] for word in chains.values.tolist()])

    monkeypatch.setattr(chain_table, "hash_rows", hash_rows)
    table = ChainTable()
    ids = [*table.add(Ragged.from_lists(rows[:50])), *table.add(Ragged.from_lists(rows + rows[::-1]))]
    unique, expected = unique_rows(Ragged.from_lists(rows[:50] + rows + rows[::-1]))
    assert ids == expected.tolist()
    assert np.array_equal(table.release().values, unique.values)


IDS = st.sampled_from([-1, 0, 1, 5, 6, 2**22, 2**31 - 1])
PAIRS = st.lists(st.tuples(IDS, st.integers(0, 9)), max_size=12)


def expected(rows: list[tuple[int, int]], wanted: int, time: int) -> int:
    mine = [row for row, (one, _) in enumerate(rows) if one == wanted]
    begun = [row for row in mine if time < 0 or rows[row][1] <= time]
    return begun[-1] if begun else mine[0] if mine else -1


@given(PAIRS, st.lists(st.tuples(IDS, st.integers(-1, 10)), max_size=12))
def test_the_row_that_held(rows: list[tuple[int, int]], questions: list[tuple[int, int]]) -> None:
    rows.sort()
    pairs = [np.array(pairs, "i8").reshape(-1, 2) for pairs in (rows, questions)]
    (ids, begins), (wanted, times) = ((one[:, 0].astype("i4"), one[:, 1].copy()) for one in pairs)
    found = rows_at(ids, begins, wanted, times)
    assert found.dtype == np.int32
    assert found.tolist() == [expected(rows, *question) for question in questions]


def added(batches: list[list[list[int]]]) -> tuple[Ragged, list[int]]:
    table = ChainTable()
    ids = [row for batch in batches for row in table.add(Ragged.from_lists(batch)).tolist()]
    return table.release(), ids


@given(st.lists(st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=8), max_size=6))
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


def test_each_address_has_the_mapping_of_its_space() -> None:
    random = np.random.default_rng(32)
    rows = [
        (space, 100 * place, 100 * place + int(random.integers(1, 101)))
        for space, count in ((-1, 2), (0, 9), (2, 1), (3, 40))  # space 1 has none
        for place in sorted(random.choice(60, count, replace=False).tolist())
    ]
    space, start, end = np.array(rows).T
    maps = Maps.filled(len(rows), space=space, start=start.astype(np.uint64), end=end.astype(np.uint64))
    spaces = Spaces.filled(5, previous=np.array([-1, 0, -1, 2, -1]))
    asked = random.integers(-1, 5, 3000).astype(np.int32)
    addresses = random.integers(0, 6200, 3000).astype(np.uint64)

    def expected(space: int, address: int) -> int:
        hits = [row for row, (owner, begin, stop) in enumerate(rows) if owner == space and begin <= address < stop]
        before = int(spaces.previous[space]) if space >= 0 else -1
        return hits[0] if hits else NO_MAP if before < 0 else expected(before, address)

    result = find_mappings(maps, spaces, asked, addresses).tolist()
    assert result == [expected(*pair) for pair in zip(asked.tolist(), addresses.tolist(), strict=True)]
    assert len({*result}) > 45
    assert find_mappings(Maps(), spaces, asked, addresses).tolist() == [NO_MAP] * 3000
