# SPDX-License-Identifier: Apache-2.0
"""Constants of call frame information (.eh_frame, .debug_frame) and the registers of machines.

Sources: DWARF 5, 6.4 and 7.24 (call frame instructions) and 2.5 (expressions); Linux Standard Base Core 5,
10.6 (.eh_frame, pointer encodings); System V ABI for x86-64, figure 3.36, and DWARF for the Arm 64-bit
Architecture, 4.1 (register numbers); arch/{x86,arm64}/include/uapi/asm/perf_regs.h (registers of samples).
"""

from __future__ import annotations

import enum
from typing import Final

from perf_offcpu.structs import frozen


class Cfa(enum.IntEnum):
    """DW_CFA_*: the instructions. The first three are the high two bits, with an operand in the low six."""

    ADVANCE_LOC = 0x40
    OFFSET = 0x80
    RESTORE = 0xC0
    NOP = 0x00
    SET_LOC = 0x01
    ADVANCE_LOC1 = 0x02
    ADVANCE_LOC2 = 0x03
    ADVANCE_LOC4 = 0x04
    OFFSET_EXTENDED = 0x05
    RESTORE_EXTENDED = 0x06
    UNDEFINED = 0x07
    SAME_VALUE = 0x08
    REGISTER = 0x09
    REMEMBER_STATE = 0x0A
    RESTORE_STATE = 0x0B
    DEF_CFA = 0x0C
    DEF_CFA_REGISTER = 0x0D
    DEF_CFA_OFFSET = 0x0E
    DEF_CFA_EXPRESSION = 0x0F
    EXPRESSION = 0x10
    OFFSET_EXTENDED_SF = 0x11
    DEF_CFA_SF = 0x12
    DEF_CFA_OFFSET_SF = 0x13
    VAL_OFFSET = 0x14
    VAL_OFFSET_SF = 0x15
    VAL_EXPRESSION = 0x16
    GNU_WINDOW_SAVE = 0x2D  # on arm64: toggles whether the return address is signed
    GNU_ARGS_SIZE = 0x2E
    GNU_NEGATIVE_OFFSET_EXTENDED = 0x2F


class Pe(enum.IntEnum):
    """DW_EH_PE_*: how .eh_frame writes an address. Low half the form, high half what it is relative to."""

    ABSPTR = 0x00
    ULEB128 = 0x01
    UDATA2 = 0x02
    UDATA4 = 0x03
    UDATA8 = 0x04
    SLEB128 = 0x09
    SDATA2 = 0x0A
    SDATA4 = 0x0B
    SDATA8 = 0x0C
    PCREL = 0x10
    OMIT = 0xFF


class Op(enum.IntEnum):
    """DW_OP_*: the operations of expressions that rules of frames use."""

    ADDR = 0x03
    DEREF = 0x06
    CONST1U = 0x08
    CONST1S = 0x09
    CONST2U = 0x0A
    CONST2S = 0x0B
    CONST4U = 0x0C
    CONST4S = 0x0D
    CONST8U = 0x0E
    CONST8S = 0x0F
    CONSTU = 0x10
    CONSTS = 0x11
    DUP = 0x12
    DROP = 0x13
    OVER = 0x14
    PICK = 0x15
    SWAP = 0x16
    ROT = 0x17
    AND = 0x1A
    MINUS = 0x1C
    MUL = 0x1E
    NEG = 0x1F
    NOT = 0x20
    OR = 0x21
    PLUS = 0x22
    PLUS_UCONST = 0x23
    SHL = 0x24
    SHR = 0x25
    SHRA = 0x26
    XOR = 0x27
    EQ = 0x29
    GE = 0x2A
    GT = 0x2B
    LE = 0x2C
    LT = 0x2D
    NE = 0x2E
    LIT0 = 0x30
    LIT31 = 0x4F
    BREG0 = 0x70
    BREG31 = 0x8F
    BREGX = 0x92
    DEREF_SIZE = 0x94
    NOP = 0x96


@frozen
class Registers:
    """The registers of one machine, by DWARF number."""

    count: int  # the number of registers that unwinding follows
    # pc, sp, fp: program counter, stack and frame pointer
    pc: int
    sp: int
    fp: int
    ra: int  # the column of the return address
    saved: tuple[int, ...]  # registers that functions return unchanged, besides sp
    # DWARF numbers by perf's register number (bit of sample_regs_user); -1 for none
    of_sample: tuple[int, ...]
    # significant bits of a code address; above them a return address may carry a signature
    code_bits: int = 64

    @property
    def sample_mask(self) -> int:
        """The sample_regs_user with the bits of all these registers."""
        return sum(1 << bit for bit, number in enumerate(self.of_sample) if number >= 0)


ABI_64: Final = 2
"""PERF_SAMPLE_REGS_ABI_64; 1 is a 32-bit task, 0 a task without user registers."""
