# SPDX-License-Identifier: Apache-2.0
"""ELF files made by hand, of either class and byte order, with the symbols a test needs. Written with struct, on
purpose not with the tables of `perf_offcpu.abi.elf`: so a wrong table does not read what it wrote."""

import struct
from dataclasses import dataclass, field

NOTYPE, OBJECT, FUNC, GNU_IFUNC = 0, 1, 2, 10
LOCAL, GLOBAL, WEAK = 0, 1, 2
HIDDEN = 2
EXEC, DYN, REL = 2, 3, 1
ABS = 0xFFF1
ALLOC, EXECINSTR = 2, 4
PROGBITS, SYMTAB, STRTAB, RELA, NOTE, DYNSYM = 1, 2, 3, 4, 7, 11
X86_64, ARM, AARCH64 = 62, 40, 183
R, X = 4, 1


@dataclass(frozen=True)
class Sym:
    """One symbol; `section` is a name, or a number for special ones."""

    name: str
    value: int
    size: int = 0
    type: int = FUNC
    bind: int = GLOBAL
    section: str | int = ".text"
    other: int = 0


@dataclass(frozen=True)
class Sec:
    name: str
    addr: int = 0
    data: bytes = b""
    type: int = PROGBITS
    flags: int = ALLOC | EXECINSTR
    size: int | None = None
    link: int = 0
    entsize: int = 0


@dataclass(frozen=True)
class Load:
    offset: int
    vaddr: int
    filesz: int
    memsz: int | None = None
    flags: int = R | X


TEXT = Sec(".text", addr=0x1000, data=bytes(0x1000))
DATA = Sec(".data", addr=0x3000, data=bytes(0x100), flags=ALLOC)


@dataclass
class ElfBuilder:
    """`ElfBuilder(symbols=[Sym("main", 0x1000, 32)]).build()` is a file with a .symtab. `bits` is 32 or 64, `order` "<"
    or ">"; `dynamic` are the symbols of .dynsym; `build_id` is put into a note section if not empty."""

    symbols: list[Sym] = field(default_factory=list)
    dynamic: list[Sym] = field(default_factory=list)
    sections: list[Sec] = field(default_factory=lambda: [TEXT, DATA])
    loads: list[Load] = field(default_factory=lambda: [Load(0, 0, 0x10000)])
    bits: int = 64
    order: str = "<"
    type: int = DYN
    machine: int = X86_64
    build_id: bytes = b""

    def build(self) -> bytes:
        """The bytes of the file: header, segments, sections' bytes, section headers."""
        word = "Q" if self.bits == 64 else "I"
        sections = self._sections()
        names, offsets = b"\0", list[int]()
        for section in sections:
            offsets.append(len(names))
            names += section.name.encode() + b"\0"
        sections[-1] = Sec(".shstrtab", data=names, type=STRTAB, flags=0)
        header_size = 64 if self.bits == 64 else 52
        body = b"".join(self._phdr(load) for load in self.loads)
        table = b"" if not sections else bytes(64 if self.bits == 64 else 40)
        for name, section in zip(offsets, sections, strict=True):
            at = header_size + len(body)
            size = len(section.data) if section.size is None else section.size
            table += struct.pack(
                f"{self.order}II4{word}II2{word}",
                *(name, section.type, section.flags, section.addr, at, size, section.link, 0, 1),
                section.entsize,
            )
            body += section.data
        return self._ehdr(header_size, header_size + len(body), len(sections) + 1) + body + table

    def _sections(self) -> list[Sec]:
        """Own sections, note, symbol and string tables; the last is the place of .shstrtab."""
        sections = list(self.sections)
        if self.build_id:
            note = struct.pack(f"{self.order}III", 4, len(self.build_id), 3) + b"GNU\0" + self.build_id
            sections.append(Sec(".note.gnu.build-id", data=note, type=NOTE, flags=ALLOC))
        numbers = {section.name: number for number, section in enumerate(sections, 1)}
        for name, strings_name, type_, symbols in (
            (".symtab", ".strtab", SYMTAB, self.symbols),
            (".dynsym", ".dynstr", DYNSYM, self.dynamic),
        ):
            if symbols:
                strings, table = b"\0", self._sym(Sym("", 0, section=0, type=0, bind=0), 0, numbers)
                for symbol in symbols:
                    table += self._sym(symbol, len(strings), numbers)
                    strings += symbol.name.encode() + b"\0"
                entsize = 24 if self.bits == 64 else 16
                sections.append(Sec(name, data=table, type=type_, flags=0, link=len(sections) + 2, entsize=entsize))
                sections.append(Sec(strings_name, data=strings, type=STRTAB, flags=0))
        return [*sections, Sec(".shstrtab")]

    def _sym(self, symbol: Sym, name: int, numbers: dict[str, int]) -> bytes:
        shndx = numbers[symbol.section] if isinstance(symbol.section, str) else symbol.section
        info = symbol.bind << 4 | symbol.type
        if self.bits == 64:
            return struct.pack(f"{self.order}IBBHQQ", name, info, symbol.other, shndx, symbol.value, symbol.size)
        return struct.pack(f"{self.order}IIIBBH", name, symbol.value, symbol.size, info, symbol.other, shndx)

    def _phdr(self, load: Load) -> bytes:
        memsz = load.filesz if load.memsz is None else load.memsz
        if self.bits == 64:
            return struct.pack(
                f"{self.order}IIQQQQQQ",
                *(1, load.flags, load.offset, load.vaddr, load.vaddr, load.filesz, memsz, 0x1000),
            )
        return struct.pack(
            f"{self.order}8I", *(1, load.offset, load.vaddr, load.vaddr, load.filesz, memsz, load.flags, 0x1000)
        )

    def _ehdr(self, size: int, shoff: int, sections: int) -> bytes:
        word = "Q" if self.bits == 64 else "I"
        ident = b"\x7fELF" + bytes([self.bits // 32, 1 if self.order == "<" else 2, 1]) + bytes(9)
        phent, shent = (56, 64) if self.bits == 64 else (32, 40)
        return ident + struct.pack(
            f"{self.order}HHI3{word}I6H",
            *(self.type, self.machine, 1, 0, size, shoff, 0, size, phent, len(self.loads), shent),
            *(sections, sections - 1),
        )
