# SPDX-License-Identifier: Apache-2.0
"""Find the descriptor for which threads are still blocked in poll() or select(), where it is a single one.

It is in memory of the process, which the BPF program can read for waits that have ended only. It is read here
and told to the BPF program, which then finds the object as for other system calls.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.syscalls import syscall_names
from perf_offcpu.collect.bpf.last_tasks import LastTasks
from perf_offcpu.collect.kernel_totals.memory import Unread, of_each, read_memory
from perf_offcpu.collect.kernel_totals.user_stacks import arguments_of, registers_of

_POLLFD: Final = struct.Struct("=ihh")
_WORD: Final = 8
_MOST_DESCRIPTORS: Final = 1024  # FD_SETSIZE
_POLLS, _SELECTS = ("poll", "ppoll"), ("select", "pselect6")
_IN_OBJECT: Final = ("object_id", "object_lost", "asked_ns")


def with_polled(
    last: LastTasks,
    tell: Callable[[NDArray[Any], Sequence[int]], None],
    again: Callable[[], LastTasks],
    unread: Unread,
) -> LastTasks:
    """Set the objects of tasks that wait for one descriptor in poll() or select().

    Args:
        tell: gets rows of `struct offcpu_last` and the descriptor of each.
        again: runs the iterator once more.
        unread: counts the tasks for which there is no time.
    """
    names = syscall_names(platform.machine())
    calls = [number for number, name in names.items() if name in (*_POLLS, *_SELECTS)]
    is_64_bit = registers_of(last.tasks)["ip"] != 0
    rows = last.waiting()
    rows = rows[np.isin(last.tasks["syscall"][rows], calls) & is_64_bit[rows]]

    def read(row: int) -> int:
        task = last.tasks[row]
        return only_descriptor(task, names[int(task["syscall"])] in _SELECTS)

    polled = of_each(rows.tolist(), last.tasks["pid"][rows].tolist(), read, unread)
    found = {row: fd for row, fd in polled.items() if fd >= 0}
    if not found:
        return last
    tell(last.tasks[list(found)], list(found.values()))
    later = again()
    still = last.stand_still(later)
    row_of = {int(tid): row for row, tid in enumerate(later.tasks["tid"].tolist())}
    tasks = last.tasks.copy()
    for row in found:
        other = row_of.get(int(tasks["tid"][row]))
        if still[row] and other is not None:
            for name in _IN_OBJECT:
                tasks[name][row] = later.tasks[name][other]
    return replace(last, tasks=tasks)


def only_descriptor(task: NDArray[Any], is_select: bool) -> int:
    """Return the descriptor of poll(), or with `is_select` of select(); -1 for several, or none."""
    arguments, tid = arguments_of(task), int(task["tid"])
    if not is_select:
        entry = read_memory(tid, arguments[0], _POLLFD.size) if arguments[1] == 1 else b""
        return int(_POLLFD.unpack(entry)[0]) if entry else -1
    number = arguments[0] & 0xFFFFFFFF
    if not 0 < number <= _MOST_DESCRIPTORS:
        return -1
    bits = 0
    for address in filter(None, arguments[1:4]):
        words = read_memory(tid, address, -(-number // (8 * _WORD)) * _WORD)
        if not words:
            return -1
        bits |= int.from_bytes(words, "little") & (1 << number) - 1
    return bits.bit_length() - 1 if bits.bit_count() == 1 else -1
