# SPDX-License-Identifier: Apache-2.0
"""Frame rules and callchains that a process keeps from recording to recording; signed return addresses of arm64."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders.cfi import X86, cie, section
from builders.chains import chains_of
from unit.unwind.test_cfi_table import BLOCKER, recording_of

from perf_offcpu.abi.elf import Machine
from perf_offcpu.abi.machine import REGISTERS
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.cache import DiskCache, KeptCache
from perf_offcpu.model.callchains import Ragged, Snapshots
from perf_offcpu.model.columns import I64
from perf_offcpu.model.recording import Dsos, Maps, Meta, Recording, Samples, Spaces
from perf_offcpu.objects.search import Search
from perf_offcpu.unwind import lookup
from perf_offcpu.unwind import unwinder as module
from perf_offcpu.unwind.cfi.entries import Section
from perf_offcpu.unwind.cfi.program import Cfa
from perf_offcpu.unwind.cfi.table import CfiTable, build_table
from perf_offcpu.unwind.lookup import CfiLookup, FileTable, Rules
from perf_offcpu.unwind.state import End
from perf_offcpu.unwind.tables import FrameTables
from perf_offcpu.unwind.unwinder import KnownStacks, Unwound, unwind

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
