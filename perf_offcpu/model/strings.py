# SPDX-License-Identifier: Apache-2.0
"""Intern strings: the texts of a Recording or Profile, referred to by row; row 0 is "".

Texts come from kernels and files as bytes that need not be UTF-8 (a comm may end inside a character):
they are decoded with surrogateescape, which writes the same bytes back. Output escapes them (`text`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from perf_offcpu.model.columns import U32


class Strings:
    """A list of unique strings that grows; ids are stable."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._texts: list[str] = [""]
        self._ids: dict[str, int] = {"": 0}
        for text in texts:
            self.intern(text)

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, row: int) -> str:
        return self._texts[row]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def intern(self, text: str | bytes) -> int:
        """Return the row of a text, added if it is new."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", "surrogateescape")
        row = self._ids.setdefault(text, len(self._texts))
        if row == len(self._texts):
            self._texts.append(text)
        return row

    def intern_all(self, texts: Iterable[str | bytes]) -> U32:
        """Return the rows of n texts: uint32[n]."""
        return np.fromiter((self.intern(text) for text in texts), np.uint32)

    def find(self, text: str) -> int:
        """Return the row of a text; -1 if there is none."""
        return self._ids.get(text, -1)

    def copy(self) -> Strings:
        """Return an independent copy with the same rows."""
        other = Strings()
        other._texts, other._ids = list(self._texts), dict(self._ids)
        return other
