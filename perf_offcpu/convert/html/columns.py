# SPDX-License-Identifier: Apache-2.0
"""Pack integer columns for a page: byte planes, compressed with zlib, as base64.

A column is its least value and, of the differences to it, as many bytes as the largest one needs, all lowest
bytes first. Bytes of one significance resemble each other, so they compress well, and a plane that is zero
costs nothing. The page unpacks them with the browser's DecompressionStream.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LEVEL = 6


def packed(columns: Mapping[str, NDArray[np.integer]]) -> tuple[dict[str, dict[str, int]], str]:
    """Return (directory, text): where each column is, for the page's JSON, and all columns as base64.

    A row of the directory has `at` (byte), `length` (values), `planes` (bytes a value) and `least` (the value
    to add). Values above 2^53 are rounded by JavaScript.
    """
    squeeze, parts, at = zlib.compressobj(_LEVEL), [], 0
    directory = {}
    for name, column in columns.items():
        values = np.asarray(column)
        least = int(values.min()) if len(values) else 0
        planes = _planes(values, least)
        directory[name] = {"at": at, "length": len(values), "planes": len(planes), "least": least}
        for plane in planes:
            parts.append(squeeze.compress(plane.tobytes()))
            at += len(plane)
    parts.append(squeeze.flush())
    return directory, base64.b64encode(b"".join(parts)).decode()


def _planes(values: NDArray[np.integer], least: int) -> NDArray[Any]:
    """Return uint8[planes, n]: the bytes of the differences to the least value, lowest first."""
    differences = values.astype(np.int64).view(np.uint64) - np.uint64(least & (2**64 - 1))
    largest = int(differences.max(initial=np.uint64(0)))
    width = (largest.bit_length() + 7) // 8
    planes: NDArray[Any] = differences.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].T
    return planes
