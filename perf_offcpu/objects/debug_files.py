# SPDX-License-Identifier: Apache-2.0
"""Opening the right file: the object that was mapped, and the separate debug file that belongs to it.

A debug file belongs to an object if both have the same build-id; without build-ids, if it is the one that
the object's .gnu_debuglink names and its CRC is the one noted there. Nothing else is believed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from perf_offcpu.abi import elf
from perf_offcpu.errors import FormatError, LayoutError
from perf_offcpu.objects.elf.image import ElfImage, open_elf
from perf_offcpu.objects.search import Search, debug_by_build_id, debug_by_link, debug_by_path

_MAX_LINK: Final = 1 << 12
_CRC_BLOCK: Final = 1 << 20


def open_debug(image: ElfImage, search: Search, wanted: bytes, stack: ExitStack) -> ElfImage | None:
    """The debug file of an object, open for the life of `stack`; damaged and foreign ones are passed over.

    Args:
        image: the object.
        wanted: a section that it must hold: `.symtab` or `.debug_info`.
    """
    link, crc = debug_link(image)
    for path, by_crc in _candidates(image, link, search):
        try:
            with ExitStack() as attempt:
                debug = attempt.enter_context(open_elf(path))
                if _holds(debug, wanted) and _belongs(debug, image, crc if by_crc else None):
                    stack.enter_context(attempt.pop_all())
                    return debug
        except (OSError, FormatError):
            continue
    return None


def _candidates(image: ElfImage, link: str, search: Search) -> Iterator[tuple[str, bool]]:
    """Paths, and whether a CRC may vouch for the file."""
    for path in debug_by_build_id(image.build_id, search):
        yield path, False
    for path in debug_by_link(image.path, link, search):
        yield path, True
    if image.build_id:
        for path in debug_by_path(image.path, search):
            yield path, False


def _holds(image: ElfImage, name: bytes) -> bool:
    section = image.section_named(name)
    return section is not None and section.type != elf.SectionType.NOBITS


def _belongs(debug: ElfImage, image: ElfImage, crc: int | None) -> bool:
    if debug.machine != image.machine or debug.bits != image.bits:
        return False
    if image.build_id and debug.build_id:
        return debug.build_id == image.build_id
    return crc is not None and file_crc(debug) == crc


def debug_link(image: ElfImage) -> tuple[str, int]:
    """The file name and the CRC in .gnu_debuglink; ("", 0) without a sound one."""
    section = image.section_named(b".gnu_debuglink")
    if section is None or section.size > _MAX_LINK:
        return "", 0
    try:
        data = image.content(section)
        name = data.partition(b"\0")[0]
        crc = elf.DEBUGLINK_CRC.unpack(data, image.order, start=len(name) + 4 - len(name) % 4)
    except (FormatError, LayoutError):
        return "", 0
    return name.decode("utf-8", "replace"), crc["crc"]


def file_crc(image: ElfImage) -> int:
    """The CRC-32 of a whole file, as debuglinks have it (zlib's)."""
    crc, at = 0, 0
    while block := image.read_raw(at, _CRC_BLOCK):
        crc, at = zlib.crc32(block, crc), at + len(block)
    return crc
