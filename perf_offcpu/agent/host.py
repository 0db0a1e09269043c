# SPDX-License-Identifier: Apache-2.0
"""Identify this machine and its boot; return freed memory to it.

Columns of a segment take tens of megabytes for a moment. glibc maps large blocks separately, but raises the
threshold for that (M_MMAP_THRESHOLD) with each one that it frees, up to 32 MB; larger ones then lie in heaps
between small blocks and are not returned. A fixed threshold avoids this: after segments of 60 MB an agent
keeps 150 MB instead of 205.

Source: mallopt(3).
"""

from __future__ import annotations

import ctypes
import functools
import re
from typing import Final

from perf_offcpu.files import read_kernel, read_regular

_M_MMAP_THRESHOLD: Final = -3
_BYTES: Final = 128 << 10
"""Initial threshold of glibc."""


def keep_no_free_memory() -> None:
    """Fix the threshold; do nothing with other C libraries, which have no such call."""
    try:
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _BYTES)
    except AttributeError:
        return


_ID: Final = re.compile(r"[0-9a-f]{32}")


@functools.cache
def machine_id() -> str:
    """Return the content of /etc/machine-id; "" if the file is missing."""
    try:
        text = read_regular("/etc/machine-id", 4096).decode("ascii", "replace").strip()
    except OSError:
        return ""
    return text if _ID.fullmatch(text) else ""


@functools.cache
def boot_id() -> str:
    """Return the id of this boot."""
    return read_kernel("/proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip()
