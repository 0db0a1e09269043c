# SPDX-License-Identifier: Apache-2.0
"""Names as perf spells them, and nothing that a hostile name can do."""

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from builders.examples import examples

from perf_offcpu.objects.functions import file_offset_to_vaddr, load_elf_symbols
from perf_offcpu.objects.symtab import SymbolTable
from perf_offcpu.symbolize.demangle import as_perf, demangle
from perf_offcpu.symbolize.kernel.kallsyms import load_kallsyms

MANGLED = {name: shown for name, shown in examples("unit/symbolize/mangled.txt", "names")}
MANGLED |= {name: name for name in ("", "\udcff_Z", "_Z1f\udcff")}


def test_names_are_spelled_as_perf_spells_them() -> None:
    assert dict(zip(MANGLED, demangle(list(MANGLED)), strict=True)) == MANGLED
    for name in ("foo::operator&", "foo::operator&&"):
        assert as_perf(name) == name
    assert as_perf("foo::bar &&") == "foo::bar"


def test_the_cxx_librarys_functions_are_spelled_as_gnu_spells_them() -> None:
    """GNU's demangler with perf's options, on all of libstdc++; exceptions are those the module names."""
    names = sorted(cxx_functions())
    out = subprocess.run(
        ["c++filt", "--no-params", "--no-verbose"], input="\n".join(names), check=True, timeout=60,
        capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    excepted = ("_ZThn", "_ZTv", "_ZGTt", "_ZNSs", "_ZNKSs", "_ZNSi", "_ZNKSi", "_ZNSo", "_ZNSd")
    pairs = zip(names, demangle(names), out, strict=True)
    other = [name for name, ours, gnus in pairs if ours != gnus and not name.startswith(excepted)]
    assert len(names) > 3000
    assert len(other) <= 0.01 * len(names), other[:20]


def cxx_functions() -> set[str]:
    """The mangled functions that libstdc++ exports."""
    path = subprocess.run(
        ["gcc", "-print-file-name=libstdc++.so.6"], check=True, timeout=20, capture_output=True, text=True
    ).stdout.strip()
    command = ["nm", "-D", "--defined-only", path]
    lines = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True).stdout.splitlines()
    fields = [line.split() for line in lines]
    return {name.split("@")[0] for _, kind, name in fields if kind in "TtWw" and name.startswith("_Z")}


def mutated(names: list[str], count: int, seed: int) -> list[str]:
    """Names with bits exchanged, repeated, cut out and cut off."""
    draw, letters, made = random.Random(seed), "SITNKRVPOEFAXLZJDCBMUGTWw_$.0123456789abcgsxvijm", []
    for _ in range(count):
        text = draw.choice(names)
        for _ in range(draw.choice((1, 1, 2, 4, 8))):
            at, length = draw.randrange(2, len(text) + 2), draw.randrange(20)
            piece = draw.choice((draw.choice(letters), text[at : at + length], draw.choice(names)[:length]))
            text = text[:at] + piece * draw.choice((0, 1, 2, 9)) + text[at + draw.choice((0, 1, length)) :]
        made.append(text[:3000])
    return made


def test_mutated_names_do_no_harm() -> None:
    names = [name for name in MANGLED if len(name) > 8 and name.startswith(("_Z", "_R"))]
    hostile = mutated(names + sorted(cxx_functions())[::20], 20_000, seed=3)
    started, result = time.monotonic(), demangle(hostile)
    assert time.monotonic() - started < 20
    assert len(result) == len(hostile)
    assert sum(map(len, result)) < 100 * sum(map(len, hostile))


@pytest.mark.parametrize("name", [
    "_Z1f" + "P" * 60_000 + "i", "_ZN" + "1a" * 30_000 + "Ev", "_Z" + "1fI" * 15_000 + "i" + "E" * 15_000 + "v",
    "_Z1f" + "F" * 30_000 + "i" + "E" * 30_000, "_Z60000" + "a" * 60_000 + "v", "_Z99999999999999999999a",
    "_Z1fI" + "St4pairIiiE" + "".join(f"S_IS{i}_S{i}_E" for i in range(10)) + "Evv",
    "_Z1f" + "St4pairIiiE" + "".join(f"S_IS{i}_S{i}_E" for i in range(10)), "_R" + "Nv" * 30_000 + "C1a1b", "_RIB_E",
    "_Z" + "x" * 1_000_000,
])  # fmt: skip
def test_names_built_to_nest_or_explode_do_no_harm(name: str) -> None:
    """In a process of its own, with little memory: other demanglers die of these."""
    assert limited("AS", 1 << 30, "len(demangle([sys.stdin.read(), '_ZN3foo3barEi'])[1])", name) == "8\n"


def limited(resource: str, limit: int, shown: str, given: str = "") -> str:
    """Return what a process with a limit prints of an expression."""
    program = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_{resource}, ({limit}, {limit}))\n"
        f"from perf_offcpu.symbolize.demangle import demangle\nprint({shown})\n"
    )
    command, root = [sys.executable, "-c", program], Path(__file__).resolve().parents[3]
    done = subprocess.run(command, input=given, cwd=root, timeout=30, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


SLOW = "_ZNKSt4hashIRKSbIwSt11char" + "St4hashIRKSbIwSt11char" * 11  # some 10 s, and a gigabyte


def test_a_name_that_takes_too_long_is_left_and_the_rest_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perf_offcpu.symbolize.demangle.PATIENCE_S", 0.6)
    started = time.monotonic()
    names = ["_ZN3foo3barEi"] * 256 + [SLOW, "_ZN3foo3barEi"]
    assert demangle(names) == ["foo::bar"] * 256 + names[256:]
    assert time.monotonic() - started < 8  # the name alone takes more


def test_a_name_that_takes_too_long_is_not_worked_on_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that a thread took after its time was over once ended the whole program."""
    before, threads = set(children()), set(threading.enumerate())
    monkeypatch.setattr("perf_offcpu.symbolize.demangle.PATIENCE_S", 0.3)
    assert demangle([SLOW]) == [SLOW]
    assert set(children()) == before
    assert set(threading.enumerate()) <= threads


def test_names_around_one_that_kills_the_library_are_demangled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library whose every name of `abort` is deadly stands for the next bug in the real one."""
    package = tmp_path / "multi_demangle"
    package.mkdir()
    (package / "__init__.py").write_text(DEADLY)
    monkeypatch.syspath_prepend(tmp_path)
    names = ["_Z1av", "_Zabort", "_Zlong", "_Zpanic", "_Znul", "_Zabort", "_Z1bv"]
    assert demangle(names) == ["done", "_Zabort", "_Zlong", "_Zpanic", "nul", "_Zabort", "done"]
    assert demangle(["_Zabort"] * 20 + ["_Z1av"])[-1] == "_Z1av"


DEADLY = """
import os
class DemangleOptions:
    def __init__(self, **options): pass
def demangle_symbols(names, options):
    if names == ["_Zabort"]:
        os.abort()
    if names == ["_Zpanic"]:
        raise BaseException
    return [{"_Znul": "n\\0ul", "_Zlong": "x" * 1_000_000}.get(names[0], "done")]
"""


def children() -> list[str]:
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()


"""With 64 KB Python 3.14 does not start."""


@pytest.mark.parametrize("stack", [(64 if sys.version_info < (3, 14) else 128) << 10, 256 << 10])
def test_little_stack_does_no_harm(stack: int) -> None:
    """`ulimit -s` of services; deep names need more than that."""
    names = ["_ZN3foo3barEi", "_Z1f" + "F" * 90 + "i" + "E" * 90, "_ZN3foo3barEi"]
    assert limited("STACK", stack, f"demangle({names})[::2]") == "['foo::bar', 'foo::bar']\n"


def test_without_the_library_names_stay_mangled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "multi_demangle", None)  # as if it were not installed
    assert demangle(["main", "_ZN3foo3barEi"]) == ["main", "_ZN3foo3barEi"]


DATA = Path(__file__).resolve().parents[2] / "data" / "perf-7.2"
BUILD_ID = "bd4ecdf6f09f8b8f43fe323ca8c80bd337706cc5"


@cache
def answers() -> list[list[str]]:
    """Rows of names.txt: recording, address, symbol+offset, object; map, recording, start, pgoff, object."""
    return [line.split() for line in (DATA / "names.txt").read_text().splitlines() if not line.startswith("#")]


def perfs_names(dso: str) -> Iterator[tuple[str, int, str]]:
    """Recording, address and symbol+offset of all answers for an object."""
    for row in answers():
        if row[0] != "map" and row[3] == dso:
            yield row[0], int(row[1], 16), row[2]


def named(table: SymbolTable, addresses: np.ndarray) -> list[str]:
    rows = table.lookup(addresses).tolist()
    assert min(rows) >= 0
    return [
        f"{table.name(row)}+{at - int(table.start[row]):#x}" for row, at in zip(rows, addresses.tolist(), strict=True)
    ]


def test_kernel_addresses_have_perfs_names_and_offsets() -> None:
    kallsyms = load_kallsyms(str(DATA / "kallsyms.gz"))
    _, addresses, expected = zip(*perfs_names("[kernel.kallsyms]"), strict=True)
    assert len(expected) > 1000
    assert named(kallsyms.symbols, np.array(addresses, np.uint64)) == list(expected)


def test_the_programs_addresses_have_perfs_names_and_offsets() -> None:
    """Through each recording's map: PIE, loaded at another place each time. PLT stubs are among them."""
    elf = load_elf_symbols(str(DATA / "blocker"))
    maps = {row[1]: (int(row[2], 16), int(row[3], 16)) for row in answers() if row[0] == "map"}
    asked = list(perfs_names("/root/blocker"))
    offsets = np.array([at - maps[name][0] + maps[name][1] for name, at, _ in asked], np.uint64)
    assert len(asked) > 100
    assert sum("@plt" in answer for _, _, answer in asked) == 3
    assert named(elf.symbols, file_offset_to_vaddr(elf.loads, offsets)) == [answer for _, _, answer in asked]
    assert elf.build_id.hex() == BUILD_ID
