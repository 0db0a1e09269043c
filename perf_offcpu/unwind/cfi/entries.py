# SPDX-License-Identifier: Apache-2.0
"""Read the entries of .eh_frame and .debug_frame: ranges of code and their call frame instructions.

A CIE holds the common part of many functions; an FDE describes one function and refers to its CIE. The list is walked
entry by entry, because only the length of an entry tells where the next begins. The contents of the entries are then
read for all of them at once.

Source: Linux Standard Base Core 5, 10.6; DWARF 5, 7.6. A LEB128 of more than ten bytes, which no producer writes, is
cut at ten; values are taken modulo 2^64."""

import enum
import struct
from typing import Final

import numpy as np

from perf_offcpu.binary.columnar import gather
from perf_offcpu.binary.layout import S32, S64, U16, U32, U64, Int
from perf_offcpu.model import columns as model
from perf_offcpu.model.columns import I32, I64, U8, Bool, Table, column, distinct

MAX_BYTES = 10


class Pe(enum.IntEnum):
    """DW_EH_PE_*: encoding of an address in .eh_frame. Low four bits: size and sign; high bits: base of the address."""

    ABSPTR, UDATA2, UDATA4, UDATA8, SDATA2, SDATA4, SDATA8 = 0x00, 0x02, 0x03, 0x04, 0x0A, 0x0B, 0x0C
    PCREL = 0x10


def leb128(data: bytes, offset: int, signed: bool = False) -> tuple[int, int]:
    """Read the LEB128 number at `offset`; return (value, offset after it). `data` must have MAX_BYTES from there on."""
    end = next((at for at in range(offset, offset + MAX_BYTES) if data[at] < 0x80), offset + MAX_BYTES - 1) + 1
    value = sum((byte & 0x7F) << 7 * index for index, byte in enumerate(data[offset:end]))
    return value - (1 << 7 * (end - offset) if signed and data[end - 1] & 0x40 else 0), end


def read_leb128(data: U8, offsets: I64, signed: bool = False) -> tuple[I64, I64]:
    """Read LEB128 numbers at n offsets; return (int64[n], offsets after them). MAX_BYTES of data must follow each."""
    byte = data[offsets]
    value = (byte & 0x7F).astype(np.int64)
    after = offsets + 1
    length = np.ones(len(offsets), np.int64)
    more = np.flatnonzero(byte >= 0x80)
    for byte_at in range(1, MAX_BYTES):
        if not len(more):
            break
        byte[more] = data[after[more]]
        value[more] |= (byte[more] & 0x7F).astype(np.int64) << (7 * byte_at)
        after[more] += 1
        length[more] += 1
        more = more[byte[more] >= 0x80]
    if signed:
        negative = (byte & 0x40) != 0
        value[negative] |= np.int64(-1) << np.minimum(7 * length[negative], 63)
    return value, after


PADDING: Final = 32  # bytes added after a section, so that short reads at its end need no check
MAX_FDES: Final = 1 << 22
_MAX_CIES: Final = 1 << 16
_MAX_TERMINATORS: Final = 1 << 12

_FORMS: Final[dict[int, Int]] = {
    **{Pe.ABSPTR: U64, Pe.UDATA2: U16, Pe.UDATA4: U32, Pe.UDATA8: U64},
    **{Pe.SDATA2: Int(2, signed=True), Pe.SDATA4: S32, Pe.SDATA8: S64},
}


class Section:
    """Hold a section of call frame information, with PADDING zero bytes after it. `address` is its sh_addr, for
    pc-relative pointers; `is_eh` is True for .eh_frame, False for .debug_frame, whose entries differ."""

    def __init__(self, content: bytes, address: int, is_eh: bool = True) -> None:
        self.data, self.size = np.frombuffer(content + bytes(PADDING), np.uint8), len(content)
        self.address, self.is_eh = address, is_eh


class Cies(Table):
    """Table of the common information entries (CIE) that could be read; offsets are in `Section.data`."""

    code_align: I64 = column("i8", doc="unit of advances")
    data_align: I64 = column("i8", doc="unit of offsets")
    ra: I64 = column("i8", doc="column of the return address")
    encoding: I64 = column("i8", doc="Pe of FDEs' addresses")
    has_augmentation: Bool = column("?", doc="FDEs hold augmentation data")
    is_signal: Bool = column("?", doc="frames of signal handlers: their caller was interrupted")
    begin: I64 = column("i8", doc="offset of the instructions")
    end: I64 = column("i8", doc="offset after them")


class Fdes(Table):
    """Table of frame description entries (FDE), sorted by start and not overlapping; offsets are in `Section.data`."""

    cie: I32 = column("i4", doc="row in the CIEs")
    start: model.U64 = column("u8", doc="first address of the code")
    end: model.U64 = column("u8", doc="address after it")
    begin: I64 = column("i8", doc="offset of the instructions")
    stop: I64 = column("i8", doc="offset after them")


def read_entries(section: Section) -> tuple[Cies, Fdes]:
    """Return the section's usable CIEs and FDEs; damage ends the lists, entries of unknown form are left out."""
    entries, fdes = _walk(section)
    cies, row_of = Cies.from_rows(list(entries.values())), {offset: row for row, offset in enumerate(entries)}
    places = [(row_of[cie], begin, end) for cie, begin, end in fdes if cie in row_of]
    if not places:
        return cies, Fdes()
    cie, begin, end = np.array(places, np.int64).T
    return cies, _without_overlaps(_read_fdes(section, cies, cie, begin, end))


def _walk(section: Section) -> tuple[dict[int, tuple[int | bool, ...]], list[tuple[int, int, int]]]:
    """Return ({offset of a CIE: row of Cies}, [(offset of its CIE, of its address range, after the entry) per FDE])."""
    cies, fdes = dict[int, tuple[int | bool, ...]](), list[tuple[int, int, int]]()
    data, size = section.data.tobytes(), section.size
    word, long_word = struct.Struct("<I").unpack_from, struct.Struct("<Q").unpack_from
    marker = 0 if section.is_eh else 0xFFFFFFFF
    offset = terminators = 0
    while offset + 4 <= size and len(fdes) < MAX_FDES:
        start, (length,) = offset, word(data, offset)
        body = offset + 4
        if not length:
            offset, terminators = body, terminators + 1
            if terminators > _MAX_TERMINATORS:
                break
            continue
        is_long = length == 0xFFFFFFFF
        if is_long:
            (length,) = long_word(data, body)
            body += 8
        offset = body + length
        wide = 8 if is_long and not section.is_eh else 4
        if offset > size or length < wide:
            break
        (pointer,) = (long_word if wide == 8 else word)(data, body)
        if pointer == (2**64 - 1 if wide == 8 else marker):
            if len(cies) < _MAX_CIES and (row := _read_cie(data, body + wide, offset)):
                cies[start] = row
        else:
            fdes.append((body - pointer if section.is_eh else pointer, body + wide, offset))
    return cies, fdes


def _read_cie(data: bytes, offset: int, end: int) -> tuple[int | bool, ...] | None:
    """Return the row of Cies of one CIE (reads may run on into PADDING); None if damaged or of unknown form."""
    version = data[offset]
    text_end = data.find(b"\0", offset + 1, end)
    if text_end < 0 or version not in (1, 3, 4):
        return None
    augmentation, offset = data[offset + 1 : text_end], text_end + 1
    if version == 4:
        if data[offset] != 8 or data[offset + 1]:
            return None  # addresses of other sizes, or with segments
        offset += 2
    code_align, offset = leb128(data, offset)
    data_align, offset = leb128(data, offset, signed=True)
    ra, offset = (data[offset], offset + 1) if version == 1 else leb128(data, offset)
    encoding, is_signal, has_augmentation = int(Pe.ABSPTR), False, augmentation.startswith(b"z")
    if has_augmentation:
        length, offset = leb128(data, offset)
        encodings = _augmentation(augmentation[1:], data, offset, end)
        if encodings is None:
            return None
        encoding, is_signal = encodings
        offset += length
    elif augmentation:
        return None
    if offset > end or not 0 < code_align < 256 or not -256 < data_align < 256:
        return None
    return code_align, data_align, ra, encoding, has_augmentation, is_signal, offset, end


def _augmentation(letters: bytes, data: bytes, offset: int, end: int) -> tuple[int, bool] | None:
    """Read the augmentation data of a CIE; return (Pe of its FDEs, True for a signal frame), None if unreadable."""
    encoding, is_signal = int(Pe.ABSPTR), False
    for letter in letters:
        if offset > end:
            return None
        if letter == ord("R"):
            encoding, offset = data[offset], offset + 1
        elif letter == ord("L"):
            offset += 1
        elif letter == ord("P"):
            form = data[offset] & 0x0F
            if form not in _FORMS:
                return None
            offset += 1 + _FORMS[form].size
        elif letter == ord("S"):
            is_signal = True
        elif letter not in b"BG":  # arm64: signed with the other key; stack with memory tags
            return None
    return encoding, is_signal


def _read_fdes(section: Section, cies: Cies, cie: I64, begin: I64, end: I64) -> Fdes:
    """Read n FDEs; leave out those that cannot be used. `cie`: row of each FDE's CIE. `begin`: offset of its address
    range. `end`: offset after the entry."""
    parts = []
    encodings = cies.encoding[cie]
    for encoding in distinct(encodings).tolist():
        form = _FORMS.get(encoding & 0x0F)
        relative = encoding & 0xF0
        if form is None or relative not in (0, Pe.PCREL):
            continue
        rows = np.flatnonzero((encodings == encoding) & (begin + 2 * form.size <= end))
        offsets = begin[rows]
        start = gather(section.data, offsets, form).astype(np.int64).astype(np.uint64)
        if relative:
            start += offsets.astype(np.uint64) + np.uint64(section.address)
        span = gather(section.data, offsets + form.size, Int(form.size)).astype(np.uint64)
        first = _after_augmentation(section, cies, cie[rows], offsets + 2 * form.size, end[rows])
        sound = (first <= end[rows]) & (span > 0) & (start + span > start)
        part = Fdes.filled(len(rows), cie=cie[rows], start=start, end=start + span, begin=first, stop=end[rows])
        parts.append(part.take(sound))
    return Fdes.concat(parts)


def _after_augmentation(section: Section, cies: Cies, cie: I64, offsets: I64, end: I64) -> I64:
    """Return int64[n]: the offset of each FDE's instructions; offsets[i] is the offset after its address range."""
    rows = np.flatnonzero(cies.has_augmentation[cie])
    length, text_at = read_leb128(section.data, np.minimum(offsets[rows], section.size))
    first = offsets.copy()
    first[rows] = text_at + np.clip(length, 0, section.size + 1)
    return np.maximum(first, offsets)


def _without_overlaps(fdes: Fdes) -> Fdes:
    """Sort FDEs by start. Of FDEs with one start the first in the section stays; a range ends where the next begins."""
    fdes = fdes.take(np.argsort(fdes.start, kind="stable"))
    fdes = fdes.take(np.append(True, fdes.start[1:] != fdes.start[:-1])[: len(fdes)])
    if len(fdes):
        fdes.end[:-1] = np.minimum(fdes.end[:-1], fdes.start[1:])
    return fdes
