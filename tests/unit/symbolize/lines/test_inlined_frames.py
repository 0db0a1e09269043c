# SPDX-License-Identifier: Apache-2.0
"""Inlined functions in stacks: a real program's, symbolized as from a recording of it."""

import io
from pathlib import Path

import pytest
from builders.chains import recording_of_chains
from builders.compiled import addresses
from unit.symbolize.lines.test_lines import build

from perf_offcpu import losses
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Recording
from perf_offcpu.model.stacks import frames_of
from perf_offcpu.script.fields import choose_fields
from perf_offcpu.script.samples import TextOptions, write
from perf_offcpu.symbolize.lines import names as lines
from perf_offcpu.symbolize.lines.symcache import Symcache
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize

BASE = 0x7F0000000000


def recording(program: Path, chains: list[list[int]]) -> Recording:
    """A recording in which the whole file is mapped at BASE; chains of addresses as in the file."""
    words = [[CallchainContext.USER, *(BASE + at for at in chain)] for chain in chains]
    return recording_of_chains(words, (0, BASE, BASE + 0x10000, 0, str(program)))


def frames(profile: Profile, sample: int = 0) -> list[tuple[str, str, int, int]]:
    table, strings = profile.frames, profile.strings
    stack = frames_of(profile.stacks.parent, profile.stacks.frame, int(profile.samples.stack[sample]))
    symbols, files = ([strings[name] for name in column[stack].tolist()] for column in (table.symbol, table.file))
    numbers = (column[stack].tolist() for column in (table.line, table.inline_depth))
    return list(zip(symbols, (Path(file).name for file in files), *numbers, strict=True))[::-1]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("inlined"))


@pytest.fixture(scope="module")
def marks(program: Path) -> dict[str, int]:
    return addresses(program)


def test_inlined_functions_stand_above_the_one_they_are_in(program: Path, marks: dict[str, int]) -> None:
    chains = [[marks["mark_deepest"], marks["main"] + 5], [marks["mark_outer"]]]
    profile = symbolize(recording(program, chains), SymbolizeOptions(inline=True))
    profile.check()
    *inlined, outer, caller = frames(profile)
    assert inlined == [("deepest", "program.cc", 3, 2), ("middle", "program.cc", 5, 1)]
    assert outer == ("outer", "program.cc", 10, 0)
    assert caller[0] == "main"
    assert frames(profile, 1) == [("outer", "program.cc", 11, 0)]


def test_a_return_address_shows_the_line_of_its_call(program: Path, marks: dict[str, int]) -> None:
    """The byte before it belongs to the inlined function, the byte itself no more."""
    behind = marks["mark_deepest"] + 1  # as if the nop had been a call
    profile = symbolize(recording(program, [[0x10, behind], [behind]]), SymbolizeOptions(inline=True))
    assert [frame[0] for frame in frames(profile)[1:]] == ["deepest", "middle", "outer"]
    assert "deepest" not in [frame[0] for frame in frames(profile, 1)]


def test_stacks_without_inlining_can_have_lines_too(program: Path, marks: dict[str, int]) -> None:
    both = [[marks["mark_deepest"]]]
    assert frames(symbolize(recording(program, both))) == [("outer", "", 0, 0)]
    with_lines = symbolize(recording(program, both), SymbolizeOptions(srcline=True))
    assert frames(with_lines) == [("outer", "program.cc", 3, 0)]


def test_what_prevents_lines_is_counted(tmp_path: Path) -> None:
    program = build(tmp_path, "-gsplit-dwarf")
    profile = symbolize(recording(program, [[addresses(program)["mark_outer"]]]), SymbolizeOptions(inline=True))
    (cause,) = [cause for cause in profile.losses if cause.stage is losses.Stage.LINES]
    assert str(program) in cause.text and losses.DWARF_SPLIT.text in cause.text
    assert profile.losses[cause] == 1


def test_late_objects_are_counted(program: Path, marks: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perf_offcpu.symbolize.lines.names.TOTAL_SECONDS", 0)
    profile = symbolize(recording(program, [[marks["mark_outer"]]]), SymbolizeOptions(inline=True))
    assert frames(profile) == [("outer", "", 0, 0)]
    (cause,) = [cause for cause in profile.losses if cause.stage is losses.Stage.LINES]
    assert "used up" in cause.text and profile.losses[cause] == 1


def test_dwarf_shared_by_dwz_is_told(program: Path, marks: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of inlined functions are in the other file: their frames are left out, lines are right."""
    names = Symcache.function_name
    hidden = {"_ZL6middlev", "middle"}

    def shared(table: Symcache, index: int) -> str:
        return "" if names(table, index) in hidden else names(table, index)

    monkeypatch.setattr(Symcache, "function_name", shared)
    monkeypatch.setattr(lines, "_ALTLINK", b".comment")  # as if that section were the link
    profile = symbolize(recording(program, [[marks["mark_deepest"]]]), SymbolizeOptions(inline=True))
    profile.check()
    assert frames(profile) == [("deepest", "program.cc", 3, 1), ("outer", "program.cc", 10, 0)]
    assert profile.losses[losses.DWARF_SHARED.about(str(program))] == 1


def test_text_is_laid_out_as_perfs(program: Path, marks: dict[str, int]) -> None:
    options = SymbolizeOptions(inline=True, keep_ips=True)
    profile = symbolize(recording(program, [[marks["mark_middle"]], [0x9000]]), options)
    out = io.StringIO()
    write(profile, out, TextOptions(choose_fields(["ip,sym,dso,srcline"])))
    ip = BASE + marks["mark_middle"]
    first, second, *_ = out.getvalue().split("\n\n")
    assert first.splitlines()[-4:] == [
        f"\t{ip:16x} middle", "  program.cc:6 (inlined)", f"\t{ip:16x} outer ({program})", "  program.cc:10",
    ]  # fmt: skip
    assert second.splitlines()[-1].startswith("  program[")
    whole = io.StringIO()
    write(profile, whole, TextOptions(choose_fields(["ip,sym,dso,srcline"]), full_source_path=True))
    assert f"  {program.parent}/program.cc:10\n" in whole.getvalue()
