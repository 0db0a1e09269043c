# SPDX-License-Identifier: Apache-2.0
"""Addresses of kernel symbols in the text of /proc/kallsyms."""

from __future__ import annotations

from pathlib import Path

from perf_offcpu.files import read_kernel

KALLSYMS = Path("/proc/kallsyms")


def read_bytes(path: Path) -> bytes:
    """Return the content of a file of the kernel, b"" where there is none (no modules, no symbols)."""
    try:
        return read_kernel(str(path))
    except OSError:
        return b""


def symbol_address(kallsyms: bytes, name: bytes) -> int:
    """Return the address of a symbol; 0 if it is not listed, or addresses are hidden."""
    end = kallsyms.find(b" " + name + b"\n")
    line = kallsyms.rfind(b"\n", 0, max(end, 0)) + 1
    return int(kallsyms[line:end].split()[0], 16) if end >= 0 else 0
