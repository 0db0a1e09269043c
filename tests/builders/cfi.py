# SPDX-License-Identifier: Apache-2.0
"""Sections of call frame information, and tables of them, made with struct: not with the code that reads them."""

import struct

from perf_offcpu.abi.elf import Machine
from perf_offcpu.abi.machine import REGISTERS
from perf_offcpu.unwind.cfi.entries import Section
from perf_offcpu.unwind.cfi.table import CfiTable, build_table

X86 = REGISTERS[Machine.X86_64]
RSP, RBP, RBX, RIP = 7, 6, 3, 16
USUAL = bytes([0x0C, RSP, 8, 0x80 | RIP, 1])
"""def_cfa rsp+8; return address at CFA-8: what each CIE of x86-64 begins with."""


def uleb(value: int) -> bytes:
    out = bytearray()
    while True:
        out.append(value & 0x7F | (0x80 if value > 0x7F else 0))
        value >>= 7
        if not value:
            return bytes(out)


def entry(body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    return struct.pack("<I", len(body)) + body


def cie(program: bytes = USUAL, augmentation: bytes = b"zR", ra: int = RIP, data: bytes = b"\x00") -> bytes:
    """A CIE of .eh_frame with addresses as they are (Pe.ABSPTR)."""
    head = struct.pack("<IB", 0, 1) + augmentation + b"\0" + bytes([1, 0x78, ra])
    return entry(head + (uleb(len(data)) + data if augmentation.startswith(b"z") else b"") + program)


def section(*functions: tuple[int, int, bytes], common: bytes | None = None) -> bytes:
    """.eh_frame of functions (start, size, instructions) with one CIE."""
    out = common if common is not None else cie()
    for start, size, program in functions:
        out += entry(struct.pack("<IQQ", len(out) + 4, start, size) + b"\0" + program)
    return out + bytes(4)


def table_of(content: bytes, address: int = 0) -> CfiTable:
    return build_table([Section(content, address)], X86)
