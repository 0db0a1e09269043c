# SPDX-License-Identifier: Apache-2.0
"""Measure source lines and inlined functions:  python benchmarks/source_lines.py [MEGABYTES]

A C++ unit with many templates is compiled once and linked repeatedly until the debug file has about that
size (default: 100 MB). Looks up 10 000 of its addresses, cold (the DWARF is read) and with the table on
disk; for comparison runs llvm-symbolizer and addr2line if they are installed, and `perf script` with and
without inlining on a stored recording. Figures are of one run, cached ones the best of several.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from perf_offcpu.cache import DiskCache  # noqa: E402
from perf_offcpu.objects.functions import load_elf_symbols  # noqa: E402
from perf_offcpu.objects.search import Search  # noqa: E402
from perf_offcpu.symbolize.lines.names import load_lines  # noqa: E402

ADDRESSES = 10_000
COMPARED = 1_000
UNIT = """
#include <algorithm>
#include <functional>
#include <map>
#include <regex>
#include <sstream>
#include <unordered_map>
#include <vector>
template <int N> struct Work {
    static std::string run(const std::vector<std::string> &words) {
        std::map<std::string, std::vector<int>> places; std::unordered_map<int, std::string> names;
        std::regex pattern("[a-z]+" + std::to_string(N));
        for (auto &word : words) if (std::regex_match(word, pattern)) places[word].push_back(N);
        std::vector<std::pair<std::string, std::vector<int>>> all(places.begin(), places.end());
        std::sort(all.begin(), all.end()); std::ostringstream out;
        for (auto &one : all) out << one.first << one.second.size() << names[N];
        return out.str() + Work<N - 1>::run(words);
    }
};
template <> struct Work<0> { static std::string run(const std::vector<std::string> &) { return ""; } };
extern "C" std::string entry(const std::vector<std::string> &words) { return Work<40>::run(words); }
"""


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return seconds, and the result."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def show(what: str, value: str, more: str = "") -> None:
    """Print one line of the report."""
    print(f"  {what:<52} {value:>12}  {more}")


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command that must succeed."""
    return subprocess.run(command, check=True, capture_output=True, text=True, **options)


def make(directory: Path, megabytes: int) -> Path:
    """Make a shared object with that much DWARF."""
    (directory / "unit.cc").write_text(UNIT)
    unit = directory / "unit.o"
    run("g++", "-O2", "-g", "-fPIC", "-c", directory / "unit.cc", "-o", unit)
    copies = max(1, round(megabytes * 2**20 / unit.stat().st_size * 2.6))
    names = [directory / f"u{copy}.o" for copy in range(copies)]
    for copy, name in enumerate(names):
        run("objcopy", f"--prefix-symbols=u{copy}_", unit, name)
    program = directory / "large.so"
    allowed = "-Wl,--unresolved-symbols=ignore-all"
    run("g++", "-shared", "-nostdlib", allowed, "-Wl,--build-id=sha1", "-o", program, *names)
    for name in names:
        name.unlink()
    return program


def addresses_of(program: Path) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return random addresses inside its functions."""
    table = load_elf_symbols(str(program)).symbols
    draw = np.random.default_rng(1)
    rows = draw.integers(0, len(table), ADDRESSES)
    return table.start[rows] + (draw.random(ADDRESSES) * (table.end[rows] - table.start[rows])).astype(np.uint64)


def measure(program: Path, directory: Path) -> None:
    """Measure cold, cached, and the other tools."""
    addresses, elf = addresses_of(program), load_elf_symbols(str(program))
    cache = DiskCache(str(directory / "cache"), 4 << 30)

    def look() -> int:
        lines = load_lines(str(program), elf.build_id, Search(cache=cache))
        calls = lines.lookup(addresses)
        for function in np.unique(calls.function).tolist():
            lines.table.function_name(function)
        for file in np.unique(calls.file).tolist():
            lines.table.file_path(file)
        return len(calls)

    megabytes = program.stat().st_size / 2**20
    print(f"{ADDRESSES} addresses in a file of {megabytes:.0f} MB with {len(elf.symbols)} functions")
    seconds, frames = timed(look)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    show("cold: DWARF read, table made and kept", f"{seconds:.2f} s", f"{frames} frames")
    show("  memory of the process that read it", f"{peak:.0f} MB", f"{peak / megabytes:.1f} x the file")
    (name,) = os.listdir(cache.directory)
    show("  the table on disk", f"{Path(cache.directory, name).stat().st_size / 2**20:.1f} MB")
    show("from the table on disk", f"{min(timed(look)[0] for _ in range(5)) * 1e3:.0f} ms")
    asked = "\n".join(map(hex, addresses[:COMPARED].tolist()))
    for command in (["llvm-symbolizer", "--inlines", "-e"], ["addr2line", "-i", "-f", "-e"]):
        if shutil.which(command[0]):
            seconds, _ = timed(partial(run, *command, program, input=asked))
            show(f"for comparison: {command[0]}, {COMPARED} addresses", f"{seconds:.2f} s")


def compare_perf() -> None:
    """Measure a whole stored recording with perf and with perf-offcpu."""
    data = ROOT / "tests" / "data" / "demo.data"
    print(f"perf script and perf-offcpu script on {data.name}")
    for tool in (["perf", "script"], [sys.executable, "-m", "perf_offcpu", "script"]):
        for inline in ("--no-inline", "--inline"):
            command = [*tool, "-f", inline, "-i", str(data), "--symfs", str(ROOT / "tests/data/demo.symfs")]
            if shutil.which(tool[0]):
                seconds, _ = timed(partial(subprocess.run, command, capture_output=True, cwd=ROOT))
                show(f"{Path(tool[0]).name} {tool[-1]} {inline}", f"{seconds:.2f} s")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("megabytes", type=int, nargs="?", default=100, help="size of the file (default: 100)")
    megabytes = parser.parse_args().megabytes
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        measure(make(directory, megabytes), directory)
    compare_perf()


if __name__ == "__main__":
    main()
