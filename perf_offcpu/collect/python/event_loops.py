# SPDX-License-Identifier: Apache-2.0
"""Read the tasks of asyncio's event loops, in processes that run CPython 3.11 to 3.14, while the loop's thread is
blocked. A task that cannot be read ends the list. A list is used if the thread had no context switch meanwhile."""

import itertools
import json
import os
import random
import re
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, Final

from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi.counters import TASKS, TASKS_MAGIC, VERSION
from perf_offcpu.collect.bpf.last_tasks import LastTasks
from perf_offcpu.collect.counters import Reading
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.existing.maps import Mapping, parse_maps, read_maps
from perf_offcpu.collect.kernel_totals.user_stacks import Unread, read_by_row
from perf_offcpu.collect.python.loop_tasks import Loop, Tables, Task
from perf_offcpu.collect.python.memory import UnreadableError, switches_of
from perf_offcpu.collect.python.offsets import RUNTIME, find_section
from perf_offcpu.collect.python.older_loops import OlderLoop
from perf_offcpu.collect.task_readings import TaskReader
from perf_offcpu.files import open_regular

_MOST_S, _MOST_LOOK_S, _MOST_THREAD_S = 4.0, 0.5, 0.5  # time for all, and for a process; CPU time for a thread
_MOST_OWN, _FULL, _MOST_KEPT = 40 << 10, 8 << 10, 32 << 20  # bytes of a task, a payload that is full, all payloads
_TRIES, _MOST_FILES = 8, 16
_FILES: Final = re.compile(rb"/(?:_asyncio\.cpython-314[^/]*|(?:lib)?python3\.(1[1-4])[^/]*)$")
_FIRST_WITH_TABLE: Final = 14
_DEBUG: Final = b".AsyncioDebug"
_Tasks = tuple[int, list[Task]]
"""(tid, tasks of the event loop that this thread runs)."""


def with_event_loops(last: LastTasks, pids: frozenset[int], unread: Unread) -> LastTasks:
    """Return `last` with further `payloads`: the tasks of event loops that waiting threads run. `pids`:
    processes that run CPython. `unread`: counts the loops of which not all tasks could be read."""
    rows = [row for row in last.waiting().tolist() if int(last.tasks["pid"][row]) in pids]
    pid, tid, since, switches = (last.tasks[name].tolist() for name in ("pid", "tid", "switch_out_ns", "nr_switches"))
    payloads = list[bytes]()
    for row, (count, tasks) in read_loops(last.tasks, rows, unread).items():
        times = since[row] if count == switches[row] else 0, last.end_ns, 0
        payloads += task_payloads((pid[row], tid[row]), times, tasks)
    return replace(last, payloads=(*last.payloads, *payloads))


def read_loops(threads: NDArray[Any], rows: list[int], unread: Unread) -> dict[int, tuple[int, list[Task]]]:
    """Return row → (number of context switches of the thread, tasks of its event loop) for `rows` of `threads` that run
    a loop with tasks. `threads`: has the fields `pid` and `tid`. `unread`: counts loops with unread tasks."""
    tables_of, pid, tid = cache(find_tables), threads["pid"].tolist(), threads["tid"].tolist()

    def read(row: int) -> tuple[int, bool, list[Task]] | None:
        tables = tables_of(pid[row])
        return read_loop(pid[row], tid[row], tables) if tables else None

    answers = read_by_row(threads, rows, read, unread, _MOST_S) if rows else {}
    loops = {row: answer for row, answer in answers.items() if answer}
    unread.lost.add(losses.EVENT_LOOP_UNREAD, sum(not is_whole for _, is_whole, _ in loops.values()))
    return {row: (count, tasks) for row, (count, _, tasks) in loops.items() if tasks}


def find_tables(pid: int) -> Tables | None:
    """Return the addresses that `read_loop` needs; None if the process has not imported asyncio, or its CPython has an
    unsupported version. Raises OSError: its mappings cannot be read."""
    text, places, minor = read_maps(pid), dict[bytes, int](), 0
    mappings = parse_maps(text) if b"python3.1" in text else ()
    files = {mapping.inode: mapping for mapping in mappings if not mapping.offset and _FILES.search(mapping.name)}
    for mapping in [*files.values()][:_MOST_FILES]:
        with os.fdopen(_open_mapped(pid, mapping)) as file:
            sections = {name: find_section(file.fileno(), name) for name in (RUNTIME, _DEBUG)}
        addresses = {name: section.place_in(mapping.start, 0) for name, section in sections.items() if section}
        places |= {name: place for name, place in addresses.items() if place is not None}
        version = _FILES.search(mapping.name)
        minor = int(version[1]) if version and version[1] and addresses.get(RUNTIME) else minor
    runtime, asyncio = (places.get(name, 0) for name in (RUNTIME, _DEBUG))
    if runtime and 0 < minor < _FIRST_WITH_TABLE:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory, suppress(UnreadableError):  # direct: of /proc
            asyncio = OlderLoop(memory.fileno(), time.process_time() + _MOST_THREAD_S, ()).find_tasks(minor, runtime)
    return Tables(minor, runtime, asyncio, switches_of(pid, pid)[1]) if runtime and asyncio else None


def _open_mapped(pid: int, mapping: Mapping) -> int:
    try:
        return open_regular(f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}")
    except PermissionError:  # these links are not for ordinary users
        fd = open_regular(os.fsdecode(mapping.name))
    if os.fstat(fd).st_ino != mapping.inode:
        os.close(fd)
        raise FileNotFoundError
    return fd


def read_loop(pid: int, tid: int, tables: Tables, pages: set[int] | None = None) -> tuple[int, bool, list[Task]] | None:
    """Return (number of context switches of a thread, True if all tasks were read, tasks of its event loop); (-1,
    False, []) if it ran during all attempts, None if it runs no loop. `tables`: from `find_tables`. `pages`: page
    numbers that earlier readings needed; they are copied first, so that the thread must stand still only for the copy;
    updated. Raises OSError: the thread has ended."""
    until_s, pages = time.process_time() + _MOST_THREAD_S, set() if pages is None else pages
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:  # direct: a file of /proc
        for _ in range(_TRIES):
            before, own_id = switches_of(pid, tid)
            tasks, is_whole = list[Task](), False
            loop = _reader_of(tables)(memory.fileno(), until_s, pages)
            is_still = before >= 0 and before == switches_of(pid, tid)[0]
            with suppress(UnreadableError):
                thread = loop.threads(tables, own_id).get(own_id, 0) if is_still or not pages else -1
                if not thread:
                    return None
                tasks.extend(loop.tasks(thread) if thread > 0 else ())
                is_whole = True
            pages.update(loop.pages)
            if is_still and (not loop.has_missed or before == switches_of(pid, tid)[0]):
                return before, is_whole, tasks
            time.sleep(0.002)
    return -1, False, []


def _reader_of(tables: Tables) -> type[Loop]:
    return OlderLoop if tables.minor < _FIRST_WITH_TABLE else Loop


def loop_threads(pid: int, tables: Tables) -> list[int]:
    """Return the tids of threads that run an event loop; [] if unreadable. Raises OSError: the process has ended."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory, suppress(UnreadableError):  # direct: a file of /proc
        reader = _reader_of(tables)(memory.fileno(), time.process_time() + _MOST_THREAD_S, ())
        ids = reader.threads(tables).keys()
        threads = map(int, os.listdir(f"/proc/{pid}/task"))  # direct: a file of /proc
        loop_tids = (tid for tid in threads if tid in ids or switches_of(pid, tid)[1] in ids)
        return [*itertools.islice(loop_tids, len(ids))]
    return []


class LoopReader(TaskReader):
    """Reads the tasks of event loops. A loop that cannot be read (its thread runs) gets an empty list of tasks."""

    unread = losses.EVENT_LOOP_UNREAD

    def __init__(self) -> None:
        self._pages: defaultdict[int, set[int]] = defaultdict(set)  # in the helper: pages that threads need
        self._readings: list[Reading] = []

    def read(self, pid: int, program: tuple[int, ...] | None) -> tuple[tuple[int, ...] | None, list[_Tasks]]:
        """Return (`Tables` as a plain tuple, [(tid, tasks) of each event loop]); (None, []) without any loop.
        `program`: the tuple from the last call; None at the first."""
        until_s = time.monotonic() + _MOST_LOOK_S
        tables = Tables(*program) if program else find_tables(pid)  # a named tuple cannot be sent
        threads, loops = loop_threads(pid, tables) if tables else [], list[_Tasks]()
        for tid in random.sample(threads, len(threads)):  # the last ones may have no time
            has_time = time.monotonic() < until_s
            answer = read_loop(pid, tid, tables, self._pages[tid]) if tables and has_time else (-1, False, [])
            loops += [(tid, answer[2] if answer[0] >= 0 and answer[1] else [])] if answer else []
        return tuple(tables) if tables and loops else None, loops

    def add(self, pid: int, times: tuple[int, int], reading: list[_Tasks]) -> None:
        """Keep the tasks of a process's event loops for `take`. `times`: ns of the reading before, and of this one."""
        for tid, tasks in reading:
            has_room = sum(len(payload) for payload, _ in self._readings) < _MOST_KEPT
            payloads = task_payloads((pid, tid), (0, times[1], times[1] - times[0]), tasks if has_room else [])
            self._readings.extend((payload, ()) for payload in payloads)

    def take(self) -> list[Reading]:
        """Return the readings kept since the last call."""
        readings = self._readings[:]  # another thread may append meanwhile
        del self._readings[: len(readings)]
        return readings


def task_payloads(ids: tuple[int, int], times: tuple[int, int, int], tasks: list[Task]) -> list[bytes]:
    """Return payloads (`abi.counters.TASKS`) with the tasks of a thread's event loop, or goroutines. `ids`: (pid, tid).
    `times`: (begin of the thread's wait, 0 if it has run since; time of the reading; time for which it stands), ns."""
    payloads, text, number = list[bytes](), b"", 0
    values = {"magic": TASKS_MAGIC, "version": VERSION}
    values |= dict(zip(("pid", "tid", "switch_out_ns", "read_ns", "weight_ns"), ids + times, strict=True))
    for index, (*facts, frames) in enumerate(tasks):
        kept = frames
        while len(line := json.dumps([*facts, kept]).encode() + b"\n") > _MOST_OWN:
            kept = kept[: len(kept) // 2]
        text, number = text + line, number + 1
        if len(text) > _FULL or index == len(tasks) - 1:
            payloads.append(TASKS.pack(values | {"nr": number, "text": text}, NATIVE))
            text, number = b"", 0
    return payloads or [TASKS.pack(values | {"nr": 0, "text": b""}, NATIVE)]
