# SPDX-License-Identifier: Apache-2.0
"""Encode Protocol Buffers, a column of messages at a time.

A generated class or the protobuf library makes one message per call, some microseconds each; a recording has millions.
Here n messages are parts side by side. A part has up to 8 bytes of each message, in a column of words. `flat` writes
one part of all messages after the other, always whole words: the next part overwrites the bytes that are too many.

Source: https://protobuf.dev/programming-guides/encoding. Fields of value 0 are written, too."""

import functools
import sys
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.model.columns import I64, U64, Bool
from perf_offcpu.structs import frozen

_VARINT, _FIXED64, _LENGTH = 0, 1, 2
_KEPT_CONSTANTS = 256  # blocks of one size need the same constants


_WORD = 8  # bytes


@frozen
class _Part:
    """Up to 8 bytes of each of n byte strings."""

    words: U64  # uint64[n], the first byte lowest, unused ones 0; uint64[] (no dimension) if all rows are equal
    length: I64 | int  # int64[n], the number of bytes; an int if all rows have the same

    def longest(self) -> int:
        """Return the largest number of bytes that this part has of any of the n byte strings."""
        return self.length if isinstance(self.length, int) else int(self.length.max(initial=0))

    def take(self, rows: NDArray[np.integer]) -> "_Part":
        """Return this part of the strings whose indices are `rows`, in that order."""
        words = self.words[rows] if self.words.ndim else self.words
        if isinstance(self.length, int):
            return _Part(words, self.length)
        length = self.length[rows]
        is_one = len(length) > 0 and int(length.min()) == int(length.max())
        return _Part(words, int(length[0]) if is_one else length)


@frozen
class Rows:
    """n byte strings (rows), each cut into parts; `flat` concatenates them."""

    count: int
    parts: tuple[_Part, ...]

    @property
    def lengths(self) -> I64:
        """Return int64[n], the number of bytes of each string; a read-only array of stride 0 if all are equal."""
        total = self._length()
        return np.broadcast_to(np.int64(total), self.count) if isinstance(total, int) else total

    def _length(self) -> I64 | int:
        return sum((part.length for part in self.parts), 0)

    def take(self, rows: NDArray[np.integer]) -> "Rows":
        """Return the strings whose indices are `rows`, in that order."""
        return Rows(len(rows), tuple(part.take(rows) for part in self.parts))

    def where(self, present: Bool) -> "Rows":
        """Return the same strings, but empty ones where `present` (bool[n]) is False."""
        if present.all():
            return self
        if not present.any():
            return Rows(self.count, ())
        return Rows(self.count, tuple(_Part(part.words * present, part.length * present) for part in self.parts))

    def flat(self) -> bytes:
        """Concatenate the strings of all rows."""
        if not self.count or not self.parts:
            return b""
        total = self._length()
        return self._aligned(total) if isinstance(total, int) else self._spaced(total)

    def _aligned(self, total: int) -> bytes:
        """Concatenate n strings, all of `total` bytes: each part, up to 8 bytes of each of them, is written at once."""
        text, begin = np.empty((self.count, total + _WORD), np.uint8), 0
        for part in self.parts:
            np.ndarray(self.count, "<u8", text, begin, (total + _WORD,))[:] = part.words
            begin += int(part.length)
        return np.ndarray(self.count, f"V{total}", text, 0, (total + _WORD,)).tobytes()

    def _spaced(self, total: I64) -> bytes:
        """Concatenate n strings (`total`: bytes of each), in words of 8 bytes. A string's last word overwrites the
        begin of the next one, so first words are written again at the end. Too short strings get gaps, which are
        removed."""
        leading, reach = self._leading()
        gap = 0 if int(total.min()) >= reach else _WORD
        ends = np.cumsum(total + gap)
        text = np.empty(int(ends[-1]) + _WORD, np.uint8)
        words = np.ndarray(len(text) - _WORD + 1, "<u8", text, 0, (1,))  # a word at each byte
        begin = ends - total - gap
        position, first = begin.copy(), words[:0]
        for index, part in enumerate(self.parts):
            if index == leading and not gap:
                first = words[begin]
            words[position] = part.words
            position += part.length
        text = text[: ends[-1]]
        if not gap:
            words[begin] = first
            return text.tobytes()
        used = np.ones(len(text), np.bool_)
        used[(ends - gap)[:, None] + np.arange(gap)] = False
        return text[used].tobytes()

    def _leading(self) -> tuple[int, int]:
        """Return (k, reach): the first k parts have together at least _WORD bytes of each string, and the words written
        for them end at byte `reach` or earlier. If that takes all parts, or they have less, `reach` is sys.maxsize."""
        least = most = reach = 0
        for index, part in enumerate(self.parts):
            if least >= _WORD:
                return index, reach
            reach = most + _WORD
            length = np.asarray(part.length)
            least, most = least + int(length.min()), most + int(length.max())
        return len(self.parts), sys.maxsize


def varint(value: int) -> bytes:
    """Encode one number of up to 64 bits as a varint; a negative one as its two's complement."""
    value &= (1 << 64) - 1
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def field(number: int, value: int | str | bytes) -> bytes:
    """Encode a field of one message: an int as a varint, a str (lone surrogates as `?`) or bytes with tag and
    length."""
    if isinstance(value, int):
        return varint(number << 3 | _VARINT) + varint(value)
    data = value.encode("utf-8", "replace") if isinstance(value, str) else value
    return varint(number << 3 | _LENGTH) + varint(len(data)) + data


_SEVEN = [(np.uint64(low), np.uint64(high), np.uint64(shift)) for low, high, shift in (
    (0x000000000FFFFFFF, 0x00FFFFFFF0000000, 4),
    (0x00003FFF00003FFF, 0x0FFFC0000FFFC000, 2),
    (0x007F007F007F007F, 0x3F803F803F803F80, 1),
)]  # fmt: skip
"""Steps that spread 56 bits over 8 bytes, 7 in each: halves of the bits move apart, then halves of these."""
_EIGHT_MORE = 0x8080808080808080
_MORE = np.array([_EIGHT_MORE & ((1 << 8 * max(length - 1, 0)) - 1) for length in range(_WORD + 1)], np.uint64)
"""Bit 7 of each byte of a varint but the last, by its length."""
_IN_WORD = 7 * _WORD  # bits


def varints(values: NDArray[np.integer]) -> Rows:
    """Encode n non-negative numbers as varints, one a row, all padded to the length of the longest one: readers accept
    that (Perfetto's own writer pads so), and columns of one width are written faster."""
    numbers: U64 = values.astype(np.uint64)
    width = max(1, -(-int(numbers.max(initial=0)).bit_length() // 7))
    if width <= _WORD:
        return Rows(len(numbers), (_Part(_spread(numbers, width) | _MORE[width], width),))
    low = _spread(numbers & np.uint64((1 << _IN_WORD) - 1), _WORD) | np.uint64(_EIGHT_MORE)
    high = _spread(numbers >> np.uint64(_IN_WORD), 2) | _MORE[width - _WORD]
    return Rows(len(numbers), (_Part(low, _WORD), _Part(high, width - _WORD)))


def _spread(values: U64, width: int) -> U64:
    """Spread numbers of at most 7 * `width` bits over `width` bytes, 7 bits in each."""
    for step, (low, high, shift) in enumerate(_SEVEN):
        if width > 4 >> step:
            values = (values & low) | ((values & high) << shift)
    return values


@functools.lru_cache(_KEPT_CONSTANTS)
def constant(data: bytes, rows: int) -> Rows:
    """Return Rows of `rows` strings, each of them `data`."""
    texts = [data[begin : begin + _WORD] for begin in range(0, len(data), _WORD)]
    return Rows(rows, tuple(_Part(np.array(int.from_bytes(text, "little"), np.uint64), len(text)) for text in texts))


def from_bytes(texts: Sequence[bytes]) -> Rows:
    """Make Rows of byte strings; meant for a few strings, from which `take` makes many rows."""
    width = -(-max(map(len, texts), default=0) // _WORD)
    data = np.frombuffer(b"".join(text.ljust(_WORD * width, b"\0") for text in texts), "<u8").astype(np.uint64)
    words = data.reshape(len(texts), width)
    lengths = np.array([len(text) for text in texts], np.int64)
    parts = (_Part(words[:, part], np.clip(lengths - _WORD * part, 0, _WORD)) for part in range(width))
    return Rows(len(texts), tuple(parts))


def joined(*rows: Rows) -> Rows:
    """Concatenate the strings of all arguments row by row."""
    parts: list[_Part] = []
    for part in (part for row in rows for part in row.parts):
        # Parts that fit into a word together become one: one column is written faster than two.
        if parts and parts[-1].longest() + part.longest() <= _WORD:
            before = parts.pop()
            words = before.words | part.words << np.multiply(before.length, 8).astype(np.uint64)
            parts.append(_Part(words, before.length + part.length))
        else:
            parts.append(part)
    return Rows(rows[0].count, tuple(parts))


def numbers(number: int, values: NDArray[np.integer]) -> Rows:
    """Encode varint field `number` of n messages, one a row."""
    return joined(constant(varint(number << 3 | _VARINT), len(values)), varints(values))


def fixed64(number: int, values: NDArray[np.uint64] | NDArray[np.float64]) -> Rows:
    """Encode fixed64 or double field `number` of n messages, one a row."""
    body = Rows(len(values), (_Part(np.ascontiguousarray(values).view(np.uint64), _WORD),))
    return joined(constant(varint(number << 3 | _FIXED64), len(values)), body)


def messages(number: int, body: Rows) -> Rows:
    """Encode message field `number` of n messages, one a row: tag, length, and the content `body`."""
    return joined(lengths(number, body.lengths), body)


def lengths(number: int, values: I64) -> Rows:
    """Encode tag and length (`values`) of length-delimited field `number` of n messages, without the content."""
    tag = varint(number << 3 | _LENGTH)
    if len(values) and values.strides == (0,):
        return constant(tag + varint(int(values[0])), len(values))
    return joined(constant(tag, len(values)), varints(values))


def ragged(rows: Rows, offsets: I64) -> list[bytes]:
    """Concatenate the strings of rows offsets[i] to offsets[i + 1] - 1, for each i."""
    data = rows.flat()
    ends = np.append(0, np.cumsum(rows.lengths))[offsets].tolist()
    return [data[begin:end] for begin, end in pairwise(ends)]
