# SPDX-License-Identifier: Apache-2.0
"""Look-ups: the hash table of rows answers as a dict does; rows that hold for ids at times."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.model import chain_table
from perf_offcpu.model.callchains import Ragged, unique_rows
from perf_offcpu.model.chain_table import ChainTable, HashIndex
from perf_offcpu.model.lookup import rows_at

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
    inverse = pow(int(chain_table._MIX), -1, 2**64)
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
ROWS = st.lists(st.tuples(IDS, st.integers(0, 9)), max_size=12)


def expected(rows: list[tuple[int, int]], wanted: int, time: int) -> int:
    mine = [row for row, (one, _) in enumerate(rows) if one == wanted]
    begun = [row for row in mine if time < 0 or rows[row][1] <= time]
    return begun[-1] if begun else mine[0] if mine else -1


@given(ROWS, st.lists(st.tuples(IDS, st.integers(-1, 10)), max_size=12))
def test_the_row_that_held(rows: list[tuple[int, int]], questions: list[tuple[int, int]]) -> None:
    rows.sort()
    pairs = [np.array(pairs, "i8").reshape(-1, 2) for pairs in (rows, questions)]
    (ids, begins), (wanted, times) = ((one[:, 0].astype("i4"), one[:, 1].copy()) for one in pairs)
    found = rows_at(ids, begins, wanted, times)
    assert found.dtype == np.int32
    assert found.tolist() == [expected(rows, *question) for question in questions]
