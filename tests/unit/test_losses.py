# SPDX-License-Identifier: Apache-2.0
"""Tables of the package are TOML, read as tomllib reads them; that of losses has a row for each cause."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from perf_offcpu import losses
from perf_offcpu.abi.counters import NAME_SIZE
from perf_offcpu.collect.bpf.header import read_header
from perf_offcpu.losses import CAUSES, LossCause, Losses, Stage
from perf_offcpu.tables import read_table

ROOT = Path(__file__).parents[2]


def test_each_counter_of_the_bpf_program_has_a_row() -> None:
    *counters, end = read_header(ROOT / "bpf" / "off_cpu.h").enums["counter"]
    rows = [row.name.replace("-", "_") for row in CAUSES.values() if row.stage is Stage.BPF]
    assert (rows, end) == (counters, "counters")


def test_rows_can_be_told_apart_and_fit_into_a_file() -> None:
    names = {name: row for name, row in vars(losses).items() if isinstance(row, LossCause)}
    rows = list(names.values())
    assert [name.lower().replace("_", "-") for name in names] == [row.name for row in rows]
    assert rows == list(CAUSES.values()), "two rows have one name"
    assert len({str(row) for row in rows}) == len(rows)
    assert all(0 < len(row.name.encode()) <= NAME_SIZE for row in rows)
    assert not [row for row in rows if row.in_last_line and not row.is_loss]


def test_sentences() -> None:
    cause = LossCause(Stage.NAMES, "n", "it is gone", "look for it")
    assert str(cause) == "no name: it is gone; look for it"
    assert str(cause.about("/x{}", "why")) == "no name: /x{}: it is gone: why; look for it"
    assert cause.about("/x") != cause
    assert str(losses.UNKNOWN_RECORD) == "records of unknown type"


def test_counting() -> None:
    counters = Losses()
    counters.add(losses.BAD_SIZE, 0)
    assert not counters
    counters.add(losses.NO_END)
    counters.add(losses.BAD_SIZE, 2)
    assert list(losses.by_text(counters).items()) == [(losses.BAD_SIZE, 2), (losses.NO_END, 1)]


PACKAGE = Path(__file__).resolve().parents[2] / "perf_offcpu"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.toml")), ids=lambda path: path.name)
def test_tables_are_read_as_toml(path: Path) -> None:
    sections: list[tuple[str, dict[str, Any]]] = []
    for heading, tables in tomllib.loads(path.read_text()).items():
        sections += [(heading, table) for table in (tables if isinstance(tables, list) else [tables])]
    expected = [
        (heading, {name: value if isinstance(value, str) else str(value).lower() for name, value in table.items()})
        for heading, table in sections
    ]
    assert expected and read_table(str(path)) == expected
