# SPDX-License-Identifier: Apache-2.0
"""Bytes that come in small pieces, joined into larger ones: each piece costs whoever takes it a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def joined(pieces: Iterable[bytes], least: int) -> Iterator[bytes]:
    """The same bytes in pieces of at least that many, the last one excepted.

    What came before an exception is given before it is raised.
    """
    waiting: list[bytes] = []
    size = 0
    try:
        for piece in pieces:
            waiting.append(piece)
            size += len(piece)
            if size >= least:
                yield b"".join(waiting)
                waiting, size = [], 0
    except Exception:
        yield b"".join(waiting)
        raise
    yield b"".join(waiting)
