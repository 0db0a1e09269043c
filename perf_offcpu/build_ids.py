# SPDX-License-Identifier: Apache-2.0
"""Read build-ids: of open ELF files, of ELF notes, of the running kernel and its modules.

A build-id is a note (owner GNU, type 3) that names the build of a file. The recorder reads the build-ids of all
files that running tasks have mapped, some thousands on a large machine, before it starts. This reader of notes
takes 50 us for a file; pyelftools takes 1.8 ms, and 50 ms for its import. Files may be hostile: sizes are
capped and each read is bounded.

Source: ELF gABI, chapter 5 (program headers, notes); include/uapi/linux/elf.h."""

import os
from collections.abc import Iterator
from typing import Any, Final

from perf_offcpu.abi.elf import EHDR, MAGIC, NOTE, NT_GNU_BUILD_ID, PHDR, ElfClass, SegmentType
from perf_offcpu.binary.layout import NATIVE, Order
from perf_offcpu.errors import LayoutError
from perf_offcpu.files import read_kernel_if_any

RECORDED_BYTES: Final = 20  # bytes of a build-id that records hold (BUILD_ID_SIZE of perf); longer ones are cut
KERNEL_NOTES: Final = "/sys/kernel/notes"
_MAX_PROGRAM_HEADERS: Final = 256
_MAX_NOTE_BYTES: Final = 64 << 10  # of all segments of a file together
_MAX_STRIDE: Final = 256
_MAX_BUILD_ID: Final = 64


def kernel_build_id(path: str = KERNEL_NOTES) -> bytes:
    """Return the build-id of the running kernel from `path`, a file of ELF notes of the kernel; b"" if it has none."""
    return find_build_id(read_kernel_if_any(path, _MAX_NOTE_BYTES), NATIVE)


def module_build_id(name: str) -> bytes:
    """Return the build-id of a loaded kernel module; b"" if it has none."""
    return kernel_build_id(f"/sys/module/{name}/notes/.note.gnu.build-id")


def build_id_of(fd: int) -> bytes:
    """Return the build-id of an open file, cut to RECORDED_BYTES; b"" if it has none or is no ELF file."""
    try:
        header, order = unpack_elf_header(os.pread(fd, EHDR[ElfClass.BITS64].size(), 0))
        room = _MAX_NOTE_BYTES
        for segment in program_headers(fd, header, order):
            if segment["p_type"] == SegmentType.NOTE:
                notes = os.pread(fd, min(segment["p_filesz"], room), segment["p_offset"])
                room -= len(notes)
                if build_id := find_build_id(notes, order, segment["p_align"]):
                    return build_id[:RECORDED_BYTES]
    except (LayoutError, OSError, OverflowError):
        pass
    return b""


def unpack_elf_header(start: bytes) -> tuple[dict[str, Any], Order]:
    """Unpack the header in the first bytes of an ELF file to (fields, byte order); raise LayoutError for others."""
    if start[:4] != MAGIC or len(start) < 16 or start[4] not in EHDR:
        raise LayoutError("no ELF file")
    order: Order = ">" if start[5] == 2 else "<"
    return EHDR[ElfClass(start[4])].unpack(start, order), order


def program_headers(fd: int, header: dict[str, Any], order: Order) -> Iterator[dict[str, Any]]:
    """Yield the program headers of an open ELF file, at most 256. `header`, `order`: of `unpack_elf_header`."""
    layout = PHDR[header["ei_class"]]
    size = layout.size()
    stride = min(max(header["e_phentsize"], size), _MAX_STRIDE)
    table = os.pread(fd, stride * min(header["e_phnum"], _MAX_PROGRAM_HEADERS), header["e_phoff"])
    for index in range(0, len(table) - size + 1, stride):
        yield layout.unpack(table, order, start=index)


def find_build_id(notes: bytes, order: Order, align: int = 4) -> bytes:
    """Return the first build-id in an ELF note section or segment, b"" if none; `align`: of its notes, 4 or 8 bytes."""
    offset, align = 0, 8 if align == 8 else 4
    while (name_at := offset + NOTE.size()) <= len(notes):
        note = NOTE.unpack(notes, order, start=offset)
        name_end = name_at + note["n_namesz"]
        begin = name_end + -name_end % align
        end = begin + note["n_descsz"]
        if note["n_type"] == NT_GNU_BUILD_ID and notes[name_at:name_end] == b"GNU\0":
            build_id = notes[begin:end]
            if 0 < len(build_id) == note["n_descsz"] <= _MAX_BUILD_ID:
                return build_id
        offset = end + -end % align
    return b""
