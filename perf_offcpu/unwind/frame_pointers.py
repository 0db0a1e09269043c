# SPDX-License-Identifier: Apache-2.0
"""Tell from call frame information if a file was built with frame pointers.

Code with frame pointers finds the caller's frame from the frame pointer nearly everywhere; code without them
only in the few functions that need one (alloca, realigned stacks). So the share of functions that ever do
decides. Small functions do not count, and a few hundred, spread over the file, are enough.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from perf_offcpu.abi import elf
from perf_offcpu.abi.machine import REGISTERS
from perf_offcpu.errors import FormatError
from perf_offcpu.objects.elf.image import open_elf
from perf_offcpu.unwind.cfi.entries import read_entries
from perf_offcpu.unwind.cfi.program import Kind, run_programs
from perf_offcpu.unwind.cfi.table import frame_sections

LOOKED_AT: Final = 512
_MIN_SIZE: Final = np.uint64(64)
"""Bytes of the smallest function that counts: smaller ones often need no frame at all."""
_ENOUGH: Final = 0.75


def frame_pointer_share(path: str) -> float | None:
    """Return the share of a file's functions that keep frame pointers, 0 to 1; None if it is unknown.

    Raises:
        OSError, FormatError: it cannot be read, or is no sound ELF file.
    """
    with open_elf(path) as image:
        sections = frame_sections(image) if image.machine in REGISTERS else []
    if not sections:
        return None
    registers = REGISTERS[elf.Machine(image.machine)]
    cies, fdes = read_entries(sections[0])
    fdes = fdes.take(fdes.end - fdes.start >= _MIN_SIZE)
    fdes = fdes.take(slice(None, None, max(1, len(fdes) // LOOKED_AT)))
    keeping = 0
    for rows in run_programs(sections[0], cies, fdes, registers.count):
        by_frame_pointer = rows.rules[:, registers.count] & 0x7FF == registers.fp << 3 | Kind.REGISTER
        # Not np.unique(), which imports numpy.ma: users wait for this when they record.
        keeping += int(np.count_nonzero(np.bincount(rows.fde[by_frame_pointer])))
    return keeping / len(fdes) if len(fdes) else None


def keeps_frame_pointers(path: str) -> bool:
    """Return True if a file was built with frame pointers; False if not, or if that is unknown."""
    try:
        return (frame_pointer_share(path) or 0.0) >= _ENOUGH
    except (OSError, FormatError):
        return False
