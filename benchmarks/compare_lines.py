# SPDX-License-Identifier: Apache-2.0
"""Compare source lines and inlined functions with llvm-symbolizer: python benchmarks/compare_lines.py [FILE…]

Compares functions, files, lines and inlining at 10 000 random addresses of each file. Without files: a C++
and a Rust program compiled here (if g++ and rustc are installed), and this system's C library, if its debug
file is installed (Debian: libc6-dbg). Needs llvm-symbolizer. Differences are counted by explanation; one
without an explanation is shown, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks")]

from source_lines import UNIT  # noqa: E402
from symbols import c_library  # noqa: E402

from perf_offcpu.objects.elf.image import open_elf  # noqa: E402
from perf_offcpu.objects.functions import load_elf_symbols  # noqa: E402
from perf_offcpu.objects.search import Search, open_debug  # noqa: E402
from perf_offcpu.symbolize.lines.names import NoLines, load_lines  # noqa: E402

ADDRESSES = 10_000
SHOWN = 5
MAIN = "\nint main(int c, char **v) { return entry({v, v + c}).size(); }\n"
RUST = """
use std::collections::{BTreeMap, HashMap};
fn main() {
    let mut counts: HashMap<String, usize> = HashMap::new();
    for word in std::env::args() { *counts.entry(word.to_lowercase()).or_default() += word.len(); }
    let sorted: BTreeMap<_, _> = counts.iter().map(|(word, n)| (*n, word.clone())).collect();
    let mut words: Vec<String> = sorted.values().cloned().collect();
    words.sort_by_key(|word| std::cmp::Reverse(word.len()));
    println!("{:?} {}", words, words.join(",").parse::<f64>().unwrap_or(0.5));
}
"""
Chain = list[tuple[str, str, int]]


def ours(path: str, addresses: np.ndarray) -> list[Chain]:
    """Return (function, file, line) of each address, innermost first."""
    lines = load_lines(path, load_elf_symbols(path).build_id, Search())
    calls, result = lines.lookup(addresses), list[Chain]([] for _ in addresses)
    columns = (calls.row, calls.function, calls.file, calls.line)
    for row, function, file, line in zip(*(column.tolist() for column in columns), strict=True):
        result[row].append((lines.table.function_name(function), lines.table.file_path(file), line))
    return result


def theirs(path: str, addresses: np.ndarray) -> list[Chain]:
    """Return llvm-symbolizer's answers for the debug file, which it does not look up itself."""
    with ExitStack() as stack:
        image = stack.enter_context(open_elf(path))
        whole = image.section_named(b".debug_info") is not None
        debug = None if whole else open_debug(image, Search(), b".debug_info", stack)
        file = path if debug is None else debug.path
    command = ["llvm-symbolizer", "--inlines", "--output-style=JSON", "--no-demangle", "-e", file]
    asked = "\n".join(map(hex, addresses.tolist()))
    out = subprocess.run(command, input=asked, check=True, capture_output=True, text=True).stdout
    return [
        [(one["FunctionName"], one["FileName"], one["Line"]) for one in json.loads(line)["Symbol"]]
        for line in out.splitlines()
    ]


def explanation(own: Chain, other: Chain) -> str:
    """Return why two chains differ: "" for no known reason, "same" if they are equal."""
    own, other = ([(name, os.path.normpath(file), line) for name, file, line in one] for one in (own, other))
    if own == other:
        return "same"
    if not own and all(not line for _, _, line in other):
        return "same: no line in either"
    places_equal = [one[1:] for one in own] == [one[1:] for one in other]
    if places_equal and [one[0] for one in own[:-1]] == [one[0] for one in other[:-1]]:
        return "the function itself under another of its names (frames take its name from the symbol table)"
    if not own:
        return "no line here: symbolic has no range for this function (its symbol is named all the same)"
    return ""


def compare(path: str) -> int:
    """Print the number of addresses by explanation; return that of addresses without one."""
    table = load_elf_symbols(path, Search()).symbols
    draw = np.random.default_rng(1)
    rows = draw.integers(0, len(table), ADDRESSES)
    size = table.end[rows] - table.start[rows]
    addresses = table.start[rows] + (draw.random(ADDRESSES) * size).astype(np.uint64)
    counts, unexplained = Counter[str](), list[str]()
    try:
        own_chains = ours(path, addresses)
    except NoLines:
        print(f"{path}: no source lines")
        return 0
    for at, own, other in zip(addresses.tolist(), own_chains, theirs(path, addresses), strict=True):
        why = explanation(own, other)
        counts[why or "NOT EXPLAINED"] += 1
        if not why:
            unexplained.append(f"    {at:#x}\n      ours {own}\n      LLVM {other}")
    print(path)
    for why, count in counts.most_common():
        print(f"  {count:>6}  {why}")
    print("\n".join(unexplained[:SHOWN]), end="\n" if unexplained else "")
    return len(unexplained)


def usual(directory: Path) -> Iterator[str]:
    """Return the files that are compared by default."""
    (directory / "unit.cc").write_text(UNIT + MAIN)
    (directory / "unit.rs").write_text(RUST)
    for tool, command in (
        ("g++", ["g++", "-O2", "-g", "unit.cc", "-o", "unit-cc"]),
        ("rustc", ["rustc", "-O", "-g", "unit.rs", "-o", "unit-rs"]),
    ):
        if shutil.which(tool):
            subprocess.run(command, cwd=directory, check=True, capture_output=True)
            yield str(directory / command[-1])
    yield c_library()


def main() -> int:
    """Compare the files and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", help="ELF files with DWARF")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        paths = args.files or usual(Path(name))
        return int(sum(map(compare, paths)) > 0)


if __name__ == "__main__":
    sys.exit(main())
