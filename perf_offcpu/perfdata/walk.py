# SPDX-License-Identifier: Apache-2.0
"""Find the records of a buffer.

Records form a chain: the size of one leads to the next. This walk is the only loop over records in this
project; it reads a single u16 per record (some 70 ns).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.records import RecordType
from perf_offcpu.binary.fields import Buffer, Order

HEADER_SIZE = 8
"""Bytes of a record's header."""

_ODD_SIZES = (
    RecordType.HEADER_TRACING_DATA,
    RecordType.HEADER_BUILD_ID,
    RecordType.HEADER_FEATURE,
    RecordType.COMPRESSED,
)
"""Types that perf writes with sizes that are no multiple of 8; the records after them are unaligned."""


class Walk:
    """Finds the records of one buffer.

    Args:
        data: the buffer.
        order: its byte order.
    """

    def __init__(self, data: Buffer, order: Order) -> None:
        self.data, self.order = data, order
        self._views: dict[int, memoryview] = {}

    def records(self, at: int, window: int) -> tuple[NDArray[np.int64], int, bool]:
        """Find whole records from `at` on, in about `window` bytes.

        Returns:
            (starts, end, is_sound): where they begin and end, and whether the rest can still become a record.
        """
        stop, size = min(at + window, len(self.data)), 0
        parts: list[NDArray[np.int64]] = []
        while at < stop:
            places = self._chain(at, stop)
            parts.append(places)
            at = self._end(places, at)
            size = self._odd_size(at) if at < stop else 0
            if size <= 0:
                break
            parts.append(np.array([at], np.int64))
            at += size
        starts = np.concatenate(parts) if parts else np.empty(0, np.int64)
        return starts, at, size >= 0

    def _chain(self, at: int, stop: int) -> NDArray[np.int64]:
        """Return the places of records of sizes that are multiples of 8, from `at` on."""
        phase = at & 1
        sizes = self._sizes(phase)
        places = _walk_chain(sizes, at >> 1, min((stop + 1) >> 1, len(sizes) - 3), len(sizes))
        return places * 2 + phase

    def _sizes(self, phase: int) -> memoryview:
        """Return the buffer as u16 in native order, from byte `phase` on."""
        view = self._views.get(phase)
        if view is None:
            count = max(0, len(self.data) - phase) // 2
            halves = memoryview(self.data)[phase : phase + 2 * count]
            kind = np.dtype(f"{self.order}u2")
            native = halves if kind.isnative else np.frombuffer(halves, kind).byteswap().data
            view = self._views[phase] = native.cast("B").cast("H")
        return view

    def _end(self, places: NDArray[np.int64], at: int) -> int:
        return at if not len(places) else int(places[-1]) + self.header(int(places[-1]))[1]

    def _odd_size(self, at: int) -> int:
        """Return the size of a whole record that is no multiple of 8; 0 if it is cut, -1 if impossible."""
        if len(self.data) - at < HEADER_SIZE:
            return 0
        kind, size = self.header(at)
        if size < HEADER_SIZE or (size & 7 and kind not in _ODD_SIZES):
            return -1
        return size if at + size <= len(self.data) else 0

    def header(self, at: int) -> tuple[int, int]:
        """Return (type, size) of the record at `at`."""
        byteorder: Any = "little" if self.order == "<" else "big"
        data = self.data
        return int.from_bytes(data[at : at + 4], byteorder), int.from_bytes(data[at + 6 : at + 8], byteorder)


_STEPS = [0] * (1 << 16)
"""By size: the u16 from a record to the next; 0 for sizes that are odd or impossible."""
_STEPS[HEADER_SIZE::8] = range(HEADER_SIZE // 2, 1 << 15, 4)

_BATCH = 256
"""Records that are walked between looks for a run."""


def _walk_chain(sizes: memoryview, at: int, stop: int, end: int) -> NDArray[np.int64]:
    """Return the places (in u16) of whole, possible records from `at` to `stop`.

    An event without callchains, or with the same one always, writes records of one size: such a run is
    compared at once. Where there is none, the walk looks for one less and less often.
    """
    halves = np.frombuffer(sizes, np.uint16)
    parts = [np.empty(0, np.int64)]
    wait = pause = 1
    while at < stop:
        places, at = _walk_batch(sizes, at, stop)
        parts.append(np.array(places, np.int64))
        if len(places) < _BATCH:
            break
        wait -= 1
        if not wait:
            step = at - places[-1]
            count = _run_length(halves[at + 3 : stop + 3 : step], sizes[places[-1] + 3])
            parts.append(np.arange(at, at + count * step, step))
            at += count * step
            wait = pause = 1 if count >= _BATCH else 2 * pause
    found = np.concatenate(parts)
    return found[:-1] if at > end else found


def _walk_batch(sizes: memoryview, at: int, stop: int) -> tuple[list[int], int]:
    """Return the places of the next records, up to a batch of them, and where they end."""
    places: list[int] = []
    append, steps = places.append, _STEPS
    for _ in range(_BATCH):
        if at >= stop:
            break
        step = steps[sizes[at + 3]]
        if not step:
            break
        append(at)
        at += step
    return places, at


def _run_length(values: NDArray[np.uint16], value: int) -> int:
    """Return the number of leading values that equal `value`."""
    length = 0
    while length < len(values):
        others = np.flatnonzero(values[length : length + _BATCH] != value)
        if len(others):
            return length + int(others[0])
        length = min(length + _BATCH, len(values))
    return length
