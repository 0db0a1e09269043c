# SPDX-License-Identifier: Apache-2.0
"""Find the separate debug file of an object.

A debug file belongs to an object if both have the same build-id; without build-ids, if the .gnu_debuglink of
the object names it and holds its CRC. No other file is accepted.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Final

from perf_offcpu.errors import FormatError
from perf_offcpu.files import is_mostly_holes
from perf_offcpu.objects.elf.image import ElfImage, open_elf
from perf_offcpu.objects.search import Search, debug_by_build_id, debug_by_link, debug_by_path

_MAX_LINK: Final = 1 << 12
_CRC_BLOCK: Final = 1 << 20


def open_debug(image: ElfImage, search: Search, wanted: bytes, stack: ExitStack) -> ElfImage | None:
    """Open the debug file of an object that holds a section, for the life of `stack`; None without one."""
    link, crc = debug_link(image)
    for path, by_crc in _candidates(image, link, search):
        try:
            with ExitStack() as attempt:
                debug = attempt.enter_context(open_elf(path, search.cache))
                if debug.holds(wanted) and _belongs(debug, image, crc if by_crc else None):
                    stack.enter_context(attempt.pop_all())
                    return debug
        except (OSError, FormatError):
            continue  # a damaged file
    return None


def _candidates(image: ElfImage, link: str, search: Search) -> Iterator[tuple[str, bool]]:
    """Yield paths, and True if the CRC decides where there are no build-ids."""
    for path in debug_by_build_id(image.build_id, search):
        yield path, False
    for path in debug_by_link(image.path, link, search):
        yield path, True
    if image.build_id:
        for path in debug_by_path(image.path, search):
            yield path, False


def _belongs(debug: ElfImage, image: ElfImage, crc: int | None) -> bool:
    if debug.machine != image.machine or debug.bits != image.bits:
        return False
    if image.build_id and debug.build_id:
        return debug.build_id == image.build_id
    return crc is not None and file_crc(debug) == crc


def debug_link(image: ElfImage) -> tuple[str, int]:
    """Return the file name and the CRC in .gnu_debuglink; ("", 0) without a sound one."""
    section, data = image.section_named(b".gnu_debuglink"), b""
    with suppress(FormatError):
        data = image.content(section, _MAX_LINK) if section else b""
    name = data.partition(b"\0")[0]
    crc_at = len(name) + 4 - len(name) % 4  # after the NUL, 4-byte aligned
    crc = data[crc_at : crc_at + 4]
    if len(crc) < 4:
        return "", 0
    return name.decode("utf-8", "replace"), int.from_bytes(crc, "little" if image.order == "<" else "big")


def file_crc(image: ElfImage) -> int | None:
    """Return the CRC-32 of a whole file, as debuglinks hold it (zlib's).

    Return None for a file that consists of holes, which cost nothing to make and as much to read as data.
    """
    source = image.source
    if source.fd >= 0 and is_mostly_holes(os.fstat(source.fd)):
        return None
    crc, at = 0, 0
    while block := image.source.read(at, _CRC_BLOCK):
        crc, at = zlib.crc32(block, crc), at + len(block)
    return crc
