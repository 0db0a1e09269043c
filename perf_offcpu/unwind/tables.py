# SPDX-License-Identifier: Apache-2.0
"""Load the frame rules of mapped files, and keep them on disk. The file, and the debug file that may hold .debug_frame,
are found as for symbols (`objects.files`). Tables are kept by the identity of their files, as symbol tables are."""

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Final

import numpy as np

from perf_offcpu.abi import elf
from perf_offcpu.abi.machine import REGISTERS, Registers
from perf_offcpu.cache import Array, cache_name
from perf_offcpu.errors import FormatError
from perf_offcpu.model.columns import U64, Bool
from perf_offcpu.model.recording import Recording
from perf_offcpu.objects.calls import calls_at, ends_call
from perf_offcpu.objects.elf.go import go_symbols
from perf_offcpu.objects.elf.image import ElfImage
from perf_offcpu.objects.files import Refused, open_dso
from perf_offcpu.objects.functions import listed_symbols, to_vaddr
from perf_offcpu.objects.search import Search, open_debug
from perf_offcpu.objects.symtab import join
from perf_offcpu.unwind.cfi.entries import Section
from perf_offcpu.unwind.cfi.program import Kind
from perf_offcpu.unwind.cfi.table import NO_RULES, CfiTable, build_table, frame_sections, joined
from perf_offcpu.unwind.lookup import FileTable

KIND: Final = "frames3"  # kind of cache file; the number changes whenever the tables do, or how they are made
MIN_ROWS: Final = 100  # rows of the smallest table that is kept: smaller ones are made as fast
_KINDS: Final = {"start": "u8", "rule": "i4", "rules": "i8", "lengths": "i8", "expressions": "u1"}  # of the columns
_GO_ROOTS: Final = (
    *(b"runtime.mcall", b"runtime.systemstack", b"runtime.morestack", b"runtime.asmcgocall"),
    *(b"runtime.mstart", b"runtime.goexit"),
)


class FrameTables:
    """Load the frame rules of a recording's dsos; files of another machine have none."""

    def __init__(self, recording: Recording, machine: elf.Machine, search: Search) -> None:
        self.recording, self.machine, self.search = recording, machine, search

    def of_dso(self, dso: int, with_table: bool) -> FileTable | None:
        """Return the file of a dso (row of `recording.dsos`), with its frame rules if `with_table`; None if it cannot
        be found or read, or is of another machine."""
        with suppress(OSError, FormatError, Refused), ExitStack() as stack:
            image = open_dso(self.recording, dso, self.search, stack)
            if image.machine == self.machine:
                debug = open_debug(image, self.search, b".debug_frame", stack)
                name = cache_name(KIND, image.build_id, image.source.identity, debug.source.identity if debug else ())
                table = self._table(name, image, debug) if with_table else None
                return FileTable(table, to_vaddr(image.loads), name)
        return None

    def calls(self, dso: int, offsets: U64) -> tuple[Bool, U64]:
        """Return (bool[n], uint64[n]) for n file offsets in a dso: True if a call instruction ends there, and the
        address in the file that it calls (NO_ADDRESS: not told); False and 0 if the file cannot be read."""
        with suppress(OSError, FormatError, Refused), ExitStack() as stack:
            image = open_dso(self.recording, dso, self.search, stack)
            return ends_call(image, offsets), calls_at(image, offsets - np.uint64(1))[1]
        return np.zeros(len(offsets), np.bool_), np.zeros(len(offsets), np.uint64)

    def _table(self, name: str, image: ElfImage, debug: ElfImage | None) -> CfiTable:
        registers, cache = REGISTERS[self.machine], self.search.cache
        columns = cache.read(name) if cache else None
        table = None if columns is None else table_from_columns(columns, registers)
        if table is None:
            table, roots = build_table(_sections(image, debug), registers), _go_roots(image, registers)
            table = joined(roots, table) if len(roots) else table
            if cache and len(table) >= MIN_ROWS:
                cache.write(name, table_columns(table))
        return table


def _go_roots(image: ElfImage, registers: Registers) -> CfiTable:
    """Return a table of rules that end stacks at the root functions of Go: entries of threads and goroutines, and
    functions that switch to the stack of the thread. Callers of the latter are on the stack of the goroutine; where
    their own frame rules look for a caller, there are stale words."""
    if image.section_named(b".go.buildinfo") is None:
        return CfiTable()
    symtab = image.section_of_type(elf.SectionType.SYMTAB)
    symbols, strings = join([listed_symbols(image, symtab)] if symtab else go_symbols(image))
    names = [strings.find(b"\0%s%s\0" % (name, abi)) for name in _GO_ROOTS for abi in (b"", b".abi0")]
    is_root = np.isin(symbols.name, [place + 1 for place in names if place >= 0]) & (symbols.size > 0)
    roots = symbols.take(is_root)
    roots = roots.take(np.argsort(roots.start))
    start = np.column_stack([roots.start, roots.start + roots.size]).reshape(-1)
    rules = np.zeros((1, registers.count + 2), np.int64)
    rules[0, registers.ra] = Kind.UNDEFINED
    return CfiTable(start, np.tile(np.array([0, NO_RULES], np.int32), len(roots)), rules)


def _sections(image: ElfImage, debug: ElfImage | None) -> list[Section]:
    """Return .eh_frame and .debug_frame of the file; if it has no .debug_frame, that of its debug file, if readable."""
    sections = frame_sections(image)
    if debug is not None and all(section.is_eh for section in sections):
        with suppress(OSError):
            sections += [section for section in frame_sections(debug) if not section.is_eh]
    return sections


def table_columns(table: CfiTable) -> dict[str, Array]:
    """Return a table as flat columns for the cache, by the names of _KINDS."""
    lengths = np.array([len(code) for code in table.expressions], np.int64)
    expressions = np.frombuffer(b"".join(table.expressions), np.uint8)
    return dict(zip(_KINDS, (table.start, table.rule, table.rules.reshape(-1), lengths, expressions), strict=True))


def table_from_columns(columns: Mapping[str, Array], registers: Registers) -> CfiTable | None:
    """Return the table that `table_columns` made these columns of; None if they do not fit together."""
    if any(name not in columns or columns[name].dtype != kind for name, kind in _KINDS.items()):
        return None
    start, rule, rules, lengths, flat = (columns[name] for name in _KINDS)
    width = registers.count + 2
    if len(rules) % width or len(start) != len(rule) or bool((start[1:] <= start[:-1]).any()):
        return None
    are_sets = not len(rule) or NO_RULES <= int(rule.min()) <= int(rule.max()) < len(rules) // width
    if not are_sets or bool((lengths < 0).any()) or int(lengths.sum()) != len(flat):
        return None
    ends = np.cumsum(lengths).tolist()
    codes = [flat[begin:end].tobytes() for begin, end in zip([0, *ends], ends, strict=False)]
    table = CfiTable(start, rule, rules.reshape(-1, width), codes)
    return table if table.is_sound() else None
