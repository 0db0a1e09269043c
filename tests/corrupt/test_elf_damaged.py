# SPDX-License-Identifier: Apache-2.0
"""Damaged and hostile ELF files: symbols or a FormatError, soon, and in little memory."""

import contextlib
import lzma
import random
import resource
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from builders.elf import DATA, DYNSYM, NOTE, PROGBITS, STRTAB, SYMTAB, TEXT, ElfBuilder, Load, Sec, Sym

from perf_offcpu.build_ids import find_build_id
from perf_offcpu.errors import FormatError
from perf_offcpu.files import open_regular
from perf_offcpu.objects.elf.headers import MAX_HEADERS, Source
from perf_offcpu.objects.elf.image import ElfImage
from perf_offcpu.objects.functions import MAX_SYMBOLS, ElfFile, file_offset_to_vaddr, load_elf_symbols, symbols_of

BLOCKER = Path(__file__).resolve().parents[1] / "data" / "perf-7.2" / "blocker"
SOUND = ElfBuilder([Sym("f", 0x1000, 8), Sym("g", 0x1010, 8)], [Sym("f", 0x1000, 8)], build_id=b"\x12" * 20)
SYMBOL = struct.pack("<IBBHQQ", 1, 2, 0, 1, 0x1000, 8)
E_SHOFF, E_PHNUM, E_SHNUM, E_SHSTRNDX = 40, 56, 60, 62
SHDR, SH_INFO, SH_SIZE = 64, 44, 32


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """Half a gigabyte more than now is all there is."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


def read(data: bytes) -> ElfFile:
    return symbols_of(ElfImage(Source("made", data)))


def use(elf: ElfFile) -> None:
    offsets = np.array([0, 0x1000, 0x1009, 2**63, 2**64 - 1], np.uint64)
    rows = elf.symbols.lookup(file_offset_to_vaddr(elf.loads, offsets))
    [*map(elf.symbols.name, rows[rows >= 0].tolist())]
    assert (elf.symbols.start[1:] > elf.symbols.start[:-1]).all()


def patched(data: bytes, at: int, form: str, value: int) -> bytes:
    return data[:at] + struct.pack(form, value) + data[at + struct.calcsize(form) :]


def with_symbols(symbols: bytes, strings: bytes = b"\0f\0") -> bytes:
    table = Sec(".symtab", data=symbols, type=SYMTAB, flags=0, link=3, entsize=24)
    return ElfBuilder(sections=[TEXT, table, Sec(".strtab", data=strings, type=STRTAB, flags=0)]).build()


def section_header(data: bytes, index: int) -> int:
    return int(struct.unpack_from("<Q", data, E_SHOFF)[0]) + index * SHDR


def test_each_prefix_of_a_file_gives_symbols_or_an_error() -> None:
    data, errors = BLOCKER.read_bytes(), 0
    for size in [*range(0, 1200), *range(1200, len(data), 61), len(data)]:
        try:
            use(read(data[:size]))
        except FormatError:
            errors += 1
    assert errors > 1500
    assert len(read(data).symbols) == 46


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 4))])
def test_flipped_bits_give_symbols_or_an_error(seed: int) -> None:
    """Half of the flips hit headers: of the file, its segments, its sections."""
    draw, sound = random.Random(seed), BLOCKER.read_bytes()
    shoff = struct.unpack_from("<Q", sound, E_SHOFF)[0]
    started = time.monotonic()
    for _ in range(400):
        data = bytearray(sound)
        for _ in range(draw.choice((1, 2, 8))):
            header = draw.choice((draw.randrange(0x400), draw.randrange(shoff, len(sound))))
            data[draw.choice((header, draw.randrange(len(sound))))] ^= 1 << draw.randrange(8)
        with contextlib.suppress(FormatError):
            use(read(bytes(data)))
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("data", [
    b"", b"\x7fELF", b"\x7fELF" + bytes(60), b"\x7fELF\x03\x01\x01" + bytes(57),
    b"\x7fELF\x02\x03\x01" + bytes(57), b"MZ" + bytes(100), bytes(4096),
])  # fmt: skip
def test_what_is_not_elf_is_an_error(data: bytes) -> None:
    with pytest.raises(FormatError, match="^made: ELF header"):
        read(data)


def lying() -> Iterator[tuple[bytes, str]]:
    """Yield files with numbers that promise more than there is, and what is said of them."""
    sound = SOUND.build()
    too_many = f"entries, more than {MAX_HEADERS}"
    extended = patched(sound, E_SHNUM, "<H", 0)  # the number is in section 0
    for count in (MAX_HEADERS + 1, 2**32, 2**60, 2**64 - 1):
        yield patched(extended, section_header(sound, 0) + SH_SIZE, "<Q", count), f"{count} {too_many}"
    segments = patched(sound, E_PHNUM, "<H", 0xFFFF)
    yield patched(segments, section_header(sound, 0) + SH_INFO, "<I", 2**32 - 1), too_many
    yield patched(sound, E_SHNUM, "<H", 60_000), "Elf_Shdr table at offset .* bytes, the file has"
    yield patched(sound, E_SHOFF, "<Q", 2**64 - 16), "Elf_Shdr table at offset 0xfffffffffffffff0"
    for size in (2**63, 2**64 - 1, 2**40):
        table = Sec(".symtab", type=SYMTAB, flags=0, size=size, link=1)
        yield ElfBuilder(sections=[TEXT, table]).build(), "symbol table at offset .* are too many"


@pytest.mark.parametrize(("data", "problem"), [*lying()])
def test_numbers_that_promise_more_than_there_is(data: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        read(data)


def test_no_section_headers_or_none_of_their_names() -> None:
    elf = read(patched(patched(SOUND.build(), E_SHOFF, "<Q", 0), E_SHNUM, "<H", 0))
    assert (len(elf.symbols), len(elf.loads)) == (0, 1)
    assert len(read(patched(SOUND.build(), E_SHSTRNDX, "<H", 500)).symbols) == 2


class TestTables:
    """Sections that lie about each other."""

    def test_strings_that_are_not_there_torn_symbols_and_those_at_the_end_of_the_address_space(self) -> None:
        for link in (0, 2, 77, 2**32 - 1):
            table = Sec(".symtab", data=SYMBOL * 4, type=SYMTAB, flags=0, link=link, entsize=24)
            use(read(ElfBuilder(sections=[TEXT, table]).build()))
        assert len(read(with_symbols(SYMBOL + b"torn")).symbols) == 1
        ends = [Sym("top", 2**64 - 1, 2**64 - 1), Sym("zero", 2**64 - 2), Sym("low", 0, 2**64 - 1)]
        use(read(ElfBuilder(ends, sections=[Sec(".text", addr=2**64 - 16, size=2**63)]).build()))

    def test_symbols_that_all_enclose_each_other_cost_no_more_than_others(self) -> None:
        count = 400_000
        row = np.zeros(count, [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("shndx", "<u2"), ("at", "<u8", 2)])
        row["name"], row["info"], row["shndx"] = 1, 2, 1
        row["at"][:, 0] = np.arange(count)
        row["at"][:, 1] = 2 * count - 2 * np.arange(count)
        data = with_symbols(row.tobytes())
        started = time.monotonic()
        read(data).symbols.lookup(np.arange(2 * count, dtype=np.uint64))
        assert time.monotonic() - started < 5

    def test_aliases_with_one_enormous_name_are_compared_soon(self) -> None:
        data = with_symbols(SYMBOL * 200_000, b"\0" + b"_" * 10_000_000)
        started = time.monotonic()
        elf = read(data)
        assert len(elf.symbols) == 1
        assert len(elf.symbols.name(0)) <= 1 << 16
        assert time.monotonic() - started < 5

    @pytest.mark.parametrize(("packed", "problem"), [
        (lambda: b"no xz", "Input format not supported"),
        (lambda: lzma.compress(bytes(65 << 20), preset=0), "or unpacks to more than 67108864 bytes"),
        (lambda: lzma.compress(SOUND.build())[:-30], "it is cut off, or unpacks to more"),
        (lambda: lzma.compress(bytes(1000)), "this is not an ELF file"),
    ], ids=["no-xz", "bomb", "cut", "no-elf"])  # fmt: skip
    def test_mini_debug_info_that_is_none_or_a_bomb(self, packed: Callable[[], bytes], problem: str) -> None:
        bomb = Sec(".gnu_debugdata", data=packed(), flags=0)
        with pytest.raises(FormatError, match=problem):
            read(ElfBuilder(dynamic=[Sym("f", 0x1000, 8)], sections=[TEXT, bomb]).build())

    def test_relocations_and_stubs_that_lead_nowhere(self) -> None:
        stub = b"\xff\x25" + struct.pack("<i", -(2**31)) + bytes(10)
        plt = Sec(".plt", addr=8, data=stub * 100, entsize=16)
        rela = Sec(".rela.plt", data=struct.pack("<QQq", 2**64 - 1, 2**64 - 1, -1) * 50, type=PROGBITS)
        use(read(ElfBuilder(dynamic=[Sym("f", 0x1000, 8)], sections=[TEXT, DATA, plt, rela]).build()))
        high = Sec(".plt", addr=2**64 - 64, data=stub * 100, entsize=16)
        use(read(ElfBuilder(dynamic=[Sym("f", 0x1000, 8)], sections=[TEXT, DATA, high, rela]).build()))

    def test_segments_without_number_are_used_up_to_a_number(self) -> None:
        loads = [Load(i, i * 16, 1) for i in range(5000)]
        started = time.monotonic()
        use(read(ElfBuilder([Sym("f", 0x1000, 8)], loads=loads).build()))
        assert time.monotonic() - started < 2


class TestNotes:
    @pytest.mark.parametrize("notes", [
        b"", b"\xff" * 12, b"\xff" * 4096, struct.pack("<III", 4, 2**32 - 1, 3) + b"GNU\0",
        struct.pack("<III", 4, 20, 3) + b"GNU\0" + b"x" * 19,
        struct.pack("<III", 4, 65, 3) + b"GNU\0" + b"x" * 68,
        struct.pack("<III", 4, 20, 3) + b"XNU\0" + b"x" * 20, struct.pack("<III", 0, 0, 0) * 5000,
    ])  # fmt: skip
    def test_notes_without_a_sound_build_id_have_none(self, notes: bytes) -> None:
        assert find_build_id(notes, "<") == b""
        assert read(ElfBuilder(sections=[TEXT, Sec(".note", data=notes, type=NOTE)]).build()).build_id == b""

    def test_the_build_id_behind_other_notes_is_found(self) -> None:
        other = struct.pack(">III", 5, 3, 1) + b"Xen\0\0\0\0\0" + b"abc\0"
        build_id = struct.pack(">III", 4, 8, 3) + b"GNU\0" + b"12345678"
        assert find_build_id(other + build_id, ">") == b"12345678"


class TestSparseFiles:
    """Files that cost nothing and promise gigabytes."""

    def make(self, path: Path, strings: int, symbols: int) -> str:
        start = 1 << 20
        table = Sec(".symtab", type=SYMTAB, flags=0, size=symbols, link=3, entsize=24)
        data = bytearray(ElfBuilder(sections=[TEXT, table, Sec(".strtab", type=STRTAB, size=strings)]).build())
        for index, at in ((2, start), (3, start + symbols)):
            struct.pack_into("<Q", data, section_header(bytes(data), index) + 24, at)
        with open(path, "wb") as file:
            file.write(data)
            file.truncate(start + symbols + strings)
        return str(path)

    def test_strings_and_symbols_beyond_measure_are_refused(self, tmp_path: Path) -> None:
        path = self.make(tmp_path / "big", strings=4 << 30, symbols=24 * 10)
        with pytest.raises(FormatError, match=r"section .strtab .* at most 1073741824 are read"):
            load_elf_symbols(path)
        path = self.make(tmp_path / "big", strings=100, symbols=24 * (MAX_SYMBOLS + 1))
        with pytest.raises(FormatError, match="are too many"):
            load_elf_symbols(path)

    def test_a_file_that_shrinks_while_it_is_read_is_an_error(self, tmp_path: Path) -> None:
        path = tmp_path / "program"
        path.write_bytes(SOUND.build())
        image = ElfImage(Source(str(path), open_regular(str(path))))
        with open(path, "r+b") as file:
            file.truncate(70)
        with pytest.raises(FormatError, match="bytes wanted"):
            symbols_of(image)


def test_dynamic_symbols_without_content_are_none() -> None:
    assert not len(read(ElfBuilder(sections=[TEXT, Sec(".dynsym", type=DYNSYM, flags=0)]).build()).symbols)
