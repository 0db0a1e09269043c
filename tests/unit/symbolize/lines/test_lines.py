# SPDX-License-Identifier: Apache-2.0
"""Source lines and inlined functions: against a program that says its own, and against addr2line."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from builders.compiled import addresses
from builders.objects import elf_build_id, names_of

from perf_offcpu import losses
from perf_offcpu.cache import DiskCache
from perf_offcpu.errors import FormatError
from perf_offcpu.objects.functions import load_elf_symbols
from perf_offcpu.objects.search import Search, by_build_id
from perf_offcpu.symbolize.lines import names as lines
from perf_offcpu.symbolize.lines.names import Lines, NoLines, load_lines
from perf_offcpu.symbolize.lines.symcache import Symcache

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
