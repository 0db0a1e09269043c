# SPDX-License-Identifier: Apache-2.0
"""Symbol tables on disk: a program of half a million functions is ready in milliseconds the second time.

The key names the very files that were read (identity, size and time of change of the object and of its debug
file): if a debug file is installed later, or a file is rewritten, the key is another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from perf_offcpu.cache import DiskCache, cache_name
from perf_offcpu.objects.elf.functions import ElfFile
from perf_offcpu.objects.elf.image import ElfImage
from perf_offcpu.objects.symtab import SymbolTable

KIND: Final = "symbols1"
"""The number changes whenever the choice of symbols does."""
WORTH: Final = 10_000
"""Functions from which on a table is kept: smaller ones are read as fast from the file itself."""

Read = Callable[[ElfImage, ElfImage | None], ElfFile]


def read_through_cache(
    image: ElfImage, debug: ElfImage | None, cache: DiskCache | None, read: Read
) -> ElfFile:
    """`read(image, debug)`, from the cache if it was kept there.

    Raises:
        OSError, FormatError: as `read`.
    """
    if cache is None or not image.identity:
        return read(image, debug)
    name = cache_name(KIND, image.build_id, image.identity, debug.identity if debug else ())
    columns = cache.read(name)
    table = None if columns is None else SymbolTable.from_columns(columns)
    if table is not None and columns is not None:
        full = bool(len(columns.get("full", ())))
        return ElfFile(image.path, image.build_id, image.machine, image.loads, table, full)
    elf = read(image, debug)
    if len(elf.symbols) >= WORTH:
        columns = elf.symbols.columns()
        cache.write(name, {**columns, "full": columns["start"][: int(elf.full)]})
    return elf
