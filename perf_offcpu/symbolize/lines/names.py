# SPDX-License-Identifier: Apache-2.0
"""Add source lines, and the functions inlined there, to named addresses."""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from perf_offcpu import losses
from perf_offcpu.losses import Losses
from perf_offcpu.model.columns import I64, U32, U64
from perf_offcpu.model.strings import Strings
from perf_offcpu.objects.elf.functions import ElfFile
from perf_offcpu.objects.search import Search
from perf_offcpu.symbolize.frames import InlinedFunctions, SymbolNames
from perf_offcpu.symbolize.lines.lines import Lines, NoLines, load_lines
from perf_offcpu.symbolize.lines.symcache import Calls, Symcache

TOTAL_SECONDS: Final = 600
"""Time for the DWARF of all objects of a recording; tables in the cache take nearly none."""


class LineNames:
    """Look up source lines and inlined functions.

    Args:
        unresolved: addresses whose lines could not be read, although there may be some, are counted there.
        inline: look up inlined functions too, not only lines.

    Attributes:
        inlined: the functions found so far; `location` is a row of the caller's table.
    """

    def __init__(self, strings: Strings, search: Search, unresolved: Losses, *, inline: bool) -> None:
        self.strings, self.search, self.unresolved, self.inline = strings, search, unresolved, inline
        self.inlined = InlinedFunctions()
        self._seconds = float(TOTAL_SECONDS)

    def add(self, elf: ElfFile, addresses: U64, rows: I64, names: SymbolNames, shown: str) -> None:
        """Fill in `file` and `line` of some rows of `names`, and add the functions inlined there.

        Args:
            addresses: of these rows, as in the file.
            shown: name of the object in messages.
        """
        began = time.monotonic()
        try:
            lines = load_lines(elf.path, elf.build_id, self.search, self._seconds)
        except NoLines as problem:
            if problem.cause is not None:
                self.unresolved.add(problem.cause.about(shown, problem.detail), len(addresses))
            return
        finally:
            self._seconds -= time.monotonic() - began
        nameless = self._put(lines, lines.lookup(addresses), rows, names)
        if lines.shared:
            self.unresolved.add(losses.DWARF_SHARED.about(shown), nameless)

    def _put(self, lines: Lines, calls: Calls, rows: I64, names: SymbolNames) -> int:
        """Fill in rows; return the number of inlined functions without a name, which are left out."""
        if not len(calls):
            return 0
        files = self._interned(calls.file, lines.table, names=False)
        last = np.append(calls.row[1:] != calls.row[:-1], True)
        first = np.append(True, last[:-1])
        own = np.flatnonzero(last if self.inline else first)
        names.file[rows[calls.row[own]]], names.line[rows[calls.row[own]]] = files[own], calls.line[own]
        inner = np.flatnonzero(~last)
        if not self.inline or not len(inner):
            return 0
        functions = self._interned(calls.function[inner], lines.table, names=True)
        nameless = functions == 0
        inner, functions = inner[~nameless], functions[~nameless]
        depth = np.searchsorted(calls.row[inner], calls.row[inner], side="right") - np.arange(len(inner))
        found = InlinedFunctions.filled(
            len(inner),
            location=rows[calls.row[inner]],
            depth=depth,
            symbol=functions,
            file=files[inner],
            line=calls.line[inner],
        )
        self.inlined = InlinedFunctions.concat([self.inlined, found])
        return int(nameless.sum())

    def _interned(self, indices: U32, table: Symcache, *, names: bool) -> U32:
        """Return the strings of function or file indices; decode each once."""
        used, inverse = np.unique(indices, return_inverse=True)
        text = table.function_name if names else table.file_path
        return self.strings.intern_all(text(index) for index in used.tolist())[inverse]
