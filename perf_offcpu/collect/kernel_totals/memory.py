# SPDX-License-Identifier: Apache-2.0
"""Read memory of processes whose threads are still blocked, within a bounded time."""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from perf_offcpu import losses
from perf_offcpu.collect.system.helper import Avoided, Helper, ask_each
from perf_offcpu.losses import Losses

TIME_S: Final = 2.0
"""Time for all threads together: memory may lie on a file system that does not answer."""
_AT_ONCE: Final = 64
T = TypeVar("T")


class Unread:
    """Count the stacks and locks of threads, still blocked at the end, that could not be read.

    Attributes:
        avoided: processes that did not answer.
        lost: the causes and their counts, since the recording began.
    """

    def __init__(self) -> None:
        self.avoided, self.lost = Avoided(), Losses()


def read_memory(tid: int, address: int, size: int) -> bytes:
    """Return memory of the process of a thread; b"" if not all of it can be read."""
    try:
        # direct: a file of /proc
        memory = os.open(f"/proc/{tid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        found = os.pread(memory, size, address)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(memory)
    return found if len(found) == size else b""


def of_each(
    rows: Sequence[int], pids: Sequence[int], work: Callable[[int], T], unread: Unread, time_s: float = TIME_S
) -> dict[int, T]:
    """Return row → result of `work`, done in a helper; without the rows that failed or had no time.

    Processes come by turns, some rows of each, so that one with many threads does not take all time.

    Args:
        pids: the process of each row.
        work: returns plain values (`marshal`).
        unread: counts the rows without a result.
    """
    turns: dict[int, list[list[int]]] = {}
    for row, pid in zip(rows, pids, strict=True):
        groups = turns.setdefault(pid, [[]])
        if len(groups[-1]) == _AT_ONCE:
            groups.append([])
        groups[-1].append(row)
    items = [(turn, pid, group) for pid, groups in turns.items() for turn, group in enumerate(groups)]
    items.sort(key=lambda item: item[0])

    def work_on(item: tuple[int, list[int]]) -> list[tuple[int, T]]:
        results = []
        for row in item[1]:
            with contextlib.suppress(Exception):  # its memory may hold anything, and it may end
                results.append((row, work(row)))
        return results

    helper, found = Helper(work_on, time_s / 8), dict[int, T]()
    helper.until = time.monotonic() + time_s
    for _, answer in ask_each(helper, [item[1:] for item in items], unread.avoided):
        found |= dict(answer.value or ())
    helper.close()
    unread.lost.add(losses.WAITERS_UNREAD, len(rows) - len(found))
    return found
