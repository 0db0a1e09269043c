# SPDX-License-Identifier: Apache-2.0
"""SymbolTable: which symbol covers an address."""

import re

import numpy as np
import pytest
from builders.examples import examples
from builders.objects import names_at, names_of
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.objects.symtab import MAX_NAME, NO_ADDRESS, Symbols, SymbolTable, alias_rank, join

LOCAL, WEAK, GLOBAL, LABEL = 1, 3, 0, 5  # alias_rank of typed local, weak, global and NOTYPE local symbols


def table(*rows: tuple[int, int, str] | tuple[int, int, str, int], limit: int = int(NO_ADDRESS)) -> SymbolTable:
    """A table of (start, size, name[, rank]) rows; names in capitals only bound others."""
    strings, offsets = b"\0", []
    for row in rows:
        offsets.append(len(strings))
        strings += row[2].encode("utf-8", "surrogateescape") + b"\0"
    symbols = Symbols.filled(
        len(rows), start=[row[0] for row in rows], size=[row[1] for row in rows], name=offsets, limit=limit,
        rank=[row[3] if len(row) > 3 else GLOBAL for row in rows], code=[not row[2].isupper() for row in rows],
    )  # fmt: skip
    return SymbolTable(symbols, strings)


@pytest.mark.parametrize(("rule", "symbols", "names"), examples("unit/objects/symbols.txt", "cover"))
def test_which_symbol_covers_an_address(rule: str, symbols: str, names: str) -> None:
    words, limit = symbols.partition("limit=")[::2]
    bounds = {"limit": int(limit, 16)} if limit else {}
    pairs = [word.split("=") for word in names.split()]
    shown = names_at(table(*map(row_of, words.split()), **bounds), *(int(address, 16) for address, _ in pairs))
    assert shown == [name.strip("-") for _, name in pairs], rule


def row_of(symbol: str) -> tuple[int, int, str, int]:
    """Return the row of `START+SIZE=NAME/RANK`; without a rank the symbol is global."""
    start, size, name, rank = re.split("[+=/]", f"{symbol}/GLOBAL")[:4]
    return int(start, 16), int(size, 16), name, {"LOCAL": LOCAL, "WEAK": WEAK, "LABEL": LABEL, "GLOBAL": GLOBAL}[rank]


def test_source_tells_the_row_a_name_came_from() -> None:
    symbols = table((0x200, 1, "late"), (0x100, 1, "early"), (0x100, 1, "alias_that_wins"))
    assert names_of(symbols) == ["alias_that_wins", "late"]
    assert symbols.source.tolist() == [2, 0]


@pytest.mark.parametrize(("start", "end"), [(0x1001, 0x3000), (0x1000, 0x2000), (0x1FFF, 0x3000)])
def test_the_last_one_without_size_reaches_to_the_end_of_the_page_behind_its_own(start: int, end: int) -> None:
    assert names_at(table((start, 0, "last")), end - 1, end) == ["last", ""]


class TestAliases:
    """choose_best_symbol of tools/perf/util/symbol.c, rule by rule."""

    @pytest.mark.parametrize(("loser", "winner"), examples("unit/objects/symbols.txt", "aliases"))
    def test_the_better_one_wins_in_any_order(self, loser: str, winner: str) -> None:
        rows = row_of(loser), row_of(winner)
        assert names_at(table(*rows), 0x100) == names_at(table(*reversed(rows)), 0x100) == [rows[1][2]]

    def test_ranks_order_as_perf_compares(self) -> None:
        flags = np.array([[0, 0, 1], [0, 0, 0], [0, 1, 0], [1, 0, 1], [1, 0, 0], [1, 1, 0]], bool)
        assert np.diff(alias_rank(flags[:, 0], flags[:, 1], flags[:, 2]).astype(int)).min() > 0


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=40))
def test_an_address_gets_the_name_of_the_last_symbol_to_start_or_another_there(ranges: list[tuple[int, int]]) -> None:
    unique = {start: (start, size, f"s{start}") for start, size in ranges}
    for address, name in enumerate(names_at(table(*unique.values()), *range(100))):
        covering = {row[2] for row in unique.values() if row[0] <= address < row[0] + row[1]}
        assert (name in covering) if covering else name == ""
        latest = max((row for row in unique.values() if row[0] <= address), default=None)
        if latest is not None and address < latest[0] + latest[1]:
            assert name == latest[2]


def test_join_keeps_rows_in_order_and_their_names() -> None:
    first = Symbols.filled(1, start=[0x200], size=[8], name=[1], limit=[2**63], code=[1])
    second = Symbols.filled(1, start=[0x100], size=[8], name=[1], limit=[2**63], code=[1])
    assert names_at(SymbolTable(*join([(first, b"\0one\0"), (second, b"\0two\0")])), 0x100, 0x200) == ["two", "one"]
    assert first.name.tolist() == [1]


def test_names_are_decoded_as_they_are_and_cut_when_monstrous() -> None:
    symbols = table((1, 1, "caf\u00e9"), (2, 1, "\udcff"), (3, 1, "x" * (MAX_NAME + 5)))
    assert [*map(symbols.name, range(2))] == ["caf\u00e9", "\udcff"]
    assert len(symbols.name(2)) == MAX_NAME
    rows = Symbols.filled(2, start=[1, 1], size=[1, 1], name=[1, 3], limit=[9, 9], code=[1, 1])
    assert SymbolTable(rows, b"\0a\0longer").name(0) == "longer", "it runs to the end of the strings"
