# SPDX-License-Identifier: Apache-2.0
"""Walk user stacks of threads that do not run, by frame pointers, as the kernel walks those that do.

This is for threads that wait when the recording ends and whose stack was not taken when they began to wait.
Their memory is read from /proc/PID/mem. Such a read takes the lock of their address space, which a thread
that hangs may hold, so a thread of its own reads, and after some time it is abandoned.

Rules as in arch/x86/events/core.c, perf_callchain_user(): a frame is two words, the caller's frame pointer
and the return address; an address that cannot be read ends the walk.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.collect.bpf.kernel_facts import MAX_FRAMES

U64 = NDArray[np.uint64]

TIME_S = 2.0
"""Time for all threads together."""

_TOP = 16 << 10  # bytes of stack read at once: most stacks are shorter
_USER_HALF = 1 << 63
_FRAME = struct.Struct("=QQ")


def walk_user_stacks(tasks: NDArray[Any], time_s: float = TIME_S) -> list[U64]:
    """Return the user stack of each task, leaf first.

    Args:
        tasks: rows with pid, ip, sp and fp.
        time_s: time after which the stacks that are still missing stay empty.
    """
    found: list[U64] = [np.empty(0, np.uint64) for _ in range(len(tasks))]
    end = time.monotonic() + time_s

    def walk_all() -> None:
        for at, registers in enumerate(tasks[["pid", "ip", "sp", "fp"]].tolist()):
            if time.monotonic() > end:
                return
            found[at] = np.array(_walk(*registers), np.uint64)

    worker = threading.Thread(target=walk_all, daemon=True)
    worker.start()
    worker.join(time_s)
    return list(found)


def _walk(pid: int, ip: int, sp: int, fp: int) -> list[int]:
    frames = [ip]
    try:
        # direct: a file of /proc
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # the process has ended
        return frames
    try:
        top = _read(memory, sp, _TOP)
        while len(frames) < MAX_FRAMES and 0 < fp < _USER_HALF:
            at = fp - sp
            frame = top[at : at + 16] if 0 <= at <= len(top) - 16 else _read(memory, fp, 16)
            if len(frame) < 16:
                break
            fp, ip = _FRAME.unpack(frame)
            if not ip:
                break
            frames.append(ip)
    finally:
        os.close(memory)
    return frames


def _read(memory: int, address: int, size: int) -> bytes:
    """Return at most `size` bytes from an address on, up to the first page that cannot be read."""
    try:
        return os.pread(memory, size, address)
    except (OSError, OverflowError):  # OverflowError: an address of the kernel
        return b""
