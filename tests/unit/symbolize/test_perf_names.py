# SPDX-License-Identifier: Apache-2.0
"""The names that perf 7.2 gave the addresses of its recordings, against ours."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from perf_offcpu.objects.functions import file_offset_to_vaddr, load_elf_symbols
from perf_offcpu.objects.symtab import SymbolTable
from perf_offcpu.symbolize.kernel.kallsyms import load_kallsyms

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
