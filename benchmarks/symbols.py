# SPDX-License-Identifier: Apache-2.0
"""Measure loading, looking up and demangling symbols:  python benchmarks/symbols.py [ELF FILE…]

Without files: a synthetic one with 500 000 functions, and this Python's C library. Each figure is the best of
several runs; memory is that of a new process beyond its start, per byte of the tables.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from builders.elf import STRTAB, SYMTAB, ElfBuilder, Load, Sec  # noqa: E402

from perf_offcpu.cache import DiskCache  # noqa: E402
from perf_offcpu.model.columns import Strings  # noqa: E402
from perf_offcpu.objects.functions import ElfFile, file_offset_to_vaddr, load_elf_symbols  # noqa: E402
from perf_offcpu.objects.search import Search  # noqa: E402
from perf_offcpu.symbolize.demangle import demangle  # noqa: E402
from perf_offcpu.symbolize.frames import symbols_and_offsets  # noqa: E402
from perf_offcpu.symbolize.kernel.kallsyms import load_kallsyms, parse_kallsyms  # noqa: E402

MADE_SYMBOLS = 500_000
LOOKUPS = 1_000_000
KALLSYMS_LINES = 200_000
KALLSYMS = ROOT / "tests" / "data" / "perf-7.2" / "kallsyms.gz"
COMPARED = 20_000
_PEAK = """
import sys
from perf_offcpu.objects import functions as elf

def kilobytes(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key))

before = kilobytes("VmRSS:")
elf.load_elf_symbols(sys.argv[1])
print((kilobytes("VmHWM:") - before) * 1024)
"""


def best(work: Callable[[], Any], runs: int = 5) -> tuple[float, Any]:
    """Return seconds of the fastest run, and its result."""
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - started)
    return min(times), result


def show(what: str, value: str, rate: str = "") -> None:
    """Print one line of the report."""
    print(f"  {what:<44} {value:>12}  {rate}")


def make_file(path: Path) -> None:
    """Make a program of 500 000 C++ functions, one in ten an alias, unsorted as linkers write them."""
    draw = random.Random(1)
    starts = [0x1000 + 32 * (row - row % 10 // 9) for row in range(MADE_SYMBOLS)]
    draw.shuffle(starts)
    strings, symbols = bytearray(b"\0"), bytearray(24)
    for row, start in enumerate(starts):
        symbols += struct.pack("<IBBHQQ", len(strings), 0x12, 0, 1, start, 32)
        strings += f"_ZN9component{row % 997:03}7Service{row:06}6handleERKSt6vectorIiSaIiEE\0".encode()
    size = 32 * MADE_SYMBOLS
    sections = [
        Sec(".text", addr=0x1000, size=size, data=b""),
        Sec(".symtab", data=bytes(symbols), type=SYMTAB, flags=0, link=3, entsize=24),
        Sec(".strtab", data=bytes(strings), type=STRTAB, flags=0),
    ]
    path.write_bytes(ElfBuilder(sections=sections, loads=[Load(0x1000, 0x1000, size)]).build())


def measure_file(path: str) -> list[str]:
    """Measure loading and lookup; return the names for the demangler."""
    seconds, elf = best(lambda: load_elf_symbols(path))
    count = len(elf.symbols)
    print(f"{path}: {count} functions")
    show("load", f"{seconds * 1e3:.1f} ms", f"{count / seconds / 1e6:.2f} M functions/s")
    peak = subprocess.run([sys.executable, "-c", _PEAK, path], cwd=ROOT, check=True, capture_output=True, text=True)
    measure_cached(path)
    tables = table_bytes(path)
    show("peak memory", f"{int(peak.stdout) / 2**20:.1f} MB", f"{int(peak.stdout) / tables:.1f} x the tables' bytes")
    low, high = int(elf.symbols.start[0]), int(elf.symbols.end.max())
    addresses = np.random.default_rng(1).integers(low, high, LOOKUPS, np.uint64)
    seconds, rows = best(lambda: elf.symbols.lookup(addresses))
    show(f"look up {LOOKUPS} random addresses", f"{seconds * 1e3:.1f} ms", f"{LOOKUPS / seconds / 1e6:.1f} M/s")
    in_order = np.sort(addresses)
    seconds, _ = best(lambda: elf.symbols.lookup(in_order))
    show("the same, sorted", f"{seconds * 1e3:.1f} ms", f"{LOOKUPS / seconds / 1e6:.1f} M/s")
    measure_names(elf)
    hit = np.unique(rows[rows >= 0]).tolist()
    seconds, names = best(lambda: [*map(elf.symbols.name, hit)])
    show(f"decode {len(hit)} names", f"{seconds * 1e3:.1f} ms", f"{len(hit) / seconds / 1e6:.2f} M/s")
    return list(names)


def measure_cached(path: str) -> None:
    """Measure loading the table from the disk cache, which holds no small ones."""
    with tempfile.TemporaryDirectory() as directory:
        cache = DiskCache(directory)
        load_elf_symbols(path, Search(cache=cache))
        if os.listdir(directory):
            seconds, elf = best(lambda: load_elf_symbols(path, Search(cache=cache)))
            show("load, kept on disk", f"{seconds * 1e3:.1f} ms", f"{len(elf.symbols)} functions")


def measure_names(elf: ElfFile) -> None:
    """Measure a million different addresses to interned names, as symbolization does."""
    low, high = int(elf.symbols.start[0]), int(elf.symbols.end.max())
    addresses = np.unique(np.random.default_rng(2).integers(low, high, LOOKUPS * 11 // 10, np.uint64))[:LOOKUPS]

    def work() -> int:
        places = file_offset_to_vaddr(elf.loads, addresses)
        return len(symbols_and_offsets(elf.symbols, elf.symbols.lookup(places), places, Strings())[0])

    seconds, count = best(work, runs=3)
    show(f"name {count} different addresses", f"{seconds * 1e3:.0f} ms", f"{count / seconds / 1e6:.1f} M/s")


def table_bytes(path: str) -> int:
    """Return the bytes of the symbol and string tables of a file."""
    out = subprocess.run(["readelf", "-SW", path], check=True, capture_output=True, text=True).stdout
    wanted = (".symtab", ".strtab", ".dynsym", ".dynstr")
    fields = [line.replace("[ ", "[").split() for line in out.splitlines()]
    return sum(int(field[5], 16) for field in fields if len(field) > 5 and field[1] in wanted) or 1


def measure_pyelftools(path: str) -> None:
    """Measure pyelftools' own reader on a part of the table, for comparison."""
    from elftools.elf.elffile import ELFFile

    def read() -> list[str]:
        with open(path, "rb") as file:
            table = ELFFile(file).get_section_by_name(".symtab")
            return [table.get_symbol(row).name for row in range(COMPARED)]

    seconds, _ = best(read, runs=1)
    what = f"for comparison: {COMPARED} symbols by pyelftools"
    show(what, f"{seconds * 1e3:.0f} ms", f"{COMPARED / seconds / 1e6:.3f} M/s")


def measure_kallsyms() -> None:
    """Measure a text of 200 000 lines, from that of tests/data, and this kernel's own."""
    lines = gzip.decompress(KALLSYMS.read_bytes()).splitlines(keepends=True)
    text = b"".join((lines + lines[: KALLSYMS_LINES - len(lines)])[:KALLSYMS_LINES])
    seconds, kallsyms = best(lambda: parse_kallsyms(text))
    print(f"kallsyms: {KALLSYMS_LINES} lines, {len(kallsyms.symbols)} functions")
    show("parse", f"{seconds * 1e3:.1f} ms", f"{KALLSYMS_LINES / seconds / 1e6:.2f} M lines/s")
    seconds, kallsyms = best(load_kallsyms)
    show("/proc/kallsyms, read and parsed", f"{seconds * 1e3:.1f} ms", f"{len(kallsyms.symbols)} functions")


def measure_demangler(names: list[str]) -> None:
    """Measure demangling all names of a file."""
    if demangle(["_Z1fv"]) == ["_Z1fv"]:
        print("demangling: multi-demangle is not installed")
        return
    seconds, _ = best(lambda: demangle(names), runs=3)
    print(f"demangling: {len(names)} names")
    show("demangle", f"{seconds * 1e3:.1f} ms", f"{len(names) / seconds / 1e6:.2f} M/s")


def c_library() -> str:
    """Return the C library of this process."""
    maps = Path("/proc/self/maps").read_text().split()
    return next(word for word in maps if os.path.basename(word).startswith(("libc.so", "libc-2", "ld-musl")))


def main() -> None:
    """Measure the named files, or the default ones."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", help="ELF files to measure instead of the default ones")
    args = parser.parse_args()
    if args.files:
        for path in args.files:
            measure_demangler(measure_file(path))
        return
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory) / "made"
        make_file(made)
        names = measure_file(str(made))
        measure_pyelftools(str(made))
    measure_file(c_library())
    measure_kallsyms()
    measure_demangler(names)


if __name__ == "__main__":
    main()
