# SPDX-License-Identifier: Apache-2.0
"""Choose how user stacks are taken: `record --call-graph`.

`auto` examines the files that the target runs. If all of them keep frame pointers, the kernel's walk finds
every caller at the lowest cost (fp). If a file lacks them, or the files are unknown, stacks are copied (cfi).
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from perf_offcpu.abi.offcpu import LARGEST_COPY
from perf_offcpu.errors import UsageError
from perf_offcpu.structs import frozen
from perf_offcpu.units import parse_size

if TYPE_CHECKING:
    from perf_offcpu.collect.targets import Target

DEFAULT_BYTES: Final = 8192
MIN_BYTES: Final = 256
_MAX_FILES: Final = 64
_MAX_PIDS: Final = 16


@frozen
class CallGraph:
    """The way in which user stacks are taken."""

    stack_bytes: int = 0  # size of the copy; 0: they are walked along frame pointers
    deferred: bool = False  # walk them when the thread returns to user mode, where the kernel can do that


def choose_call_graph(text: str, no_bytes: bool, target: Target, command: tuple[str, ...]) -> CallGraph:
    """Decide how user stacks are taken.

    Args:
        text: value of --call-graph: auto, fp, fp,defer, cfi or cfi,BYTES.
        no_bytes: --no-stack-bytes was given.
        target, command: the tasks that are recorded.
    """
    method, comma, size = text.partition(",")
    if text in ("fp", "fp,defer"):
        return CallGraph(deferred=bool(comma))
    if method == "cfi":
        if no_bytes:
            raise UsageError(f"--call-graph {text} and --no-stack-bytes contradict each other: choose one")
        if not _can_unwind():
            raise UsageError(f"--call-graph {text}: not on this machine ({platform.machine()}): use fp")
        return CallGraph(_stack_bytes(size) if comma else DEFAULT_BYTES)
    if text != "auto":
        raise UsageError(f"--call-graph {text}: known are auto, fp, fp,defer and cfi[,BYTES]")
    copied = not no_bytes and _can_unwind() and lacks_frame_pointers(target, command)
    return CallGraph(DEFAULT_BYTES if copied else 0)


def _can_unwind() -> bool:
    from perf_offcpu.abi.cfi import MACHINE_OF_ARCH

    return platform.machine() in MACHINE_OF_ARCH


def _stack_bytes(text: str) -> int:
    size = parse_size("--call-graph cfi,BYTES:", text, least=str(MIN_BYTES), most=str(LARGEST_COPY))
    return (size + 7) // 8 * 8  # the kernel takes multiples of 8


def lacks_frame_pointers(target: Target, command: tuple[str, ...]) -> bool:
    """Return True if a file that the target runs lacks frame pointers, or if that is unknown."""
    from perf_offcpu.unwind.frame_pointers import keeps_frame_pointers

    files = list(_files_of_command(command[0]) if target.command else _files_of_processes(target))
    return not files or len(files) > _MAX_FILES or not all(map(keeps_frame_pointers, files))


def _files_of_command(name: str) -> Iterator[str]:
    """Yield the program's file and this system's C library; a script is no ELF file, so it is unknown."""
    yield shutil.which(name) or name
    yield from sorted(path for path in _mapped("self") if re.search(r"/(libc\.so|libc\.musl|ld-musl)", path))


def _files_of_processes(target: Target) -> Iterator[str]:
    """Yield the files that the processes have mapped; none system-wide, where processes come and go."""
    if len(target.processes) <= _MAX_PIDS and not target.threads:
        for pid in target.processes:
            for path in _mapped(str(pid)):
                yield f"/proc/{pid}/root{path}"


def _mapped(pid: str) -> set[str]:
    """Return the files with code that a process has mapped."""
    paths = set()
    try:
        with open(f"/proc/{pid}/maps", "rb") as lines:
            for line in lines:
                fields = line.rstrip(b"\n").split(None, 5)
                if len(fields) == 6 and b"x" in fields[1] and fields[5].startswith(b"/"):
                    paths.add(os.fsdecode(fields[5]))
    except OSError:
        return set()
    return paths
