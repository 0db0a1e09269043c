# SPDX-License-Identifier: Apache-2.0
"""A reader of Protocol Buffers, written from https://protobuf.dev/programming-guides/encoding."""

from __future__ import annotations


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at


def read(data: bytes) -> list[tuple[int, int | bytes]]:
    """The fields of a message: (number, value)."""
    found: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        if tag & 7 == 0:
            value, at = read_varint(data, at)
            found.append((tag >> 3, value))
        else:
            length, at = (8, at) if tag & 7 == 1 else read_varint(data, at)
            found.append((tag >> 3, data[at : at + length]))
            at += length
    return found


def read_packed(data: bytes) -> list[int]:
    """The numbers of a packed repeated field."""
    values, at = [], 0
    while at < len(data):
        value, at = read_varint(data, at)
        values.append(value)
    return values
