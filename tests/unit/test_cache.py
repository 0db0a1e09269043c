# SPDX-License-Identifier: Apache-2.0
"""The cache on disk: what is written is read, what is damaged is not, and it stays small."""

import os
import random
import stat
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from builders.elf import ElfBuilder, Sym
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from perf_offcpu.cache import DiskCache, KeptCache, cache_name, pack, unpack
from perf_offcpu.objects.functions import KIND, load_elf_symbols
from perf_offcpu.objects.search import Search
from perf_offcpu.objects.symtab import SymbolTable

Columns = dict[str, np.ndarray]
COLUMNS: Columns = {"start": np.arange(5, dtype=np.uint64), "text": np.frombuffer(b"abc", np.uint8)}
NUMBERS = st.sampled_from([np.uint64, np.uint32, np.int64, np.int32, np.uint8])


def packed(columns: Columns) -> bytes:
    return pack(columns).tobytes()


@given(st.dictionaries(
    st.text("abcxyz_", min_size=1, max_size=16),
    NUMBERS.flatmap(lambda dtype: arrays.arrays(dtype, st.integers(0, 20))), max_size=5,
))  # fmt: skip
@settings(max_examples=50)
def test_packed_columns_are_unpacked(columns: Columns) -> None:
    read = unpack(memoryview(packed(columns)))
    assert read is not None and list(read) == list(columns)
    for name, column in columns.items():
        assert read[name].dtype == column.dtype and np.array_equal(read[name], column)


def test_each_damaged_bit_and_each_cut_is_noticed() -> None:
    data = packed(COLUMNS)
    for bit in range(len(data) * 8):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        assert unpack(memoryview(bytes(broken))) is None, bit
    assert [length for length in range(len(data)) if unpack(memoryview(data[:length])) is not None] == []


def test_a_file_that_fits_its_checksum_and_lies_is_refused() -> None:
    """Offsets, numbers of items and types are checked even in a file whose sum is right."""
    words = pack(COLUMNS)
    for at, value in ((7, 2**63), (8, 2**60), (6, int.from_bytes(b"<f8", "little")), (1, 3), (1, 60)):
        lie = words.copy()
        lie[at], lie[3] = value, 0
        lie[3] = np.add.reduce(lie)
        assert unpack(memoryview(lie.tobytes())) is None


class TestDirectory:
    @pytest.fixture
    def cache(self, tmp_path: Path) -> DiskCache:
        cache = DiskCache(str(tmp_path / "a" / "cache"), limit=4096)
        cache.write("one", COLUMNS)
        return cache

    def test_it_is_private_and_a_damaged_file_is_removed(self, cache: DiskCache) -> None:
        directory, path = Path(cache.directory), Path(cache.directory, "one")
        assert [stat.S_IMODE(place.stat().st_mode) for place in (directory, path)] == [0o700, 0o600]
        read = cache.read("one")
        assert read is not None and bytes(read["text"]) == b"abc"
        assert cache.read("two") is None
        path.write_bytes(path.read_bytes()[:-1])
        assert cache.read("one") is None and not path.exists()

    def test_the_files_used_last_stay(self, cache: DiskCache) -> None:
        big = {"bytes": np.zeros(1500, np.uint8)}
        Path(cache.directory, "one").unlink()
        for age, name in enumerate(("new", "old", "older")):
            cache.write(name, big)
            os.utime(Path(cache.directory, name), (1e9 - age, 1e9 - age))
        assert cache.read("older") is not None  # which makes it the youngest
        cache.write("newest", COLUMNS)
        assert sorted(os.listdir(cache.directory)) == ["new", "newest", "older"]

    def test_not_each_write_looks_at_all_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cache, looked = DiskCache(str(tmp_path / "cache"), limit=1 << 16), list[str]()
        monkeypatch.setattr(cache, "_shrink", looked.append)
        for row in range(4):
            cache.write(f"small{row}", {"bytes": np.zeros(8, np.uint8)})
        assert len(looked) == 1
        cache.write("big", {"bytes": np.zeros(cache.limit // 16, np.uint8)})
        assert len(looked) == 2

    def test_leftovers_of_a_crash_are_removed(self, cache: DiskCache) -> None:
        left = Path(cache.directory, ".two.0123abcd")
        left.touch()
        os.utime(left, (1e9, 1e9))
        DiskCache(cache.directory).write("three", COLUMNS)  # as the next process does
        assert sorted(os.listdir(cache.directory)) == ["one", "three"]

    def test_names_stay_inside(self, cache: DiskCache) -> None:
        for name in ("../x", "/x", "", "a/b", "x" * 300):
            with pytest.raises(ValueError, match="no name"):
                cache.write(name, COLUMNS)

    @pytest.mark.kernel
    def test_another_users_directory_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "cache").mkdir()
        os.chown(tmp_path / "cache", 65534, 65534)
        DiskCache(str(tmp_path / "cache")).write("one", COLUMNS)
        assert os.listdir(tmp_path / "cache") == []

    def test_a_link_or_fifo_in_place_of_a_file_is_not_followed(self, cache: DiskCache, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").write_bytes(Path(cache.directory, "one").read_bytes())
        Path(cache.directory, "two").symlink_to(tmp_path / "elsewhere")
        os.mkfifo(Path(cache.directory, "three"))
        assert cache.read("two") is cache.read("three") is None

    def test_no_place_to_write_is_no_error(self) -> None:
        cache = DiskCache("/proc/nowhere")
        cache.write("one", COLUMNS)
        assert cache.read("one") is None

    def test_the_environment_decides(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
        monkeypatch.setenv("PERF_OFFCPU_CACHE_BYTES", "123")
        cache = DiskCache.usual()
        assert cache and (cache.directory, cache.limit) == ("/somewhere/perf-offcpu/symbols", 123)
        monkeypatch.setenv("PERF_OFFCPU_CACHE_BYTES", "0")
        assert DiskCache.usual() is None

    def test_writers_and_readers_at_once_see_whole_files_only(self, tmp_path: Path) -> None:
        with get_context("spawn").Pool(3) as pool:
            results = pool.map(_race, [(str(tmp_path / "cache"), seed) for seed in range(3)])
        assert all(seen > 0 for seen in results)


def _race(arguments: tuple[str, int]) -> int:
    directory, seed = arguments
    cache, draw, seen = DiskCache(directory), random.Random(seed), 0
    for _ in range(150):
        cache.write("same", {"bytes": np.full(10_000, draw.randrange(256), np.uint8)})
        read = cache.read("same")
        assert read is None or (len(read["bytes"]), len(np.unique(read["bytes"]))) == (10_000, 1)
        seen += read is not None
    return seen


class TestSymbols:
    def test_a_cached_table_is_the_same_until_a_rewrite(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = [Sym(f"f{row}" + "x" * (300 if row == 7 else 0), 0x1000 + 16 * row, 16) for row in range(50)]
        path, cache = tmp_path / "program", DiskCache(str(tmp_path / "cache"))
        path.write_bytes(ElfBuilder(rows, build_id=b"\x12" * 20).build())
        first = load_elf_symbols(str(path), Search(cache=cache))
        written = sorted(os.listdir(cache.directory))
        assert [name.rpartition(".")[2] for name in written] == [KIND, "headers1"]
        assert written[0].startswith("12" * 20)
        with monkeypatch.context() as patch:
            patch.setattr(SymbolTable, "__init__", lambda *_: pytest.fail("it was read anew"))
            again = load_elf_symbols(str(path), Search(cache=cache))
        assert again.build_id == first.build_id
        every = range(len(first.symbols))
        assert [*map(again.symbols.name, every)] == [*map(first.symbols.name, every)]
        addresses = np.arange(0x0FF0, 0x1400, dtype=np.uint64)
        assert np.array_equal(again.symbols.lookup(addresses), first.symbols.lookup(addresses))
        path.write_bytes(ElfBuilder([Sym("other", 0x1000, 8)], build_id=b"\x12" * 20).build())
        assert load_elf_symbols(str(path), Search(cache=cache)).symbols.name(0) == "other"

    def test_columns_that_are_no_table_are_refused(self) -> None:
        good: Columns = {
            "start": np.zeros(1, np.uint64), "end": np.zeros(1, np.uint64), "reach": np.zeros(1, np.int32),
            "name": np.zeros(1, np.uint32), "strings": np.zeros(1, np.uint8),
        }  # fmt: skip
        assert SymbolTable.from_columns(good) is not None
        for name in ("start", "end", "reach", "name"):
            assert SymbolTable.from_columns({**good, name: np.zeros(2, good[name].dtype)}) is None
            assert SymbolTable.from_columns({**good, name: np.zeros(1, np.int8)}) is None
            assert SymbolTable.from_columns({key: good[key] for key in good if key != name}) is None


def test_names_tell_the_kind_and_all_that_counts() -> None:
    parts = [("symbols", b"\x12", 1), ("symbols", b"\x12", 2), ("symbols", b"\x13", 1), ("lines", b"\x12", 1)]
    names = [cache_name(*part) for part in parts]
    assert len(set(names)) == 4
    assert [name.rpartition(".")[2] for name in names] == [kind for kind, *_ in parts]


def test_columns_that_were_read_are_kept_up_to_a_number_of_bytes(tmp_path: Path) -> None:
    cache = KeptCache(str(tmp_path / "cache"))
    cache.kept_bytes, cache.small_bytes = 40_000, 10_000
    for number in range(6):
        cache.write(f"n{number}", {"column": np.full(1_000, number)})
    for number in range(6):
        assert cache.read(f"n{number}") is not None
    cache.write("large", {"column": np.zeros(10_000, np.int64)})
    assert cache.read("large") is not None
    for name in (*(f"n{number}" for number in range(6)), "large"):
        DiskCache(cache.directory).remove(name)
    kept = [number for number in range(6) if cache.read(f"n{number}") is not None]
    assert kept == [1, 2, 3, 4, 5] and cache.read("large") is None
    columns = cache.read("n5")
    assert columns is not None and columns["column"].tolist() == [5] * 1_000


def test_kept_columns_are_those_written_last(tmp_path: Path) -> None:
    cache = KeptCache(str(tmp_path / "cache"))
    for value in (1, 2):
        cache.write("name", {"column": np.full(3, value)})
        columns = cache.read("name")
        assert columns is not None and columns["column"].tolist() == [value] * 3
    cache.remove("name")
    assert cache.read("name") is None
