# SPDX-License-Identifier: Apache-2.0
"""Status line on the terminal during a recording, written over itself."""

from __future__ import annotations

import os
from typing import Self, TextIO

_CLEAR = "\r\x1b[K"
_DEFAULT_WIDTH = 80


class LiveLine:
    """Status line of a terminal; other output and the end of the context remove it."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._shown = False

    def show(self, progress: str) -> None:
        """Replace the line, cut to the terminal's width: a wrapped line cannot be removed."""
        text = f"recording {progress}"
        self._write(f"{_CLEAR}{text[: self._width() - 1]}")
        self._shown = True

    def say(self, text: str) -> None:
        """Print a lasting line."""
        self._clear()
        self._write(f"{text}\n")

    def _clear(self) -> None:
        if self._shown:
            self._write(_CLEAR)
            self._shown = False

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._out.fileno()).columns or _DEFAULT_WIDTH
        except OSError:
            return _DEFAULT_WIDTH

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()
