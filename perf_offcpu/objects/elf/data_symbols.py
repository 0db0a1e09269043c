# SPDX-License-Identifier: Apache-2.0
"""Read the variables of an ELF file, to find the one that covers an address of .data or .bss.

The rules are those of functions (`objects.symtab`), with the roles exchanged: data objects have names, and
functions only bound them. Labels without a type (`__bss_start`, `_edata`) name no variable. Variables of
threads (.tdata, .tbss) lie elsewhere in each thread and are left out by their type.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from perf_offcpu.abi import elf
from perf_offcpu.cache import cache_name
from perf_offcpu.objects.debug_files import open_debug
from perf_offcpu.objects.elf.functions import listed_symbols
from perf_offcpu.objects.elf.image import ElfImage
from perf_offcpu.objects.search import Search
from perf_offcpu.objects.symtab import UNTYPED, VERSION, SymbolTable, join

KIND: Final = f"variables{VERSION}"
"""Kind of cache file."""


def variables_of(image: ElfImage, search: Search) -> SymbolTable:
    """Return the variables of an open file, or of its debug file, at addresses as in the file.

    Raises:
        OSError: it cannot be read.
        FormatError: a symbol table is damaged.
    """
    with ExitStack() as stack:
        has_own = image.section_of_type(elf.SectionType.SYMTAB) is not None
        debug = None if has_own else open_debug(image, search, b".symtab", stack)
        identities = image.source.identity, debug.source.identity if debug else ()
        name = cache_name(KIND, image.build_id, *identities)
        columns = search.cache.read(name) if search.cache else None
        table = None if columns is None else SymbolTable.from_columns(columns)
        if table is None:
            table = _read(image, debug or image)
            if search.cache:
                search.cache.write(name, table.columns())
        return table


def _read(image: ElfImage, full: ElfImage) -> SymbolTable:
    tables = (
        (full, full.section_of_type(elf.SectionType.SYMTAB)),
        (image, image.section_of_type(elf.SectionType.DYNSYM)),
    )
    rows, strings = join(listed_symbols(one, table) for one, table in tables if table is not None)
    is_variable = (rows.code == 0) & (rows.rank < UNTYPED)
    return SymbolTable(rows.with_columns(code=is_variable.astype(rows.code.dtype)), strings)
