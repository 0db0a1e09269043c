# SPDX-License-Identifier: Apache-2.0
"""User stacks of threads that do not run, by frame pointers, as the kernel walks those of threads that do.

For threads that wait when the recording ends and whose stack was not taken when they went to wait. Their
memory is read from outside (process_vm_readv). That waits for the lock of their address space, which a thread
that hangs may hold; so it is done in a thread of its own, which is given some time and then left behind.

Rules as in arch/x86/events/core.c, perf_callchain_user(): a frame is two words, the caller's frame pointer
and the return address; what cannot be read ends the walk.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]

TIME_S = 2.0
"""For all threads together."""

MAX_FRAMES = 127
_PIECE = 16 << 10  # bytes of stack read at once: most stacks are shorter
_USER_HALF = 1 << 63

_libc = ctypes.CDLL(None, use_errno=True)


class _IoVector(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def walk_user_stacks(tasks: NDArray[Any], time_s: float = TIME_S) -> list[U64]:
    """The stacks of tasks, leaf first.

    Args:
        tasks: rows with pid, ip, sp and fp.
        time_s: when that is over, the stacks that are still missing stay empty.
    """
    found: list[U64] = [np.empty(0, np.uint64) for _ in range(len(tasks))]
    end = time.monotonic() + time_s

    def walk_all() -> None:
        for at, (pid, ip, sp, fp) in enumerate(tasks[["pid", "ip", "sp", "fp"]].tolist()):
            if time.monotonic() > end:
                return
            found[at] = np.array(_walk(_Memory(pid, sp), ip, fp), np.uint64)

    worker = threading.Thread(target=walk_all, daemon=True)
    worker.start()
    worker.join(time_s)
    return list(found)


def _walk(memory: _Memory, ip: int, fp: int) -> list[int]:
    frames = [ip]
    while len(frames) < MAX_FRAMES and 0 < fp < _USER_HALF:
        frame = memory.words(fp)
        if frame is None or not frame[1]:
            break
        fp, ip = frame
        frames.append(ip)
    return frames


class _Memory:
    """The memory of a process around the top of a stack."""

    def __init__(self, pid: int, sp: int) -> None:
        self._pid, self._start = pid, sp & ~7
        self._bytes = self._read(self._start, _PIECE)

    def words(self, address: int) -> tuple[int, int] | None:
        """Two words; None if they cannot be read."""
        at = address - self._start
        inside = 0 <= at <= len(self._bytes) - 16
        data = self._bytes[at : at + 16] if inside else self._read(address, 16)
        if len(data) < 16:
            return None
        first, second = np.frombuffer(data, np.uint64).tolist()
        return first, second

    def _read(self, address: int, size: int) -> bytes:
        """What can be read from there on, up to a size: the first page that is not there ends it."""
        buffer = ctypes.create_string_buffer(size)
        here = _IoVector(ctypes.addressof(buffer), size)
        pieces = _pages(address, size)
        there = (_IoVector * len(pieces))(*(_IoVector(*piece) for piece in pieces))
        one, many, no_flags = ctypes.c_ulong(1), ctypes.c_ulong(len(there)), ctypes.c_ulong(0)
        done = _libc.process_vm_readv(self._pid, ctypes.byref(here), one, there, many, no_flags)
        return buffer.raw[: max(0, done)]


def _pages(address: int, size: int) -> list[tuple[int, int]]:
    """(address, length) of the parts of a range, none of which crosses a page: each is read whole or not."""
    parts, end = [], address + size
    while address < end:
        border = min(end, (address | 0xFFF) + 1)
        parts.append((address, border - address))
        address = border
    return parts
