# SPDX-License-Identifier: Apache-2.0
"""Open an ELF file: its headers, checked, and the bytes of its sections on demand. Everything in the file may be wrong.
So headers are tables, read within bounds, and cause no long loops; each read is checked against the file's size and a
ceiling. Errors: FormatError for a damaged file, OSError for one that cannot be read."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.elf import ElfClass, SectionFlag, SectionType, SegmentFlag, SegmentType
from perf_offcpu.binary.layout import Layout, Order
from perf_offcpu.cache import DiskCache
from perf_offcpu.errors import FormatError
from perf_offcpu.files import descriptor, open_regular
from perf_offcpu.model.columns import Bool
from perf_offcpu.objects.elf import headers
from perf_offcpu.objects.elf.headers import SEGMENT, Rows, Source, uncompress
from perf_offcpu.structs import frozen

_MAX_SECTION_NAME: Final = 128
_ORDERS: Final[tuple[Order, Order]] = (">", "<")
_COMPRESSION: Final = {"ELFCOMPRESS_ZLIB": "zlib", "ELFCOMPRESS_ZSTD": "zstd", 2: "zstd"}
"""ch_type as pyelftools shows it (up to 0.33 it shows zstd as 2) → kind for `uncompress`."""


@frozen
class Section:
    """Section header, with the numbers as in the file; `index`: the section's number."""

    index: int
    name: bytes
    type: int
    flags: int
    addr: int
    offset: int
    size: int
    link: int
    entsize: int


class ElfImage:
    """ELF file of either class and byte order: headers, build-id (b"" if it has none) and sections."""

    def __init__(self, source: Source, cache: DiskCache | None = None) -> None:
        self.source, self.path = source, source.path
        columns = headers.read_headers(source, cache)
        bits, is_little, self.type, self.machine = columns["head"].tolist()
        self.bits, self.order = ElfClass(bits), _ORDERS[is_little]
        self.sections, self._segments = columns["sections"].view(headers.SECTION), columns["segments"].view(SEGMENT)
        self._names, self.build_id = columns["names"].tobytes(), columns["build_id"].tobytes()

    @cached_property
    def section_names(self) -> list[bytes]:
        """Return the name of each section; b"" if its offset lies outside of the string table."""
        starts = self.sections["sh_name"].tolist()
        return [self._names[start : start + _MAX_SECTION_NAME].split(b"\0", 1)[0] for start in starts]

    @cached_property
    def loads(self) -> Rows:
        """Return the PT_LOAD segments whose file and address ranges do not wrap around, as rows of SEGMENT. For a file
        without program headers, return its sections of code in this form."""
        loads = self._segments[self._segments["p_type"] == SegmentType.LOAD]
        if not len(self._segments):
            loads = self._code_sections()
        offset, vaddr, size = (loads[name] for name in ("p_offset", "p_vaddr", "p_filesz"))
        sound: Rows = loads[(offset + size >= offset) & (vaddr + size >= vaddr)]
        return sound

    def _code_sections(self) -> Rows:
        """Return code sections as segments: files that `perf inject --jit` makes have no segments."""
        rows = self.sections[self._has_code() & (self.sections["sh_type"] != SectionType.NOBITS)]
        loads = np.zeros(len(rows), SEGMENT)
        loads["p_flags"] = SegmentFlag.X | SegmentFlag.R
        loads["p_offset"], loads["p_vaddr"] = rows["sh_offset"], rows["sh_addr"]
        loads["p_filesz"] = loads["p_memsz"] = rows["sh_size"]
        return loads

    def _has_code(self) -> Bool:
        is_code: Bool = (self.sections["sh_flags"] & np.uint64(SectionFlag.EXECINSTR)) != 0
        return is_code

    def is_debug_only(self) -> bool:
        """Return True for a separate debug file: it has headers of code sections, but not the code."""
        types = self.sections["sh_type"][self._has_code()]
        return len(types) > 0 and not (types != SectionType.NOBITS).any()

    def section(self, index: int) -> Section | None:
        """Return a section by number; None if the number is out of range."""
        if not 0 <= index < len(self.sections):
            return None
        row, fields = self.sections[index], ("type", "flags", "addr", "offset", "size", "link", "entsize")
        return Section(index, self.section_names[index], *(int(row[f"sh_{field}"]) for field in fields))

    def section_named(self, name: bytes) -> Section | None:
        """Return the first section with a name; None if no section has it."""
        return self.section(self.section_names.index(name)) if name in self.section_names else None

    def section_of_type(self, type_: SectionType) -> Section | None:
        """Return the first section of a type; None if no section has it."""
        rows = np.flatnonzero(self.sections["sh_type"] == type_)
        return self.section(int(rows[0])) if len(rows) else None

    def holds(self, name: bytes) -> bool:
        """Return True if the file has a section with this name, and its bytes (not SHT_NOBITS)."""
        section = self.section_named(name)
        return section is not None and section.type != SectionType.NOBITS

    def content(self, section: Section, most: int = headers.MAX_SECTION) -> bytes:
        """Return the uncompressed bytes of a section; b"" for SHT_NOBITS. FormatError if they are more than `most`."""
        part = f"section {section.name.decode('ascii', 'replace')}"
        if section.type == SectionType.NOBITS:
            return b""
        data = self.source.read_exactly(part, section.offset, section.size, most)
        if not section.flags & SectionFlag.COMPRESSED:
            return data
        header = headers.structs_of(self.bits, self.order).Elf_Chdr
        with headers.own_errors(self.path, part, section.offset):
            kind = header.parse(data)["ch_type"]
        try:
            return uncompress(_COMPRESSION.get(kind, str(kind)), data[header.sizeof() :], most)
        except ValueError as problem:
            raise FormatError(self.path, part, str(problem), section.offset) from None

    def array(self, section: Section, layout: Layout) -> NDArray[Any]:
        """Return a section as an array of `layout` entries in the file's byte order, without an incomplete last one."""
        dtype, data = layout.dtype(self.order), self.content(section)
        return np.frombuffer(data, dtype, len(data) // dtype.itemsize)


@contextmanager
def open_elf(path: str, cache: DiskCache | None = None) -> Iterator[ElfImage]:
    """Open an ELF file for a `with` block, with its headers from `cache`, if kept there. Errors as in `elf.image`."""
    with descriptor(open_regular(path)) as fd:
        yield ElfImage(Source(path, fd), cache)
