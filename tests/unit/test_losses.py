# SPDX-License-Identifier: Apache-2.0
"""The table of losses: a row for each cause, with its sentence."""

from pathlib import Path

from perf_offcpu import losses
from perf_offcpu.abi.counters import NAME_SIZE
from perf_offcpu.collect.bpf.header import read_header
from perf_offcpu.losses import CAUSES, LossCause, Losses, Stage

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
