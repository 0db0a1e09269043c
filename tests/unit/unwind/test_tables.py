# SPDX-License-Identifier: Apache-2.0
"""Tables of frames come from the right file, or the cache unless it is damaged; code with frame pointers."""

from pathlib import Path

import numpy as np
import pytest
from builders.compiled import build

from perf_offcpu.abi.elf import Machine
from perf_offcpu.abi.machine import REGISTERS
from perf_offcpu.cache import Array, DiskCache
from perf_offcpu.model.columns import Strings
from perf_offcpu.model.recording import Dsos, Maps, Meta, Recording, Spaces
from perf_offcpu.objects.elf.image import open_elf
from perf_offcpu.objects.search import Search
from perf_offcpu.unwind import tables as unwind_files
from perf_offcpu.unwind.cfi import table as cfi
from perf_offcpu.unwind.cfi.table import CfiTable, build_table, frame_sections
from perf_offcpu.unwind.tables import FrameTables, table_columns, table_from_columns

BLOCKER = Path(__file__).parents[2] / "data" / "perf-7.2" / "blocker"
X86 = REGISTERS[Machine.X86_64]


def recording_of(path: str, build_id: str = "") -> Recording:
    strings = Strings()
    dsos = Dsos.filled(1, path=strings.intern_all([path]), build_id=strings.intern_all([build_id]))
    maps = Maps.filled(1, end=np.array([4096], np.uint64), dso=np.array([0]), space=np.array([0]))
    return Recording(strings=strings, dsos=dsos, maps=maps, spaces=Spaces.filled(1), meta=Meta(arch="x86_64"))


def assert_same(one: CfiTable, other: CfiTable) -> None:
    assert one.expressions == other.expressions
    for name in ("start", "rule", "rules"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize(("name", "build_id", "machine"), [
    (str(BLOCKER), "00" * 20, Machine.X86_64), (str(BLOCKER), "", Machine.AARCH64),
    *((name, "", Machine.X86_64) for name in ("[heap]", "//anon", "/nowhere/at/all", "/dev/null")),
    ("/tmp/../etc/passwd", "", Machine.X86_64),
])  # fmt: skip
def test_what_is_no_file_of_the_recorded_build_and_machine_has_no_rules(
    name: str, build_id: str, machine: Machine
) -> None:
    assert FrameTables(recording_of(name, build_id), machine, Search()).of_dso(0) is None


def test_tables_are_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unwind_files, "MIN_ROWS", 1)
    cache = DiskCache(str(tmp_path / "cache"))
    recording = recording_of(str(BLOCKER))
    first = FrameTables(recording, Machine.X86_64, Search(cache=cache)).of_dso(0)
    monkeypatch.setattr(unwind_files, "build_table", lambda *_: pytest.fail("made again"))
    second = FrameTables(recording, Machine.X86_64, Search(cache=cache)).of_dso(0)
    assert first is not None and second is not None and len(first.table) > 50
    assert_same(first.table, second.table)


def damaged(columns: dict[str, Array], name: str, place: int, value: int) -> dict[str, Array]:
    changed = columns[name].copy()
    changed[place] = value
    return {**columns, name: changed}


def test_columns_that_do_not_fit_together_are_no_table() -> None:
    with open_elf(str(BLOCKER)) as image:
        table = build_table(frame_sections(image), X86)
    columns = table_columns(table)
    again = table_from_columns(columns, X86)
    assert again is not None
    assert_same(table, again)
    width = X86.count + 2
    wrong = [
        {name: column for name, column in columns.items() if name != "rule"},
        {**columns, "start": columns["start"][:-1]},
        {**columns, "rules": columns["rules"][:-1]},
        {**columns, "start": columns["start"].astype(np.uint32)},
        damaged(columns, "rule", 0, len(table.rules)),
        damaged(columns, "rule", 0, -2),
        damaged(columns, "start", 1, 0),
        damaged(columns, "lengths", 0, -1),
        damaged(columns, "rules", 0, 99 << 3 | 5),  # an expression that is not there
        damaged(columns, "rules", width - 2, 200 << 3 | 4),  # a CFA in register 200
        damaged(columns, "rules", 3, 200 << 3 | 4),
    ]
    assert [table_from_columns(one, X86) for one in wrong] == [None] * len(wrong)


@pytest.mark.parametrize(("option", "keeps"), [("-fno-omit-frame-pointer", True), ("-fomit-frame-pointer", False)])
def test_how_a_program_was_built(option: str, keeps: bool, tmp_path: Path) -> None:
    program = str(build("waiter.c", tmp_path / "program", "-O2", option))
    share = cfi.frame_pointer_share(program)
    assert share is not None and (share > 0.9 if keeps else share < 0.2)
    assert cfi.keeps_frame_pointers(program) is keeps


@pytest.mark.parametrize("path", ["/etc/passwd", "/nowhere", "/dev/null"])
def test_what_does_not_tell_counts_as_without(path: str) -> None:
    assert not cfi.keeps_frame_pointers(path)
