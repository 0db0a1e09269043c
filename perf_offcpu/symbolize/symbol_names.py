# SPDX-License-Identifier: Apache-2.0
"""Columns of names: the function at each address, and the functions inlined there."""

from __future__ import annotations

import numpy as np

from perf_offcpu.model.columns import I32, U32, U64, Table, column
from perf_offcpu.model.strings import Strings
from perf_offcpu.objects.symtab import SymbolTable


class SymbolNames(Table):
    """The names of n addresses, in the order of the addresses."""

    symbol: U32 = column("u4", doc='string: as the file spells it, not demangled; "" unknown')
    dso: U32 = column("u4", doc='string: path or pseudo name; "" unknown')
    address: U64 = column("u8", doc="dso-relative virtual address (kernel: absolute); 0 unknown")
    offset: U64 = column("u8", unit="bytes", doc="from the symbol's start; 0 if no symbol")
    file: U32 = column("u4", doc='string: source file; "" unknown')
    line: I32 = column("i4", sentinel=0, doc="source line; 0 unknown")


class InlinedFunctions(Table):
    """Functions inlined at some of n addresses, sorted by (address, innermost first)."""

    location: I32 = column("i4", doc="row of the address in `SymbolNames`")
    depth: I32 = column("i4", doc="1: inlined into the function itself, 2: into that, …")
    symbol: U32 = column("u4", doc="string: as the DWARF spells it, not demangled")
    file: U32 = column("u4", doc='string: source file; "" unknown')
    line: I32 = column("i4", sentinel=0, doc="source line; 0 unknown")


def symbols_and_offsets(table: SymbolTable, rows: I32, addresses: U64, strings: Strings) -> tuple[U32, U64]:
    """Return (symbol, offset) of addresses that were looked up; decode only the symbols that were hit.

    Args:
        table: the table in which they were looked up.
        rows: int32[n], the result of `table.lookup`.
        addresses: uint64[n], in the address space of the table.
    """
    hit, inverse = np.unique(rows, return_inverse=True)
    ids = strings.intern_all("" if row < 0 else table.name(row) for row in hit.tolist())
    if not len(table):
        return ids[inverse], np.zeros(len(rows), np.uint64)
    start = table.start[np.maximum(rows, 0)]
    return ids[inverse], np.where(rows >= 0, addresses - start, np.uint64(0))
