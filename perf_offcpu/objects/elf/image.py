# SPDX-License-Identifier: Apache-2.0
"""An ELF file's headers, checked, and its sections' bytes on demand: the only reader of ELF here.

Everything in the file may lie. So: headers are tables read by numpy, never loops that the file could make
long; each read is checked against the file's size and a ceiling; what does not fit is a FormatError. numpy
is all it needs, so that names work inside perf's own Python as well. `elf_source` gives it the bytes.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi import elf
from perf_offcpu.binary.layout import Layout, Order
from perf_offcpu.errors import FormatError, LayoutError
from perf_offcpu.model.columns import U64, Table, column
from perf_offcpu.objects.elf.source import FileSource, Source, open_regular
from perf_offcpu.structs import frozen, mutable

MAX_HEADERS: Final = 1 << 17
"""Sections or segments: real files have at most a few ten thousand."""
MAX_SECTION: Final = 1 << 30
"""Bytes of one section that are read: symbol and string tables of the largest programs have some 100 MB."""
_MAX_NOTES: Final = 1 << 16
_MAX_BUILD_ID: Final = 64
_MAX_SECTION_NAME: Final = 128
_MAX_SECTION_NAMES: Final = 1 << 24


@mutable
class Segments(Table):
    """The PT_LOAD program headers, in file order: which file bytes lie at which addresses."""

    offset: U64 = column("u8", unit="bytes", doc="p_offset")
    vaddr: U64 = column("u8", doc="p_vaddr")
    filesz: U64 = column("u8", unit="bytes", doc="p_filesz")
    memsz: U64 = column("u8", unit="bytes", doc="p_memsz")
    flags: U64 = column("u8", doc="p_flags")


@frozen
class Section:
    """One section header, numbers as in the file."""

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
    """One ELF file of either class and byte order.

    Args:
        source: its bytes.
        path: how errors name it.

    Raises:
        FormatError: it is not ELF, or its headers do not fit the file.
    """

    def __init__(self, source: Source, path: str) -> None:
        self.path, self._source = path, source
        ident = self._ident()
        self.bits = elf.ElfClass(ident["ei_class"])
        self.order: Order = "<" if ident["ei_data"] == 1 else ">"
        layout = elf.EHDR[self.bits]
        header = layout.unpack(self._read("ELF header", 0, layout.size()), self.order)
        self.type: int = header["e_type"]
        self.machine: int = header["e_machine"]
        self._header = header

    def _ident(self) -> dict[str, Any]:
        ident = elf.IDENT.unpack(self._read("ELF header", 0, elf.IDENT.size()))
        if ident["magic"] != elf.MAGIC:
            raise FormatError(self.path, "ELF header", "this is not an ELF file", 0)
        if ident["ei_class"] not in set(elf.ElfClass) or ident["ei_data"] not in (1, 2):
            problem = f"unknown class {ident['ei_class']} or byte order {ident['ei_data']}"
            raise FormatError(self.path, "ELF header", problem, 4)
        return ident

    def _read(self, what: str, offset: int, size: int, ceiling: int = MAX_SECTION) -> bytes:
        """Exactly `size` bytes."""
        if size > ceiling or offset + size > self._source.size:
            problem = f"{size} bytes, the file has {self._source.size}, at most {ceiling} are read"
            raise FormatError(self.path, what, problem, offset)
        data = self._source.read(offset, size)
        if len(data) != size:
            raise FormatError(self.path, what, f"{size} bytes wanted, {len(data)} could be read", offset)
        return data

    def read_raw(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes of the file itself; fewer at its end."""
        return self._source.read(offset, size)

    def _table(self, what: str, layout: Layout, offset: int, count: int) -> NDArray[Any]:
        """`count` structures as a numpy structured array in the file's byte order."""
        if count > MAX_HEADERS:
            raise FormatError(self.path, what, f"{count} entries, more than {MAX_HEADERS}", offset)
        dtype = layout.dtype(self.order)
        return np.frombuffer(self._read(what, offset, count * dtype.itemsize), dtype)

    def _entries(self, kind: str, layout: Layout, count: int) -> NDArray[Any]:
        """The table at e_shoff or e_phoff; empty if the file has none."""
        offset, entsize = self._header[f"e_{kind}off"], self._header[f"e_{kind}entsize"]
        if not offset or not count:
            return np.empty(0, layout.dtype(self.order))
        if entsize != layout.size():
            problem = f"entries of {entsize} bytes, expected {layout.size()}"
            raise FormatError(self.path, f"{layout.name} table", problem, offset)
        return self._table(f"{layout.name} table", layout, offset, count)

    @cached_property
    def _first_section(self) -> NDArray[Any]:
        """Section 0, which holds the counts that do not fit the ELF header; empty without sections."""
        return self._entries("sh", elf.SHDR[self.bits], 1)

    @cached_property
    def _sections(self) -> NDArray[Any]:
        count = self._header["e_shnum"]
        if not count and len(self._first_section):
            count = int(self._first_section["sh_size"][0])
        return self._entries("sh", elf.SHDR[self.bits], count)

    @cached_property
    def _segments(self) -> NDArray[Any]:
        count = self._header["e_phnum"]
        if count == elf.PN_XNUM and len(self._first_section):
            count = int(self._first_section["sh_info"][0])
        return self._entries("ph", elf.PHDR[self.bits], count)

    @cached_property
    def section_names(self) -> list[bytes]:
        """The name of each section; "" where it lies outside the string table."""
        index = self._header["e_shstrndx"]
        if index == 0xFFFF and len(self._first_section):
            index = int(self._first_section["sh_link"][0])
        if index >= len(self._sections):
            return [b""] * len(self._sections)
        row = self._sections[index]
        text = self._read("section names", int(row["sh_offset"]), int(row["sh_size"]), _MAX_SECTION_NAMES)
        starts = self._sections["sh_name"].tolist()
        return [text[at : at + _MAX_SECTION_NAME].split(b"\0", 1)[0] for at in starts]

    @property
    def identity(self) -> tuple[int, ...]:
        """(st_dev, st_ino, st_size, st_mtime_ns) of the open file; () for an image in memory."""
        return self._source.identity

    @property
    def changed_ns(self) -> int:
        """When the file's content was changed last, wall clock; 0 for an image in memory."""
        return self.identity[3] if self.identity else 0

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self._source.size

    def fileno(self) -> int:
        """The open file; -1 for an image in memory."""
        return self._source.fileno()

    def holds_code(self) -> bool:
        """Whether it is the object itself: a separate debug file has the headers, but not the bytes."""
        flags, types = self.section_column("sh_flags"), self._sections["sh_type"]
        code = (flags & np.uint64(elf.SectionFlag.EXECINSTR)) != 0
        return not code.any() or bool((types[code] != elf.SectionType.NOBITS).any())

    def section_column(self, field: str) -> U64:
        """uint64[number of sections]: one field of all section headers."""
        return self._sections[field].astype(np.uint64)

    def section(self, index: int) -> Section | None:
        """A section by number; None if there is none."""
        if not 0 <= index < len(self._sections):
            return None
        row, fields = self._sections[index], ("type", "flags", "addr", "offset", "size", "link", "entsize")
        return Section(index, self.section_names[index], *(int(row[f"sh_{field}"]) for field in fields))

    def section_named(self, name: bytes) -> Section | None:
        """The first section of that name."""
        return self.section(self.section_names.index(name)) if name in self.section_names else None

    def section_of_type(self, type_: elf.SectionType) -> Section | None:
        """The first section of that type."""
        found = np.flatnonzero(self._sections["sh_type"] == type_)
        return self.section(int(found[0])) if len(found) else None

    def content(self, section: Section) -> bytes:
        """The bytes of a section; none for one that occupies no file space.

        Raises:
            FormatError: they lie outside the file, are compressed, or exceed `MAX_SECTION`.
        """
        what = f"section {section.name.decode('ascii', 'replace')}"
        if section.type == elf.SectionType.NOBITS:
            return b""
        if section.flags & elf.SectionFlag.COMPRESSED:
            raise FormatError(self.path, what, "it is compressed", section.offset)
        return self._read(what, section.offset, section.size)

    def unpacked(self, section: Section, most: int = 1 << 26) -> bytes:
        """The bytes of a section, the first `most` of them, unpacked if they are compressed (zlib, zstd);
        b"" for one that is damaged, or compressed in another way."""
        if section.type == elf.SectionType.NOBITS:
            return b""
        try:
            data = self._read("section", section.offset, section.size)
            if not section.flags & elf.SectionFlag.COMPRESSED:
                return data[:most]
            head = elf.CHDR[self.bits].unpack(data, self.order)
            start = elf.CHDR[self.bits].size()
            return _unpack(head["ch_type"], data[start:], most)
        except (FormatError, LayoutError, zlib.error):
            return b""

    def array(self, section: Section, layout: Layout) -> NDArray[Any]:
        """A section that is a table, as a structured array in the file's byte order; a torn end is cut."""
        dtype, data = layout.dtype(self.order), self.content(section)
        return np.frombuffer(data, dtype, len(data) // dtype.itemsize)

    @cached_property
    def loads(self) -> Segments:
        """The PT_LOAD segments whose file and address ranges do not wrap around."""
        rows = self._segments[self._segments["p_type"] == elf.SegmentType.LOAD]
        names = ("offset", "vaddr", "filesz", "memsz", "flags")
        loads = Segments(*(rows[f"p_{name}"].astype(np.uint64) for name in names))
        if not len(self._segments):
            loads = self._code_sections()
        sound = (loads.offset + loads.filesz >= loads.offset) & (loads.vaddr + loads.filesz >= loads.vaddr)
        return loads.take(sound)

    def _code_sections(self) -> Segments:
        """What stands for segments where there are none: code that `perf inject --jit` made files of."""
        code = (self.section_column("sh_flags") & np.uint64(elf.SectionFlag.EXECINSTR)) != 0
        rows = self._sections[code & (self._sections["sh_type"] != elf.SectionType.NOBITS)]
        offset, vaddr, size = (rows[f"sh_{name}"].astype(np.uint64) for name in ("offset", "addr", "size"))
        flags = np.full(len(rows), elf.SegmentFlag.X | elf.SegmentFlag.R, np.uint64)
        return Segments(offset, vaddr, size, size, flags)

    @cached_property
    def build_id(self) -> bytes:
        """The GNU build-id, from note sections or else note segments; b"" if there is none."""
        for headers, type_, offset, size in (
            (self._sections, "sh_type", "sh_offset", "sh_size"),
            (self._segments, "p_type", "p_offset", "p_filesz"),
        ):
            wanted = elf.SectionType.NOTE if type_ == "sh_type" else elf.SegmentType.NOTE
            for row in headers[headers[type_] == wanted][:16]:
                start, length = int(row[offset]), min(int(row[size]), _MAX_NOTES)
                if found := find_build_id(self._source.read(start, length), self.order):
                    return found
        return b""


def _unpack(kind: int, data: bytes, most: int) -> bytes:
    """Up to `most` bytes of what is packed in `data`; b"" if it is damaged or of an unknown kind."""
    if kind == elf.COMPRESS_ZLIB:
        return zlib.decompressobj().decompress(data, most)
    if kind != elf.COMPRESS_ZSTD:
        return b""
    import zstandard

    with suppress(zstandard.ZstdError), zstandard.ZstdDecompressor().stream_reader(data) as unpacked:
        return bytes(unpacked.read(most))
    return b""


def find_build_id(notes: bytes, order: Order) -> bytes:
    """The build-id in ELF notes (a PT_NOTE, /sys/kernel/notes); b"" if there is none."""
    at, header = 0, elf.NOTE
    while at + header.size() <= len(notes):
        note = header.unpack(notes, order, start=at)
        name = at + header.size()
        desc = name + _aligned(note["n_namesz"])
        at = desc + _aligned(note["n_descsz"])
        if note["n_type"] == elf.NT_GNU_BUILD_ID and notes[name : name + note["n_namesz"]] == b"GNU\0":
            found = notes[desc : desc + note["n_descsz"]]
            if 0 < len(found) == note["n_descsz"] <= _MAX_BUILD_ID:
                return found
    return b""


def _aligned(size: int) -> int:
    return size + -size % 4


@contextmanager
def open_elf(path: str) -> Iterator[ElfImage]:
    """An ELF file for the time of a `with` block.

    Raises:
        OSError, FormatError: as `open_regular` and `ElfImage`.
    """
    fd = open_regular(path)
    try:
        yield ElfImage(FileSource(fd), path)
    finally:
        os.close(fd)
