# SPDX-License-Identifier: Apache-2.0
"""Show progress of work that takes longer than a second: a bar on stderr, on terminals only."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threading import Event

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
    step = 0
    if done.wait(_AFTER_S):
        return
    color, plain = ("", "") if os.environ.get("NO_COLOR") else ("\x1b[36m", "\x1b[0m")
    while not done.wait(_EVERY_S):
        sys.stderr.write(f"\r{color}{bar(step)}{plain} {what}, {time.monotonic() - begin:.0f} s")
        sys.stderr.flush()
        step += 1
    sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()


def bar(step: int) -> str:
    """Return the bar at a step: a block that goes to and fro."""
    place = abs((step + _WIDTH) % (2 * _WIDTH) - _WIDTH)
    return f"[{' ' * place}={' ' * (_WIDTH - place)}]"
