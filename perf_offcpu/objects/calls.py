# SPDX-License-Identifier: Apache-2.0
"""Find the names of the functions that call instructions call (x86-64, arm64).

    e8 rel32          call function, or call function@plt
    ff 15 rel32       call *slot(%rip): a slot of the global offset table, whose relocation names the function
    ff 14 25 abs32    call *slot
    bl function       arm64, likewise function@plt

Only the bytes next to the given addresses are read, and of relocations those of the slots in question."""

from typing import Final

import numpy as np

from perf_offcpu.abi import elf
from perf_offcpu.binary.columnar import gather
from perf_offcpu.binary.layout import S32, U32
from perf_offcpu.model.columns import U64, Bool, distinct, is_among
from perf_offcpu.objects.elf.image import ElfImage
from perf_offcpu.objects.elf.plt import find_stubs, slot_names
from perf_offcpu.objects.functions import file_offset_to_vaddr, symbols_in
from perf_offcpu.objects.symtab import NO_ADDRESS

_PAGE: Final = 4096  # bytes that are read at once
_LONGEST: Final = 7  # bytes of the longest of these instructions
_MAX_EXPORTS: Final = 1 << 20
"""Symbols of .dynsym in which a name is looked up; the largest libraries have some 300 000."""
_SIGNAL_RETURNS: Final[dict[int, bytes]] = {
    elf.Machine.X86_64: bytes.fromhex("48c7c00f0000000f05"),  # mov $__NR_rt_sigreturn, %rax; syscall
    elf.Machine.AARCH64: bytes.fromhex("681180d2010000d4"),
}


def calls_at(image: ElfImage, offsets: U64) -> tuple[list[bytes], U64]:
    """Find the functions that n call instructions call. `offsets`: uint64[n], file offsets of the last bytes of the
    instructions. Return (names, targets): the name by which the dynamic linker looks the function up, b"" if it does
    not; uint64[n], the address of a function in the same file, NO_ADDRESS for others. Errors as in `elf.image`."""
    targets, slots = _decode(image, offsets)
    slot_of = dict[int, int]()
    for stubs in find_stubs(image) if (targets != NO_ADDRESS).any() else ():
        slot_of |= zip(stubs.starts.tolist(), stubs.slots.tolist(), strict=True)
    for row, target in enumerate(targets.tolist()):
        if target in slot_of:
            targets[row], slots[row] = NO_ADDRESS, slot_of[target]
    wanted = distinct(slots[slots != NO_ADDRESS])
    names = slot_names(image, symbols_in(image, elf.SectionType.DYNSYM), wanted) if len(wanted) else {}
    return [names.get(slot, b"") for slot in slots.tolist()], targets


def _decode(image: ElfImage, offsets: U64) -> tuple[U64, U64]:
    """Return uint64[n] twice: the address that each call instruction calls; the address of the GOT slot that it calls
    through; else NO_ADDRESS. `offsets`: uint64[n], file offset of the last byte of each instruction."""
    text = np.frombuffer(_before(image, offsets), np.uint8).reshape(-1, _LONGEST)
    last_words = np.arange(len(text), dtype=np.int64) * _LONGEST + 3
    ends = file_offset_to_vaddr(image.loads, offsets) + np.uint64(1)
    targets, slots = (np.full(len(offsets), NO_ADDRESS) for _ in range(2))

    def put(column: U64, size: int, is_call: Bool, addresses: U64) -> None:
        """Set column[i] = addresses[i] where `is_call`, and all `size` bytes of the instruction are in one segment."""
        rows = np.flatnonzero(is_call & (ends != 0) & (offsets >= np.uint64(size - 1)))
        if len(rows):
            begins = file_offset_to_vaddr(image.loads, offsets[rows] - np.uint64(size - 1))
            rows = rows[begins + np.uint64(size) == ends[rows]]
            column[rows] = addresses[rows]

    if image.machine == elf.Machine.X86_64:
        far = gather(text.reshape(-1), last_words, S32).astype(np.int64).astype(np.uint64)
        put(targets, 5, text[:, 2] == 0xE8, ends + far)
        put(slots, 6, (text[:, 1] == 0xFF) & (text[:, 2] == 0x15), ends + far)
        put(slots, 7, (text[:, 0] == 0xFF) & (text[:, 1] == 0x14) & (text[:, 2] == 0x25), far)
    elif image.machine == elf.Machine.AARCH64:
        word = gather(text.reshape(-1), last_words, U32).astype(np.int64)
        far = 4 * ((word & 0x3FFFFFF) - ((word & 0x2000000) << 1))
        put(targets, 4, word >> 26 == 0b100101, ends - np.uint64(4) + far.astype(np.uint64))
    return targets, slots


def ends_call(image: ElfImage, offsets: U64) -> Bool:
    """Return bool[n]: True if the bytes before each file offset may end a call of any form (x86-64): e8 rel32, or ff /2
    with a register or memory operand, 2 to 7 bytes; prefixes do not matter. Errors as in `elf.image`."""
    text = np.frombuffer(_before(image, offsets - np.uint64(1)), np.uint8).reshape(-1, _LONGEST)
    result: Bool = text[:, _LONGEST - 5] == 0xE8
    for size in (2, 3, 4, 6, 7):
        result |= (text[:, _LONGEST - size] == 0xFF) & (text[:, _LONGEST - size + 1] & 0x38 == 0x10)
    return result


def _before(image: ElfImage, offsets: U64) -> bytes:
    """Return, joined, the _LONGEST bytes that end with the one at each file offset; zeros as by `_bytes`."""
    order, parts = np.argsort(offsets, kind="stable"), [b""] * len(offsets)
    page, kept = b"", -1
    for row, last in zip(order.tolist(), offsets[order].tolist(), strict=True):
        begin = last + 1 - _LONGEST
        number, place = divmod(begin, _PAGE)
        if number != kept and 0 <= begin < image.source.size:
            page, kept = image.source.read(begin - place, _PAGE + _LONGEST), number
        part = page[place : place + _LONGEST] if number == kept else b""
        parts[row] = part if len(part) == _LONGEST else _bytes(image, begin, _LONGEST)
    return b"".join(parts)


def exported(image: ElfImage, names: set[bytes]) -> set[bytes]:
    """Return the subset of `names` that the file exports as functions. Errors as in `elf.image`."""
    longest, exports = max(map(len, names), default=0), set[bytes]()
    for symbols, strings in symbols_in(image, elf.SectionType.DYNSYM) if names else ():
        places = symbols.name[symbols.code != 0][:_MAX_EXPORTS]
        firsts = np.array(sorted({name[0] for name in names}), np.uint8)
        places = places[is_among(np.frombuffer(strings, np.uint8)[places], firsts)]
        exports |= {strings[place : place + longest + 1].partition(b"\0")[0] for place in places.tolist()}
    return exports & names


def is_signal_return(image: ElfImage, offsets: U64) -> Bool:
    """Return bool[n]: True if a signal trampoline, which returns without having been called, is at the file offset."""
    code = _SIGNAL_RETURNS.get(image.machine, b"")
    return np.array([bool(code) and _bytes(image, offset, len(code)) == code for offset in offsets.tolist()], np.bool_)


def _bytes(image: ElfImage, offset: int, size: int) -> bytes:
    """Return `size` bytes at a file offset, zeros before offset 0; only zeros if the file ends too early."""
    before = max(0, -offset)
    inside = offset + size <= image.source.size
    data = image.source.read(offset + before, size - before) if inside else b""
    return bytes(before) + data if len(data) == size - before else bytes(size)
