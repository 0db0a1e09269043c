# SPDX-License-Identifier: Apache-2.0
"""Name PLT stubs `function@plt`, as perf and objdump do (x86-64, arm64).

A stub jumps through a slot of the global offset table; the relocation of that slot names the function:

    [endbr64]  [bnd]  jmp *displacement(%rip)             f3 0f 1e fa   f2   ff 25 xx xx xx xx
    [bti c]    adrp x16, page   ldr x17, [x16, offset]    of the slot; add x16, br x17 follow

So each entry of .plt, .plt.sec and .plt.got is searched for that jump, for any linker and kind of PLT. perf counts
entries and relocations (dso__synthesize_plt_symbols), which results in the same names. The rest of .plt (the stub that
calls the dynamic linker, and lazy halves of stubs) is named `.plt`."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from perf_offcpu.abi import elf
from perf_offcpu.binary.columnar import gather
from perf_offcpu.binary.layout import S32
from perf_offcpu.model.columns import I64, U64, distinct, is_among
from perf_offcpu.objects.elf.image import ElfImage, Section
from perf_offcpu.objects.symtab import NO_ADDRESS, Symbols
from perf_offcpu.structs import frozen

_SECTIONS: Final = (b".plt", b".plt.sec", b".plt.got")
_PREFIXES: Final = (b"", b"\xf2", b"\xf3\x0f\x1e\xfa", b"\xf3\x0f\x1e\xfa\xf2")
_JUMP: Final = b"\xff\x25"
_BTI: Final = 0xD503245F
_PAGE: Final = 4096
_IMPORTS: Final = {elf.Machine.X86_64: (6, 7), elf.Machine.AARCH64: (1025, 1026)}
"""Relocations that put the address of an imported function into a slot: GLOB_DAT, JUMP_SLOT."""
_IRELATIVE: Final = {elf.Machine.X86_64: 37, elf.Machine.AARCH64: 1032}
"""The relocation whose addend is the address of an IFUNC."""
_MAX_STUBS: Final = 1 << 16
_MAX_NAME: Final = 1 << 12
Names = dict[int, bytes]


@frozen
class Stubs:
    """Stubs (jumps to functions of other files) of one PLT section, as columns."""

    section: Section
    starts: U64  # the address of each stub
    slots: U64  # the address of the slot through which it jumps
    size: int  # bytes of a stub
    header: int  # bytes before the first stub of .plt


def plt_symbols(image: ElfImage, known_symbols: Sequence[tuple[Symbols, bytes]]) -> tuple[Symbols, bytes]:
    """Return (symbols of PLT stubs, string bytes of their names). `known_symbols`: tables that name IFUNC resolvers."""
    rows, strings = list[tuple[int, ...]](), bytearray(b"\0")

    def add(start: int, size: int, name: bytes) -> None:
        rows.append((start, size, len(strings), int(NO_ADDRESS), 0, 1))
        strings.extend(name + b"\0")

    tables = find_stubs(image)
    slots = np.concatenate([np.empty(0, np.uint64), *(table.slots for table in tables)])
    names = slot_names(image, known_symbols, distinct(slots))
    for table in tables:
        section = table.section
        if section.name == b".plt":
            add(section.addr, table.header if len(table.starts) else section.size, b".plt")
        for start, slot in zip(table.starts.tolist(), table.slots.tolist(), strict=True):
            if slot in names:
                add(start, table.size, names[slot] + b"@plt")
    return Symbols.from_rows(rows), bytes(strings)


def find_stubs(image: ElfImage) -> list[Stubs]:
    """Return the stubs of each PLT section of a file."""
    find = {elf.Machine.X86_64: _stubs_of_x86_64, elf.Machine.AARCH64: _stubs_of_arm64}.get(image.machine)
    sections = filter(None, map(image.section_named, _SECTIONS)) if find else ()
    return [find(image, section) for section in sections] if find else []


def _stubs_of_x86_64(image: ElfImage, section: Section) -> Stubs:
    size = section.entsize if section.entsize in (8, 16) else 16
    code = np.frombuffer(image.content(section)[: size * _MAX_STUBS], np.uint8)
    entries = np.arange(len(code) // size, dtype=np.int64) * size
    padded = np.append(code, np.zeros(16, np.uint8))
    jumps, slots = np.zeros(len(entries), bool), np.zeros(len(entries), np.int64)
    for prefix in _PREFIXES:
        pattern = np.frombuffer(prefix + _JUMP, np.uint8)
        hit = (padded[entries[:, None] + np.arange(len(pattern))] == pattern).all(axis=1)
        addresses = entries[hit] + len(pattern)
        displacement = gather(padded, addresses, S32).astype(np.int64)
        jumps[hit], slots[hit] = True, addresses + 4 + displacement
    start, slot = (part[jumps].astype(np.uint64) + np.uint64(section.addr) for part in (entries, slots))
    return Stubs(section, start, slot, size, size)


def _stubs_of_arm64(image: ElfImage, section: Section) -> Stubs:
    code = image.content(section)[: 24 * _MAX_STUBS]
    words = np.append(np.uint32(0), np.frombuffer(code, "<u4", len(code) // 4)).astype(np.int64)
    page, load = words[:-1], words[1:]
    hit = np.flatnonzero(((page & 0x9F00001F) == 0x90000010) & ((load & 0xFFC003FF) == 0xF9400211))
    pages = (page[hit] >> 5 & 0x7FFFF) << 2 | page[hit] >> 29 & 3
    pages -= (pages & 1 << 20) << 1  # 21 bits, signed
    addresses = np.uint64(section.addr) + (4 * hit - 4).astype(np.uint64)
    slots = addresses // np.uint64(_PAGE) * np.uint64(_PAGE)
    slots += (pages * _PAGE + (load[hit] >> 10 & 0xFFF) * 8).astype(np.uint64)
    guarded = words[hit - 1] == _BTI
    return Stubs(section, addresses - np.uint64(4) * guarded, slots, 24 if guarded.any() else 16, 32)


def slot_names(image: ElfImage, known_symbols: Sequence[tuple[Symbols, bytes]], slots: U64) -> Names:
    """Return address of a slot of the GOT → name of the function that its relocation puts there. `slots`: uint64, the
    addresses, ascending. `known_symbols`: as in `plt_symbols`."""
    names: Names = {}
    dynamic = image.section_of_type(elf.SectionType.DYNSYM)
    sections = map(image.section_named, (b".rela.dyn", b".rela.plt")) if len(slots) else ()
    for section in filter(None, sections):
        rows = image.array(section, elf.RELA[image.bits])
        rows = rows[is_among(rows["r_offset"], slots)]
        info, slot = rows["r_info"].astype(np.uint64), rows["r_offset"].astype(np.uint64)
        kind, symbol = info & np.uint64(0xFFFFFFFF), (info >> np.uint64(32)).astype(np.int64)
        indirect = kind == _IRELATIVE.get(image.machine, 0)
        for symbols, strings in known_symbols:
            addends = rows["r_addend"][indirect].astype(np.uint64)
            names |= _resolver_names(slot[indirect], addends, symbols, strings)
        imported = is_among(kind, np.array(_IMPORTS.get(image.machine, ()), np.uint64)) & (symbol > 0)
        if dynamic is not None:
            names |= _import_names(image, dynamic, slot[imported], symbol[imported])
    return names


def _resolver_names(slots: U64, targets: U64, resolvers: Symbols, strings: bytes) -> Names:
    """Return slot → name for slots that IFUNC resolvers fill. `targets[i]`: address of the resolver of `slots[i]`,
    whose name the slot gets: of several at that address the one of the best rank, of equal ones the last."""
    candidates = resolvers.take(is_among(resolvers.start, distinct(targets)))
    candidates = candidates.take(np.lexsort((-candidates.rank.astype(np.int64), candidates.start)))
    best = dict(zip(candidates.start.tolist(), candidates.name.tolist(), strict=True))  # the last one stays
    pairs = zip(slots.tolist(), targets.tolist(), strict=True)
    return {slot: _text(strings, best[target]) for slot, target in pairs if target in best}


def _import_names(image: ElfImage, dynamic: Section, slots: U64, symbols: I64) -> Names:
    """Return slot → name of the imported function. `symbols[i]`: the row for `slots[i]` in .dynsym (`dynamic`)."""
    linked = image.section(dynamic.link)
    strings = b"" if linked is None else image.content(linked)
    table = image.array(dynamic, elf.SYM[image.bits])
    is_symbol = symbols < len(table)
    pairs = zip(slots[is_symbol].tolist(), table["st_name"][symbols[is_symbol]].tolist(), strict=True)
    return {slot: name for slot, offset in pairs if (name := _text(strings, offset))}


def _text(strings: bytes, offset: int) -> bytes:
    return strings[offset : offset + _MAX_NAME].split(b"\0", 1)[0]
