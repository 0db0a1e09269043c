# SPDX-License-Identifier: Apache-2.0
"""Identify this machine and its boot."""

from __future__ import annotations

import functools
import re
from typing import Final

from perf_offcpu.files import read_kernel, read_regular

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
