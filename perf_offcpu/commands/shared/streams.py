# SPDX-License-Identifier: Apache-2.0
"""Replace standard streams that were closed when the program started (`>&-`).

Python has None for such a stream, and the next opened file gets its number, so that output of C code would go
into a recording. So the numbers are occupied, and writing to closed standard output raises OSError.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from threading import Event


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


_AFTER_S, _EVERY_S = 1.0, 0.2
_WIDTH = 20


@contextlib.contextmanager
def busy(what: str) -> Iterator[None]:
    """Show a moving bar, the name of the work and its time so far, after the first second of the block.

    The remaining time is unknown, so the bar moves to and fro. It is removed when the block ends.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    import threading

    done = threading.Event()
    thread = threading.Thread(target=_show, args=(what, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _show(what: str, done: Event) -> None:
    begin = time.monotonic()
    if done.wait(_AFTER_S):
        return
    color, plain = ("", "") if os.environ.get("NO_COLOR") else ("\x1b[36m", "\x1b[0m")
    for step in itertools.count():
        if done.wait(_EVERY_S):
            break
        seconds = time.monotonic() - begin
        print(f"\r{color}{bar(step)}{plain} {what}, {seconds:.0f} s", end="", file=sys.stderr, flush=True)
    print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def bar(step: int) -> str:
    """Return the bar at a step: a block that goes to and fro."""
    place = abs((step + _WIDTH) % (2 * _WIDTH) - _WIDTH)
    return f"[{' ' * place}={' ' * (_WIDTH - place)}]"
