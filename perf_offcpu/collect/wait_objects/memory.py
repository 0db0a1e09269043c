# SPDX-License-Identifier: Apache-2.0
"""Read memory of processes whose threads are still blocked, within a bounded time."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from numpy.typing import NDArray

from perf_offcpu.collect.kernel_totals.user_stacks import REGISTER_WORDS

TIME_S: Final = 2.0
"""Time for all threads together: a read of memory takes a lock that a thread may hold."""
T = TypeVar("T")


def read_memory(pid: int, address: int, size: int) -> bytes:
    """Return memory of a process; b"" if not all of it can be read."""
    try:
        # direct: a file of /proc
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        found = os.pread(memory, size, address)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(memory)
    return found if len(found) == size else b""


def arguments_of(task: NDArray[Any]) -> tuple[int, ...]:
    """Return the first four arguments of the system call of a task, a row of `struct offcpu_last`."""
    return tuple(int(task["regs"][word]) for word in REGISTER_WORDS[platform.machine()].arguments)


def of_each(rows: Iterable[int], work: Callable[[int], T], time_s: float = TIME_S) -> dict[int, T]:
    """Return row → result of `work`; without the rows for which there was no time."""
    found: dict[int, T] = {}

    def do_all() -> None:
        for row in rows:
            found[row] = work(row)

    worker = threading.Thread(target=do_all, daemon=True)
    worker.start()
    worker.join(time_s)
    return dict(list(found.items()))
