# SPDX-License-Identifier: Apache-2.0
"""Parse the kernel's own symbol table, as /proc/kallsyms prints it.

    ffffffff81000130 T entry_SYSCALL_64_after_hwframe
    ffffffffc0a81000 t nf_nat_ipv4_fn	[nf_nat]

A line has an address (8 or 16 digits, all zero for readers who may not see it), type as in nm, name, and
after a tab the module. numpy parses all lines at once. The rules for choosing between names are in `symtab`;
as in perf, types T and W name code, D and B bound it, and a symbol ends where the next one starts, but at
the end of its page where the next one belongs to another module or to none (symbols__fixup_end).
Without CONFIG_KALLSYMS_ALL there are no data symbols, and no `_edata`; code is named all the same.

The table is of one boot. Addresses of another boot of the same kernel build are moved by `delta`, the
distance that KASLR moved `_text` since. Modules move independently, so they are not named then."""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import numpy as np

from perf_offcpu.binary.columnar import gather_u64
from perf_offcpu.binary.layout import NATIVE
from perf_offcpu.errors import FormatError
from perf_offcpu.files import read_kernel, read_regular
from perf_offcpu.model.columns import I32, I64, U8, U64, Bool
from perf_offcpu.objects.symtab import NO_ADDRESS, Symbols, SymbolTable, alias_rank, page_after
from perf_offcpu.structs import frozen

LIVE: Final = "/proc/kallsyms"
REFERENCES: Final = ("_text", "_stext")  # by which perf finds the place of the kernel (ref_reloc_sym_names)
MAX_BYTES: Final = 1 << 28  # bytes of text that are read: a large kernel with all modules has some 20 MB
_MAX_MODULE: Final = 64
_TERMINATE: Final = bytes.maketrans(b"\t\n", b"\0\0")
_NO_DIGIT: Final = 16
_DIGITS: Final = np.full(256, _NO_DIGIT, np.uint8)  # value of each character as a lower-case hex digit
_DIGITS[list(b"0123456789abcdef")] = range(16)


@frozen
class Kallsyms:
    """Looks up kernel functions by address."""

    symbols: SymbolTable  # the functions; `symbols.name(row)` has no module
    module: I32  # int32[len(symbols)], index into `modules`; -1 for the kernel itself
    modules: tuple[str, ...]  # names as perf shows them, with brackets: `[nf_nat]`, `[bpf]`
    references: dict[str, int]  # name → address of the symbols in REFERENCES, if listed
    damaged: int = 0  # number of lines that are not as the module describes
    hidden: bool = False  # True if addresses were withheld (kernel.kptr_restrict): then there are no symbols
    is_partial: bool = False  # True if the kernel may have symbols that are not in the table (see `running`)

    def lookup(self, addresses: U64, delta: int = 0) -> I32:
        """Return int32[n]: rows of `symbols` at recorded addresses plus `delta` (modules: only if it is 0); -1 none."""
        rows = self.symbols.lookup(addresses + np.uint64(delta % 2**64))
        if delta and len(self.module):
            rows[(rows >= 0) & (self.module[rows] >= 0)] = -1
        return rows

    def module_name(self, row: int) -> str:
        """Return the module that a row belongs to, with brackets; "" for the kernel itself."""
        return self.modules[self.module[row]] if self.module[row] >= 0 else ""

    def delta(self, name: str, recorded: int) -> int | None:
        """Return this boot's address of a reference symbol minus `recorded` (0 unknown); None if either is unknown."""
        now = self.references.get(name)
        return None if now is None or not recorded else now - recorded


@frozen
class _Lines:
    """Holds the well-formed lines of a text as columns: start, end and name are byte offsets, type is the letter."""

    start: I64
    end: I64
    address: U64
    type: U8
    name: I64


def load_kallsyms(path: str = LIVE) -> Kallsyms:
    """Read a file in the form of /proc/kallsyms, plain or gzip-compressed. Raises OSError: it cannot be read;
    FormatError: it is too large, or damaged as a gzip file."""
    return parse_kallsyms(kallsyms_text(path))


def kallsyms_text(path: str) -> bytes:
    """Return the text of a file in the form of /proc/kallsyms, unpacked; errors of `load_kallsyms`."""
    data = read_kernel(path, MAX_BYTES) if path == LIVE else read_regular(path, MAX_BYTES)
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            text = file.read(MAX_BYTES + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as problem:
        raise FormatError(path, "gzip stream", str(problem)) from None
    if len(text) > MAX_BYTES:
        raise FormatError(path, "kernel symbols", f"more than {MAX_BYTES} bytes")
    return text


def parse_kallsyms(text: bytes) -> Kallsyms:
    """Parse the text of /proc/kallsyms; count and leave out lines of another form."""
    if not text.endswith(b"\n"):
        text += b"\n"
    raw = np.frombuffer(text, np.uint8)
    lines, damaged = _split(raw)
    hidden = bool(len(lines.address)) and not lines.address.any()
    wanted = np.isin(lines.type, np.frombuffer(b"tTwWdDbB", np.uint8))
    rows = np.flatnonzero(wanted & (raw[lines.name] != ord("$")))  # an ARM mapping symbol
    rows = np.empty(0, np.int64) if hidden else rows[np.argsort(lines.address[rows], kind="stable")]
    module, modules = _modules(raw, lines.name[rows], lines.end[rows])
    strings = text.translate(_TERMINATE)
    symbols = SymbolTable(_symbols(lines, rows, module), strings)
    references = {} if hidden else dict(_reference_addresses(strings))
    return Kallsyms(symbols, module[symbols.source], modules, references, damaged, hidden)


def _reference_addresses(text: bytes) -> Iterator[tuple[str, int]]:
    """Yield (name, address) of the symbols REFERENCES, whatever their type. `text`: lines that end with NUL."""
    for name in REFERENCES:
        offset = text.find(f" {name}\0".encode())
        address = text[text.rfind(b"\0", 0, max(offset, 0)) + 1 : max(offset, 0)].partition(b" ")[0]
        with suppress(ValueError):  # there is none, or its line is damaged
            yield name, int(address, 16)


def _split(raw: U8) -> tuple[_Lines, int]:
    """Split a text (uint8[bytes]) into lines; return (well-formed lines, number of others)."""
    end = np.flatnonzero(raw == ord("\n"))
    start, total = np.append(0, end[:-1] + 1), len(end)
    width = max(16, 8, key=lambda digits: np.count_nonzero(_has_space(raw, start, end, digits)))
    fits = _has_space(raw, start, end, width) & _has_space(raw, start, end, width + 2)
    start, end = start[fits], end[fits]
    address, sound = _hexadecimal(raw, start, width)
    sound &= end - start > width + 3
    start, end, address = start[sound], end[sound], address[sound]
    return _Lines(start, end, address, raw[start + width + 1], start + width + 3), total - len(start)


def _has_space(raw: U8, start: I64, end: I64, column: int) -> Bool:
    """Return bool[n]: True if the line has a space `column` bytes after its start."""
    is_space: Bool = (start + column < end) & (raw[np.minimum(start + column, len(raw) - 1)] == ord(" "))
    return is_space


def _hexadecimal(raw: U8, start: I64, width: int) -> tuple[U64, Bool]:
    """Read `width` (8, 16) hex digits at byte offsets `start`; return (uint64[n], bool[n]: False if not digits)."""
    words = gather_u64(raw, (start[:, None] + np.arange(0, width, 8)).ravel(), NATIVE)
    digits = np.take(_DIGITS, words.view(np.uint8))
    sound = np.ones(len(start), np.bool_)
    sound[np.flatnonzero(digits == _NO_DIGIT) // width] = False
    return (digits[::2] << 4 | digits[1::2]).view(f">u{width // 2}").astype(np.uint64), sound


def _modules(raw: U8, name: I64, end: I64) -> tuple[I32, tuple[str, ...]]:
    """Return (int32[n]: index of each line's module, -1 none; the modules' names with brackets). `name`, `end`:
    int64[n], byte offsets of each line's symbol name and of its end."""
    tabs = np.flatnonzero(raw == ord("\t"))
    tabs = np.append(tabs, len(raw))
    tab = tabs[np.searchsorted(tabs, name)]
    inside = np.flatnonzero(tab < end)
    module, names = np.full(len(name), -1, np.int32), dict[str, int]()
    for first, stop in _runs(raw, tab[inside] + 1, end[inside]):
        row = inside[first]
        text = raw[tab[row] + 1 : end[row]].tobytes().decode("utf-8", "surrogateescape")
        module[inside[first:stop]] = names.setdefault(text, len(names))
    return module, tuple(names)


def _runs(raw: U8, start: I64, end: I64) -> Iterator[tuple[int, int]]:
    """Yield (first row, row after the last) of each run of equal texts: of equal length, and with equal first
    _MAX_MODULE bytes. Text i is at bytes start[i] to end[i]."""
    if not len(start):
        return
    columns = start[:, None] + np.arange(_MAX_MODULE)
    text = np.where(columns < end[:, None], raw[np.minimum(columns, len(raw) - 1)], np.uint8(0))
    changes = np.flatnonzero((text[1:] != text[:-1]).any(axis=1) | np.diff(end - start).astype(bool)) + 1
    edges = [0, *changes.tolist(), len(start)]
    yield from zip(edges, edges[1:], strict=False)


def _symbols(lines: _Lines, rows: I64, module: I32) -> Symbols:
    """Return lines `rows` (int64[n], sorted by address) as symbols that end where the next begins; the last symbol of a
    module ends with its page at the latest. `module`: int32[n]."""
    start, type_ = lines.address[rows], lines.type[rows]
    limit = np.full(len(rows), NO_ADDRESS)
    last_of_module = np.flatnonzero(module[1:] != module[:-1])
    limit[last_of_module] = page_after(start[last_of_module])
    weak, upper = type_ == ord("W"), type_ < ord("a")
    return Symbols.filled(
        len(rows),
        start=start,
        name=lines.name[rows],
        limit=limit,
        rank=alias_rank(np.zeros(len(rows), bool), weak, upper & ~weak),
        code=np.isin(type_, np.frombuffer(b"tTwW", np.uint8)),
    )
