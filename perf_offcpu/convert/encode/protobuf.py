# SPDX-License-Identifier: Apache-2.0
"""Encode Protocol Buffers, a column of messages at a time.

A generated class or the protobuf library makes one message per call, some microseconds each; a recording has
millions. Here n messages are a matrix: a row a message, with room for the longest, and a mask of the bytes
that each row uses. Fields are put side by side, and `flat` drops the unused bytes, all in numpy.

Source: https://protobuf.dev/programming-guides/encoding. Fields of value 0 are written, too, which readers of
proto3 accept.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.model.columns import I64, U8, U64, Bool
from perf_offcpu.structs import frozen

_VARINT, _FIXED64, _LENGTH = 0, 1, 2
_KEPT_CONSTANTS = 256  # a constant takes no room, because all rows are one; blocks of one size need the same constants


@frozen
class _Part:
    """Holds a part of each of n byte strings as a matrix with a mask."""

    data: U8  # uint8[n, width]
    used: Bool  # bool[n, width], the bytes that belong to the string
    lengths: I64  # int64[n], the number of used bytes

    def take(self, rows: NDArray[np.integer]) -> _Part:
        """Return the given rows."""
        return _Part(self.data[rows], self.used[rows], self.lengths[rows])


def _full(data: U8) -> _Part:
    lengths = np.broadcast_to(np.int64(data.shape[1]), len(data))
    return _Part(data, np.broadcast_to(np.True_, data.shape), lengths)


@frozen
class Rows:
    """Holds n byte strings as parts side by side, which `flat` puts together."""

    count: int
    parts: tuple[_Part, ...]

    @property
    def lengths(self) -> I64:
        """Return int64[n], the length of each string."""
        return sum((part.lengths for part in self.parts), np.zeros(self.count, np.int64))

    def take(self, rows: NDArray[np.integer]) -> Rows:
        """Return the given rows, in the given order."""
        return Rows(len(rows), tuple(part.take(rows) for part in self.parts))

    def where(self, present: Bool) -> Rows:
        """Return the strings, with an empty string where `present` (bool[n]) is False."""
        masked = (_Part(part.data, part.used & present[:, None], part.lengths * present) for part in self.parts)
        return Rows(self.count, tuple(masked))

    def flat(self) -> bytes:
        """Return the strings of all rows, concatenated."""
        if not self.parts:
            return b""
        used = np.concatenate([part.used for part in self.parts], axis=1)
        data: U8 = np.concatenate([part.data for part in self.parts], axis=1)
        text: bytes = data[used].tobytes()
        return text


def varint(value: int) -> bytes:
    """Encode one number of up to 64 bits; a negative one as its two's complement."""
    value &= (1 << 64) - 1
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def field(number: int, value: int | str | bytes) -> bytes:
    """Encode one field: a varint, or a string or message with its length; lone surrogates become question marks."""
    if isinstance(value, int):
        return varint(number << 3 | _VARINT) + varint(value)
    data = value.encode("utf-8", "replace") if isinstance(value, str) else value
    return varint(number << 3 | _LENGTH) + varint(len(data)) + data


def varints(values: NDArray[np.integer]) -> Rows:
    """Encode n numbers that are not negative as varints, one a row."""
    left: U64 = values.astype(np.uint64)
    width = _width(int(left.max(initial=0)))
    if not len(left) or _width(int(left.min())) == width:
        return _same_width(left, width)
    lengths = np.ones(len(left), np.int64)
    data = np.empty((len(left), width), np.uint8)
    used = np.ones((len(left), width), np.bool_)
    for place in range(width):
        data[:, place] = left & np.uint64(0x7F)
        left = left >> np.uint64(7)
        if place + 1 < width:
            more = left > 0
            used[:, place + 1] = more
            data[:, place] |= more.view(np.uint8) << 7
            lengths += more
    return Rows(len(left), (_Part(data, used, lengths),))


def _width(value: int) -> int:
    return max(1, -(-value.bit_length() // 7))


def _same_width(left: U64, width: int) -> Rows:
    """Encode n numbers as varints, one a row, if each needs exactly `width` bytes, as times usually do."""
    data = np.empty((len(left), width), np.uint8)
    for place in range(width):
        data[:, place] = left & np.uint64(0x7F)
        left = left >> np.uint64(7)
    data[:, : width - 1] |= 0x80
    return Rows(len(left), (_full(data),))


@functools.lru_cache(_KEPT_CONSTANTS)
def constant(data: bytes, rows: int) -> Rows:
    """Return Rows of `rows` strings, each of them `data`."""
    repeated = np.broadcast_to(np.frombuffer(data, np.uint8), (rows, len(data)))
    return Rows(rows, (_full(repeated),))


def from_bytes(texts: Sequence[bytes]) -> Rows:
    """Return byte strings as Rows; meant for a few strings, from which `take` makes many rows."""
    width = max(map(len, texts), default=0)
    data = np.frombuffer(b"".join(text.ljust(width, b"\0") for text in texts), np.uint8)
    lengths = np.array([len(text) for text in texts], np.int64)
    used: Bool = np.arange(width) < lengths[:, None]
    return Rows(len(texts), (_Part(data.reshape(len(texts), width), used, lengths),))


def joined(*rows: Rows) -> Rows:
    """Return Rows whose string i is the strings i of all arguments, concatenated."""
    return Rows(rows[0].count, tuple(part for row in rows for part in row.parts))


def numbers(number: int, values: NDArray[np.integer]) -> Rows:
    """Encode a varint field in each of n messages."""
    return joined(constant(varint(number << 3 | _VARINT), len(values)), varints(values))


def fixed64(number: int, values: NDArray[np.uint64] | NDArray[np.float64]) -> Rows:
    """Encode a field of 8 bytes, a number or a double, in each of n messages."""
    data = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<")).view(np.uint8)
    body = Rows(len(values), (_full(data.reshape(-1, 8)),))
    return joined(constant(varint(number << 3 | _FIXED64), len(values)), body)


def messages(number: int, body: Rows) -> Rows:
    """Encode a message field in each of n messages: tag, length, body."""
    return joined(lengths(number, body.lengths), body)


def lengths(number: int, values: I64) -> Rows:
    """Encode, per row, the tag of length-delimited field `number` and its length, from `values`, without content."""
    return joined(constant(varint(number << 3 | _LENGTH), len(values)), varints(values))


def ragged(rows: Rows, offsets: I64) -> list[bytes]:
    """Return a list whose element i is the strings of rows offsets[i] to offsets[i + 1] - 1, concatenated."""
    data = rows.flat()
    ends = np.append(0, np.cumsum(rows.lengths))[offsets].tolist()
    return [data[begin:end] for begin, end in pairwise(ends)]
