# SPDX-License-Identifier: Apache-2.0
"""Read copies of user stacks from the recording when they are unwound; only their positions are kept. Copies of stacks
are the bulk of a recording. Where it cannot be read again, because it came through a pipe or compressed, they are kept
in memory or in a temporary file (`decode.snapshot_store`) and read from there. Files are read with pread, not mapped:
stacks of a file that is cut short meanwhile are shorter, and there is no SIGBUS."""

import contextlib
import os
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.binary.gather import Rows, gather_rows
from perf_offcpu.model.callchains import StackWords
from perf_offcpu.model.columns import I64, U64
from perf_offcpu.model.growing import GrowingArray

_GAP: Final = 1 << 14  # most bytes between two stacks that are read with them: another call would cost more
_WORD: Final = 8
Bytes = NDArray[np.uint8]


class OpenFile:
    """Owns a file descriptor, which is closed when the last reference to the object goes."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)

    def read_into(self, room: Bytes, offset: int) -> int:
        """Fill `room` with the file's bytes from `offset` on; return the number read: fewer at its end or on errors."""
        done = 0
        with contextlib.suppress(OSError):
            while done < len(room) and (size := os.preadv(self.descriptor, [room[done:].data], offset + done)):
                done += size
        return done


class StackPositions:
    """Keeps where n stacks lie, in files or in memory, and reads them; rows are added file by file."""

    def __init__(self) -> None:
        self._starts, self._words = GrowingArray("i8"), GrowingArray("i8")
        self._sources: list[OpenFile | U64 | None] = []
        self._first: list[int] = []  # the first row of each source
        self._room = np.empty(0, np.uint8)

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, source: OpenFile | None, starts: I64, words: I64) -> None:
        """Add n stacks at byte offsets `starts` of `source`, `words` words each; None: `settle` sets the source."""
        if not self._sources or self._sources[-1] is not source:
            self._sources.append(source)
            self._first.append(len(self))
        self._starts.append(starts)
        self._words.append(words)

    def settle(self, source: OpenFile | U64) -> None:
        """Set the source, a file or words in memory, of the stacks that were added with source None."""
        self._sources = [source if known_source is None else known_source for known_source in self._sources]

    @property
    def lengths(self) -> I64:
        """Return int64[n]: the words of each stack."""
        return self._words.view()

    def read_stacks(self, rows: I64) -> StackWords:
        """Return the stacks in `rows`, in this order, valid until the next call; an unreadable one has no words."""
        starts, words = self._starts.view()[rows], self._words.view()[rows]
        source_of_row = np.searchsorted(np.array(self._first), rows, side="right") - 1
        sources = sorted(set(source_of_row.tolist()))
        if not sources:
            return StackWords(np.zeros(1, np.uint64), starts, words)
        if len(sources) == 1:
            return self._of_source(self._sources[sources[0]], starts, words)
        texts, begins, lengths = list[U64](), np.empty_like(starts), np.empty_like(words)
        words_before = 0
        for source in sources:
            chosen = np.flatnonzero(source_of_row == source)
            part = self._of_source(self._sources[source], starts[chosen], words[chosen])
            begins[chosen], lengths[chosen] = part.begins + words_before, part.lengths
            texts.append(part.words.copy())
            words_before += len(part.words)
        return StackWords(np.concatenate(texts), begins, lengths)

    def _of_source(self, source: OpenFile | U64 | None, starts: I64, words: I64) -> StackWords:
        assert source is not None, "settled before they are looked at"
        if not isinstance(source, OpenFile):
            return StackWords(source, starts // _WORD, words)
        spans, place = _spans(starts, words)
        if len(self._room) < spans.size:
            # A quarter larger: the next stacks are about as many. GrowingArray uses huge pages.
            self._room = GrowingArray("u1").extend((spans.size + spans.size // 4) // _WORD * _WORD)
        have = spans.read(source, self._room)
        words = np.minimum(words, np.maximum(0, have - place) // _WORD)
        if not (place % _WORD).any():
            return StackWords(self._room[: spans.size].view(np.uint64), place // _WORD, words)
        offsets, gathered = gather_rows(self._room, Rows(place, words, _WORD))
        return StackWords(np.append(gathered, np.uint64(0)), offsets[:-1], words)


class _Spans(NamedTuple):
    """Describes parts of a file that are read into one buffer, where each begins at a multiple of 8 bytes."""

    starts: list[int]  # byte offset of each part in the file
    sizes: list[int]  # bytes
    places: list[int]  # byte offset of each part in the buffer
    of_stack: I64  # int64[n], the part that holds each stack
    size: int  # bytes of the buffer

    def read(self, source: OpenFile, room: Bytes) -> I64:
        """Read the parts; return int64[n]: where the bytes of each stack's part end in the buffer."""
        ends = [
            place + source.read_into(room[place : place + size], start)
            for start, size, place in zip(self.starts, self.sizes, self.places, strict=True)
        ]
        return np.array(ends, np.int64)[self.of_stack]


def _spans(starts: I64, words: I64) -> tuple[_Spans, I64]:
    """Return the parts of a file that hold stacks, and int64[n]: where each stack begins in the buffer."""
    order = np.argsort(starts, kind="stable")
    start, end = starts[order], np.maximum.accumulate((starts + _WORD * words)[order])
    new = np.append(True, start[1:] > end[:-1] + _GAP)
    first = np.flatnonzero(new)
    begins = start[first]
    sizes = end[np.append(first[1:], len(start)) - 1] - begins
    rounded = -(-sizes // _WORD) * _WORD
    places = np.cumsum(rounded) - rounded
    of_stack = np.empty(len(starts), np.int64)
    of_stack[order] = np.cumsum(new) - 1
    spans = _Spans(begins.tolist(), sizes.tolist(), places.tolist(), of_stack, max(_WORD, int(rounded.sum())))
    return spans, starts - begins[of_stack] + places[of_stack]
