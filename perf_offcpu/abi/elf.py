# SPDX-License-Identifier: Apache-2.0
"""Layout of the parts of ELF that are read in bulk: symbols, relocations, and the notes of running programs. pyelftools
reads all other headers (objects/elf/headers.py). Source: System V ABI, "Object Files" (gABI 4.1 with later drafts) and
<elf.h>; fields are spelled as there. Tables are listed by the class of the file."""

import enum
from typing import Final

from perf_offcpu.binary.layout import S32, S64, U8, U16, U32, U64, Layout

MAGIC: Final = b"\x7fELF"
SHN_UNDEF: Final = 0
SHN_LORESERVE: Final = 0xFF00  # section numbers from here on are not sections: SHN_ABS, SHN_COMMON, SHN_XINDEX
NT_GNU_BUILD_ID: Final = 3
ElfClass = enum.IntEnum("ElfClass", "BITS32 BITS64")  # EI_CLASS: the size of addresses
ElfType = enum.IntEnum("ElfType", "REL EXEC DYN")  # e_type


class Machine(enum.IntEnum):
    """Values of e_machine for which this project has rules of its own."""

    ARM, X86_64, AARCH64, RISCV = 40, 62, 183, 243


class SectionType(enum.IntEnum):
    """Values of sh_type that are looked for."""

    SYMTAB, NOTE, NOBITS, DYNSYM = 2, 7, 8, 11


class SectionFlag(enum.IntFlag):
    """Bits of sh_flags that are looked at."""

    ALLOC, EXECINSTR, COMPRESSED = 0x2, 0x4, 0x800


class SegmentType(enum.IntEnum):
    """Values of p_type that are looked for."""

    LOAD, NOTE = 1, 4


SegmentFlag = enum.IntFlag("SegmentFlag", "X W R")  # p_flags


class SymbolType(enum.IntEnum):
    """Values of the low half of st_info."""

    NOTYPE, OBJECT, FUNC, GNU_IFUNC = 0, 1, 2, 10


Binding = enum.IntEnum("Binding", "LOCAL GLOBAL WEAK", start=0)  # high half of st_info
Visibility = enum.IntEnum("Visibility", "DEFAULT INTERNAL HIDDEN", start=0)  # low two bits of st_other
NOTE: Final = Layout("Elf_Nhdr", ("n_namesz n_descsz n_type", U32))
EHDR: Final = {
    bits: Layout(
        "Elf_Ehdr",
        ("ei_mag", U32),
        ("ei_class ei_data ei_version ei_osabi", U8),
        ("ei_pad", U64),
        ("e_type e_machine", U16),
        ("e_version", U32),
        ("e_entry e_phoff e_shoff", word),
        ("e_flags", U32),
        ("e_ehsize e_phentsize e_phnum e_shentsize e_shnum e_shstrndx", U16),
    )
    for bits, word in ((ElfClass.BITS32, U32), (ElfClass.BITS64, U64))
}
PHDR: Final = {
    ElfClass.BITS32: Layout("Elf32_Phdr", ("p_type p_offset p_vaddr p_paddr p_filesz p_memsz p_flags p_align", U32)),
    ElfClass.BITS64: Layout(
        "Elf64_Phdr", ("p_type p_flags", U32), ("p_offset p_vaddr p_paddr p_filesz p_memsz p_align", U64)
    ),
}
SYM: Final = {
    ElfClass.BITS32: Layout(
        "Elf32_Sym", ("st_name st_value st_size", U32), ("st_info st_other", U8), ("st_shndx", U16)
    ),
    ElfClass.BITS64: Layout(
        "Elf64_Sym", ("st_name", U32), ("st_info st_other", U8), ("st_shndx", U16), ("st_value st_size", U64)
    ),
}
RELA: Final = {
    ElfClass.BITS32: Layout("Elf32_Rela", ("r_offset r_info", U32), ("r_addend", S32)),
    ElfClass.BITS64: Layout("Elf64_Rela", ("r_offset r_info", U64), ("r_addend", S64)),
}
