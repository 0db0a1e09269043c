# SPDX-License-Identifier: Apache-2.0
"""Find the part of CPython's interpreter function that GCC split off as rarely run code: in Debian's 3.14 the loop
itself (x86-64). In a stripped file it has no symbol, but call frame information like a function of its own. Jumps of
the interpreter into its middle identify it: jumps that end a function (tail calls) lead to begins of functions."""

from typing import Final

import numpy as np

from perf_offcpu.abi import elf
from perf_offcpu.binary.fields import S32
from perf_offcpu.binary.gather import gather
from perf_offcpu.cache import DiskCache, cache_name
from perf_offcpu.model.columns import U64, is_among
from perf_offcpu.objects.elf.image import ElfImage
from perf_offcpu.objects.functions import listed_symbols
from perf_offcpu.objects.symtab import Symbols
from perf_offcpu.unwind.cfi.entries import read_entries
from perf_offcpu.unwind.cfi.table import frame_sections

INTERPRETER: Final = "_PyEval_EvalFrameDefault"
_KIND: Final = "interpreter1"  # kind of cache file; the number changes whenever the result may
_NONE: Final = np.zeros(2, np.uint64)


def interpreter_part(image: ElfImage, cache: DiskCache | None) -> U64:
    """Return (start, end), addresses of the part; zeros if there is none. FormatError and OSError as in `elf.image`."""
    name = cache_name(_KIND, image.build_id, image.source.identity)
    columns = cache.read(name) if cache else None
    if columns is not None and len(part := columns.get("part", _NONE).astype(np.uint64)) == 2:
        return part
    part = _find(image)
    if cache:
        cache.write(name, {"part": part})
    return part


def _find(image: ElfImage) -> U64:
    table = image.section_of_type(elf.SectionType.SYMTAB) or image.section_of_type(elf.SectionType.DYNSYM)
    fdes = [read_entries(section)[1] for section in frame_sections(image)]
    if image.machine != elf.Machine.X86_64 or table is None or not any(map(len, fdes[:1])):
        return _NONE
    symbols, strings = listed_symbols(image, table)
    function = symbols.take(symbols.name == strings.find(b"\0%s\0" % INTERPRETER.encode()) + 1)
    targets, starts, ends = _jump_targets(image, function), fdes[0].start, fdes[0].end
    row = np.searchsorted(starts, targets, side="right") - 1
    is_inside = (row >= 0) & (targets > starts[row]) & (targets < ends[row]) & ~is_among(starts[row], function.start)
    best = int(np.bincount(row[is_inside], minlength=1).argmax())
    # Bytes of other instructions may look like a jump, but hardly like three into one function.
    return np.array([starts[best], ends[best]]) if (row[is_inside] == best).sum() > 2 else _NONE


def _jump_targets(image: ElfImage, function: Symbols) -> U64:
    """Return the targets of jmp rel32 (e9) and jcc rel32 (0f 80 to 0f 8f) in a function."""
    for load in image.loads if len(function) else ():
        start, size = function.start[0], int(function.size[0])
        if load["p_vaddr"] <= start and start - load["p_vaddr"] < load["p_filesz"]:
            offset = int(start - load["p_vaddr"]) + int(load["p_offset"])
            code = np.frombuffer(image.source.read_exactly(INTERPRETER, offset, size), np.uint8)
            is_jump = (code[1:-4] == 0xE9) | ((code[:-5] == 0x0F) & (code[1:-4] & 0xF0 == 0x80))
            place = np.flatnonzero(is_jump) + 2
            return np.asarray(start + (place + 4 + gather(code, place, S32)).astype(np.uint64))
    return np.empty(0, np.uint64)
