# SPDX-License-Identifier: Apache-2.0
"""Compiled programs: numbers in them that stand for others, and on disk, where not all is believed."""

import dataclasses
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from perf_offcpu.cache import DiskCache
from perf_offcpu.collect.bpf import object as bpf_object
from perf_offcpu.collect.bpf.cache import ProgramCache, Recipe
from perf_offcpu.collect.bpf.object import KERNEL_FUNCTION, LATE_VALUE, BpfObject, MapShape, with_late_values


def load_map(row: int) -> bytes:
    """r1 = map ll"""
    return struct.pack("=BBhiq", 0x18, 0x11, 0, row, 0)


EXIT = struct.pack("=BBhi", 0x95, 0, 0, 0)
MADE = BpfObject(
    {"one": load_map(1) + EXIT, "two": load_map(0) + load_map(1) + EXIT, "none": EXIT},
    (MapShape("tasks", 29, 4, 1240, 0, 1, 1, 2), MapShape("events", 4, 4, 4, 2, 0, 0, 0)),
    b"types",
)


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    source = tmp_path / "bpf" / "program.bpf.c"
    (source.parent / "include" / "linux").mkdir(parents=True)
    source.write_text("int a;")
    source.with_name("part.h").write_text("int b;")
    (source.parent / "include" / "linux" / "types.h").write_text("int c;")
    return Recipe(source, {"TASK_PID": 8}, {"LIMIT": 1}, ("one", "two"), ("events",))


@pytest.fixture
def files(tmp_path: Path) -> DiskCache:
    return DiskCache(str(tmp_path / "cache"))


def only_file(files: DiskCache) -> Path:
    (name,) = os.listdir(files.directory)
    return Path(files.directory, name)


def test_what_is_kept_comes_back(recipe: Recipe, files: DiskCache) -> None:
    cache = ProgramCache(files)
    assert cache.read(recipe) is None
    cache.write(recipe, MADE, "bcc 1")
    assert (kept := cache.read(recipe)) and (kept.programs, kept.compiler) == (MADE, "bcc 1")
    assert cache.count(recipe) == 1
    cache.remove(recipe)
    assert cache.read(recipe) is None and cache.count(recipe) == 0


def test_all_that_the_instructions_follow_from_makes_another_name(recipe: Recipe) -> None:
    names = {recipe.name()}
    for change in (
        {"kernel": {"TASK_PID": 16}}, {"options": {"LIMIT": 2}}, {"options": {"LIMIT": "1"}},
        {"functions": ("one",)}, {"maps": ("tasks",)},
    ):  # fmt: skip
        names.add(dataclasses.replace(recipe, **change).name())
    for part in ("program.bpf.c", "part.h", "include/linux/types.h"):
        path = recipe.source.parent / part
        path.write_text(path.read_text() + " ")
        names.add(recipe.name())
    (recipe.source.parent / "include" / "new.h").touch()
    names.add(recipe.name())
    assert len(names) == 10
    other = dataclasses.replace(recipe, options={"LIMIT": 7})
    assert other.kernel_key() == recipe.kernel_key() and other.name() != recipe.name()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


HARMS: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: os.truncate(path, path.stat().st_size - 8), "flip": flip,
    "empty": lambda path: path.write_bytes(b""), "give away": lambda path: os.chown(path, 65534, 65534),
    "let others write": lambda path: path.chmod(0o602),
    "replace by link": lambda path: path.rename(path.with_name("elsewhere")) and path.symlink_to("elsewhere"),
    "name twice": lambda path: path.with_name("other").hardlink_to(path),
}  # fmt: skip


@pytest.mark.kernel
@pytest.mark.parametrize("harm", HARMS)
def test_what_is_damaged_or_not_ours_alone_is_written_anew(recipe: Recipe, files: DiskCache, harm: str) -> None:
    cache = ProgramCache(files)
    cache.write(recipe, MADE, "bcc 1")
    HARMS[harm](only_file(files))
    assert cache.read(recipe) is None
    cache.write(recipe, MADE, "bcc 2")
    assert (again := cache.read(recipe)) and again.compiler == "bcc 2"


@pytest.mark.parametrize("lie", [
    {"functions": {**MADE.functions, "one": load_map(2) + EXIT}},  # no such map
    {"functions": {**MADE.functions, "one": load_map(-1) + EXIT}},
    {"functions": {**MADE.functions, "one": EXIT + b"\0"}},  # no whole instruction
    {"functions": {"one": EXIT}},  # not all that is wanted
    {"maps": (MADE.maps[0], dataclasses.replace(MADE.maps[1], name="even"))},
])  # fmt: skip
def test_parts_that_do_not_go_together_are_refused(recipe: Recipe, files: DiskCache, lie: dict[str, object]) -> None:
    cache = ProgramCache(files)
    cache.write(recipe, dataclasses.replace(MADE, **lie), "bcc 1")  # type: ignore[arg-type]
    assert only_file(files).exists() and cache.read(recipe) is None


class TestPlace:
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))
        monkeypatch.delenv("PERF_OFFCPU_CACHE_BYTES", raising=False)
        (tmp_path / "home").mkdir()
        return tmp_path / "home"

    def test_a_home_of_ones_own(self, place: Path, recipe: Recipe) -> None:
        assert self.keeps(recipe)
        (path,) = (place / "cache" / "perf-offcpu" / "programs").iterdir()
        assert [one.stat().st_mode & 0o777 for one in (path, *list(path.parents)[:3])] == [0o600, 0o700, 0o700, 0o700]

    @pytest.mark.kernel
    def test_the_home_of_somebody_else(self, place: Path, recipe: Recipe) -> None:
        os.chown(place, 65534, 65534)
        assert not self.keeps(recipe) and list(place.iterdir()) == []

    def test_a_home_that_others_may_change(self, place: Path, recipe: Recipe) -> None:
        place.chmod(0o777)
        assert not self.keeps(recipe) and list(place.iterdir()) == []
        place.chmod(0o1777)
        assert self.keeps(recipe)

    @pytest.mark.kernel
    def test_a_link_to_a_place_of_somebody_else(self, place: Path, tmp_path: Path, recipe: Recipe) -> None:
        (tmp_path / "theirs").mkdir()
        os.chown(tmp_path / "theirs", 65534, 65534)
        (place / "cache").symlink_to(tmp_path / "theirs")
        assert not self.keeps(recipe) and list((tmp_path / "theirs").iterdir()) == []

    def keeps(self, recipe: Recipe) -> bool:
        assert (cache := ProgramCache.usual())
        cache.write(recipe, MADE, "bcc")
        return bool(cache.read(recipe)) and cache.count(recipe) == 1

    def test_no_place_to_write_is_no_error(self, recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
        assert not self.keeps(recipe)
        monkeypatch.setenv("PERF_OFFCPU_CACHE_BYTES", "0")
        assert ProgramCache.usual() is None, "switched off"


CALL, LOAD_64 = 0x85, 0x18


def instruction(code: int, source: int, imm: int) -> bytes:
    return struct.pack("=BBhi", code, source << 4 if sys.byteorder == "little" else source, 0, imm)


def test_only_marked_calls_become_calls_of_kernel_functions() -> None:
    helper, constant = instruction(CALL, 0, 5), instruction(LOAD_64, 0, KERNEL_FUNCTION + 7)
    local = instruction(CALL, 1, -1)
    code = helper + instruction(CALL, 0, KERNEL_FUNCTION + 1234) + constant + bytes(8) + local
    assert bpf_object.with_kernel_functions(code) == helper + instruction(CALL, 2, 1234) + constant + bytes(8) + local


def load_64(number: int) -> bytes:
    return instruction(LOAD_64, 0, number & 0x7FFFFFFF) + instruction(0, 0, number >> 32)


def test_late_values_replace_only_the_numbers_that_stand_for_them() -> None:
    address = 0xFFFF_FFFF_8123_4567
    unknown, half = load_64(LATE_VALUE + 2), instruction(LOAD_64, 0, 1) + bytes(8)
    code = load_64(LATE_VALUE) + unknown + half + load_64(LATE_VALUE + 1)
    high, low = address >> 32, address & 0xFFFFFFFF
    written = struct.pack("=iIiI", LOAD_64, low, 0, high)
    assert with_late_values(code, [5, address]) == load_64(5) + unknown + half + written
    assert with_late_values(b"", [5]) == b""
