# SPDX-License-Identifier: Apache-2.0
"""Callchains before symbolization, as ragged rows of raw words; snapshots of user stacks; trees of stacks.

The words of a callchain are those of PERF_SAMPLE_CALLCHAIN: leaf first, with context markers
(`abi.sample.CallchainContext`), so that writing a chain back gives the same bytes. Equal chains are found by 64-bit
hashes, then compared word by word.

A snapshot is a thread's user registers and the bytes of its stack from the stack pointer upwards, to be unwound later.
The bytes may hold secrets, and are dropped once they are unwound.

In a tree of callchains a node is {parent, frame}; chains with the same frames from the root on share nodes. The tree is
built level by level: at depth d all chains of at least d frames are grouped by (node at d - 1, frame at d) with one
`np.unique`, which numbers the nodes of that level. So `parent[s] < s` for every node, and what nodes inherit from the
root (paths, inclusive sums) takes one pass over the nodes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import field
from typing import NamedTuple, Protocol

import numpy as np

from perf_offcpu.binary.columnar import Rows, gather_rows, move_rows, offsets_of, row_blocks, row_groups, rows_of
from perf_offcpu.model.columns import I32, I64, U64
from perf_offcpu.structs import mutable

MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio
_BASE = 0xD1342543DE82EF95
_HALF = np.uint64(32)


@mutable
class Ragged:
    """n rows of uint64 words, of different lengths, in one array (CSR): row i is values[offsets[i]:offsets[i + 1]]."""

    offsets: I64 = field(default_factory=lambda: np.zeros(1, np.int64))  # int64[n + 1], ascending from 0
    values: U64 = field(default_factory=lambda: np.empty(0, np.uint64))  # uint64[offsets[n]]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, index: int) -> U64:
        """Return the words of one row, uint64. Slow for many rows: meant for output and tests."""
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> I64:
        """Return the number of words of each row: int64[n]."""
        return np.diff(self.offsets)

    @classmethod
    def from_lists(cls, rows: list[list[int]]) -> Ragged:
        """Make rows of lists of integers. Slow: for tests and rare records."""
        lengths = np.array([len(row) for row in rows], np.int64)
        return cls(offsets_of(lengths), np.array([word for row in rows for word in row], np.uint64))

    @classmethod
    def concat(cls, parts: list[Ragged]) -> Ragged:
        """Return the rows of all parts, in order."""
        if not parts:
            return cls()
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(offsets_of(lengths), np.concatenate([part.values for part in parts]))

    def take(self, rows: I64 | I32) -> Ragged:
        """Return the rows with these indices, in this order (a row may repeat); index -1 yields an empty row."""
        starts = self.offsets[rows]
        lengths = self.offsets[rows + (rows >= 0)] - starts
        return Ragged(*gather_rows(self.values.view(np.uint8), Rows(8 * starts, lengths, 8)))

    @classmethod
    def hstack(cls, parts: Sequence[Ragged]) -> Ragged:
        """Concatenate row by row, as np.hstack: row i of the result is row i of each part; all parts have n rows."""
        offsets = offsets_of(np.sum([part.lengths for part in parts], axis=0))
        values, offset = np.empty(int(offsets[-1]), np.uint64), 8 * offsets[:-1]
        for part in parts:
            sizes = 8 * part.lengths
            move_rows(values.view(np.uint8), offset, part.values.view(np.uint8), 8 * part.offsets[:-1], sizes)
            offset += sizes
        return cls(offsets, values)

    def cut(self, lengths: I64) -> Ragged:
        """Return the rows, each cut to its first `lengths[i]` words (int64[n], at most its length)."""
        return Ragged(*gather_rows(self.values.view(np.uint8), Rows(8 * self.offsets[:-1], lengths, 8)))

    def replaced(self, rows: I64, others: Ragged) -> Ragged:
        """Return all rows, where row `rows[i]` (int64[m], distinct) is replaced by row i of `others`."""
        if not len(rows):
            return self
        row = np.arange(len(self))
        row[rows] = len(self) + np.arange(len(rows))
        return Ragged.concat([self, others]).take(row)

    def row_of_value(self) -> I64:
        """Return int64[len(values)]: the index of the row to which each value belongs."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def check(self) -> None:
        """Raise AssertionError unless the offsets describe the values."""
        assert self.offsets.dtype == np.int64 and self.values.dtype == np.uint64
        assert self.offsets[0] == 0 and self.offsets[-1] == len(self.values)
        assert bool((self.lengths >= 0).all())


def spread(starts: I64, lengths: I64, offsets: I64) -> I64:
    """Return int64[]: for each i, lengths[i] consecutive numbers from starts[i] on. `offsets`: offsets_of(lengths)."""
    return np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])


def hash_rows(chains: Ragged) -> U64:
    """Return uint64[n]: a hash of each row that depends on the order of its words. The words, their halves mixed, are
    the coefficients of a polynomial modulo 2^64; its value at an odd number, mixed with the length, is the hash."""
    hashes = np.zeros(len(chains), np.uint64)
    groups = row_groups(chains.offsets)
    for length, group in () if groups is None else groups:
        mixed = _mixed(_some_rows(chains, group, length))
        hashes[group] = np.einsum("ij,j->i", mixed, _powers(length.bit_length())[0][:length])
    for first, end in row_blocks(chains.offsets) if groups is None else ():
        offsets = chains.offsets[first : end + 1]
        words = chains.values[offsets[0] : offsets[-1]]
        if len(words):
            hashes[first:end] = _hash_block(_mixed(words), offsets - offsets[0])
    return hashes ^ (chains.lengths.astype(np.uint64) * MIX)


def _some_rows(chains: Ragged, which: I64 | slice, length: int) -> U64:
    """Return rows of `length` words each as uint64[k, length]. `which`: row numbers; or a slice of rows, if all rows of
    `chains` have this length: the result is then a view."""
    if isinstance(which, slice):
        return chains.values[which.start * length : which.stop * length].reshape(-1, length)
    return rows_of(chains.values, chains.offsets[which], length)


def _mixed(words: U64) -> U64:
    # Cookies differ in their upper half only, where a product modulo 2^64 hardly tells them apart.
    mixed = words >> _HALF
    mixed ^= words
    return mixed


def _hash_block(mixed: U64, offsets: I64) -> U64:
    """Return uint64[n]: the value of each row's polynomial (`hash_rows`), 0 for an empty row. `mixed`, all words by
    `_mixed`, is overwritten: word i is multiplied by base^i, the sum of a row from word k on by base^-k."""
    powers, inverses = _powers(len(mixed).bit_length())
    mixed *= powers[: len(mixed)]
    filled = np.flatnonzero(offsets[1:] > offsets[:-1])
    begins = offsets[filled]
    hashes = np.zeros(len(offsets) - 1, np.uint64)
    hashes[filled] = np.add.reduceat(mixed, begins) * inverses[begins]
    return hashes


@functools.lru_cache(maxsize=32)
def _powers(bits: int) -> tuple[U64, U64]:
    """Return (base^i, base^-i) modulo 2^64 for i from 0 to 2^bits, uint64[2^bits + 1] each; the base is _BASE."""
    tables = []
    for base in (_BASE, pow(_BASE, -1, 2**64)):
        table = np.full((1 << bits) + 1, base, np.uint64)
        table[0] = 1
        tables.append(np.multiply.accumulate(table))
    return tables[0], tables[1]


def unique_rows(chains: Ragged) -> tuple[Ragged, I32]:
    """Return (distinct rows in order of first appearance; int32[n]: index of the distinct row that row i equals)."""
    if not len(chains):
        return Ragged(), np.empty(0, np.int32)
    first, ids = first_of_each(hash_rows(chains))
    if not equal_rows(chains, chains, first[ids]):  # the one input in 2^64 / n^2 whose hashes collide
        seen: dict[bytes, int] = {}
        ids = np.array([seen.setdefault(chains.row(i).tobytes(), len(seen)) for i in range(len(chains))], np.int32)
        first = np.unique(ids, return_index=True)[1]
    # Mostly all are different, and need no copy.
    return (chains if len(first) == len(chains) else chains.take(first)), ids


def first_of_each(keys: U64) -> tuple[I64, I32]:
    """Number the k distinct values of n keys in order of first appearance. Return (int64[k], index of the first key
    with each number; int32[n], number of each key)."""
    order = np.argsort(keys)
    ascending = keys[order]
    is_new = np.append(True, ascending[1:] != ascending[:-1])[: len(keys)]
    group = np.empty(len(keys), np.int32)
    group[order] = np.cumsum(is_new, dtype=np.int32) - np.int32(1)
    first = np.minimum.reduceat(order, np.flatnonzero(is_new)) if len(keys) else order
    appearance = np.argsort(first)
    rank = np.empty(len(first), np.int32)
    rank[appearance] = np.arange(len(first), dtype=np.int32)
    return first[appearance], rank[group]


def equal_rows(chains: Ragged, others: Ragged, other: I64 | I32) -> bool:
    """Return True if row i of `chains` equals row `other[i]` of `others`, word by word, for all rows of `chains`."""
    lengths, starts = chains.lengths, others.offsets[:-1][other]
    if not np.array_equal(lengths, others.offsets[1:][other] - starts):
        return False
    groups = row_groups(chains.offsets)
    for length, group in () if groups is None else groups:
        twins = rows_of(others.values, starts[group], length)
        if not np.array_equal(_some_rows(chains, group, length), twins):
            return False
    for first, end in row_blocks(chains.offsets) if groups is None else ():
        words = chains.values[chains.offsets[first] : chains.offsets[end]]
        if not np.array_equal(words, others.take(other[first:end]).values):
            return False
    return True


class StackWords(NamedTuple):
    """Words of n stacks: those of stack i are `words[begins[i]:begins[i] + lengths[i]]`, lowest address first."""

    words: U64
    begins: I64
    lengths: I64


class StoredStacks(Protocol):
    """Source of the words of stacks that are not kept in memory."""

    @property
    def lengths(self) -> I64:
        """Return the number of words of each stack: int64[n]."""

    def read_stacks(self, rows: I64) -> StackWords:
        """Return the words of the stacks with these row numbers, in this order; valid until the next call."""


@mutable
class Snapshots:
    """User registers and stack words of n samples of 64-bit tasks, as columns."""

    # uint64[n]: bit r is set if the snapshot has the register of perf's number r (attr.sample_regs_user)
    mask: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    registers: Ragged = field(default_factory=Ragged)  # their values, lowest number first
    stack: Ragged | StoredStacks = field(default_factory=Ragged)  # words of the stack, lowest address first

    def __len__(self) -> int:
        return len(self.mask)

    def read_stacks(self, rows: I64 | I32) -> StackWords:
        """Return the stack words of the snapshots with these row numbers, in this order; valid until the next call."""
        rows = rows.astype(np.int64, copy=False)
        if not isinstance(self.stack, Ragged):
            return self.stack.read_stacks(rows)
        begins = self.stack.offsets[rows]
        return StackWords(self.stack.values, begins, self.stack.offsets[1:][rows] - begins)

    def check(self) -> None:
        """Raise AssertionError unless every snapshot has the registers that its mask names."""
        self.registers.check()
        if isinstance(self.stack, Ragged):
            self.stack.check()
        assert len(self.mask) == len(self.registers) == len(self.stack.lengths)
        assert [int(mask).bit_count() for mask in self.mask.tolist()] == self.registers.lengths.tolist()


def build_stack_tree(chains: Ragged) -> tuple[I32, I32, I32]:
    """Build the tree of n callchains of frame ids (below 2^31, leaf first). Return (parent, frame, stack):
    int32[nodes], parent node, -1 for a root; int32[nodes], frame id; int32[n], node of each chain's leaf, -1: empty."""
    lengths = chains.lengths
    order = np.argsort(-lengths, kind="stable")  # longest first: the chains alive at depth d are a prefix
    alive_at = np.searchsorted(-lengths[order], -np.arange(1, int(lengths.max(initial=0)) + 1), side="right")
    last = chains.offsets[1:][order] - 1  # index of each chain's root in `values`
    node = np.full(len(chains), -1, np.int64)
    parents: list[I64] = []
    frames: list[I64] = []
    total = 0
    for depth, alive in enumerate(alive_at):
        frame = chains.values[last[:alive] - depth].astype(np.int64)
        keys, inverse = np.unique((node[:alive] + 1) << 31 | frame, return_inverse=True)
        parents.append((keys >> 31) - 1)
        frames.append(keys & 0x7FFFFFFF)
        node[:alive] = inverse + total
        total += len(keys)
    stack = np.empty(len(chains), np.int32)
    stack[order] = node
    none = np.empty(0, np.int64)
    parent, frame_of_node = (np.concatenate([none, *column]).astype(np.int32) for column in (parents, frames))
    return parent, frame_of_node, stack


def depths(parent: I32) -> I64:
    """Return int64[nodes]: the depth of each node, 1 for a root (parent -1), in log2(largest depth) passes."""
    depth = np.ones(len(parent), np.int64)
    above = parent.astype(np.int64)
    while True:
        live = np.flatnonzero(above >= 0)
        if not len(live):
            return depth
        jump = above[live]
        depth[live] += depth[jump]
        above[live] = above[jump]


def path_lengths(parent: I32, nodes: I64) -> I64:
    """Return int64[k]: depths of `nodes` (1: a root; node -1: 0), by climbing: cheaper than `depths` for few nodes."""
    length = np.zeros(len(nodes), np.int64)
    live = np.flatnonzero(nodes >= 0)
    node = nodes[live]
    while len(live):
        length[live] += 1
        above = parent[node]
        live, node = live[above >= 0], above[above >= 0].astype(np.int64)
    return length


def paths_of_nodes(parent: I32, nodes: I64, *, leaf_first: bool = False) -> tuple[I64, I64]:
    """Return the paths from the root to each of k `nodes` (>= 0), root first by default, both ends included, as
    (offsets, path), int64[k + 1] and int64[]: path i is the nodes `path[offsets[i]:offsets[i + 1]]`."""
    offsets = offsets_of(path_lengths(parent, nodes))
    path = np.empty(int(offsets[-1]), np.int64)
    step, place = (1, offsets[:-1].copy()) if leaf_first else (-1, offsets[1:] - 1)
    node = nodes
    while len(node):
        path[place] = node
        above = parent[node]
        place, node = place[above >= 0] + step, above[above >= 0].astype(np.int64)
    return offsets, path


def frames_of(parent: I32, frame: I32, stack: int) -> list[int]:
    """Return the frame rows of one stack, root first. `stack`: the node of its leaf; -1: []. Slow for many stacks."""
    frames = []
    while stack >= 0:
        frames.append(int(frame[stack]))
        stack = int(parent[stack])
    return frames[::-1]
