# SPDX-License-Identifier: Apache-2.0
"""Read LEB128, DWARF's numbers of variable length: one at a time, or many at once.

Source: DWARF 5, 7.6. A number of more than ten bytes, which no producer writes, is cut at ten; values are
taken modulo 2^64.
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.model.columns import I64, U8

MAX_BYTES = 10


def leb128(data: bytes, at: int, signed: bool = False) -> tuple[int, int]:
    """Return (value, offset after it). The data must go on for MAX_BYTES."""
    value = shift = 0
    byte = 0x80
    while byte & 0x80 and shift < 7 * MAX_BYTES:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
    if signed and byte & 0x40:
        value -= 1 << shift
    return value, at


def read_leb128(data: U8, at: I64, signed: bool = False) -> tuple[I64, I64]:
    """Return (values, offsets after them) of n numbers; the data must go on for MAX_BYTES after each."""
    byte = data[at]
    value = (byte & 0x7F).astype(np.int64)
    after = at + 1
    length = np.ones(len(at), np.int64)
    more = np.flatnonzero(byte >= 0x80)
    for byte_at in range(1, MAX_BYTES):
        if not len(more):
            break
        byte[more] = data[after[more]]
        value[more] |= (byte[more] & 0x7F).astype(np.int64) << (7 * byte_at)
        after[more] += 1
        length[more] += 1
        more = more[byte[more] >= 0x80]
    if signed:
        negative = (byte & 0x40) != 0
        value[negative] |= np.int64(-1) << np.minimum(7 * length[negative], 63)
    return value, after
