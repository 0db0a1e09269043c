# SPDX-License-Identifier: Apache-2.0
"""Name PLT stubs `function@plt`, as perf and objdump do (x86-64).

A stub jumps through a slot of the global offset table; the relocation of that slot names the function:

    [endbr64]  [bnd]  jmp *displacement(%rip)      f3 0f 1e fa   f2   ff 25 xx xx xx xx

So each entry of .plt, .plt.sec and .plt.got is searched for that jump, for any linker and kind of PLT. perf
counts entries and relocations (dso__synthesize_plt_symbols), which results in the same names. The rest of
.plt (the stub that calls the dynamic linker, and lazy halves of stubs) is named `.plt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from perf_offcpu.abi import elf
from perf_offcpu.binary.fields import S32
from perf_offcpu.binary.gather import gather
from perf_offcpu.model.columns import I64, U64, distinct, is_among
from perf_offcpu.objects.elf.image import ElfImage, Section
from perf_offcpu.objects.symtab import NO_ADDRESS, Symbols

_SECTIONS: Final = (b".plt", b".plt.sec", b".plt.got")
_PREFIXES: Final = (b"", b"\xf2", b"\xf3\x0f\x1e\xfa", b"\xf3\x0f\x1e\xfa\xf2")
_JUMP: Final = b"\xff\x25"
_R_IRELATIVE: Final = 37  # R_X86_64_IRELATIVE: the addend is the address of an IFUNC
_MAX_STUBS: Final = 1 << 16
_MAX_NAME: Final = 1 << 12

Names = dict[int, bytes]


def plt_symbols(image: ElfImage, known: Sequence[tuple[Symbols, bytes]]) -> tuple[Symbols, bytes]:
    """Return symbols for the PLT stubs of a file, and their strings; `known` names the targets of IFUNCs."""
    rows, strings = list[tuple[int, ...]](), bytearray(b"\0")

    def add(start: int, size: int, name: bytes) -> None:
        rows.append((start, size, len(strings), int(NO_ADDRESS), 0, 1))
        strings.extend(name + b"\0")

    is_known = image.machine == elf.Machine.X86_64
    sections = [*filter(None, map(image.section_named, _SECTIONS))] if is_known else []
    stubs = [_find_jumps(image, section) for section in sections]
    slots = np.concatenate([np.empty(0, np.uint64), *(slot for _, slot in stubs)])
    names = _slot_names(image, known, distinct(slots)) if sections else {}
    for section, (starts, jump_slots) in zip(sections, stubs, strict=True):
        size = _entry_size(section)
        if section.name == b".plt":
            add(section.addr, size if len(starts) else section.size, b".plt")
        for start, slot in zip(starts.tolist(), jump_slots.tolist(), strict=True):
            if slot in names:
                add(start, size, names[slot] + b"@plt")
    return Symbols.from_rows(rows), bytes(strings)


def _entry_size(section: Section) -> int:
    return section.entsize if section.entsize in (8, 16) else 16


def _find_jumps(image: ElfImage, section: Section) -> tuple[U64, U64]:
    """Return addresses and slots of the entries of a PLT section that hold the jump."""
    size = _entry_size(section)
    code = np.frombuffer(image.content(section)[: size * _MAX_STUBS], np.uint8)
    entries = np.arange(len(code) // size, dtype=np.int64) * size
    padded = np.append(code, np.zeros(16, np.uint8))
    jumps, slots = np.zeros(len(entries), bool), np.zeros(len(entries), np.int64)
    for prefix in _PREFIXES:
        pattern = np.frombuffer(prefix + _JUMP, np.uint8)
        hit = (padded[entries[:, None] + np.arange(len(pattern))] == pattern).all(axis=1)
        at = entries[hit] + len(pattern)
        displacement = gather(padded, at, S32).astype(np.int64)
        jumps[hit], slots[hit] = True, at + 4 + displacement
    start, slot = (part[jumps].astype(np.uint64) + np.uint64(section.addr) for part in (entries, slots))
    return start, slot


def _slot_names(image: ElfImage, known: Sequence[tuple[Symbols, bytes]], slots: U64) -> Names:
    """Map each slot (`slots` ascend) to the function whose address its relocation puts there."""
    names: Names = {}
    dynamic = image.section_of_type(elf.SectionType.DYNSYM)
    for section in filter(None, map(image.section_named, (b".rela.dyn", b".rela.plt"))):
        rows = image.array(section, elf.RELA[image.bits])
        rows = rows[is_among(rows["r_offset"], slots)]
        info, slot = rows["r_info"].astype(np.uint64), rows["r_offset"].astype(np.uint64)
        indirect = (info & np.uint64(0xFFFFFFFF)) == _R_IRELATIVE
        for symbols, strings in known:
            addends = rows["r_addend"][indirect].astype(np.uint64)
            names |= _resolver_names(slot[indirect], addends, symbols, strings)
        symbol = (info >> np.uint64(32)).astype(np.int64)
        if dynamic is not None:
            names |= _import_names(image, dynamic, slot[symbol > 0], symbol[symbol > 0])
    return names


def _resolver_names(slots: U64, targets: U64, known: Symbols, strings: bytes) -> Names:
    """Name slots that a resolver fills by the symbol at its address, the first of the best rank."""
    candidates = known.take(is_among(known.start, distinct(targets)))
    candidates = candidates.take(np.lexsort((-candidates.rank.astype(np.int64), candidates.start)))
    best = dict(zip(candidates.start.tolist(), candidates.name.tolist(), strict=True))  # the last one stays
    pairs = zip(slots.tolist(), targets.tolist(), strict=True)
    return {slot: _text(strings, best[target]) for slot, target in pairs if target in best}


def _import_names(image: ElfImage, dynamic: Section, slots: U64, symbols: I64) -> Names:
    """Name slots of functions in other files by .dynsym."""
    linked = image.section(dynamic.link)
    strings = b"" if linked is None else image.content(linked)
    table = image.array(dynamic, elf.SYM[image.bits])
    known = symbols < len(table)
    pairs = zip(slots[known].tolist(), table["st_name"][symbols[known]].tolist(), strict=True)
    return {slot: name for slot, at in pairs if (name := _text(strings, at))}


def _text(strings: bytes, at: int) -> bytes:
    return strings[at : at + _MAX_NAME].split(b"\0", 1)[0]
