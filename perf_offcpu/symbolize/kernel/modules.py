# SPDX-License-Identifier: Apache-2.0
"""Read symbols of kernel modules from their files, where there is no kallsyms of the recorded boot.

A module is an unlinked object: its sections get their addresses when it is loaded. The kernel lays out
executable sections one after the other, in file order and with their alignment, those for initialization
separately (layout_sections and __layout_sections in kernel/module/main.c of Linux 6.16). The recorded map
begins with the first, so an offset in the map is an offset in this sequence. Files may be compressed.
"""

from __future__ import annotations

import os
from typing import Final

import numpy as np

from perf_offcpu.abi import elf
from perf_offcpu.errors import FormatError
from perf_offcpu.files import read_regular
from perf_offcpu.model.columns import U64
from perf_offcpu.objects.elf.functions import listed_symbols
from perf_offcpu.objects.elf.image import ElfImage
from perf_offcpu.objects.elf.source import Source
from perf_offcpu.objects.symtab import NO_ADDRESS, SymbolTable
from perf_offcpu.objects.uncompress import uncompress

MAX_BYTES: Final = 1 << 28
_COMPRESSION: Final = {".xz": "xz", ".gz": "gzip", ".zst": "zstd"}
_CODE: Final = int(elf.SectionFlag.ALLOC | elf.SectionFlag.EXECINSTR)


def load_module(path: str, build_id: bytes) -> SymbolTable:
    """Read the functions of a module, at offsets from its load address; uncompress .xz, .gz and .zst.

    Raises:
        OSError: it cannot be read.
        FormatError: it is damaged, no module, or of another build.
    """
    image = ElfImage(Source(path, _read(path)))
    if image.type != elf.ElfType.REL:
        raise FormatError(path, "kernel module", f"type {image.type} is not an unlinked object")
    if build_id and image.build_id != build_id:
        raise FormatError(path, "kernel module", f"build-id {image.build_id.hex()}, not {build_id.hex()}")
    table = image.section_of_type(elf.SectionType.SYMTAB)
    if table is None:
        raise FormatError(path, "kernel module", "it has no symbols")
    return SymbolTable(*listed_symbols(image, table, section_starts(image)))


def shown_name(path: str) -> str:
    """Return the name of a module in perf and kallsyms: `[nf_nat]` for …/nf-nat.ko.xz."""
    if path.startswith("["):
        return path
    return f"[{os.path.basename(path).partition('.')[0].replace('-', '_')}]"


def section_starts(image: ElfImage) -> U64:
    """Return uint64[number of sections]: the offset of each in the loaded code; NO_ADDRESS for others."""
    sections, at = image.sections, 0
    align = np.maximum(sections["sh_addralign"], np.uint64(1))
    starts = np.full(len(sections), NO_ADDRESS)
    for index in np.flatnonzero((sections["sh_flags"] & np.uint64(_CODE)) == np.uint64(_CODE)).tolist():
        if not image.section_names[index].startswith(b".init"):
            at += -at % min(int(align[index]), 1 << 21)
            starts[index] = at
            at += min(int(sections["sh_size"][index]), MAX_BYTES)
    return starts


def _read(path: str) -> bytes:
    data, kind = read_regular(path, MAX_BYTES), _COMPRESSION.get(os.path.splitext(path)[1])
    try:
        return uncompress(kind, data, MAX_BYTES) if kind else data
    except ValueError as problem:
        raise FormatError(path, "compressed kernel module", str(problem)) from None
