# SPDX-License-Identifier: Apache-2.0
"""ELF files: hand-made, freshly compiled, and this system's; headers from the cache, the same as from the file."""

import lzma
import os
import random
import re
import struct
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from builders import elf as made
from builders.compiled import build
from builders.elf import LOCAL, NOTYPE, TEXT, ElfBuilder, Load, Sec, Sym
from builders.objects import elf_build_id, names_at, names_of
from elftools.elf.elffile import ELFFile

from perf_offcpu.cache import DiskCache
from perf_offcpu.errors import FormatError
from perf_offcpu.objects.elf import headers
from perf_offcpu.objects.elf.headers import Source
from perf_offcpu.objects.elf.image import ElfImage, open_elf
from perf_offcpu.objects.functions import ElfFile, file_offset_to_vaddr, load_elf_symbols, symbols_of
from perf_offcpu.objects.search import Search
from perf_offcpu.objects.symtab import NO_ADDRESS

ARM64 = Path(__file__).parents[2] / "data" / "arm64" / "symfs" / "results" / "waiter"
FUNCTIONS = "TtWwi"  # nm's letters for code symbols, "i" for IFUNCs

PROGRAM = """
#include <stdio.h>
#include <string.h>
static int __attribute__((noinline)) hidden(int n) { return n * 3 + (int)strlen("x"); }
int __attribute__((noinline)) shown(int n) { return hidden(n) + getchar(); }
int main(int argc, char **argv) { (void)argv; return printf("%d", shown(argc)); }
"""


def read(builder: ElfBuilder) -> ElfFile:
    return symbols_of(ElfImage(Source("made", builder.build())))


def compiled(directory: Path, *options: str) -> Path:
    source = directory / "program.c"
    source.write_text(PROGRAM)
    return build(source, directory / "program", "-O1", *options)


def mapped(*beginnings: str) -> str | None:
    """A file that this process has mapped, by the beginning of its name."""
    paths = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line]
    return next((path for path in paths if Path(path).name.startswith(beginnings)), None)


INTERPRETER = mapped("libpython3") or os.path.realpath(sys.executable)
"""The file with Python's own functions: the program, or its library."""
LIBC = mapped("libc.so", "libc-2")
assert LIBC, "no C library is mapped"


class TestHandMade:
    @pytest.mark.parametrize(("bits", "order"), [(64, "<"), (64, ">"), (32, "<"), (32, ">")])
    def test_functions_and_segments_of_either_class_and_byte_order(self, bits: int, order: str) -> None:
        symbols = [Sym("main", 0x1100, 0x20), Sym("helper", 0x1200, 0x10, bind=LOCAL)]
        loads = [Load(0, 0x400000, 0x500, flags=made.R), Load(0x1000, 0x402000, 0x800, 0x900)]
        options = {"bits": bits, "order": order, "type": made.EXEC, "build_id": bytes(range(20))}
        elf = read(ElfBuilder(symbols, loads=loads, **options))  # type: ignore[arg-type]
        assert names_at(elf.symbols, 0x1100, 0x111F, 0x1120, 0x1200) == ["main", "main", "", "helper"]
        assert elf.build_id == bytes(range(20))
        assert elf.loads["p_vaddr"].tolist() == [0x400000, 0x402000]
        assert elf.loads["p_memsz"].tolist() == [0x500, 0x900]
        offsets = np.array([0, 0x4FF, 0x1000, 0x17FF], np.uint64)
        assert file_offset_to_vaddr(elf.loads, offsets).tolist() == [0x400000, 0x4004FF, 0x402000, 0x4027FF]

    def test_what_names_code_is_what_perf_accepts(self) -> None:
        note = Sec(".gnu.warning.f", data=b"x", flags=0)
        symbols = [
            Sym("function", 0x1000, 8), Sym("ifunc", 0x1010, 8, type=made.GNU_IFUNC),
            Sym("label_in_text", 0x1020, 8, type=NOTYPE),
            Sym("hidden_label", 0x1030, 8, type=NOTYPE, other=made.HIDDEN),
            Sym("object_in_text", 0x1040, 8, type=made.OBJECT), Sym("undefined", 0x1050, 8, section=0),
            Sym("absolute", 0x1060, 8, section=made.ABS), Sym("not_loaded", 0x1070, 8, section=".gnu.warning.f"),
            Sym("label_in_data", 0x3000, 8, type=NOTYPE, section=".data"), Sym("", 0x1080, 8),
        ]  # fmt: skip
        elf = read(ElfBuilder(symbols, sections=[TEXT, made.DATA, note]))
        assert names_of(elf.symbols) == ["function", "ifunc", "label_in_text"]

    def test_a_function_without_size_ends_at_data_or_with_its_section(self) -> None:
        symbols = [Sym("asm", 0x1000), Sym("table", 0x1080, 8, type=made.OBJECT), Sym("last", 0x1F00)]
        symbols.append(Sym("far", 0x9000, 8, section=".far"))
        elf = read(ElfBuilder(symbols, sections=[TEXT, Sec(".far", addr=0x9000, data=bytes(16))]))
        assert names_at(elf.symbols, 0x107F, 0x1080, 0x1FFF, 0x2000, 0x9000) == ["asm", "", "last", "", "far"]

    def test_on_arm_mapping_symbols_are_no_functions_and_the_thumb_bit_no_part_of_the_address(self) -> None:
        symbols = [Sym("f", 0x1000, 8), Sym("$x", 0x1004, type=NOTYPE), Sym("$d.7", 0x1100, type=NOTYPE)]
        elf = read(ElfBuilder([*symbols, Sym("$tmp", 0x1200, 8)], machine=made.AARCH64))
        assert names_of(elf.symbols) == ["f", "$tmp"]
        elf = read(ElfBuilder([Sym("thumb", 0x1001, 8)], machine=made.ARM, bits=32))
        assert elf.symbols.start.tolist() == [0x1000]

    def test_tables_are_merged_and_mini_debug_info_is_unpacked(self) -> None:
        elf = read(ElfBuilder(dynamic=[Sym("exported", 0x1000, 8)]))
        assert names_at(elf.symbols, 0x1000) == ["exported"]
        elf = read(ElfBuilder([Sym("local", 0x1000, 8)], [Sym("exported", 0x1010, 8)]))
        assert names_at(elf.symbols, 0x1000, 0x1010) == ["local", "exported"]
        inner = ElfBuilder([Sym("local", 0x1010, 8, bind=LOCAL)]).build()
        packed = Sec(".gnu_debugdata", data=lzma.compress(inner), flags=0)
        elf = read(ElfBuilder(dynamic=[Sym("exported", 0x1000, 8)], sections=[TEXT, packed]))
        assert names_at(elf.symbols, 0x1000, 0x1010) == ["exported", "local"]

    @pytest.mark.parametrize(("text", "others", "named"), [
        (0x1000, (), True), (0, (), True), (0, (Sec(".init", 0x900, bytes(16)),), False), (0x1100, (), True),
    ])  # fmt: skip
    def test_a_stripped_program_of_go_has_a_table_of_its_own(
        self, text: int, others: tuple[Sec, ...], named: bool
    ) -> None:
        names = b"\0main.main\0runtime.mcall\0"
        functions = struct.pack("<7I", 0, 28, 0x20, 36, 0x50, 2**31, 0x60) + struct.pack("<4I", 0, 1, 0x20, 11)
        numbers = 3, 1, text, 72, 72 + len(names), 0, 0, 100
        table = struct.pack("<I2xBB8Q", 0xFFFFFFF1, 1, 8, *numbers) + names.ljust(28, b"\0") + functions
        lie = table.replace(bytes([3, *bytes(7)]), b"\xff" * 8)
        for damaged in (b"", table[:40], table[:110], b"\xf2" + table[1:], lie):
            sections = [TEXT, *others, Sec(".gopclntab", data=damaged, flags=made.ALLOC)]
            assert names_at(read(ElfBuilder(sections=sections)).symbols, 0x1000) == [""]
        sections = [TEXT, *others, Sec(".gopclntab", data=table, flags=made.ALLOC)]
        symbols = read(ElfBuilder(sections=sections)).symbols
        begin = text or 0x1000
        expected = ["main.main", "main.main", "runtime.mcall", "", ""] if named else [""] * 5
        assert names_at(symbols, *(begin + offset for offset in (0, 0x1F, 0x20, 0x50, 0x60))) == expected
        assert names_of(read(ElfBuilder([Sym("main", 0x1000, 8)], sections=sections)).symbols) == ["main"]

    def test_an_unlinked_object_is_refused(self) -> None:
        with pytest.raises(FormatError, match="type 1 is not an executable or shared object"):
            read(ElfBuilder([Sym("f", 0)], type=made.REL))


class TestFileOffsets:
    def test_the_executable_segment_wins_where_two_hold_a_byte(self) -> None:
        loads = [Load(0, 0, 0x2000, flags=made.R), Load(0x1000, 0x5000, 0x1000)]
        elf = read(ElfBuilder([Sym("f", 0x1000)], loads=loads))
        offsets = np.array([0xFFF, 0x1000, 0x1FFF], np.uint64)
        assert file_offset_to_vaddr(elf.loads, offsets).tolist() == [0xFFF, 0x5000, 0x5FFF]

    def test_the_rest_of_an_executable_segments_pages_belongs_to_it(self) -> None:
        elf = read(ElfBuilder([Sym("f", 0x1000)], loads=[Load(0x1100, 0x401100, 0x200)]))
        offsets, outside = np.array([0xFFF, 0x1000, 0x1FFF, 0x2000], np.uint64), int(NO_ADDRESS)
        assert file_offset_to_vaddr(elf.loads, offsets).tolist() == [outside, 0x401000, 0x401FFF, outside]

    def test_segments_that_wrap_around_hold_nothing(self) -> None:
        elf = read(ElfBuilder([Sym("f", 0x1000)], loads=[Load(2**64 - 16, 0, 32), Load(0, 2**64 - 16, 32)]))
        assert not len(elf.loads)
        assert file_offset_to_vaddr(elf.loads, np.array([0, 5], np.uint64)).tolist() == [int(NO_ADDRESS)] * 2

    @pytest.mark.parametrize("options", [("-no-pie",), ("-fPIE", "-pie")])
    def test_code_is_found_where_the_kernel_maps_it(self, tmp_path: Path, options: tuple[str, ...]) -> None:
        """A running program's own map, and where it says that `main` is, against our arithmetic."""
        source = tmp_path / "where.c"
        source.write_text(
            '#include <stdio.h>\nint main(void) { printf("%p\\n", (void *)main); fflush(stdout);'
            ' FILE *f = fopen("/proc/self/maps", "r"); char l[512];'
            " while (fgets(l, sizeof l, f)) fputs(l, stdout); return 0; }\n"
        )
        program = build(source, tmp_path / "where", "-O1", *options)
        lines = subprocess.run([program], check=True, timeout=20, capture_output=True, text=True).stdout
        first, *maps = lines.splitlines()
        ip, spans = int(first, 16), [(line.partition(" ")[0].split("-"), line.split()[2]) for line in maps]
        ((start, pgoff),) = ((int(a, 16), int(at, 16)) for (a, b), at in spans if int(a, 16) <= ip < int(b, 16))
        elf = load_elf_symbols(str(program))
        vaddr = file_offset_to_vaddr(elf.loads, np.array([ip - start + pgoff], np.uint64))
        assert names_at(elf.symbols, int(vaddr[0])) == ["main"]
        assert elf.symbols.start[elf.symbols.lookup(vaddr)] == vaddr


class TestSeparateDebugFiles:
    @pytest.mark.parametrize("content", [b"", b"no ELF", ElfBuilder([Sym("f", 1)], build_id=b"ot").build()])
    def test_a_damaged_or_foreign_debug_file_is_passed_over(self, tmp_path: Path, content: bytes) -> None:
        program, debug = tmp_path / "program", tmp_path / ".build-id" / "61" / "62.debug"
        program.write_bytes(ElfBuilder(dynamic=[Sym("exported", 0x1000, 8)], build_id=b"ab").build())
        debug.parent.mkdir(parents=True)
        debug.write_bytes(content)
        elf = load_elf_symbols(str(program), Search(debug_roots=(str(tmp_path),)))
        assert names_at(elf.symbols, 0x1000) == ["exported"]


class TestPlt:
    @pytest.mark.parametrize("options", [
        ("-no-pie", "-Wl,-z,lazy", "-fcf-protection=none"),
        ("-pie", "-fPIE", "-Wl,-z,lazy", "-fcf-protection=full", "-Wl,-z,ibtplt"),
        ("-pie", "-fPIE", "-Wl,-z,now"),
    ])  # fmt: skip
    def test_stubs_are_named_as_objdump_names_them(self, tmp_path: Path, options: tuple[str, ...]) -> None:
        program = compiled(tmp_path, *options)
        elf = load_elf_symbols(str(program))
        command = ["objdump", "-d", "-j", ".plt", "-j", ".plt.sec", "-j", ".plt.got", str(program)]
        # exit status 1: one of the sections is not there
        listing = subprocess.run(command, check=False, timeout=60, capture_output=True, text=True).stdout
        lines = [re.fullmatch(r"(\w+) <(.+)@plt>:", line) for line in listing.splitlines()]
        stubs = {int(line[1], 16): line[2].partition("@")[0] for line in lines if line}
        assert {"printf", "getchar"} & {name.removesuffix("_chk").strip("_") for name in stubs.values()}
        for address, name in stubs.items():
            assert names_at(elf.symbols, address, address + 5) == [f"{name}@plt"] * 2

    def test_stubs_of_arm64_are_in_the_order_of_their_relocations(self) -> None:
        elf = load_elf_symbols(str(ARM64))
        with open(ARM64, "rb") as file:
            other = ELFFile(file)
            begin = other.get_section_by_name(".plt")["sh_addr"]
            symbols = other.get_section_by_name(".dynsym")
            slots = other.get_section_by_name(".rela.plt").iter_relocations()
            names = [symbols.get_symbol(slot["r_info_sym"]).name for slot in slots]
        assert names_at(elf.symbols, begin, begin + 31) == [".plt"] * 2
        stubs = [begin + 32 + 16 * number for number in range(len(names))]
        assert names_at(elf.symbols, *stubs) == [f"{name}@plt" for name in names] and len(names) == 40

    def test_a_static_programs_ifunc_stubs_carry_the_functions_name(self, tmp_path: Path) -> None:
        names = names_of(load_elf_symbols(str(compiled(tmp_path, "-static"))).symbols)
        stubs = {name.removesuffix("@plt") for name in names if name.endswith("@plt")}
        assert stubs & {"strlen", "memcpy", "strchr", "__strchrnul", "strchrnul", "mempcpy"}


class TestThisSystem:
    """Against pyelftools and binutils, on files that were not made for this test."""

    @pytest.mark.parametrize("path", [LIBC, os.path.realpath(sys.executable)])
    def test_headers_are_those_that_pyelftools_reads(self, path: str) -> None:
        elf = load_elf_symbols(path)
        with open(path, "rb") as file:
            other = ELFFile(file)
            loads = [s for s in other.iter_segments() if s["p_type"] == "PT_LOAD"]
            for field in ("offset", "vaddr", "filesz", "memsz", "flags"):
                assert elf.loads[f"p_{field}"].tolist() == [load[f"p_{field}"] for load in loads]
            notes = other.get_section_by_name(".note.gnu.build-id")
            expected = "" if notes is None else next(notes.iter_notes())["n_desc"]
        assert elf.build_id.hex() == expected == elf_build_id(path).hex()

    @pytest.mark.parametrize("path", [LIBC, INTERPRETER])
    def test_each_function_that_nm_lists_is_found_at_its_address(self, path: str) -> None:
        """Any of its aliases may be shown; nm lists the dynamic symbols of both and the full ones if any."""
        names_of, end_of = nm(path)
        elf, starts = load_elf_symbols(path), np.array(sorted(names_of), np.uint64)
        rows = elf.symbols.lookup(starts)
        assert len(starts) > 1000
        assert (rows >= 0).all()
        assert elf.symbols.start[rows].tolist() == starts.tolist()
        for row, start in zip(rows.tolist(), starts.tolist(), strict=True):
            assert elf.symbols.name(row) in names_of[start]
            assert int(elf.symbols.end[row]) in end_of[start]

    def test_sections_of_their_own_for_each_function_change_nothing(self, tmp_path: Path) -> None:
        program = compiled(tmp_path, "-ffunction-sections", "-Wl,--gc-sections")
        assert {"main", "shown", "hidden"} <= set(names_of(load_elf_symbols(str(program)).symbols))

    def test_random_addresses_get_the_name_that_addr2line_gives(self, tmp_path: Path) -> None:
        """A static program holds half the C library; stripped of DWARF, so that symbols meet symbols."""
        path = str(compiled(tmp_path, "-static", "-Wl,--strip-debug"))
        names_of, _ = nm(path)
        elf = load_elf_symbols(path)
        draw, symbols = random.Random(4), elf.symbols
        rows = [draw.randrange(len(symbols)) for _ in range(3000)]
        addresses = [draw.randrange(int(symbols.start[row]), int(symbols.end[row])) for row in rows]
        command, asked = ["addr2line", "-f", "-e", path], "\n".join(map(hex, addresses))
        out = subprocess.run(command, input=asked, check=True, timeout=60, capture_output=True, text=True).stdout
        starts = elf.symbols.start[elf.symbols.lookup(np.array(addresses, np.uint64))].tolist()
        answers = {at: answer for at, answer in zip(addresses, out.splitlines()[::2], strict=True)}
        with_size = set().union(*names_of.values())  # addr2line names labels within functions, too
        pairs = zip(addresses, starts, strict=True)
        sized = [(at, start) for at, start in pairs if start in names_of and answers[at] in with_size]
        assert len(sized) > 0.9 * len(addresses)
        assert [hex(at) for at, start in sized if answers[at] not in names_of[start]] == []


def nm(path: str) -> tuple[dict[int, set[str]], dict[int, set[int]]]:
    """Names and ends of functions with a size, by start, in all symbol tables of a file."""
    names, ends = defaultdict[int, set[str]](set), defaultdict[int, set[int]](set)
    for table in ((), ("-D",)):
        command = ["nm", "-S", "--defined-only", *table, path]
        lines = subprocess.run(command, check=False, timeout=60, capture_output=True, text=True).stdout
        for fields in map(str.split, lines.splitlines()):
            if len(fields) == 4 and fields[2] in FUNCTIONS:
                start, size = int(fields[0], 16), int(fields[1], 16)
                names[start].add(fields[3].split("@")[0])
                ends[start].add(start + size)
    return names, ends


def content(bits: int = 64, order: str = "<") -> bytes:
    symbols = [Sym("f", 0x1000, 8)]
    return ElfBuilder(symbols, symbols, bits=bits, order=order, build_id=b"\x12" * 20).build()


@pytest.mark.parametrize(("bits", "order"), [(64, "<"), (64, ">"), (32, "<"), (32, ">")])
def test_a_file_is_parsed_once(bits: int, order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cache = tmp_path / "program", DiskCache(str(tmp_path / "cache"))
    path.write_bytes(content(bits, order))
    with open_elf(str(path), cache) as first:
        pass
    monkeypatch.setattr(headers, "_parse", lambda _: pytest.fail("it was parsed again"))
    with open_elf(str(path), cache) as second:
        for name in ("bits", "order", "type", "machine", "build_id", "section_names"):
            assert getattr(second, name) == getattr(first, name)
        assert np.array_equal(second.sections, first.sections)
        assert np.array_equal(second.loads, first.loads)
    assert (second.order, second.build_id) == (order, b"\x12" * 20)


def test_an_image_in_memory_is_known_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, data = DiskCache(str(tmp_path)), content()
    first = ElfImage(Source("vdso", data), cache)
    with monkeypatch.context() as patch:
        patch.setattr(headers, "_parse", lambda _: pytest.fail("it was parsed again"))
        assert ElfImage(Source("vdso", bytes(data)), cache).build_id == first.build_id
    assert ElfImage(Source("vdso", content(32)), cache).bits != first.bits


def test_columns_that_are_no_headers_are_made_again(tmp_path: Path) -> None:
    good = headers.read_headers(Source("made", content()))
    assert headers._is_sound(good)
    for name in good:
        assert not headers._is_sound({key: good[key] for key in good if key != name})
        assert not headers._is_sound({**good, name: good[name].astype(np.float64)})
    for name in ("head", "sections", "segments"):
        assert not headers._is_sound({**good, name: good[name][:-1]})
    assert not headers._is_sound({**good, "head": np.array([3, 1, 3, 62], np.uint64)})


CODE = """
import sys
from perf_offcpu.cache import DiskCache
from perf_offcpu.objects.functions import load_elf_symbols
from perf_offcpu.objects.search import Search
elf = load_elf_symbols(sys.argv[1], Search(cache=DiskCache(sys.argv[2])))
print(elf.symbols.name(0), 'elftools' in sys.modules)
"""


def test_a_program_without_pyelftools_names_from_the_cache(tmp_path: Path) -> None:
    """Its import costs more than all else; a file that is not in the cache needs it."""
    path = tmp_path / "program"
    path.write_bytes(content())
    command = [sys.executable, "-c", CODE, str(path), str(tmp_path / "cache")]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert runs == ["f True\n", "f False\n"]


@pytest.mark.parametrize("error", [AssertionError("x"), KeyError("x"), RecursionError("x"), MemoryError()])
def test_errors_of_pyelftools_are_ours(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr(headers, "_number", fail)
    with pytest.raises(FormatError, match=type(error).__name__):
        ElfImage(Source("made", content()))
