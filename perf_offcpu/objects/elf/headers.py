# SPDX-License-Identifier: Apache-2.0
"""Read the headers of ELF files with pyelftools, and keep them on disk as tables.

pyelftools knows the structures of both classes and byte orders. It is given bytes whose size and number have
been checked against the file and a ceiling, so a hostile file costs bounded time and memory. Importing it
takes longer than all other work on the files of a small recording. So the tables are kept in the cache, under
the identity of the file, and a file that was read before is read without pyelftools.
"""

from __future__ import annotations

import functools
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.elf import MAGIC, ElfClass, SectionType, SegmentType
from perf_offcpu.binary.layout import Order
from perf_offcpu.build_ids import find_build_id
from perf_offcpu.cache import Array, DiskCache, cache_name
from perf_offcpu.errors import FormatError
from perf_offcpu.objects.elf.source import Source
from perf_offcpu.structs import frozen

KIND: Final = "headers1"
"""Kind of cache file; the number changes whenever the tables do."""
MAX_HEADERS: Final = 1 << 16
"""Sections or segments: real files have at most a few ten thousand."""
_MAX_SECTION_NAMES: Final = 1 << 24
_MAX_NOTES: Final = 1 << 16
_MAX_NOTE_RANGES: Final = 32
_EXTENDED: Final = 0xFFFF
"""In e_phnum and e_shstrndx: the number is in section 0, because it does not fit."""

Rows = NDArray[Any]
T = TypeVar("T")


def _uint64_fields(prefix: str, names: str) -> np.dtype[Any]:
    return np.dtype([(prefix + name, "<u8") for name in names.split()])


SECTION: Final = _uint64_fields("sh_", "name type flags addr offset size link info addralign entsize")
"""A section header as a row, with the field names of pyelftools (and the gABI)."""
SEGMENT: Final = _uint64_fields("p_", "type flags offset vaddr filesz memsz align")
"""A program header as a row."""


@frozen
class Headers:
    """The headers of one file.

    Args:
        bits, order: its class and byte order.
        type, machine: e_type and e_machine.
        sections, segments: rows of SECTION and SEGMENT, in file order.
        names: the string table of section names; b"" if there is none.
        build_id: the GNU build-id, from note sections or else note segments; b"" if there is none.
    """

    bits: ElfClass
    order: Order
    type: int
    machine: int
    sections: Rows
    segments: Rows
    names: bytes
    build_id: bytes

    def columns(self) -> dict[str, Array]:
        """Return all members as columns for the cache."""
        head = np.array([self.bits, self.order == "<", self.type, self.machine], np.uint64)
        text = {name: np.frombuffer(getattr(self, name), np.uint8) for name in ("names", "build_id")}
        return {
            "head": head,
            "sections": self.sections.view("<u8"),
            "segments": self.segments.view("<u8"),
            **text,
        }

    @classmethod
    def from_columns(cls, columns: dict[str, Array]) -> Headers | None:
        """Return the headers that `columns` made columns of; None if these do not fit together."""
        try:
            bits, is_little, type_, machine = columns["head"].tolist()
            sections, segments = columns["sections"].view(SECTION), columns["segments"].view(SEGMENT)
            names, build_id = columns["names"].tobytes(), columns["build_id"].tobytes()
            order: Order = "<" if is_little else ">"
            return cls(ElfClass(bits), order, type_, machine, sections, segments, names, build_id)
        except (KeyError, ValueError, TypeError):
            return None


def read_headers(source: Source, cache: DiskCache | None = None) -> Headers:
    """Return the headers of an ELF file, from the cache if they are kept there.

    Raises:
        FormatError: it is not ELF, or its headers do not fit the file.
        OSError: it cannot be read.
    """
    if cache is None:
        return _parse(source)
    name = cache_name(KIND, b"", source.identity)
    columns = cache.read(name)
    headers = None if columns is None else Headers.from_columns(columns)
    if headers is None:
        headers = _parse(source)
        cache.write(name, headers.columns())
    return headers


@functools.cache
def structs_of(bits: ElfClass, order: Order) -> Any:
    """Return pyelftools' structures (`elftools.elf.structs.ELFStructs`) for a class and byte order."""
    from elftools.elf.structs import ELFStructs

    structs = ELFStructs(little_endian=order == "<", elfclass=32 * bits)
    structs.create_basic_structs()
    structs.create_advanced_structs()
    return structs


@functools.cache
def _numbers() -> dict[str, int]:
    """Return the numbers that pyelftools replaces by names: SHT_SYMTAB, PT_LOAD, ..."""
    from elftools.elf import enums

    return {**enums.ENUM_E_TYPE, **enums.ENUM_E_MACHINE, **enums.ENUM_SH_TYPE_BASE, **enums.ENUM_P_TYPE_BASE}


def _number(value: int | str) -> int:
    return value if isinstance(value, int) else _numbers()[value]


def _parse(source: Source) -> Headers:
    ident = source.read_exactly("ELF header", 0, 16)
    if ident[:4] != MAGIC:
        raise FormatError(source.path, "ELF header", "this is not an ELF file", 0)
    if ident[4] not in set(ElfClass) or ident[5] not in (1, 2):
        problem = f"unknown class {ident[4]} or byte order {ident[5]}"
        raise FormatError(source.path, "ELF header", problem, 4)
    return _HeaderParser(source, ElfClass(ident[4]), "<" if ident[5] == 1 else ">").parse()


class _HeaderParser:
    """Parse the headers of one file, of known class and byte order."""

    def __init__(self, source: Source, bits: ElfClass, order: Order) -> None:
        self.source, self.bits, self.order = source, bits, order
        self.structs = structs_of(bits, order)
        header = self.structs.Elf_Ehdr
        self.header = header.parse(source.read_exactly("ELF header", 0, header.sizeof()))

    def parse(self) -> Headers:
        header, shdr = self.header, self.structs.Elf_Shdr
        sections, segments, shstrndx = header["e_shnum"], header["e_phnum"], header["e_shstrndx"]
        for first in self._table("sh", shdr, SECTION, 1).tolist():
            # Section 0 has the numbers that do not fit the file header.
            by_name = dict(zip(SECTION.names or (), first, strict=True))
            sections = sections or by_name["sh_size"]
            segments = by_name["sh_info"] if segments == _EXTENDED else segments
            shstrndx = by_name["sh_link"] if shstrndx == _EXTENDED else shstrndx
        shdrs = self._table("sh", shdr, SECTION, sections)
        phdrs = self._table("ph", self.structs.Elf_Phdr, SEGMENT, segments)
        kind = _number(header["e_type"]), _number(header["e_machine"])
        names, build_id = self._names(shdrs, shstrndx), self._build_id(shdrs, phdrs)
        return Headers(self.bits, self.order, *kind, shdrs, phdrs, names, build_id)

    def _table(self, kind: str, struct: Any, dtype: np.dtype[Any], count: int) -> Rows:
        """Return the first `count` entries of the table at e_shoff or e_phoff; none if the file has none."""
        offset, entsize = self.header[f"e_{kind}off"], self.header[f"e_{kind}entsize"]
        if not offset or not count:
            return np.empty(0, dtype)
        path, what, size = self.source.path, f"{struct.name} table", struct.sizeof()
        if entsize != size:
            raise FormatError(path, what, f"entries of {entsize} bytes, expected {size}", offset)
        if count > MAX_HEADERS:
            raise FormatError(path, what, f"{count} entries, more than {MAX_HEADERS}", offset)
        data = self.source.read_exactly(what, offset, count * size)
        entries = (struct.parse(data[at : at + size]) for at in range(0, len(data), size))
        return np.array(
            [tuple(_number(entry[name]) for name in dtype.names or ()) for entry in entries], dtype
        )

    def _names(self, sections: Rows, index: int) -> bytes:
        if index >= len(sections):
            return b""
        offset, size = int(sections["sh_offset"][index]), int(sections["sh_size"][index])
        return self.source.read_exactly("section names", offset, size, _MAX_SECTION_NAMES)

    def _build_id(self, sections: Rows, segments: Rows) -> bytes:
        notes = sections[sections["sh_type"] == SectionType.NOTE][:_MAX_NOTE_RANGES]
        ranges = notes[["sh_offset", "sh_size", "sh_addralign"]].tolist()
        notes = segments[segments["p_type"] == SegmentType.NOTE][:_MAX_NOTE_RANGES]
        ranges += notes[["p_offset", "p_filesz", "p_align"]].tolist()
        for offset, size, align in ranges:
            if offset < self.source.size:
                data = self.source.read(offset, min(size, _MAX_NOTES))
                if found := find_build_id(data, self.order, align):
                    return found
        return b""
