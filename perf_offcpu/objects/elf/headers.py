# SPDX-License-Identifier: Apache-2.0
"""Read the bytes of ELF files, and their headers with pyelftools, which are kept on disk as columns.

Files are read with pread, not mapped: a file that is truncated while it is read causes an error, not SIGBUS.

pyelftools knows the structures of both classes and byte orders. It parses bytes whose size and number have been checked
against the file and a ceiling, so a hostile file costs bounded time and memory. Its import takes longer than all other
work on the files of a small recording. So the columns are kept in the cache, under the identity of the file, and a file
that was read before is read without pyelftools:

    head       class, 1 if little-endian, e_type, e_machine
    sections   section headers, rows of SECTION as words
    segments   program headers, rows of SEGMENT as words
    names      the string table of section names; empty if the file has none
    build_id   the GNU build-id, from note sections, else from note segments; empty if the file has none"""

import functools
import hashlib
import lzma
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.elf import MAGIC, ElfClass, SectionType, SegmentType
from perf_offcpu.binary.layout import Order
from perf_offcpu.build_ids import find_build_id
from perf_offcpu.cache import Array, DiskCache, cache_name
from perf_offcpu.errors import FormatError

_LZMA_MEMORY: Final = 1 << 27  # xz -9 takes 65 MiB
_GZIP: Final = 31  # zlib's wbits for a gzip header


def uncompress(kind: str, data: bytes, most: int) -> bytes:
    """Uncompress all of `data` to at most `most` bytes. `kind`: "zlib", "gzip", "xz" or "zstd". Raise ValueError if the
    data are damaged, cut off or larger, the kind is another one, or its package is not installed."""
    if kind == "zstd":
        return _uncompress_zstd(data, most)
    unpacker: lzma.LZMADecompressor | zlib._Decompress
    try:
        if kind == "xz":
            unpacker = lzma.LZMADecompressor(memlimit=_LZMA_MEMORY)
        elif kind in ("zlib", "gzip"):
            unpacker = zlib.decompressobj(zlib.MAX_WBITS if kind == "zlib" else _GZIP)
        else:
            raise ValueError(f"it is compressed in an unknown way ({kind})")
        unpacked = unpacker.decompress(data, most + 1)
    except (lzma.LZMAError, zlib.error) as problem:
        raise ValueError(str(problem)) from None
    if not unpacker.eof or len(unpacked) > most:
        raise ValueError(f"it is cut off, or unpacks to more than {most} bytes")
    return unpacked


def _uncompress_zstd(data: bytes, most: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise ValueError("the Python package zstandard is not installed") from None
    try:
        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            unpacked = bytes(reader.read(most + 1))
    except zstandard.ZstdError as problem:
        raise ValueError(str(problem)) from None
    if len(unpacked) > most:
        raise ValueError(f"it unpacks to more than {most} bytes")
    return unpacked


MAX_SECTION: Final = 1 << 30
"""Bytes read at once, of one section: symbol and string tables of the largest programs have some 100 MB."""


class Source:
    """Bytes of a file, by its descriptor (`content`, `fd`), or of memory (`fd` is -1). `path` names it in errors."""

    def __init__(self, path: str, content: int | bytes) -> None:
        self.path, self._content = path, content
        if isinstance(content, bytes):
            self.fd, self.size, self.changed_ns = -1, len(content), 0
        else:
            self._status = os.fstat(content)
            self.fd, self.size, self.changed_ns = content, self._status.st_size, self._status.st_mtime_ns

    @functools.cached_property
    def identity(self) -> tuple[object, ...]:
        """Return a key of the content: device, inode, size and time of last change of a file; SHA-256 of memory."""
        if isinstance(self._content, bytes):
            return (hashlib.sha256(self._content).digest(),)
        return (self._status.st_dev, self._status.st_ino, self.size, self.changed_ns)

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from an offset on; fewer at the end, or if the file has become shorter."""
        if isinstance(self._content, bytes):
            return self._content[offset : offset + size]
        parts: list[bytes] = []
        while size > 0 and (part := os.pread(self.fd, size, offset)):
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_exactly(self, part: str, offset: int, size: int, ceiling: int = MAX_SECTION) -> bytes:
        """Return `size` bytes from an offset on. Raise FormatError, about the `part` of the file, if the file does not
        have them or they are more than `ceiling`."""
        if size > ceiling or offset + size > self.size:
            problem = f"{size} bytes, the file has {self.size}, at most {ceiling} are read"
            raise FormatError(self.path, part, problem, offset)
        data = self.read(offset, size)
        if len(data) != size:
            raise FormatError(self.path, part, f"{size} bytes wanted, {len(data)} could be read", offset)
        return data


KIND: Final = "headers1"  # kind of cache file; the number changes whenever the columns do
MAX_HEADERS: Final = 1 << 16  # sections or segments: real files have at most a few ten thousand
_MAX_SECTION_NAMES: Final = 1 << 24
_MAX_NOTES: Final = 1 << 16
_MAX_NOTE_RANGES: Final = 32
_EXTENDED: Final = 0xFFFF  # in e_phnum and e_shstrndx: the number is in section 0, because it does not fit
Rows = NDArray[Any]


def _words(prefix: str, names: str) -> np.dtype[Any]:
    return np.dtype([(prefix + name, "<u8") for name in names.split()])


SECTION: Final = _words("sh_", "name type flags addr offset size link info addralign entsize")
"""A section header as a row, with the field names of the gABI and pyelftools."""
SEGMENT: Final = _words("p_", "type flags offset vaddr filesz memsz align")  # a program header as a row
_DTYPES: Final = {"head": "<u8", "sections": "<u8", "segments": "<u8", "names": "|u1", "build_id": "|u1"}


def read_headers(source: Source, cache: DiskCache | None = None) -> dict[str, Array]:
    """Return arrays by name: head, sections, segments, names and build_id of an ELF file. Get them from the cache, else
    parse the file and write them to the cache. Errors as in `elf.image`."""
    if cache is None:
        return _parse(source)
    name = cache_name(KIND, b"", source.identity)
    columns = cache.read(name)
    if columns is None or not _is_sound(columns):
        columns = _parse(source)
        cache.write(name, columns)
    return columns


def _is_sound(columns: dict[str, Array]) -> bool:
    if {name: column.dtype.str for name, column in columns.items()} != _DTYPES or len(columns["head"]) != 4:
        return False
    tables = (columns["sections"], SECTION), (columns["segments"], SEGMENT)
    bits, is_little = columns["head"][:2].tolist()
    is_whole = all(column.nbytes % dtype.itemsize == 0 for column, dtype in tables)
    return is_whole and bits in set(ElfClass) and is_little in (0, 1)


@functools.cache
def structs_of(bits: ElfClass, order: Order) -> Any:
    """Return pyelftools' structures (`elftools.elf.structs.ELFStructs`) for a class and byte order."""
    from elftools.elf.structs import ELFStructs

    structs = ELFStructs(little_endian=order == "<", elfclass=32 * bits)
    structs.create_basic_structs()
    structs.create_advanced_structs()
    return structs


@contextmanager
def own_errors(path: str, part: str, offset: int) -> Iterator[None]:
    """Turn pyelftools' exceptions, which have no common base, into FormatError on `part` at `offset` of file `path`."""
    try:
        yield
    except Exception as problem:
        raise FormatError(path, part, f"{type(problem).__name__}: {problem}", offset) from None


@functools.cache
def _numbers() -> dict[str, int]:
    """Return name → number of the constants that pyelftools shows as names: SHT_SYMTAB, PT_LOAD, …"""
    from elftools.elf import enums

    return {**enums.ENUM_E_TYPE, **enums.ENUM_E_MACHINE, **enums.ENUM_SH_TYPE_BASE, **enums.ENUM_P_TYPE_BASE}


def _number(value: int | str) -> int:
    return value if isinstance(value, int) else _numbers()[value]


def _parse(source: Source) -> dict[str, Array]:
    ident = source.read_exactly("ELF header", 0, 16)
    if ident[:4] != MAGIC:
        raise FormatError(source.path, "ELF header", "this is not an ELF file", 0)
    if ident[4] not in set(ElfClass) or ident[5] not in (1, 2):
        problem = f"unknown class {ident[4]} or byte order {ident[5]}"
        raise FormatError(source.path, "ELF header", problem, 4)
    bits = ElfClass(ident[4])
    order: Order = "<" if ident[5] == 1 else ">"
    structs = structs_of(bits, order)
    data = source.read_exactly("ELF header", 0, structs.Elf_Ehdr.sizeof())
    with own_errors(source.path, "ELF header", 0):
        header = structs.Elf_Ehdr.parse(data)
    sections, segments, names_index = header["e_shnum"], header["e_phnum"], header["e_shstrndx"]
    if len(first := _table(source, header, "sh", structs.Elf_Shdr, SECTION, 1)):
        # Section 0 has the numbers that do not fit the file header.
        sections = sections or int(first["sh_size"][0])
        segments = int(first["sh_info"][0]) if segments == _EXTENDED else segments
        names_index = int(first["sh_link"][0]) if names_index == _EXTENDED else names_index
    shdrs = _table(source, header, "sh", structs.Elf_Shdr, SECTION, sections)
    phdrs = _table(source, header, "ph", structs.Elf_Phdr, SEGMENT, segments)
    kind, names = [_number(header[name]) for name in ("e_type", "e_machine")], b""
    if names_index < len(shdrs):
        offset, size = (int(shdrs[name][names_index]) for name in ("sh_offset", "sh_size"))
        names = source.read_exactly("section names", offset, size, _MAX_SECTION_NAMES)
    return {
        "head": np.array([bits, order == "<", *kind], np.uint64),
        "sections": shdrs.view("<u8"),
        "segments": phdrs.view("<u8"),
        "names": np.frombuffer(names, np.uint8),
        "build_id": np.frombuffer(_build_id(source, order, shdrs, phdrs), np.uint8),
    }


def _table(source: Source, header: Any, kind: str, struct: Any, dtype: np.dtype[Any], count: int) -> Rows:
    """Return the first `count` section (`kind` "sh") or program headers ("ph") as rows of `dtype`; no rows if none."""
    offset, entsize, size = header[f"e_{kind}off"], header[f"e_{kind}entsize"], struct.sizeof()
    if not offset or not count:
        return np.empty(0, dtype)
    part, fields = f"{struct.name} table", dtype.names or ()
    if entsize != size:
        raise FormatError(source.path, part, f"entries of {entsize} bytes, expected {size}", offset)
    if count > MAX_HEADERS:
        raise FormatError(source.path, part, f"{count} entries, more than {MAX_HEADERS}", offset)
    data = source.read_exactly(part, offset, count * size)
    with own_errors(source.path, part, offset):
        entries = [struct.parse(data[index : index + size]) for index in range(0, len(data), size)]
        return np.array([tuple(_number(entry[name]) for name in fields) for entry in entries], dtype)


def _build_id(source: Source, order: Order, sections: Rows, segments: Rows) -> bytes:
    notes = sections[sections["sh_type"] == SectionType.NOTE][:_MAX_NOTE_RANGES]
    ranges = notes[["sh_offset", "sh_size", "sh_addralign"]].tolist()
    notes = segments[segments["p_type"] == SegmentType.NOTE][:_MAX_NOTE_RANGES]
    ranges += notes[["p_offset", "p_filesz", "p_align"]].tolist()
    for offset, size, align in ranges:
        if offset < source.size:
            data = source.read(offset, min(size, _MAX_NOTES))
            if build_id := find_build_id(data, order, align):
                return build_id
    return b""
