# SPDX-License-Identifier: Apache-2.0
"""Stacks of arm64: the return address of a leaf is in a register, and return addresses may be signed: whatever bits of
a signature they have, callers are found."""

import numpy as np
import pytest
from builders.cfi import cie, section
from builders.chains import chains_of

from perf_offcpu.abi.elf import Machine
from perf_offcpu.abi.machine import REGISTERS
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.model.callchains import Ragged, Snapshots
from perf_offcpu.model.recording import Dsos, Maps, Meta, Recording, Samples, Spaces
from perf_offcpu.unwind import unwinder as module
from perf_offcpu.unwind.cfi.entries import Section
from perf_offcpu.unwind.cfi.program import Cfa
from perf_offcpu.unwind.cfi.table import build_table
from perf_offcpu.unwind.lookup import FileTable
from perf_offcpu.unwind.unwinder import unwind

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
