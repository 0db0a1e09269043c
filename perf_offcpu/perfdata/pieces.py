# SPDX-License-Identifier: Apache-2.0
"""Join small pieces of bytes into larger ones, because each piece costs its consumer a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def joined(pieces: Iterable[bytes], least: int) -> Iterator[bytes]:
    """Yield the bytes in pieces of at least `least`, except for the last.

    Bytes before an exception are yielded before it is raised.
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
