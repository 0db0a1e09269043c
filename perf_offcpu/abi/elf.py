# SPDX-License-Identifier: Apache-2.0
"""The parts of ELF that name code, as tables: file header, sections, segments, symbols, relocations.

Source: System V ABI, "Object Files" (gABI 4.1 with later drafts) and <elf.h>; fields are spelled as there.
`WORD[elf_class]` is the size of an address in a file of that class; layouts that differ between the classes
in more than that are listed for each.
"""

from __future__ import annotations

import enum
from typing import Final

from perf_offcpu.binary.layout import BYTE, S32, S64, U8, U16, U32, U64, Field, Int, Layout

MAGIC: Final = b"\x7fELF"
SHN_UNDEF: Final = 0
SHN_LORESERVE: Final = 0xFF00
"""Section numbers from here on are not sections: SHN_ABS, SHN_COMMON, SHN_XINDEX."""
PN_XNUM: Final = 0xFFFF
"""In e_phnum: the number is in sh_info of section 0."""
NT_GNU_BUILD_ID: Final = 3
COMPRESS_ZLIB: Final = 1
COMPRESS_ZSTD: Final = 2
"""ch_type of a compressed section."""


class ElfClass(enum.IntEnum):
    """EI_CLASS: how wide addresses are."""

    BITS32 = 1
    BITS64 = 2


class ElfType(enum.IntEnum):
    """e_type."""

    REL = 1
    EXEC = 2
    DYN = 3
    CORE = 4


class Machine(enum.IntEnum):
    """e_machine, those with rules of their own here."""

    I386 = 3
    ARM = 40
    X86_64 = 62
    AARCH64 = 183
    RISCV = 243


class SectionType(enum.IntEnum):
    """sh_type."""

    NULL = 0
    PROGBITS = 1
    SYMTAB = 2
    STRTAB = 3
    RELA = 4
    NOTE = 7
    NOBITS = 8
    DYNSYM = 11


class SectionFlag(enum.IntFlag):
    """sh_flags."""

    ALLOC = 0x2
    EXECINSTR = 0x4
    COMPRESSED = 0x800


class SegmentType(enum.IntEnum):
    """p_type."""

    LOAD = 1
    NOTE = 4


class SegmentFlag(enum.IntFlag):
    """p_flags."""

    X = 1
    W = 2
    R = 4


class SymbolType(enum.IntEnum):
    """Low half of st_info."""

    NOTYPE = 0
    OBJECT = 1
    FUNC = 2
    GNU_IFUNC = 10


class Binding(enum.IntEnum):
    """High half of st_info."""

    LOCAL = 0
    GLOBAL = 1
    WEAK = 2


class Visibility(enum.IntEnum):
    """Low two bits of st_other."""

    DEFAULT = 0
    INTERNAL = 1
    HIDDEN = 2


WORD: Final = {ElfClass.BITS32: U32, ElfClass.BITS64: U64}

IDENT: Final = Layout(
    "e_ident",
    (
        Field("magic", BYTE, count=4),
        Field("ei_class", U8),
        Field("ei_data", U8, doc="1 little-endian, 2 big-endian"),
        Field("ei_version", U8),
        Field("ei_osabi", U8),
        Field("ei_abiversion", U8),
        Field("padding", BYTE, count=7),
    ),
)

NOTE: Final = Layout("Elf_Nhdr", (Field("n_namesz", U32), Field("n_descsz", U32), Field("n_type", U32)))

CHDR: Final = {
    ElfClass.BITS32: Layout(
        "Elf32_Chdr", (Field("ch_type", U32), Field("ch_size", U32), Field("ch_addralign", U32))
    ),
    ElfClass.BITS64: Layout(
        "Elf64_Chdr",
        (Field("ch_type", U32), Field("ch_reserved", U32), Field("ch_size", U64), Field("ch_addralign", U64)),
    ),
}
DEBUGLINK_CRC: Final = Layout(
    "gnu_debuglink", (Field("crc", U32, doc="CRC-32 of the debug file, after its name, 4-byte aligned"),)
)


def _ehdr(word: Int) -> Layout:
    return Layout(
        "Elf_Ehdr",
        (
            Field("e_ident", IDENT),
            Field("e_type", U16),
            Field("e_machine", U16),
            Field("e_version", U32),
            Field("e_entry", word),
            Field("e_phoff", word),
            Field("e_shoff", word),
            Field("e_flags", U32),
            Field("e_ehsize", U16),
            Field("e_phentsize", U16),
            Field("e_phnum", U16),
            Field("e_shentsize", U16),
            Field("e_shnum", U16),
            Field("e_shstrndx", U16),
        ),
    )


def _shdr(word: Int) -> Layout:
    return Layout(
        "Elf_Shdr",
        (
            Field("sh_name", U32),
            Field("sh_type", U32),
            Field("sh_flags", word),
            Field("sh_addr", word),
            Field("sh_offset", word),
            Field("sh_size", word),
            Field("sh_link", U32),
            Field("sh_info", U32),
            Field("sh_addralign", word),
            Field("sh_entsize", word),
        ),
    )


EHDR: Final = {bits: _ehdr(word) for bits, word in WORD.items()}
SHDR: Final = {bits: _shdr(word) for bits, word in WORD.items()}
PHDR: Final = {
    ElfClass.BITS32: Layout(
        "Elf32_Phdr",
        (
            Field("p_type", U32),
            Field("p_offset", U32),
            Field("p_vaddr", U32),
            Field("p_paddr", U32),
            Field("p_filesz", U32),
            Field("p_memsz", U32),
            Field("p_flags", U32),
            Field("p_align", U32),
        ),
    ),
    ElfClass.BITS64: Layout(
        "Elf64_Phdr",
        (
            Field("p_type", U32),
            Field("p_flags", U32),
            Field("p_offset", U64),
            Field("p_vaddr", U64),
            Field("p_paddr", U64),
            Field("p_filesz", U64),
            Field("p_memsz", U64),
            Field("p_align", U64),
        ),
    ),
}
SYM: Final = {
    ElfClass.BITS32: Layout(
        "Elf32_Sym",
        (
            Field("st_name", U32),
            Field("st_value", U32),
            Field("st_size", U32),
            Field("st_info", U8),
            Field("st_other", U8),
            Field("st_shndx", U16),
        ),
    ),
    ElfClass.BITS64: Layout(
        "Elf64_Sym",
        (
            Field("st_name", U32),
            Field("st_info", U8),
            Field("st_other", U8),
            Field("st_shndx", U16),
            Field("st_value", U64),
            Field("st_size", U64),
        ),
    ),
}
RELA: Final = {
    ElfClass.BITS32: Layout(
        "Elf32_Rela", (Field("r_offset", U32), Field("r_info", U32), Field("r_addend", S32))
    ),
    ElfClass.BITS64: Layout(
        "Elf64_Rela", (Field("r_offset", U64), Field("r_info", U64), Field("r_addend", S64))
    ),
}
