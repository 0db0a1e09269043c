# SPDX-License-Identifier: Apache-2.0
"""Read the Python functions of threads that are still blocked at the end, by pystack (`--python-stacks`). pystack runs
in a process of its own, with the rights of the owner of the process that it reads (`system.as_owner`). The process that
is read can forge the output: name functions that do not exist, but only for its own threads."""

import contextlib
import importlib.util
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.counters import PYTHON, PYTHON_MAGIC, VERSION
from perf_offcpu.collect.bpf.last_tasks import LastTasks
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.existing.maps import read_maps
from perf_offcpu.collect.kernel_totals.user_stacks import Unread, of_each
from perf_offcpu.collect.system.as_owner import ask_as_owner

_MOST_S: Final = 24.0  # time for all processes, each of which takes some 0.2 s
_MOST_TEXT: Final = 48 << 10  # size of a thread's functions that leaves room for the rest of a record, bytes
_MOST_NAME: Final = 1000
_MOST_NUMBER: Final = 10**9 - 1
_CPYTHON: Final = re.compile(rb"/(?:lib)?python3[^/\n]*\n")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")

Say = Callable[[str], None]
Functions = list[tuple[Any, ...]]
"""(name, file, line, call) of each Python function of a thread, root first, as the child prints them."""


def pystack_directory() -> str | None:
    """Return the directory that holds the package pystack; None if it is not installed."""
    module = importlib.util.find_spec("pystack")
    places = module.submodule_search_locations if module else None
    return os.path.dirname(next(iter(places))) if places else None


def with_python_functions(
    last: LastTasks, again: Callable[[], LastTasks], directory: str, say: Say, unread: Unread
) -> LastTasks:
    """Return `last` with the payloads that name the Python functions of waiting tasks. `again`: runs the iterator once
    more: functions of a task that has run meanwhile are not those of its wait. `directory`: where pystack is. `say`: is
    called with a sentence for each process that cannot be read. `unread`: counts the threads whose functions are
    missing."""
    tasks = last.tasks[last.waiting()]
    functions: dict[tuple[int, int], Functions] = {}
    pids = np.unique(tasks["pid"]).tolist()
    are_python = of_each(pids, pids, lambda pid: bool(_CPYTHON.search(read_maps(pid))), unread)
    pids, until_s = by_turns([pid for pid in pids if are_python.get(pid)]), time.monotonic() + _MOST_S
    threads, missing = Counter(tasks["pid"].tolist()), 0
    while pids and time.monotonic() < until_s:
        pid = pids.pop(0)
        stacks = functions_of(pid, directory)
        if not stacks:
            say(f"perf-offcpu record: Python functions of process {pid} could not be read")
            missing += threads[pid]
        functions |= {(pid, tid): frames for tid, frames in stacks.items()}
    if pids:
        say(f"perf-offcpu record: no time was left for the Python functions of {len(pids)} processes")
        missing += sum(threads[pid] for pid in pids)
    sound = last.stand_still(again())[last.waiting()] if functions else ()
    python, moving = [], 0
    for task, is_sound in zip(tasks, sound, strict=False):
        frames = functions.get((int(task["pid"]), int(task["tid"])))
        if frames and is_sound:
            python.append(python_payload(task, frames))
        elif frames:
            moving += 1
    if moving:
        say(f"perf-offcpu record: threads that ran again before their Python functions were read: {moving}")
    unread.lost.add(losses.PYTHON_UNREAD, missing + moving)
    return replace(last, python=tuple(python))


def by_turns(pids: Sequence[int]) -> list[int]:
    """Return the pids that exist, ordered so that their users take turns and no user delays the others for long."""
    users: Counter[int] = Counter()
    turns = []
    for pid in pids:
        with contextlib.suppress(OSError):
            user = os.stat(f"/proc/{pid}").st_uid
            turns.append((users[user], pid))
            users[user] += 1
    return [pid for _, pid in sorted(turns)]


def functions_of(pid: int, directory: str, patience_s: float = 3) -> dict[int, Functions]:
    """Return tid → functions of a process, root first; {} if they cannot be read. `directory`: holds pystack.
    `patience_s`: time after which the child is killed."""
    return _parsed(ask_as_owner("functions", pid, directory, patience_s=patience_s))


def _parsed(output: bytes) -> dict[int, Functions]:
    """Parse the output of the child to tid → functions; skip lines of another form."""
    functions: dict[int, Functions] = {}
    for line in output.split(b"\n"):
        try:
            tid, frames = json.loads(line)
            functions[int(tid)] = [
                (*(_CONTROL.sub("?", text)[:_MOST_NAME] for text in (name, file)), *map(_bounded, numbers))
                for name, file, *numbers in frames
                if len(numbers) == len(("line", "call"))
            ]
        except (ValueError, TypeError, RecursionError, OverflowError):
            continue
    return {tid: frames for tid, frames in functions.items() if frames}


def _bounded(number: Any) -> int:
    return min(max(int(number), 0), _MOST_NUMBER)


def python_payload(task: Any, frames: Functions) -> bytes:
    """Return the payload (abi.counters.PYTHON) of a thread, with as many functions, from the leaf on, as have room.
    `task`: its row of `struct offcpu_last`."""
    lines: list[bytes] = []
    size = 0
    for name, file, line, call in reversed(frames):
        text = f"{name}\t{file}\t{line}\t{call}\n".encode("utf-8", "replace")
        size += len(text)
        if size > _MOST_TEXT:
            break
        lines.append(text)
    values = {"magic": PYTHON_MAGIC, "version": VERSION, "nr": len(lines), "text": b"".join(lines)}
    return PYTHON.pack(values | {name: int(task[name]) for name in ("pid", "tid", "switch_out_ns")}, NATIVE)
