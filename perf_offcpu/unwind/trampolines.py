# SPDX-License-Identifier: Apache-2.0
"""Frame rules of Python's trampolines: made at run time, without call frame information or frame pointer.

With `-X perf` CPython gives every Python function an address by calling it through a copy of a few
instructions of its own. On x86-64 (Python/asm_trampoline.S of 3.12 and 3.13), with or without the first:

    endbr64; sub $8, %rsp; call *%rcx; add $8, %rsp; ret

The perf map of the process tells which addresses are such copies: names that begin with `py::`, and this
size. Copies of other sizes, of Pythons that keep a frame pointer there, are unwound by the frame pointer.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from perf_offcpu.abi.cfi import Registers
from perf_offcpu.losses import LossCause
from perf_offcpu.model.columns import I32, U64, Bool, distinct
from perf_offcpu.model.recording import Recording
from perf_offcpu.objects.perf_map import PerfMaps
from perf_offcpu.unwind.cfi.program import Kind
from perf_offcpu.unwind.cfi.table import CfiTable

_CALL_IN: Final = {11: range(4, 6), 15: range(8, 10)}
"""Bytes of the call in a copy, by the size of the copy: the return address is just after them."""
_FRAME: Final = 16


class Trampolines:
    """Find calls in the trampolines of a recording made on x86-64."""

    def __init__(self, recording: Recording, maps: PerfMaps) -> None:
        self.recording, self.maps = recording, maps

    def are_calls(self, spaces: I32, addresses: U64) -> Bool:
        """Return bool[n]: the (address space, address) is a byte of the call in a trampoline."""
        result = np.zeros(len(addresses), np.bool_)
        pids = self.recording.spaces.pid[spaces]
        for pid in distinct(pids[pids > 0]).tolist():
            table, mine = self.maps.of(pid), np.flatnonzero(pids == pid)
            if isinstance(table, LossCause):
                continue
            found = table.lookup(addresses[mine])
            mine, found = mine[found >= 0], found[found >= 0]
            sizes, offsets = table.end[found] - table.start[found], addresses[mine] - table.start[found]
            for size, call in _CALL_IN.items():
                hits = np.flatnonzero((sizes == size) & (offsets >= call.start) & (offsets < call.stop))
                is_python = [table.name(row).startswith("py::") for row in found[hits].tolist()]
                result[mine[hits]] = is_python
        return result


def trampoline_rules(registers: Registers) -> CfiTable:
    """Return one rule set, without addresses: that of x86-64's trampoline at its call."""
    rules = np.zeros((1, registers.count + 2), np.int64)
    rules[0, registers.count] = Kind.REGISTER | registers.sp << 3 | _FRAME << 11
    rules[0, registers.ra] = Kind.OFFSET | -8 << 3
    return CfiTable(rules=rules)
