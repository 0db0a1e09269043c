# SPDX-License-Identifier: Apache-2.0
"""Source lines and inlined functions: against a program that says its own, and against addr2line; in stacks,
symbolized as from a recording of that program."""

import io
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from builders.chains import recording_of_chains
from builders.compiled import addresses
from builders.objects import elf_build_id, names_of

from perf_offcpu import losses
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.cache import DiskCache
from perf_offcpu.errors import FormatError
from perf_offcpu.model.callchains import frames_of
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Recording
from perf_offcpu.objects.functions import load_elf_symbols
from perf_offcpu.objects.search import Search, by_build_id
from perf_offcpu.script.fields import choose_fields
from perf_offcpu.script.samples import TextOptions, write
from perf_offcpu.symbolize.lines import names as lines
from perf_offcpu.symbolize.lines.names import Lines, NoLines, load_lines
from perf_offcpu.symbolize.lines.symcache import Symcache
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize

HEADER = """#define INLINE static inline __attribute__((always_inline))
#define MARK(name) asm volatile(".globl " #name "\\n" #name ":\\n nop")
"""
PROGRAM = """#include "inner.h"
int shared;
INLINE void deepest(void) { MARK(mark_deepest); }
INLINE void middle(void) {
    deepest();
    MARK(mark_middle);
}
__attribute__((noinline)) int outer(int n)
{
    middle();
    MARK(mark_outer);
    for (int i = 0; i < n; i++) shared += i;
    return shared;
}
int main(int argc, char **argv) { (void)argv; return outer(argc); }
"""
EXPECTED = {
    "mark_deepest": [("deepest", "program.cc", 3), ("middle", "program.cc", 5), ("outer", "program.cc", 10)],
    "mark_middle": [("middle", "program.cc", 6), ("outer", "program.cc", 10)],
    "mark_outer": [("outer", "program.cc", 11)],
}
Chain = list[tuple[str, str, int]]


def build(directory: Path, *options: str) -> Path:
    (directory / "inner.h").write_text(HEADER)
    (directory / "program.cc").write_text(PROGRAM)
    subprocess.run(["g++", "-O2", "-g", *options, "program.cc", "-o", "program"], cwd=directory, check=True, timeout=60)
    return directory / "program"


def marks_of(program: Path) -> list[int]:
    known = addresses(program)
    return [known[name] for name in EXPECTED]


def loaded(program: Path, search: Search | None = None, cache: DiskCache | None = None) -> Lines:
    return load_lines(str(program), elf_build_id(str(program)), search or Search(cache=cache))


def chains(found: Lines, addresses: list[int]) -> list[Chain]:
    """Innermost first; functions without parameters, files without directory."""
    calls = found.lookup(np.array(addresses, np.uint64))
    result: list[Chain] = [[] for _ in addresses]
    columns = (getattr(calls, name).tolist() for name in ("row", "function", "file", "line"))
    for row, function, file, line in zip(*columns, strict=True):
        bare = re.sub(r"^_Z\d+([a-z]+)[vi]$", r"\1", found.table.function_name(function))
        result[row].append((bare, os.path.basename(found.table.file_path(file)), line))
    return result


@pytest.mark.parametrize("options", [
    "-gdwarf-4", "-gdwarf-5", "-gdwarf-4 -no-pie", "-gdwarf-5 -gz=zlib", "-shared -fPIC", "-Wl,--build-id=none",
    "-Wl,-Ttext-segment=0x10000000 -no-pie",
])  # fmt: skip
def test_a_program_is_told_where_its_marks_are(tmp_path: Path, options: str) -> None:
    program = build(tmp_path, *options.split())
    marks, lines = marks_of(program), loaded(program)
    assert chains(lines, marks) == list(EXPECTED.values())
    calls = lines.lookup(np.array(marks, np.uint64))
    calls.check()
    assert lines.table.file_path(int(calls.file[0])) == str(tmp_path / "program.cc")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("lines"), "-Wl,--build-id=sha1")


def test_addresses_outside_have_no_lines(program: Path) -> None:
    assert chains(loaded(program), [0, 1, 2**64 - 1, 2**32, 2**33]) == [[]] * 5
    assert chains(loaded(program), []) == []


def test_each_address_has_what_addr2line_says(program: Path) -> None:
    """Names are left out: addr2line gives the innermost function the name of the nearest label."""
    elf = load_elf_symbols(str(program))
    own = [row for row, name in enumerate(names_of(elf.symbols)) if name in ("main", "_Z5outeri")]
    places = [at for row in own for at in range(int(elf.symbols.start[row]), int(elf.symbols.end[row]))]
    command: list[str | Path] = ["addr2line", "-i", "-a", "-e", program, *map(hex, places)]
    out = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True).stdout
    expected: list[list[tuple[str, int]]] = []
    for text in out.splitlines():
        if text.startswith("0x"):
            expected.append([])
        else:
            path, _, number = text.partition(" (")[0].rpartition(":")
            expected[-1].append((os.path.basename(path), int(number)))
    assert len(places) > 30
    assert [[one[1:] for one in chain] for chain in chains(loaded(program), places)] == expected


class TestDebugFiles:
    def test_dwarf_in_a_separate_file_is_found(self, program: Path, tmp_path: Path) -> None:
        debug, stripped = tmp_path / "p.debug", tmp_path / "program"
        subprocess.run(["objcopy", "--only-keep-debug", program, debug], check=True, timeout=60)
        subprocess.run(["strip", "-g", "-o", stripped, program], check=True, timeout=60)
        with pytest.raises(NoLines, match=r"^$"):
            loaded(stripped)
        place = Path(by_build_id(str(tmp_path / "root"), elf_build_id(str(program)), ".debug"))
        place.parent.mkdir(parents=True)
        shutil.copy(debug, place)
        found = loaded(stripped, Search(debug_roots=(str(tmp_path / "root"),)))
        assert chains(found, marks_of(program)) == list(EXPECTED.values())

    def test_a_file_replaced_by_another_build_has_none(self, program: Path) -> None:
        with pytest.raises(NoLines, match=r"^$"):
            load_lines(str(program), bytes(20), Search())

    def test_nothing_that_is_no_file_is_opened(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        for path in (tmp_path / "fifo", tmp_path, tmp_path / "none", Path("[vdso]")):
            with pytest.raises(NoLines, match=r"^$"):
                load_lines(str(path), b"", Search())


class TestWorker:
    def test_a_missing_package_is_told(self, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "symbolic.py").write_text("raise ImportError")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        with pytest.raises(NoLines, match=re.escape(losses.NO_LINE_READER.text)):
            loaded(program)

    @pytest.mark.parametrize(
        "fault",
        ["import os; os.kill(os.getpid(), 11)", "bytearray(1 << 40)", "while True: pass", "raise SystemExit(1)"],
    )
    def test_a_library_that_fails_costs_its_own_process_only(
        self, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
    ) -> None:
        (tmp_path / "symbolic").mkdir()
        (tmp_path / "symbolic" / "__init__.py").touch()
        (tmp_path / "symbolic" / "debuginfo.py").write_text(fault)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(lines, "SECONDS", 1)
        with pytest.raises(NoLines, match=re.escape(losses.DWARF_STOPPED.text)):
            loaded(program)

    def test_without_time_left_only_tables_in_the_cache_are_used(self, program: Path, tmp_path: Path) -> None:
        arguments = str(program), elf_build_id(str(program)), Search(cache=DiskCache(str(tmp_path / "cache")))
        with pytest.raises(NoLines, match=re.escape(losses.DWARF_STOPPED.text)) as refused:
            load_lines(*arguments, seconds=0)
        assert "used up" in refused.value.detail
        load_lines(*arguments)
        load_lines(*arguments, seconds=0)

    def test_a_file_too_large_is_not_tried(self, program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lines, "MAX_FILE", 100)
        with pytest.raises(NoLines, match=re.escape(losses.DWARF_TOO_LARGE.text)):
            loaded(program)


def kept_lines(cache: DiskCache) -> str:
    (name,) = [name for name in os.listdir(cache.directory) if name.endswith(lines.KIND)]
    return name


class TestCache:
    def test_nothing_is_read_twice(self, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cache = DiskCache(str(tmp_path / "cache"))
        first = chains(loaded(program, cache=cache), marks_of(program))
        assert kept_lines(cache).startswith(elf_build_id(str(program)).hex())
        monkeypatch.setattr(lines, "_make", lambda _: pytest.fail("it was made again"))
        assert chains(loaded(program, cache=cache), marks_of(program)) == first

    def test_a_damaged_table_is_made_again(self, program: Path, tmp_path: Path) -> None:
        cache = DiskCache(str(tmp_path / "cache"))
        loaded(program, cache=cache)
        path = Path(cache.directory, kept_lines(cache))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        assert chains(loaded(program, cache=cache), marks_of(program)) == list(EXPECTED.values())


@pytest.fixture(scope="module")
def data(program: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    cache = DiskCache(str(tmp_path_factory.mktemp("cache")))
    loaded(program, cache=cache)
    columns = cache.read(kept_lines(cache))
    assert columns is not None
    return bytes(columns["symcache"])


class TestSymcache:
    def test_another_version_and_every_cut_are_refused(self, data: bytes) -> None:
        with pytest.raises(FormatError, match="version 8 is not 9"):
            Symcache(memoryview(data[:4] + b"\x08" + data[5:]), "made")
        Symcache(memoryview(data), "made")
        for length in range(0, len(data), 7):
            with pytest.raises(FormatError):
                Symcache(memoryview(data[:length]), "made")

    def test_whatever_the_numbers_are_lookups_end(self, data: bytes) -> None:
        """Rows that lead to themselves, beyond their tables, or to strings that are none."""
        draw, addresses = np.random.default_rng(1), np.arange(0, 0x3000, 5, dtype=np.uint64)
        for _ in range(300):
            broken = np.frombuffer(data, np.uint8).copy()
            broken[draw.integers(64, len(broken), 8)] = draw.integers(0, 256, 8)
            table = Symcache(memoryview(broken.tobytes()), "made")
            calls = table.lookup(addresses)
            calls.check()
            assert len(calls) <= len(addresses) * 256
            for index in np.unique(calls.function).tolist():
                table.function_name(index)
            for index in np.unique(calls.file).tolist():
                table.file_path(index)


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
