# SPDX-License-Identifier: Apache-2.0
"""Tables of frames and call frame information: against pyelftools, by hand, with frame pointers, and as a process
keeps them from recording to recording; signed return addresses of arm64."""

import random
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.cfi import RBP, RIP, RSP, X86, cie, entry, section, table_of, uleb
from builders.chains import chains_of
from builders.compiled import build
from elftools.dwarf.callframe import FDE
from elftools.elf.elffile import ELFFile

from perf_offcpu.abi.elf import Machine, SectionFlag
from perf_offcpu.abi.machine import REGISTERS
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.cache import Array, DiskCache, KeptCache
from perf_offcpu.model.callchains import Ragged, Snapshots
from perf_offcpu.model.columns import I64, Strings
from perf_offcpu.model.recording import Dsos, Maps, Meta, Recording, Samples, Spaces
from perf_offcpu.objects.elf.image import open_elf
from perf_offcpu.objects.search import Search
from perf_offcpu.unwind import lookup
from perf_offcpu.unwind import tables as unwind_files
from perf_offcpu.unwind import unwinder as module
from perf_offcpu.unwind.cfi import program as cfi_program
from perf_offcpu.unwind.cfi import table as cfi
from perf_offcpu.unwind.cfi.entries import Section
from perf_offcpu.unwind.cfi.program import Cfa, Kind
from perf_offcpu.unwind.cfi.table import NO_RULES, CfiTable, build_table, frame_sections
from perf_offcpu.unwind.lookup import CfiLookup, FileTable, Rules
from perf_offcpu.unwind.state import End
from perf_offcpu.unwind.tables import FrameTables, table_columns, table_from_columns
from perf_offcpu.unwind.unwinder import KnownStacks, Unwound, unwind

BLOCKER = Path(__file__).parents[2] / "data" / "perf-7.2" / "blocker"
CFA = X86.count


def rules_at(table: CfiTable, address: int) -> Any:
    row = int(table.lookup(np.array([address], np.uint64))[0])
    return None if row == NO_RULES else table.rules[row]


def cfa_of(table: CfiTable, address: int) -> tuple[int, int]:
    rule = int(rules_at(table, address)[CFA])
    assert rule & 7 == Kind.REGISTER
    return rule >> 3 & 0xFF, rule >> 11


def as_ours(rule: Any, table: CfiTable) -> int | None:
    """A rule of pyelftools as one of ours; None for an expression, whose number we do not know."""
    if rule is None or rule.type == "SAME_VALUE":
        return 0
    if rule.type in ("EXPRESSION", "VAL_EXPRESSION"):
        return None
    return (rule.arg or 0) << 3 | Kind[rule.type]


def test_the_table_of_a_real_program_is_what_pyelftools_reads() -> None:
    with open_elf(str(BLOCKER)) as image:
        table = build_table(frame_sections(image), X86)
    compared = 0
    with BLOCKER.open("rb") as file:
        for function in ELFFile(file).get_dwarf_info().EH_CFI_entries():
            for row in function.get_decoded().table if isinstance(function, FDE) else ():
                found, cfa = rules_at(table, row["pc"]), row["cfa"]
                if cfa.expr is not None:
                    assert found[CFA] & 7 == Kind.VAL_EXPRESSION
                    assert table.expressions[found[CFA] >> 3] == bytes(cfa.expr)
                else:
                    assert found[CFA] == (cfa.offset << 8 | cfa.reg) << 3 | Kind.REGISTER
                for register in range(X86.count):
                    expected = as_ours(row.get(register), table)
                    assert expected is None or found[register] == expected
                compared += 1
    assert compared > 50


def test_rows_follow_advances_and_end_with_their_function() -> None:
    push = bytes([0x41, Cfa.DEF_CFA_OFFSET, 16, 0x80 | RBP, 2])
    table = table_of(section((0x1000, 0x20, push + bytes([0x43, Cfa.DEF_CFA_REGISTER, RBP])), (0x1100, 8, b"")))
    assert cfa_of(table, 0x1000) == (RSP, 8)
    assert cfa_of(table, 0x1001) == cfa_of(table, 0x1003) == (RSP, 16)
    assert cfa_of(table, 0x101F) == (RBP, 16)
    assert rules_at(table, 0x1004)[RBP] == -16 << 3 | Kind.OFFSET
    assert rules_at(table, 0x1004)[RIP] == -8 << 3 | Kind.OFFSET
    assert rules_at(table, 0xFFF) is None and rules_at(table, 0x1020) is None
    assert cfa_of(table, 0x1107) == (RSP, 8) and rules_at(table, 0x1108) is None


def test_states_are_remembered_and_restored_with_the_cfa() -> None:
    program = bytes([Cfa.REMEMBER_STATE, 0x41, Cfa.DEF_CFA_OFFSET, 64, 0x80 | RBP, 3])
    program += bytes([0x41, Cfa.RESTORE_STATE, 0x41, 0x80 | RBP, 3, 0x41, 0xC0 | RBP])
    table = table_of(section((0x1000, 0x10, program)))
    assert [cfa_of(table, 0x1000 + i)[1] for i in range(5)] == [8, 64, 8, 8, 8]
    assert [int(rules_at(table, 0x1000 + i)[RBP]) & 7 for i in range(5)] == [0, 2, 0, 2, 0]


def test_signal_frames_are_known_by_their_augmentation_and_expressions_kept_once() -> None:
    table = table_of(section((0x1000, 4, b""), common=cie(augmentation=b"zRS")))
    assert rules_at(table, 0x1000)[-1] == 1
    block = bytes([0x77, 8, 0x06])
    program = bytes([Cfa.DEF_CFA_EXPRESSION, len(block)]) + block
    table = table_of(section((0x1000, 4, program), (0x2000, 4, program)))
    assert table.expressions == [block]
    assert rules_at(table, 0x2000)[CFA] == Kind.VAL_EXPRESSION


def test_addresses_relative_to_themselves_and_debug_frame() -> None:
    common = cie(data=b"\x1b")
    at = len(common)
    fde = entry(struct.pack("<IiI", at + 4, 0x500, 8) + b"\0")
    assert cfa_of(table_of(common + fde, address=0x10000), 0x10000 + at + 8 + 0x500) == (RSP, 8)
    body = bytes([3]) + b"\0" + bytes([1, 0x78, RIP]) + bytes([0x0C, RBP, 16])
    content = entry(struct.pack("<I", 0xFFFFFFFF) + body) + entry(struct.pack("<IQQ", 0, 0x2000, 4))
    assert cfa_of(build_table([Section(content, 0, is_eh=False)], X86), 0x2003) == (RBP, 16)


@pytest.mark.parametrize("kind", ["zlib", "zstd"])
def test_compressed_sections_are_unpacked(tmp_path: Path, kind: str) -> None:
    """Distributions compress sections of debug files."""
    functions = [f"int f{n}(int x) {{ volatile int y[{n + 1}]; y[{n}] = x; return y[{n}]; }}" for n in range(99)]
    (tmp_path / "x.c").write_text("\n".join([*functions, "int main(void) { return f7(7); }"]))
    options = ["-O1", "-g", "-fno-asynchronous-unwind-tables", "-fno-exceptions"]
    subprocess.run(["gcc", *options, "-o", "plain", "x.c"], cwd=tmp_path, check=True)
    subprocess.run(["objcopy", f"--compress-debug-sections={kind}", "plain", "packed"], cwd=tmp_path, check=True)
    with open_elf(str(tmp_path / "plain")) as plain, open_elf(str(tmp_path / "packed")) as packed:
        section_ = packed.section_named(b".debug_frame")
        assert section_ is not None and section_.flags & SectionFlag.COMPRESSED
        sections = [[one.data.tobytes() for one in frame_sections(image)] for image in (plain, packed)]
    assert sections[0] == sections[1]
    assert len(sections[0]) == 2 and len(sections[0][1]) > 99 * 24


def test_a_second_section_speaks_where_the_first_is_silent() -> None:
    first = Section(section((0x1000, 4, b"")), 0)
    table = build_table([first, Section(section((0x1000, 16, bytes([Cfa.DEF_CFA_OFFSET, 99]))), 0)], X86)
    assert [cfa_of(table, place)[1] for place in (0x1000, 0x1003, 0x1004, 0x100F)] == [8, 8, 99, 99]


def test_registers_that_do_not_exist_change_nothing() -> None:
    program = bytes([Cfa.OFFSET_EXTENDED]) + uleb(2**40) + uleb(2**62)
    program += bytes([Cfa.REGISTER]) + uleb(3) + uleb(999)
    table = table_of(section((0x1000, 4, program), (0x2000, 4, bytes([Cfa.DEF_CFA, 200, 1, 8]))))
    assert cfa_of(table, 0x1000) == (RSP, 8)
    assert rules_at(table, 0x1000)[3] == Kind.INVALID
    assert rules_at(table, 0x2000)[CFA] == Kind.INVALID


@pytest.mark.parametrize("program", [
    bytes([0x3F]),  # unknown
    bytes([Cfa.RESTORE_STATE]),  # nothing remembered
    bytes([Cfa.REMEMBER_STATE] * 20),
    bytes([Cfa.ADVANCE_LOC4, 1]),  # cut
    bytes([Cfa.DEF_CFA_EXPRESSION, 0x7F, 1]),
])  # fmt: skip
def test_a_damaged_function_has_no_rules_and_harms_no_other(program: bytes) -> None:
    table = table_of(section((0x1000, 8, program), (0x2000, 8, b"")))
    assert cfa_of(table, 0x2000) == (RSP, 8)
    found = rules_at(table, 0x1000)
    assert found is None or found[CFA] & 7 in (Kind.INVALID, Kind.REGISTER)


def test_a_function_of_endless_instructions_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cfi_program, "MAX_STEPS", 500)
    endless = bytes([0x41, 0x0E, 16, 0x41, 0x0E, 8]) * 500
    table = table_of(section((0x1000, 2**40, endless), (2**41, 8, b"")))
    assert rules_at(table, 0x1001) is None and cfa_of(table, 2**41) == (RSP, 8)


def test_a_hundred_thousand_rows_are_a_table() -> None:
    program = bytes([0x41, 0x0E, 16, 0x41, 0x0E, 8]) * 50
    table = table_of(section(*((0x1000 + 0x1000 * i, 0x1000, program) for i in range(1000))))
    assert len(table) == 1000 * 100 + 1 + 1
    assert len(table.rules) == 2
    assert cfa_of(table, 0x1001) == (RSP, 16) and cfa_of(table, 0x1002 + 0x1000 * 999) == (RSP, 8)


def test_any_damage_gives_a_table() -> None:
    with open_elf(str(BLOCKER)) as image:
        whole = frame_sections(image)[0]
    content, randomly = whole.data[: whole.size].tobytes(), random.Random(6)
    for _ in range(150):
        damaged = bytearray(content[: randomly.randrange(len(content))])
        for _ in range(randomly.randrange(1, 8) if damaged else 0):
            damaged[randomly.randrange(len(damaged))] = randomly.randrange(256)
        table = build_table([Section(bytes(damaged), whole.address)], X86)
        assert bool((table.start[1:] > table.start[:-1]).all())
        assert len(table.rule) == len(table.start) and int(table.rule.max(initial=-1)) < len(table.rules)


def recording_of(path: str, build_id: str = "") -> Recording:
    strings = Strings()
    dsos = Dsos.filled(1, path=strings.intern_all([path]), build_id=strings.intern_all([build_id]))
    maps = Maps.filled(1, end=np.array([4096], np.uint64), dso=np.array([0]), space=np.array([0]))
    return Recording(strings=strings, dsos=dsos, maps=maps, spaces=Spaces.filled(1), meta=Meta(arch="x86_64"))


def assert_same(one: CfiTable, other: CfiTable) -> None:
    assert one.expressions == other.expressions
    for name in ("start", "rule", "rules"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize(("name", "build_id", "machine"), [
    (str(BLOCKER), "00" * 20, Machine.X86_64), (str(BLOCKER), "", Machine.AARCH64),
    *((name, "", Machine.X86_64) for name in ("[heap]", "//anon", "/nowhere/at/all", "/dev/null")),
    ("/tmp/../etc/passwd", "", Machine.X86_64),
])  # fmt: skip
def test_what_is_no_file_of_that_build_and_machine_has_no_rules(name: str, build_id: str, machine: Machine) -> None:
    assert FrameTables(recording_of(name, build_id), machine, Search()).of_dso(0, True) is None


def test_tables_are_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unwind_files, "MIN_ROWS", 1)
    cache = DiskCache(str(tmp_path / "cache"))
    recording = recording_of(str(BLOCKER))
    first = FrameTables(recording, Machine.X86_64, Search(cache=cache)).of_dso(0, True)
    monkeypatch.setattr(unwind_files, "build_table", lambda *_: pytest.fail("made again"))
    second = FrameTables(recording, Machine.X86_64, Search(cache=cache)).of_dso(0, True)
    assert first is not None and second is not None and first.table is not None and second.table is not None
    assert len(first.table) > 50
    assert_same(first.table, second.table)


def damaged(columns: dict[str, Array], name: str, place: int, value: int) -> dict[str, Array]:
    changed = columns[name].copy()
    changed[place] = value
    return {**columns, name: changed}


def test_columns_that_do_not_fit_together_are_no_table() -> None:
    with open_elf(str(BLOCKER)) as image:
        table = build_table(frame_sections(image), X86)
    columns = table_columns(table)
    again = table_from_columns(columns, X86)
    assert again is not None
    assert_same(table, again)
    width = X86.count + 2
    wrong = [
        {name: column for name, column in columns.items() if name != "rule"},
        {**columns, "start": columns["start"][:-1]},
        {**columns, "rules": columns["rules"][:-1]},
        {**columns, "start": columns["start"].astype(np.uint32)},
        damaged(columns, "rule", 0, len(table.rules)),
        damaged(columns, "rule", 0, -2),
        damaged(columns, "start", 1, 0),
        damaged(columns, "lengths", 0, -1),
        damaged(columns, "rules", 0, 99 << 3 | 5),  # an expression that is not there
        damaged(columns, "rules", width - 2, 200 << 3 | 4),  # a CFA in register 200
        damaged(columns, "rules", 3, 200 << 3 | 4),
    ]
    assert [table_from_columns(one, X86) for one in wrong] == [None] * len(wrong)


@pytest.mark.parametrize(("option", "keeps"), [("-fno-omit-frame-pointer", True), ("-fomit-frame-pointer", False)])
def test_how_a_program_was_built(option: str, keeps: bool, tmp_path: Path) -> None:
    program = str(build("waiter.c", tmp_path / "program", "-O2", option))
    share = cfi.frame_pointer_share(program)
    assert share is not None and (share > 0.9 if keeps else share < 0.2)
    assert cfi.keeps_frame_pointers(program) is keeps


@pytest.mark.parametrize("path", ["/etc/passwd", "/nowhere", "/dev/null"])
def test_what_does_not_tell_counts_as_without(path: str) -> None:
    assert not cfi.keeps_frame_pointers(path)


BEGIN = 0x555500000000
LIBC = Path("/lib/x86_64-linux-gnu/libc.so.6")


def rules_of(path: Path, offsets: range, cache: DiskCache | None) -> tuple[list[bytes], list[bool]]:
    """Return the rule sets of a file's code, expressions as bytes, and whether its table was read, by call."""
    recording, asked = recording_of(str(path)), list[bool]()
    maps = Maps.filled(1, start=np.array([BEGIN], np.uint64), end=np.array([BEGIN + (8 << 20)], np.uint64), dso=[0])
    recording = replace(recording, maps=maps.with_columns(space=np.zeros(1, np.int32)))
    tables = FrameTables(recording, Machine.X86_64, Search(cache=cache))

    def table_of(dso: int, with_table: bool) -> FileTable | None:
        asked.append(with_table)
        return tables.of_dso(dso, with_table)

    found = CfiLookup(recording, Rules.kept(X86, cache), table_of)
    addresses = BEGIN + np.array(offsets, np.uint64)
    rows = found.find(np.zeros(len(addresses), np.int32), addresses)
    used = CfiTable(rules=found.rules.words[rows], expressions=found.rules.expressions)
    assert used.is_sound()
    is_expression = (used.rules & 7 == 5) | (used.rules & 7 == 6)
    is_expression[:, -1] = False
    texts = [
        b"|".join(used.expressions[word >> 3] if special else b"%d" % word for word, special in zip(*row, strict=True))
        for row in zip(used.rules.tolist(), is_expression.tolist(), strict=True)
    ]
    return texts, asked


@pytest.mark.long
def test_kept_rules_are_those_of_the_files_content(tmp_path: Path) -> None:
    cache, path = KeptCache(str(tmp_path / "cache")), tmp_path / "program"
    for step, (program, offsets) in enumerate([
        (BLOCKER, range(0, 1 << 14, 64)), (LIBC, range(0, 1 << 21, 64)), (BLOCKER, range(0, 1 << 14, 16)),
        (LIBC, range(0, 1 << 21, 32)), (LIBC, range(0, 1 << 21, 64)),
    ]):  # fmt: skip
        if step != 4:
            path.unlink(missing_ok=True)
            shutil.copy(program, path)
        kept, asked = rules_of(path, offsets, cache)
        assert kept == rules_of(path, offsets, None)[0] and len(set(kept)) > 3
        assert asked == ([False] if step == 4 else [False, True])
    path.unlink()
    assert set(rules_of(path, offsets, cache)[0]) == set(rules_of(path, offsets, None)[0])


def test_kept_rules_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KeptCache(str(tmp_path / "cache"))
    monkeypatch.setattr(lookup, "_MOST_KEPT", 1000)
    for begin in range(0, 1 << 20, 1 << 15):
        rules_of(LIBC, range(begin, begin + (1 << 15), 64), cache)
    assert Rules.kept(X86, cache)._addresses <= 1000 + 512


def test_known_callchains_are_not_followed_again_but_cut_ones_are() -> None:
    walked: list[list[int]] = []

    def walk(pairs: I64) -> Unwound:
        """Return the chain (pair, pair + 1) of each pair; those of odd pairs are cut."""
        walked.append(pairs.tolist())
        ends = np.where(pairs % 2 == 1, End.OUTSIDE, End.ROOT).astype(np.uint8)
        return Unwound(Ragged.from_lists([[pair, pair + 1] for pair in pairs.tolist()]), ends)

    known = KnownStacks()
    for pairs in ([4, 7, 10], [2, 7, 8, 10], [4, 10], [2, 4, 7, 8, 10]):
        unwound = known.unwind(np.array(pairs), walk)
        assert [unwound.chains.row(row).tolist() for row in range(len(unwound))] == [[pair, pair + 1] for pair in pairs]
        assert unwound.is_cut().tolist() == [pair % 2 == 1 for pair in pairs]
    assert walked == [[4, 7, 10], [2, 7, 8], [7]]


USER = int(CallchainContext.USER)
FP, LR, SP, PC = 29, 30, 31, 32
MASK = 1 << FP | 1 << LR | 1 << SP | 1 << PC
SIGNS = bytes([Cfa.GNU_WINDOW_SAVE])  # DW_CFA_AARCH64_negate_ra_state
FRAME = bytes([Cfa.DEF_CFA_OFFSET, 32, 0x80 | FP, 4, 0x80 | LR, 3])  # stp x29, x30, [sp, -32]!
LEAF, SIGNED, ROOT, BARE = 0x1000, 0x1100, 0x1200, 0x1300
FUNCTIONS = ((LEAF, 0x40, b""), (SIGNED, 0x40, SIGNS + FRAME), (ROOT, 0x40, bytes([Cfa.UNDEFINED, LR])))
TABLE = build_table(
    [Section(section(*FUNCTIONS, common=cie(bytes([Cfa.DEF_CFA, SP, 0]), ra=LR)), 0)], REGISTERS[Machine.AARCH64]
)
# end of the highest code → bits of a signature: of kernels with 39 and 48 bits, and where all code is mapped low
SPACES = {0x7FF0000000: -1 << 39, 0xFFFFF0000000: -1 << 48, 0x2AAAA0000: -1 << 48}


class Tables:
    """The rules above, for the first dso; the second has none."""

    calls = None

    def of_dso(self, dso: int, _: bool) -> FileTable | None:
        return FileTable(TABLE, lambda offsets: offsets, "") if dso == 0 else None


def callers(monkeypatch: pytest.MonkeyPatch, end: int, registers: dict[int, int], stack: list[int]) -> list[int]:
    """Return the addresses of a stack, without where the code begins."""
    code = end - 0x10000
    recording = Recording(
        samples=Samples.filled(1, evsel=-1, time_ns=np.zeros(1), space=0, callchain=-1, snapshot=np.zeros(1)),
        callchains=Ragged.from_lists([]),
        snapshots=Snapshots(
            np.full(1, MASK, np.uint64),
            Ragged.from_lists([[registers[number] for number in (FP, LR, SP, PC)]]),
            Ragged.from_lists([stack]),
        ),
        spaces=Spaces.filled(1),
        maps=Maps.filled(
            2, start=np.array([code, code + BARE], np.uint64), end=np.array([code + BARE, end], np.uint64),
            dso=np.array([0, 1]),
        ),
        dsos=Dsos.filled(2),
        meta=Meta(arch="aarch64"),
    )  # fmt: skip
    monkeypatch.setattr(module, "FrameTables", lambda *_: Tables())
    result = unwind(recording)
    assert result.losses == {}
    marker, *chain = chains_of(result)[0]
    assert marker == USER
    return [address - code for address in chain]


@pytest.mark.parametrize("end", SPACES)
@pytest.mark.parametrize("is_signed", [False, True])
def test_a_leaf_and_its_signed_callers(end: int, is_signed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    code, sp = end - 0x10000, end + 0x100000

    def signed(address: int) -> int:
        return (code + address | SPACES[end]) % 2**64 if is_signed else code + address

    stack = [sp + 32, signed(SIGNED + 8), 0, 0, 0, signed(ROOT + 8), 0, 0]
    registers = {FP: sp, LR: signed(SIGNED + 4), SP: sp, PC: code + LEAF + 8}
    expected = [LEAF + 8, SIGNED + 4, SIGNED + 8, ROOT + 8]
    assert callers(monkeypatch, end, registers, stack) == expected


@pytest.mark.parametrize("end", SPACES)
def test_code_without_rules_is_followed_by_its_frame_pointer(end: int, monkeypatch: pytest.MonkeyPatch) -> None:
    code, sp = end - 0x10000, end + 0x100000
    stack = [0, 0, sp + 32, (code + BARE + 8 | SPACES[end]) % 2**64, 0, code + ROOT + 8]
    registers = {FP: sp + 16, LR: 0, SP: sp, PC: code + BARE + 16}
    assert callers(monkeypatch, end, registers, stack) == [BARE + 16, BARE + 8, ROOT + 8]
