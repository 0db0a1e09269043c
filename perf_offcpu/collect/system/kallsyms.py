# SPDX-License-Identifier: Apache-2.0
"""Addresses of kernel symbols in the text of /proc/kallsyms."""

from __future__ import annotations

from pathlib import Path

KALLSYMS = Path("/proc/kallsyms")


def text_address() -> int:
    """Return the address of the kernel's code, which is in the first lines; 0 if addresses are hidden."""
    try:
        with KALLSYMS.open("rb") as lines:  # direct: a file of /proc
            return next((int(line.split()[0], 16) for line in lines if line.endswith(b" _text\n")), 0)
    except OSError:
        return 0


def symbol_address(kallsyms: bytes, name: bytes) -> int:
    """Return the address of a symbol; 0 if it is not listed, or addresses are hidden."""
    end = kallsyms.find(b" " + name + b"\n")
    line = kallsyms.rfind(b"\n", 0, max(end, 0)) + 1
    return int(kallsyms[line:end].split()[0], 16) if end >= 0 else 0
