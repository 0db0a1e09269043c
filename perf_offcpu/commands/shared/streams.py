# SPDX-License-Identifier: Apache-2.0
"""Replace standard streams that were closed when the program started (`>&-`).

Python has None for such a stream, and the next opened file gets its number, so that output of C code would go
into a recording. So the numbers are occupied, and writing to closed standard output raises OSError.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, NoReturn

_CLOSED = "standard output is closed"


class _ClosedBytes(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, _data: Any, /) -> NoReturn:
        raise OSError(errno.EBADF, _CLOSED)


class _ClosedText(io.TextIOBase):
    buffer = _ClosedBytes()
    encoding = "utf-8"

    def writable(self) -> bool:
        return True

    def write(self, _text: str, /) -> NoReturn:
        raise OSError(errno.EBADF, _CLOSED)


def stdout_is_closed() -> bool:
    """Return True if standard output was closed."""
    return sys.stdout is None or isinstance(sys.stdout, _ClosedText)


def columns() -> int:
    """Return the width of the terminal, as shutil does, whose import costs 3 ms."""
    try:
        return int(os.environ.get("COLUMNS", "0")) or os.get_terminal_size(1).columns or 80
    except (ValueError, OSError):
        return 80


def replace_closed_streams() -> None:
    """Make closed standard input empty, let standard error discard and standard output raise OSError.

    A recorded command still gets closed streams.
    """
    if sys.stdin is None:
        os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # the lowest free number: 0
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  as long as the program runs
    if sys.stdout is None:
        os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        sys.stdout = _ClosedText()
    if sys.stderr is None:
        os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
