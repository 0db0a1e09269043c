# SPDX-License-Identifier: Apache-2.0
"""Symbols of kernel modules from their files, where no kallsyms of that boot is at hand.

A module is an unlinked object: its sections get their places when it is loaded. The kernel puts executable
sections one behind the other, in file order, each aligned as it asks, those for initialization apart
(layout_sections and __layout_sections in kernel/module/main.c of Linux 6.16); the recorded map begins with
the first. So an offset in the map is an offset in that row of sections. Files may be compressed.
"""

from __future__ import annotations

import lzma
import os
import zlib
from typing import Final

import numpy as np

from perf_offcpu.abi import elf
from perf_offcpu.errors import FormatError
from perf_offcpu.model.columns import U64
from perf_offcpu.objects.elf.functions import listed_symbols
from perf_offcpu.objects.elf.image import ElfImage
from perf_offcpu.objects.elf.source import BytesSource, open_regular
from perf_offcpu.objects.symtab import NO_ADDRESS, SymbolTable

MAX_BYTES: Final = 1 << 28
_CODE: Final = int(elf.SectionFlag.ALLOC | elf.SectionFlag.EXECINSTR)


def load_module(path: str, build_id: bytes) -> SymbolTable:
    """The functions of a module, at offsets from where it is loaded.

    Args:
        path: its file; .xz, .gz and .zst are unpacked.
        build_id: the recorded one; b"" if none was recorded.

    Raises:
        OSError: it cannot be read.
        FormatError: it is damaged, no module, or of another build.
    """
    image = ElfImage(BytesSource(_unpacked(path)), path)
    if image.type != elf.ElfType.REL:
        raise FormatError(path, "kernel module", f"type {image.type} is not an unlinked object")
    if build_id and image.build_id != build_id:
        raise FormatError(path, "kernel module", f"build-id {image.build_id.hex()}, not {build_id.hex()}")
    table = image.section_of_type(elf.SectionType.SYMTAB)
    if table is None:
        raise FormatError(path, "kernel module", "it has no symbols")
    return SymbolTable(*listed_symbols(image, table, section_places(image)))


def shown_name(path: str) -> str:
    """A module as perf and kallsyms call it: `[nf_nat]` for …/nf-nat.ko.xz."""
    if path.startswith("["):
        return path
    return f"[{os.path.basename(path).partition('.')[0].replace('-', '_')}]"


def section_places(image: ElfImage) -> U64:
    """uint64[number of sections]: where each lies in the loaded code; NO_ADDRESS for others."""
    flags, size = image.section_column("sh_flags"), image.section_column("sh_size")
    align, at = np.maximum(image.section_column("sh_addralign"), np.uint64(1)), 0
    places = np.full(len(flags), NO_ADDRESS)
    for index in np.flatnonzero((flags & np.uint64(_CODE)) == np.uint64(_CODE)).tolist():
        if not image.section_names[index].startswith(b".init"):
            at += -at % min(int(align[index]), 1 << 21)
            places[index] = at
            at += min(int(size[index]), MAX_BYTES)
    return places


def _unpacked(path: str) -> bytes:
    fd = open_regular(path)
    with open(fd, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    suffix = os.path.splitext(path)[1]
    try:
        if suffix == ".xz":
            data = lzma.LZMADecompressor(memlimit=1 << 27).decompress(data, MAX_BYTES + 1)
        elif suffix == ".gz":
            data = zlib.decompressobj(wbits=31).decompress(data, MAX_BYTES + 1)
        elif suffix == ".zst":
            data = _unpacked_zstd(data)
    except (lzma.LZMAError, zlib.error, ValueError) as problem:
        raise FormatError(path, "compressed kernel module", str(problem)) from None
    if len(data) > MAX_BYTES:
        raise FormatError(path, "kernel module", f"it is larger than {MAX_BYTES} bytes")
    return data


def _unpacked_zstd(data: bytes) -> bytes:
    """As the standard library will from Python 3.14 on.

    Raises:
        ValueError: it is damaged, or the package is missing.
    """
    try:
        import zstandard
    except ImportError:
        raise ValueError("the Python package zstandard is not installed") from None
    try:
        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            return bytes(reader.read(MAX_BYTES + 1))
    except zstandard.ZstdError as problem:
        raise ValueError(str(problem)) from None
