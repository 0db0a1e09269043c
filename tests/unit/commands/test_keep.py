# SPDX-License-Identifier: Apache-2.0
"""Symbols kept in a build-id cache name a recording when its programs are gone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from builders.objects import elf_build_id
from unit.symbolize.lines.test_inlined_frames import frames, recording
from unit.symbolize.lines.test_lines import addresses_of, build

from perf_offcpu.archive.gather import DirectoryStore, SymbolSaver
from perf_offcpu.commands.record.command import keep_symbols
from perf_offcpu.model.recording import Dsos, Recording
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize

DATA = Path(__file__).resolve().parents[2] / "data"


def recorded(program: Path, build_id: bytes) -> Recording:
    """Return a recording with one sample, in `outer`."""
    made = recording(program, [addresses_of(program, "mark_outer")])
    row = made.strings.intern(build_id.hex())
    return made.replaced(dsos=Dsos.from_rows([(1, row, 2)]))


def test_a_kept_object_names_frames_when_its_file_is_gone(tmp_path: Path) -> None:
    program = build(tmp_path)
    made = recorded(program, elf_build_id(str(program)))
    store = DirectoryStore(str(tmp_path / "cache"))
    saved = SymbolSaver(made, store, SymbolizeOptions()).save()
    assert (saved.files, saved.size, saved.missing) == (1, program.stat().st_size, {})
    assert SymbolSaver(made, store, SymbolizeOptions()).save().files == 0  # it is in the store already
    program.unlink()
    options = SymbolizeOptions(buildid_dir=str(tmp_path / "cache"), inline=True)
    assert frames(symbolize(made, options)) == [("outer", "program.cc", 11, 0)]
    assert frames(symbolize(made)) == [("", "", 0, 0)]


def test_another_build_is_not_kept(tmp_path: Path) -> None:
    program = build(tmp_path)
    store = DirectoryStore(str(tmp_path / "cache"))
    saved = SymbolSaver(recorded(program, bytes(20)), store, SymbolizeOptions()).save()
    assert saved.files == 0
    assert "another build-id" in saved.missing[str(program)]
    assert not os.path.exists(tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERF_BUILDID_DIR", "/proc/nowhere")
    lines = keep_symbols(str(DATA / "demo.data"))
    assert lines[0].startswith(("symbols could not be kept", "0 files with symbols"))
