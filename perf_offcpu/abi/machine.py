# SPDX-License-Identifier: Apache-2.0
"""Declare the architectures, one row each: registers in call frames, in samples and in the kernel's memory. Source: the
ABIs' DWARF register numbers (System V ABI for x86-64, figure 3.36; DWARF for the Arm 64-bit Architecture, 4.1);
arch/*/include/uapi/asm/ptrace.h and perf_regs.h of Linux. System calls have tables of their own (`abi.syscalls`)."""

from typing import Final, NamedTuple

from perf_offcpu.abi.elf import Machine
from perf_offcpu.structs import frozen

ABI_64: Final = 2  # PERF_SAMPLE_REGS_ABI_64; 1 is a 32-bit task, 0 a task without user registers


@frozen
class Registers:
    """Describe the registers of one machine: their DWARF numbers, their roles, and their bits in sample_regs_user."""

    count: int  # the number of registers that unwinding follows
    # pc, sp, fp: program counter, stack and frame pointer
    pc: int
    sp: int
    fp: int
    ra: int  # the column of the return address
    saved: tuple[int, ...]  # registers that functions return unchanged, besides sp
    # DWARF numbers by perf's register number (bit of sample_regs_user); -1 for none
    of_sample: tuple[int, ...]
    # most significant bits of a code address; above them a return address may carry a signature
    code_bits: int = 64

    @property
    def sample_mask(self) -> int:
        """Return the sample_regs_user that asks for every register with a DWARF number."""
        return sum(1 << bit for bit, number in enumerate(self.of_sample) if number >= 0)


class RegisterWords(NamedTuple):
    """Locate the user registers in kernel memory: indices of u64 words in struct pt_regs (arm64: user_pt_regs)."""

    number: int  # words of the structure
    ip: int
    sp: int
    fp: int
    arguments: tuple[int, ...]  # the first four arguments of a system call
    sampled: tuple[int, ...]  # the words of sample_regs_user (`Registers.sample_mask`), in the order of its bits
    mode: int  # the word that tells 64-bit mode
    mode_mask: int  # its bits that do, and their value in 64-bit mode
    mode_64: int


@frozen
class MachineRow:
    """Describe an architecture on which waits can be recorded and stacks unwound."""

    machine: Machine  # e_machine
    registers: Registers  # by DWARF number
    words: RegisterWords
    # pthread_self(), by which Python names its threads, is less than this below the thread pointer
    thread_bytes: int = 1
    # pointers from malloc() are multiples of this: such words on a stack are not taken for code
    aligned: int = 8
    has_irq_stack: bool = False  # a per-CPU variable shows an interrupt's own stack


_X86_64 = MachineRow(
    Machine.X86_64,
    Registers(
        count=17,
        pc=16,
        sp=7,
        fp=6,
        ra=16,
        saved=(6, 3, 12, 13, 14, 15),
        # ax bx cx dx si di bp sp ip flags cs ss ds es fs gs r8 … r15
        of_sample=(0, 3, 2, 1, 4, 5, 6, 7, 16, *(-1,) * 7, 8, 9, 10, 11, 12, 13, 14, 15),
    ),
    RegisterWords(
        21, 16, 19, 4, (14, 13, 12, 7), (10, 5, 11, 12, 13, 14, 4, 19, 16, 9, 8, 7, 6, 3, 2, 1, 0), 17, 0xFFFF, 0x33
    ),  # __USER_CS
    has_irq_stack=True,
)
_AARCH64 = MachineRow(
    Machine.AARCH64,
    Registers(
        count=33, pc=32, sp=31, fp=29, ra=30, saved=(29, 30, *range(19, 29)), of_sample=(*range(33),), code_bits=48
    ),
    RegisterWords(34, 32, 31, 29, (0, 1, 2, 3), tuple(range(33)), 33, 0x10, 0),  # PSR_MODE32_BIT
    thread_bytes=4096,  # struct pthread lies below it, and a stack of more bytes below that
    aligned=16,
)

MACHINES: Final = {"x86_64": _X86_64, "aarch64": _AARCH64}  # by `uname -m`, as recordings name it
REGISTERS: Final = {row.machine: row.registers for row in MACHINES.values()}


def arch_of_registers(mask: int) -> str:
    """Return the architecture (`uname -m`) that a sample_regs_user belongs to; "" if it fits none. The numbers of x86's
    registers are a part of arm64's, so the machine with most registers is tried first."""
    for arch, row in sorted(MACHINES.items(), key=lambda item: -item[1].registers.sample_mask):
        wanted = row.registers.sample_mask
        if mask & wanted == wanted:
            return arch
    return ""
