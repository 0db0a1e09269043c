# SPDX-License-Identifier: Apache-2.0
"""Programs that were compiled earlier, on the running kernel: the same ones, without a compiler."""

import dataclasses
import errno
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from builders.loaded_programs import program_ids

from perf_offcpu.cache import DiskCache
from perf_offcpu.collect.bpf import cache as bpf_cache
from perf_offcpu.collect.bpf import compile as bpf_compile
from perf_offcpu.collect.bpf import defines as bpf_defines
from perf_offcpu.collect.bpf import program as bpf
from perf_offcpu.collect.bpf import syscall as bpf_syscall
from perf_offcpu.collect.bpf.attr import MapInfo, MapType, ProgramInfo, ProgramType
from perf_offcpu.collect.bpf.cache import ProgramCache, Recipe
from perf_offcpu.collect.bpf.config import OffCpuConfig, Targets
from perf_offcpu.collect.bpf.defines import SWITCHED
from perf_offcpu.collect.bpf.object import BpfObject, describe, linked
from perf_offcpu.collect.bpf.program import OffCpuProgram
from perf_offcpu.collect.events import perf_event

pytestmark = pytest.mark.beside

REFUSED = bytes.fromhex("9500000000000000")  # exit without a result
SMALL = OffCpuConfig(objects=False, budget=False)  # takes half of the time to compile


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "perf-offcpu" / "programs"


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """The recipe of a program that follows a command and records all it can."""
    return recipe_of(OffCpuConfig(targets=Targets.COMMAND, waker_stacks=True, by_comm=True), monkeypatch)


def recipe_of(config: OffCpuConfig, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    seen: list[Recipe] = []

    class Enough(Exception):
        pass

    def note(recipe: Recipe, *_: object) -> None:
        seen.append(recipe)
        raise Enough

    with monkeypatch.context() as patch, pytest.raises(Enough):
        patch.setattr(bpf, "build", note)
        OffCpuProgram(config)
    return seen[0]


def parts(recipe: Recipe, cache: ProgramCache | None) -> tuple[Any, Any]:
    """Return instructions, maps by row instead of descriptor, and the kernel's facts on the maps by name."""
    seen: list[Any] = []

    def load(functions: Mapping[str, bytes], maps: Mapping[str, int]) -> None:
        made = describe(functions, maps)
        infos = {name: bpf_syscall.read_info(fd, MapInfo()) for name, fd in maps.items() if name in recipe.maps}
        seen.append((made, {name: told(info) for name, info in infos.items()}))

    bpf_cache.build(recipe, load, cache)
    made, infos = seen[0]
    rows = {shape.name: shape for shape in made.maps}
    loads = {name: [made.maps[row].name for row in bpf_object_rows(code)] for name, code in made.functions.items()}
    code = {name: without_rows(code) for name, code in made.functions.items()}
    return (code, loads, rows, made.btf), infos


def told(info: Any) -> dict[str, Any]:
    names = {name for name, *_ in info._fields_} - {"id", "btf_id"}
    return {name: getattr(info, name) for name in names}


def slots(code: bytes) -> list[int]:
    return [at for at in range(0, len(code), 8) if code[at] == 0x18 and code[at + 1] >> 4 == 1]


def bpf_object_rows(code: bytes) -> list[int]:
    return [int.from_bytes(code[at + 4 : at + 8], sys.byteorder) for at in slots(code)]


def without_rows(code: bytes) -> bytes:
    cleared = bytearray(code)
    for at in slots(code):
        cleared[at + 4 : at + 8] = bytes(4)
    return bytes(cleared)


@pytest.mark.long
def test_kept_programs_and_maps_are_the_compiled(place: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ProgramCache.usual()
    compiled = parts(recipe, cache)
    assert len(list(place.iterdir())) == 1
    monkeypatch.setattr(bpf_cache, "compiled", lambda *_: pytest.fail("compiled again"))
    assert parts(recipe, cache) == compiled
    assert cache and (kept := cache.read(recipe))
    of_one_cpu = [
        dataclasses.replace(shape, max_entries=1) if shape.map_type == MapType.PERF_EVENT_ARRAY else shape
        for shape in kept.programs.maps
    ]
    cache.write(recipe, dataclasses.replace(kept.programs, maps=tuple(of_one_cpu)), kept.compiler)
    assert parts(recipe, cache) == compiled
    (_, loads, shapes, btf), infos = compiled
    assert {"tasks", "events"} <= {name for names in loads.values() for name in names} <= shapes.keys()
    assert btf and infos["targets"]["btf_value_type_id"]


def start(preparation: str = "", *container: str) -> str:
    """Create a program in a new process; return the outcome, and whether the compiler was loaded.

    Args:
        container: a command in which the process runs.
    """
    script = f"""
        import sys
        {preparation}
        from perf_offcpu.collect.bpf.config import OffCpuConfig
        from perf_offcpu.collect.bpf.program import OffCpuProgram
        try:
            OffCpuProgram(OffCpuConfig(objects=False, budget=False)).close()
            print("compiled" if "libbcc" in open("/proc/self/maps").read() else "kept")
        except Exception as error:
            print(f"{{type(error).__name__}}: {{error}}")
    """
    command = [*container, sys.executable, "-c", textwrap.dedent(script)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


NO_BCC = "sys.modules['bcc'] = None"
OTHER_BOOT = f"""
        import re
        from perf_offcpu.collect.bpf import defines
        from perf_offcpu.collect.bpf.kernel import facts
        moved = lambda line: b"%016x" % (int(line[0], 16) + 0x2000000)
        read = facts.read_kernel_if_any
        symbols = re.sub(rb"(?m)^[0-9a-f]+", moved, read(str(facts.KALLSYMS)))
        facts.read_kernel_if_any = lambda path: symbols if path == str(facts.KALLSYMS) else read(path)
        address = defines.text_address()
        defines.text_address = lambda: address + 0x2000000
        {NO_BCC}
"""
"""The kernel is elsewhere, as where addresses are chosen at random (KASLR)."""


def test_the_second_start_needs_no_compiler(place: Path, tmp_path: Path) -> None:
    (tmp_path / "bcc.py").touch()
    other_package = f"sys.path.insert(0, {str(tmp_path)!r})"
    assert start(NO_BCC).startswith("CapabilityError") and not place.exists()
    assert start() == "compiled"
    assert start() == "kept"
    assert start(NO_BCC) == start(OTHER_BOOT) == "kept"
    assert start(NO_BCC, "unshare", "--pid", "--fork", "--mount-proc") == "kept"
    (facts,) = (place.parent / "kernels").iterdir()
    known = facts.read_bytes()
    facts.unlink()
    assert start(OTHER_BOOT) == "kept" and facts.read_bytes() == known
    os.truncate(facts, len(known) - 8)
    assert start(NO_BCC) == "kept" and facts.read_bytes() == known
    assert start(other_package) == "kept"  # the other bcc was asked first, in vain


MADE: dict[str, BpfObject] = {}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Compile each recipe once for all tests that use this; the list has the name of each recipe compiled since."""
    names: list[str] = []

    @contextmanager
    def once(*arguments: Any) -> Iterator[tuple[dict[str, bytes], dict[str, int]]]:
        names.append(name := Recipe(arguments[0], {}, *arguments[1:]).name())
        if name not in MADE:
            with bpf_compile.compiled(*arguments) as made:
                MADE[name] = describe(*made)
        with linked(MADE[name]) as made:
            yield made

    monkeypatch.setattr(bpf_cache, "compiled", once)
    return names


@pytest.mark.long
def test_ways_to_do_without(place: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PERF_OFFCPU_CACHE_BYTES", "0")
    OffCpuProgram(SMALL).close()
    assert len(compiled) == 1 and not place.exists()
    monkeypatch.delenv("PERF_OFFCPU_CACHE_BYTES")
    OffCpuProgram(SMALL).close()
    assert len(compiled) == 2 and len(list(place.iterdir())) == 1
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(tmp_path))
    OffCpuProgram(SMALL).close()
    assert len(compiled) == 3 and len(list(place.iterdir())) == 1


def keep(recipe: Recipe, cache: ProgramCache, compiler: str, **changes: Any) -> None:
    """Keep what a recipe makes, changed."""
    with bpf_cache.compiled(recipe.source, recipe.defines, recipe.functions, recipe.maps) as made:
        cache.write(recipe, dataclasses.replace(describe(*made), **changes), compiler)


@pytest.mark.parametrize("what", ["program", "types", "compiler"])
def test_what_the_kernel_refuses_or_another_compiler_made_is_compiled_anew(
    place: Path, compiled: list[str], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, cache = recipe_of(SMALL, monkeypatch), ProgramCache(DiskCache(str(place)))
    functions = dict.fromkeys(recipe.functions, REFUSED)
    changes = {"program": {"functions": functions}, "types": {"btf": b"no BTF"}, "compiler": {}}
    keep(recipe, cache, "another" if what == "compiler" else bpf_compile.compiler(), **changes[what])
    wrong = cache.read(recipe)
    before = len(os.listdir("/proc/self/fd")), program_ids()
    with OffCpuProgram(SMALL) as program:
        program.attach()
    right = cache.read(recipe)
    assert len(compiled) == 2 and wrong and right and wrong != right
    assert right.compiler == bpf_compile.compiler()
    assert REFUSED not in right.programs.functions.values()
    assert len(os.listdir("/proc/self/fd")) == before[0]


class StandIn:
    """A kprobe for kernels that have none: it takes a program as long as it is open."""

    def __init__(self, function: str) -> None:
        self.function = function

    def attach(self, program_fd: int) -> None:
        assert bpf_syscall.read_info(program_fd, ProgramInfo()).type == ProgramType.KPROBE
        if not self.function:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def detach(self) -> None:
        """Nothing was attached."""

    def close(self) -> None:
        self.function = ""


@pytest.mark.long
@pytest.mark.usefixtures("compiled")
def test_a_refused_program_leaves_the_kprobe_open_for_the_next(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels before 6.16, with copies of stacks: their form is built, and the running one refuses it."""
    monkeypatch.setattr(bpf_defines, "_ON_EXIT", {})
    if not perf_event.KPROBE_TYPE.exists():
        monkeypatch.setattr(bpf, "Kprobe", StandIn)
    config = dataclasses.replace(SMALL, in_sleeper=True, copy_bytes=8192)
    cache = ProgramCache(DiskCache(str(place)))
    recipe = recipe_of(config, monkeypatch)
    assert SWITCHED in recipe.functions
    keep(recipe, cache, bpf_compile.compiler(), functions=dict.fromkeys(recipe.functions, REFUSED))
    with OffCpuProgram(config) as program:
        program.attach()
        assert program.ends_at_exit
    kept = cache.read(recipe)
    assert kept and REFUSED not in kept.programs.functions.values()
