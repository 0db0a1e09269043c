# SPDX-License-Identifier: Apache-2.0
"""A coverage-guided fuzzer for all readers of symbols: `python tests/fuzz/symbols.py [OPTIONS] [CORPUS]`. Needs atheris
(`pip install atheris`). The first byte of an input chooses the reader; anything but a result or an error of this
project, or memory without bounds, is a finding. `others.py` mutates the same seeds."""

import contextlib
import gzip
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import numpy as np  # noqa: E402
from builders.elf import REL, ElfBuilder, Sym  # noqa: E402

from perf_offcpu.abi.elf import SectionType  # noqa: E402
from perf_offcpu.cache import pack, unpack  # noqa: E402
from perf_offcpu.errors import PerfOffcpuError  # noqa: E402
from perf_offcpu.objects.elf.headers import Source  # noqa: E402
from perf_offcpu.objects.elf.image import ElfImage  # noqa: E402
from perf_offcpu.objects.functions import file_offset_to_vaddr, listed_symbols, symbols_of  # noqa: E402
from perf_offcpu.objects.perf_map import parse_perf_map, read_jit_name  # noqa: E402
from perf_offcpu.objects.search import debug_link  # noqa: E402
from perf_offcpu.objects.symtab import SymbolTable  # noqa: E402
from perf_offcpu.symbolize.kernel.kallsyms import parse_kallsyms  # noqa: E402
from perf_offcpu.symbolize.kernel.names import section_starts  # noqa: E402
from perf_offcpu.symbolize.lines.symcache import Symcache  # noqa: E402

ADDRESSES = np.array([0, 1, 0x1000, 0x1010, 0x401000, 2**47, 2**63, 2**64 - 1], np.uint64)
MEMORY = 4 << 30


def look(table: SymbolTable) -> None:
    rows = table.lookup(np.concatenate([ADDRESSES, table.start[:8], table.end[:8]]))
    for row in np.unique(rows[rows >= 0]).tolist():
        read_jit_name(table.name(row))


def read_elf(data: bytes) -> None:
    image = ElfImage(Source("fuzz", data))
    debug_link(image)
    for name in (b".debug_str", b".note.gnu.build-id"):
        section = image.section_named(name)
        if section is not None:
            image.content(section)
    elf = symbols_of(image)
    file_offset_to_vaddr(elf.loads, ADDRESSES)
    look(elf.symbols)


def read_module(data: bytes) -> None:
    image = ElfImage(Source("fuzz", data))
    table = image.section_of_type(SectionType.SYMTAB)
    if table is not None:
        look(SymbolTable(*listed_symbols(image, table, section_starts(image))))


def read_kallsyms(data: bytes) -> None:
    kallsyms = parse_kallsyms(data)
    look(kallsyms.symbols)
    kallsyms.delta("_text", 1)


def read_cache(data: bytes) -> None:
    columns = unpack(memoryview(data))
    table = None if columns is None else SymbolTable.from_columns(columns)
    if table is not None:
        look(table)


def read_symcache(data: bytes) -> None:
    table = Symcache(memoryview(data), "fuzz")
    calls = table.lookup(ADDRESSES)
    for index in calls.function.tolist()[:8]:
        table.function_name(index)
    for index in calls.file.tolist()[:8]:
        table.file_path(index)


READERS: Sequence[Callable[[bytes], None]] = (
    read_elf, read_module, read_kallsyms, lambda data: look(parse_perf_map(data)), read_cache, read_symcache,
)  # fmt: skip


def one_input(data: bytes) -> None:
    """The first byte chooses the reader, the rest is its input."""
    if data:
        with contextlib.suppress(PerfOffcpuError):  # a sentence for people is what bad input is to get
            READERS[data[0] % len(READERS)](data[1:])


def seeds() -> list[bytes]:
    symbols = [Sym(f"f{row}", 0x1000 + 16 * row, 16) for row in range(8)]
    made = [
        ElfBuilder(symbols, dynamic=symbols, bits=bits, order=order, build_id=b"\x12" * 20).build()
        for bits in (32, 64)
        for order in "<>"
    ]
    blocker = (ROOT / "tests/data/perf-7.2/blocker").read_bytes()
    kernel = gzip.decompress((ROOT / "tests/data/perf-7.2/kallsyms.gz").read_bytes())
    columns = SymbolTable(*listed_symbols_of(made[2])).columns()
    module = ElfBuilder(symbols, type=REL, loads=[]).build()
    table = b"SYMC" + np.array([9, *[0] * 8, 1, 1, 1, 1, 1, 8, *[0] * 4], "<u4").tobytes()
    found = [bytes([0]) + data for data in (*made, blocker)]
    found += [b"\x01" + module, b"\x02" + kernel[:4000], b"\x02" + kernel[-4000:]]
    found += [b"\x03" + b"1000 10 py::f:/a.py\n1008 20 JS:*g /b.js:1:2\n2000 5 h\n"]
    found += [b"\x04" + pack(columns).tobytes(), b"\x05" + table + bytes(80)]
    return found


def listed_symbols_of(data: bytes) -> tuple[object, bytes]:
    image = ElfImage(Source("seed", data))
    table = image.section_named(b".symtab")
    assert table is not None
    return listed_symbols(image, table)


def main() -> None:
    import atheris

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    atheris.instrument_all()
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
