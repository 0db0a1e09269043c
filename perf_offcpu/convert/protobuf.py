# SPDX-License-Identifier: Apache-2.0
"""Protocol Buffers on the wire, a column of messages at a time.

A generated class or the protobuf library makes one message per call, some microseconds each; a recording has
millions. Here n messages are a matrix: a row a message, with room for the longest, and a mask of the bytes
that each row has. Fields are put side by side, and `flat` squeezes the unused bytes out, all in numpy.

Source: https://protobuf.dev/programming-guides/encoding. Fields whose value is 0 are written, too: readers of
proto3 do not mind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.model.columns import I64, U8, U64, Bool

_VARINT, _FIXED64, _LENGTH = 0, 1, 2


@dataclass(frozen=True, slots=True)
class _Part:
    """The next bytes of each of n strings.

    Args:
        data: uint8[n, width].
        used: bool[n, width], those that belong to it.
        lengths: int64[n], how many that are.
    """

    data: U8
    used: Bool
    lengths: I64


@dataclass(frozen=True, slots=True)
class Rows:
    """n byte strings, as parts side by side: they are put together once, by `flat`."""

    count: int
    parts: tuple[_Part, ...]

    @property
    def lengths(self) -> I64:
        """int64[n]."""
        return sum((part.lengths for part in self.parts), np.zeros(self.count, np.int64))

    def take(self, rows: NDArray[np.integer]) -> Rows:
        """The given rows, in the given order."""
        parts = (_Part(part.data[rows], part.used[rows], part.lengths[rows]) for part in self.parts)
        return Rows(len(rows), tuple(parts))

    def where(self, present: Bool) -> Rows:
        """The same, empty where not present."""
        return Rows(
            self.count,
            tuple(
                _Part(part.data, part.used & present[:, None], part.lengths * present) for part in self.parts
            ),
        )

    def flat(self) -> bytes:
        """All strings, one behind the other."""
        if not self.parts:
            return b""
        used = np.concatenate([part.used for part in self.parts], axis=1)
        data: U8 = np.concatenate([part.data for part in self.parts], axis=1)
        text: bytes = data[used].tobytes()
        return text


def varint(value: int) -> bytes:
    """One number of up to 64 bits; a negative one as its two's complement."""
    value &= (1 << 64) - 1
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def field(number: int, value: int | str | bytes) -> bytes:
    """One field: a varint, or a string or message with its length. Lone surrogates, which stand for bytes
    that are not UTF-8, become question marks."""
    if isinstance(value, int):
        return varint(number << 3 | _VARINT) + varint(value)
    data = value.encode("utf-8", "replace") if isinstance(value, str) else value
    return varint(number << 3 | _LENGTH) + varint(len(data)) + data


def varints(values: NDArray[np.integer]) -> Rows:
    """n numbers, not negative."""
    left: U64 = values.astype(np.uint64)
    width = max(1, -(-int(left.max(initial=0)).bit_length() // 7))
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


def constant(data: bytes, rows: int) -> Rows:
    """n times the same bytes."""
    repeated = np.broadcast_to(np.frombuffer(data, np.uint8), (rows, len(data)))
    used = np.broadcast_to(np.True_, repeated.shape)
    return Rows(rows, (_Part(repeated, used, np.full(rows, len(data))),))


def from_bytes(texts: Sequence[bytes]) -> Rows:
    """Byte strings as rows; for few, from which many are taken."""
    width = max(map(len, texts), default=0)
    data = np.frombuffer(b"".join(text.ljust(width, b"\0") for text in texts), np.uint8)
    lengths = np.array([len(text) for text in texts], np.int64)
    used: Bool = np.arange(width) < lengths[:, None]
    return Rows(len(texts), (_Part(data.reshape(len(texts), width), used, lengths),))


def joined(*rows: Rows) -> Rows:
    """String by string, all of them one behind the other."""
    return Rows(rows[0].count, tuple(part for one in rows for part in one.parts))


def numbers(number: int, values: NDArray[np.integer]) -> Rows:
    """A varint field in each of n messages."""
    return joined(constant(varint(number << 3 | _VARINT), len(values)), varints(values))


def fixed64(number: int, values: NDArray[np.uint64] | NDArray[np.float64]) -> Rows:
    """A field of 8 bytes, a number or a double, in each of n messages."""
    data = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<")).view(np.uint8)
    used = np.broadcast_to(np.True_, (len(values), 8))
    body = Rows(len(values), (_Part(data.reshape(-1, 8), used, np.full(len(values), 8)),))
    return joined(constant(varint(number << 3 | _FIXED64), len(values)), body)


def messages(number: int, body: Rows) -> Rows:
    """A message field in each of n messages: tag, length, body."""
    return joined(lengths(number, body.lengths), body)


def lengths(number: int, values: I64) -> Rows:
    """What stands before the bytes of a message field, by their number."""
    return joined(constant(varint(number << 3 | _LENGTH), len(values)), varints(values))


def ragged(rows: Rows, offsets: I64) -> list[bytes]:
    """The rows of each range put together: element i is rows offsets[i] to offsets[i + 1]."""
    data = rows.flat()
    ends = np.append(0, np.cumsum(rows.lengths))[offsets].tolist()
    return [data[begin:end] for begin, end in zip(ends, ends[1:], strict=False)]
