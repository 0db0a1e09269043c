# SPDX-License-Identifier: Apache-2.0
"""Ragged rows, unique rows and the stack tree, against the obvious slow way."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.model import callchains
from perf_offcpu.model.callchains import Ragged, unique_rows
from perf_offcpu.model.stacks import build_stack_tree, depths, frames_of

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
    assert lists(Ragged.beside([rows, rows.take(np.array([2, 2, -1]))])) == [[1, 2, 3, 4], [4], [4]]
