# SPDX-License-Identifier: Apache-2.0
"""Find the children of processes, and theirs: of a server that has forked, the children do the work."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable

from perf_offcpu.files import kernel_lines, read_kernel
from perf_offcpu.text import printable


def status_of(tid: int) -> dict[bytes, bytes]:
    """Return the fields of /proc/TID/status, none if there is no such thread.

    /proc/TID/stat waits for a process that is within execve(2), this file does not.
    """
    try:
        status = read_kernel(f"/proc/{tid}/status")
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return dict(line.partition(b":")[::2] for line in kernel_lines(status))


def descendants(processes: Iterable[int]) -> list[int]:
    """Return the pids of the children of some processes, and of theirs, in ascending order."""
    children = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit() and (parent := status_of(int(name)).get(b"PPid")):
            children[int(parent)].append(int(name))
    given = set(processes)
    seen, waiting = set(given), list(given)
    while waiting:
        new = [child for child in children[waiting.pop()] if child not in seen]
        seen.update(new)
        waiting += new
    return sorted(seen - given)


def left_out(processes: Iterable[int]) -> list[str]:
    """Return a line for each process with children that are not among the processes."""
    given, lines = set(processes), []
    for pid in sorted(given):
        if number := len(set(descendants([pid])) - given):
            name = printable(os.fsdecode(status_of(pid).get(b"Name", b"").strip()))
            children = "1 child" if number == 1 else f"{number} children"
            are, them = ("is", "it") if number == 1 else ("are", "them")
            lines.append(f"{children} of {name} {pid} {are} not recorded: -p {pid}+ takes {them}, too")
    return lines
