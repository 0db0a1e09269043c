# SPDX-License-Identifier: Apache-2.0
"""Read the functions of a Go program from .gopclntab, which the program itself needs, so that stripped files have it,
too (src/internal/abi/symtab.go and src/debug/gosym/pclntab.go of Go: since Go 1.18)."""

import struct
from typing import Final

import numpy as np

from perf_offcpu.model.columns import U64
from perf_offcpu.objects.elf.image import ElfImage
from perf_offcpu.objects.symtab import NO_ADDRESS, Symbols

_SECTIONS: Final = (b".gopclntab", b".data.rel.ro.gopclntab")
_MAGICS: Final = (0xFFFFFFF0, 0xFFFFFFF1)
_HEADER: Final = "I2xBB8Q"  # magic, code unit, pointer size; numbers, address of the code, offsets of the tables


def go_symbols(image: ElfImage) -> list[tuple[Symbols, bytes]]:
    """Return [(functions, string bytes)]; [] if it is no Go program of a known form. Raise FormatError if cut off."""
    section = next(filter(None, map(image.section_named, _SECTIONS)), None)
    data = image.content(section) if section else b""
    if len(data) < struct.calcsize(image.order + _HEADER):
        return []
    magic, _, width, number, _, text, names, cut, _, _, table = struct.unpack_from(image.order + _HEADER, data)
    code = image.section_named(b".text")
    if not text and code and image.section_named(b".init") is None:  # since Go 1.26; .text begins with C code, if any
        text = code.addr
    if magic not in _MAGICS or width != 8 or not text or not names < cut < table < len(data) - 8 * number:
        return []
    words = np.frombuffer(data, np.dtype(np.uint32).newbyteorder(image.order), (len(data) - table) // 4, table)
    starts, places = words[: 2 * number + 1 : 2].astype(np.uint64), words[1 : 2 * number : 2].astype(np.int64) // 4 + 1
    is_sound = (places < len(words)) & (starts[1:] > starts[:-1])
    name = words[np.where(is_sound, places, 0)].astype(np.uint32)
    is_sound &= name < cut - names
    nothing = np.zeros(number, np.uint8)
    limit: U64 = np.full(number, NO_ADDRESS)
    functions = Symbols(np.uint64(text) + starts[:-1], np.diff(starts), name, limit, nothing, nothing + np.uint8(1))
    return [(functions.take(is_sound), data[names:cut])]
