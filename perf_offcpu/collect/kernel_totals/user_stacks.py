# SPDX-License-Identifier: Apache-2.0
"""Read memory of processes whose threads are still blocked; take the user stacks of these threads: a copy of the top,
and the frames that a walk by frame pointers finds.

This is for threads that wait when the recording or a file of it ends: BPF sends no sample of them, and their registers
are those of the iterator. Their memory is read from /proc/TID/mem, by a helper.

Rules of the walk as in arch/x86/events/core.c, perf_callchain_user(): a frame is two words, the caller's frame pointer
and the return address; an address that cannot be read ends the walk."""

import contextlib
import os
import platform
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi.machine import MACHINES
from perf_offcpu.abi.offcpu import LARGEST_COPY
from perf_offcpu.collect.bpf.kernel.facts import MAX_FRAMES
from perf_offcpu.collect.system.helper import Avoided, Helper, ask_each
from perf_offcpu.files import descriptor
from perf_offcpu.losses import Losses

U64 = NDArray[np.uint64]

_MOST_COPIES = 64 << 20  # bytes of the copies of all threads; the first threads of each process come first
_SLACK = 64  # as in bpf/copies.h
_TOP = 16 << 10  # bytes of stack read at once: most stacks are shorter
_USER_HALF = 1 << 63
_FRAME = struct.Struct("=QQ")

TIME_S: Final = 2.0  # time for all threads together: memory may lie on a file system that does not answer
_AT_ONCE: Final = 64
T = TypeVar("T")


class Unread:
    """Counts of stacks, locks and other data that could not be read from processes of blocked threads. `avoided`:
    processes that did not answer. `lost`: causes and their counts since the recording began."""

    def __init__(self) -> None:
        self.avoided, self.lost = Avoided(), Losses()


def read_memory(tid: int, address: int, size: int, *, cut: bool = False) -> bytes:
    """Return `size` bytes from `address` on in the memory of a thread's process; b"" if not all can be read. `cut`:
    return the bytes up to the first page that cannot be read."""
    content = b""
    with contextlib.suppress(OSError), descriptor(_open_memory(tid)) as memory:
        content = _read(memory, address, size)
    return content if cut or len(content) == size else b""


def _open_memory(tid: int) -> int:
    return os.open(f"/proc/{tid}/mem", os.O_RDONLY | os.O_CLOEXEC)  # direct: a file of /proc


def read_by_row(
    tasks: NDArray[Any], rows: Sequence[int], work: Callable[[int], T], unread: Unread, time_s: float = TIME_S
) -> dict[int, T]:
    """Call `work` with each index in `rows` in a helper process; return row → result, without rows that failed or had
    no time. Processes take turns. `tasks`: rows of `struct offcpu_last`, indexed by `rows`. `work`: returns plain
    values (`marshal`). `unread`: counts rows without a result. `time_s`: time for all rows."""
    rows_of: dict[int, list[int]] = {}
    for row, pid in zip(rows, tasks["pid"][rows].tolist(), strict=True):
        rows_of.setdefault(pid, []).append(row)
    turns = [(first, pid) for pid, own in rows_of.items() for first in range(0, len(own), _AT_ONCE)]
    items = [(pid, rows_of[pid][first : first + _AT_ONCE]) for first, pid in sorted(turns)]

    def work_on(item: tuple[int, list[int]]) -> list[tuple[int, T]]:
        results = []
        for row in item[1]:
            with contextlib.suppress(Exception):  # its memory may hold anything, and it may end
                results.append((row, work(row)))
        return results

    helper, result_of = Helper(work_on, time_s / 8), dict[int, T]()
    helper.until = time.monotonic() + time_s
    for _, answer in ask_each(helper, items, unread.avoided):
        result_of |= dict(answer.value or ())
    helper.close()
    unread.lost.add(losses.WAITERS_UNREAD, len(rows) - len(result_of))
    return result_of


UserStack = tuple[list[int], bytes]
"""(Code addresses of a task's user stack, leaf first; copy of the bytes from its stack pointer on, b"" for none)."""
NO_STACK: Final[UserStack] = [], b""


def registers_of(tasks: NDArray[Any]) -> dict[str, U64]:
    """Return user registers of tasks: `ip`, `sp` and `fp`, uint64[n] each, and `sampled`, uint64[n, registers] in the
    order of sample_regs_user; all 0 for kernel threads and 32-bit programs. `tasks`: rows of `struct offcpu_last`."""
    words = MACHINES[platform.machine()].words
    regs = tasks["regs"]
    is_64_bit = regs[:, [words.mode]] & np.uint64(words.mode_mask) == words.mode_64
    regs = np.where(is_64_bit, regs, np.uint64(0))
    frame = {"ip": regs[:, words.ip], "sp": regs[:, words.sp], "fp": regs[:, words.fp]}
    return {**frame, "sampled": regs[:, list(words.sampled)]}


def arguments_of(task: NDArray[Any]) -> tuple[int, ...]:
    """Return the first four arguments of a task's system call. `task`: one row of `struct offcpu_last`."""
    return tuple(int(task["regs"][word]) for word in MACHINES[platform.machine()].words.arguments)


def sizes_of_copies(tasks: NDArray[Any], copy_bytes: int) -> NDArray[np.int64]:
    """Return int64[n]: bytes to copy of each task's user stack: up to its end, at most four times the usual size; the
    usual size if the end is unknown. `tasks`: rows of `struct offcpu_last`. `copy_bytes`: usual size, 0 for none."""
    end, sp = tasks["stack_end"], registers_of(tasks)["sp"]
    most = min(4 * copy_bytes, LARGEST_COPY)
    reach = np.minimum(end - np.minimum(sp, end) + np.uint64(_SLACK), np.uint64(most)).astype(np.int64)
    return np.where(end > sp, reach, copy_bytes)


def take_user_stacks(tasks: NDArray[Any], copy_bytes: int, unread: Unread) -> list[UserStack]:
    """Return the user stack of each task. `tasks`: rows of `struct offcpu_last`. `copy_bytes`: usual size of a copy.
    `unread`: counts the stacks that are not read in time, or have no copy because there are too many."""
    registers = registers_of(tasks)
    sizes = _bounded(sizes_of_copies(tasks, copy_bytes), tasks["pid"], unread).tolist()
    tids, ips, sps, fps = (part.tolist() for part in (tasks["tid"], registers["ip"], registers["sp"], registers["fp"]))
    rows = np.flatnonzero(registers["ip"])

    def take(row: int) -> UserStack:
        return _take(tids[row], ips[row], sps[row], fps[row], sizes[row])

    stacks = read_by_row(tasks, rows.tolist(), take, unread)
    return [stacks.get(row, NO_STACK) for row in range(len(tasks))]


def _bounded(sizes: NDArray[np.int64], pids: NDArray[Any], unread: Unread) -> NDArray[np.int64]:
    """Return `sizes` with 0 for copies beyond _MOST_COPIES bytes in all; the first threads of each process (`pids`) are
    served first. `unread`: counts the copies set to 0."""
    order = np.argsort(pids, kind="stable")
    begins = np.flatnonzero(np.diff(pids[order], prepend=-1))
    rank = np.empty(len(pids), np.int64)  # among the threads of its process
    rank[order] = np.arange(len(pids)) - np.repeat(begins, np.diff(begins, append=len(pids)))
    by_rank = np.argsort(rank, kind="stable")
    fits = np.empty(len(pids), np.bool_)
    fits[by_rank] = np.cumsum(sizes[by_rank]) <= _MOST_COPIES
    unread.lost.add(losses.WAITERS_UNREAD, int((~fits & (sizes > 0)).sum()))
    return np.where(fits, sizes, 0)


def _take(tid: int, ip: int, sp: int, fp: int, copy_bytes: int) -> UserStack:
    """Walk a thread's user stack along frame pointers; return it, with a copy of at most `copy_bytes` from `sp` on."""
    frames, top = [ip], b""
    with contextlib.suppress(OSError), descriptor(_open_memory(tid)) as memory:  # else the process has ended
        top = _read(memory, sp, max(_TOP, copy_bytes))
        while len(frames) < MAX_FRAMES and 0 < fp < _USER_HALF:
            offset = fp - sp
            frame = top[offset : offset + 16] if 0 <= offset <= len(top) - 16 else _read(memory, fp, 16)
            if len(frame) < 16:
                break
            fp, ip = _FRAME.unpack(frame)
            if not ip:
                break
            frames.append(ip)
    return frames, top[:copy_bytes]


def _read(memory: int, address: int, size: int) -> bytes:
    """Return at most `size` bytes from `address` on, up to the first page that cannot be read. `memory`: descriptor."""
    try:
        return os.pread(memory, size, address)
    except (OSError, OverflowError):  # OverflowError: an address of the kernel
        return b""
