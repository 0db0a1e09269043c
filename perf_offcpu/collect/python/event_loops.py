# SPDX-License-Identifier: Apache-2.0
"""Read the tasks of asyncio's event loops from the memory of processes that run CPython 3.14, while the loop's thread
is blocked. Two tables made for readers from outside say where everything is: `_Py_DebugOffsets`, at the begin of the
section `.PyRuntime`, and `Py_AsyncioModuleDebugOffsets` (Modules/_asynciomodule.c), the section `.AsyncioDebug`.

Memory may hold anything: reads, lists and chains are bounded, and what cannot be read ends the list of tasks. A list
counts if the thread has not run meanwhile (its number of context switches).
"""

import itertools
import json
import os
import random
import re
import struct
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Final

from perf_offcpu import losses
from perf_offcpu.abi.counters import TASKS, TASKS_MAGIC, VERSION
from perf_offcpu.binary.line_table import LineTable
from perf_offcpu.collect.bpf.last_tasks import LastTasks
from perf_offcpu.collect.counters import Reading
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.existing.maps import parse_maps, read_maps
from perf_offcpu.collect.kernel_totals.user_stacks import Unread, of_each
from perf_offcpu.collect.python.memory import Memory, UnreadableError, switches_of
from perf_offcpu.collect.python.offsets import RUNTIME, find_section
from perf_offcpu.collect.task_readings import TaskReader
from perf_offcpu.files import open_regular

_MOST_S, _MOST_LOOK_S, _MOST_THREAD_S = 4.0, 0.5, 0.5  # time for all, and for a process; CPU time of a thread
_MOST_TASKS, _MOST_DEPTH, _MOST_SLOTS, _MOST_WAITERS, _MOST_THREADS, _MOST_FILES = 2000, 64, 256, 64, 4096, 16
_MOST_SET, _MOST_LINES, _MOST_NAME, _MOST_OFFSET = 1024, 16 << 10, 250, 1 << 20  # bytes and characters
_MOST_OWN, _FULL, _MOST_KEPT = 40 << 10, 8 << 10, 32 << 20  # bytes of a task, a payload that takes no more, and all
_TRIES, _TAGS, _LAST_LINE = 8, 7, 10**9 - 1
_COMPACT, _ASCII_LESS = 56, 16  # size of the head of a str object, and how much less it is of ASCII
_FILES: Final = re.compile(rb"/(?:_asyncio\.cpython-314[^/]*|(?:lib)?python3\.14[^/]*)$")
_MINOR, _COOKIE, _HEAD = 14, b"xdebugpy", 704
_OFFSETS: Final = {
    "interpreters": 40, "next_interpreter": 64, "threads": 72, "next_thread": 192, "native_id": 224, "code": 264,
    "instruction": 272, "locals": 280, "stack_top": 296, "file": 320, "name": 336, "lines": 344, "first_line": 352,
    "local_names": 368, "instructions": 384, "type": 408, "type_name": 424, "type_flags": 440, "tuple_size": 464,
    "set_table": 512, "set_mask": 520, "bytes_size": 600, "bytes": 608, "frame": 680, "frame_state": 688, "next": 696,
}  # fmt: skip
"""Name → where `_Py_DebugOffsets` of 3.14 has the offset."""
_DEBUG: Final = b".AsyncioDebug"
_DEBUG_NAMES: Final = (
    "task_size task_name awaited_by is_task awaited_by_is_set coroutine node interpreter_size tasks_of_interpreter "
    "thread_size running_loop running_task tasks"
).split()
_DEBUG_TABLE: Final = struct.Struct("<13Q")
_IS_INT: Final = 1 << 24  # Py_TPFLAGS_LONG_SUBCLASS
_AWAITING, _EXECUTING = -1, 0  # enum _framestate; greater ones have ended
_FIRST_MEMBER, _FUNCTION_NAME = 16, 32  # of _WRAPPERS, what they wait for; func_name of PyFunctionObject
_WITH_FRAME: Final = "coroutine generator async_generator".split()
_OF_FUTURE, _DONE = "_asyncio.FutureIter", (1, 2)  # enum fut_state: cancelled, finished
_WRAPPERS: Final = f"coroutine_wrapper async_generator_asend async_generator_athrow {_OF_FUTURE}".split()
_SYNCHRONIZES: Final = re.compile(r"/asyncio/(?:locks|queues)\.py$")

Task = tuple[int, str, str, int, list[int], list[int], list[tuple[str, str, int]]]
"""Values of a task, in the order of a line of the text of abi.counters.TASKS."""
_Tasks = tuple[int, list[Task]]


def with_event_loops(last: LastTasks, pids: frozenset[int], unread: Unread) -> LastTasks:
    """Return `last` with the payloads that describe the tasks of event loops of waiting threads. `pids`: processes that
    run CPython. `unread`: counts the loops whose tasks could not be read, or not all of them."""
    rows = [row for row in last.waiting().tolist() if int(last.tasks["pid"][row]) in pids]
    if not rows:
        return last
    pid, tid, since, switches = (last.tasks[name].tolist() for name in ("pid", "tid", "switch_out_ns", "nr_switches"))
    tables_of = cache(find_tables)

    def read(row: int) -> tuple[int, bool, list[Task]] | None:
        tables = tables_of(pid[row])
        return read_loop(pid[row], tid[row], tables) if tables else None

    answers = of_each(rows, [pid[row] for row in rows], read, unread, _MOST_S)
    payloads = list[bytes]()
    for row, (count, is_whole, tasks) in ((row, answer) for row, answer in answers.items() if answer):
        unread.lost.add(losses.EVENT_LOOP_UNREAD, int(not is_whole))
        times = since[row] if count == switches[row] else 0, last.end_ns, 0
        payloads += task_payloads((pid[row], tid[row]), times, tasks) if tasks else []
    return replace(last, python=(*last.python, *payloads))


def find_tables(pid: int) -> tuple[int, int] | None:
    """Return the addresses of `_Py_DebugOffsets` and `Py_AsyncioModuleDebugOffsets` in a process; None if it has not
    imported asyncio, or is of a version without them. Raises OSError: its mappings cannot be read."""
    text, places = read_maps(pid), dict[bytes, int]()
    mappings = parse_maps(text) if b"python3.14" in text else ()
    files = {mapping.inode: mapping for mapping in mappings if not mapping.offset and _FILES.search(mapping.name)}
    for mapping in [*files.values()][:_MOST_FILES]:
        with os.fdopen(open_regular(f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}")) as file:
            sections = {name: find_section(file.fileno(), name) for name in (RUNTIME, _DEBUG)}
        addresses = {name: section.place_in(mapping.start, 0) for name, section in sections.items() if section}
        places |= {name: place for name, place in addresses.items() if place is not None}
    return (places[RUNTIME], places[_DEBUG]) if len(places) == 2 else None


def read_loop(
    pid: int, tid: int, tables: tuple[int, int], pages: set[int] | None = None
) -> tuple[int, bool, list[Task]] | None:
    """Return (context switches of a thread, whether all tasks could be read, tasks of its event loop), read while it
    stands still; None if it runs no event loop. `tables`: of `find_tables`. `pages`: those of earlier readings, copied
    first: the thread need stand still no longer if no others are needed; updated. Raises OSError: it has ended."""
    until_s, pages = time.process_time() + _MOST_THREAD_S, set() if pages is None else pages
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:  # direct: a file of /proc
        for _ in range(_TRIES):
            before, own_id = switches_of(pid, tid)
            tasks, is_whole = list[Task](), False
            loop = _Loop(memory.fileno(), until_s, pages)
            is_still = before >= 0 and before == switches_of(pid, tid)[0]
            with suppress(UnreadableError):
                thread = loop.threads(tables).get(own_id, 0) if is_still or not pages else -1
                if not thread:
                    return None
                tasks.extend(loop.tasks(thread) if thread > 0 else ())
                is_whole = True
            pages.update(loop.pages)
            if is_still and (not loop.has_missed or before == switches_of(pid, tid)[0]):
                return before, is_whole, tasks
            time.sleep(0.002)
    return -1, False, []


def loop_threads(pid: int, tables: tuple[int, int]) -> list[int]:
    """Return the threads of a process that run an event loop; [] if that cannot be read. Raises OSError: it ended."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory, suppress(UnreadableError):  # direct: a file of /proc
        ids = _Loop(memory.fileno(), time.process_time() + _MOST_THREAD_S, ()).threads(tables).keys()
        threads = map(int, os.listdir(f"/proc/{pid}/task"))  # direct: a file of /proc
        loop_tids = (tid for tid in threads if tid in ids or switches_of(pid, tid)[1] in ids)
        return [*itertools.islice(loop_tids, len(ids))]
    return []


class LoopReader(TaskReader):
    """Reads the tasks of event loops. A loop whose thread runs is not read, which is noted."""

    unread = losses.EVENT_LOOP_UNREAD

    def __init__(self) -> None:
        self._pages: defaultdict[int, set[int]] = defaultdict(set)  # in the helper: pages that threads need
        self._readings: list[Reading] = []

    def read(self, pid: int, program: tuple[int, int] | None) -> tuple[tuple[int, int] | None, list[_Tasks]]:
        """Return (the tables, (tid, tasks) of each loop) of a process; None if it has no loop."""
        until_s, tables = time.monotonic() + _MOST_LOOK_S, program or find_tables(pid)
        threads, loops = loop_threads(pid, tables) if tables else [], list[_Tasks]()
        for tid in random.sample(threads, len(threads)):  # the last ones may have no time
            has_time = time.monotonic() < until_s
            answer = read_loop(pid, tid, tables, self._pages[tid]) if tables and has_time else (-1, False, [])
            loops += [(tid, answer[2] if answer[0] >= 0 and answer[1] else [])] if answer else []
        return tables if loops else None, loops

    def add(self, pid: int, times: tuple[int, int], reading: list[_Tasks]) -> None:
        """Keep the tasks of the loops of a process."""
        for tid, tasks in reading:
            has_room = sum(len(payload) for payload, _ in self._readings) < _MOST_KEPT
            payloads = task_payloads((pid, tid), (0, times[1], times[1] - times[0]), tasks if has_room else [])
            self._readings.extend((payload, ()) for payload in payloads)

    def take(self) -> list[Reading]:
        """Return what was kept since the last call."""
        readings = self._readings[:]  # another thread appends more
        del self._readings[: len(readings)]
        return readings


class _Loop(Memory):
    """Reader of the tasks of one thread."""

    def __init__(self, fd: int, until_s: float, pages: Collection[int]) -> None:
        super().__init__(fd, until_s, pages)
        self._types: dict[int, tuple[str, int]] = {}
        self._codes: dict[int, tuple[str, str, LineTable, int]] = {}

    def threads(self, tables: tuple[int, int]) -> dict[int, int]:
        """Return own id → address of the state of each thread that runs an event loop. `tables`: of `find_tables`."""
        head = self.read(tables[0], _HEAD)
        self._at = {name: int.from_bytes(head[place : place + 8], "little") for name, place in _OFFSETS.items()}
        debug = _DEBUG_TABLE.unpack(self.read(tables[1], _DEBUG_TABLE.size))
        self._at |= dict(zip(_DEBUG_NAMES, debug, strict=True))
        is_free_threaded = head[16]
        if head[:8] != _COOKIE or head[10] != _MINOR or is_free_threaded or max(self._at.values()) > _MOST_OFFSET:
            raise UnreadableError
        left, interpreter, threads = _MOST_THREADS, self._word(tables[0], "interpreters"), dict[int, int]()
        while interpreter:
            thread = self._word(interpreter, "threads")
            while thread and left > 0:
                left -= 1
                if self._word(thread, "running_loop"):
                    threads[self._word(thread, "native_id")] = thread
                thread = self._word(thread, "next_thread")
            left -= 1
            interpreter = self._word(interpreter, "next_interpreter") if left > 0 else 0
        return threads

    def _word(self, base: int, member: str | int = 0, size: int = 8, *, signed: bool = False) -> int:
        """Return an integer of `size` bytes, at an offset or at that of a member."""
        return self.number(base + (self._at[member] if isinstance(member, str) else member), size, signed=signed)

    def _text(self, address: int) -> str:
        """Return the text of a str object."""
        return self.text(address, _COMPACT, _ASCII_LESS, _MOST_NAME)

    def tasks(self, thread: int) -> Iterator[Task]:
        """Yield the tasks that have not ended, oldest first."""
        head, running = thread + self._at["tasks"], self._word(thread, "running_task")
        node = self._word(head, "next")
        for _ in range(_MOST_TASKS):
            if node == head:
                return
            task = node - self._at["node"]
            name = self._word(task, "task_name")
            is_number = self._type(name)[1] & _IS_INT
            text = f"Task-{self._word(name, 24, 4)}" if is_number else self._text(name)
            frames, awaits, thing, inside = self._coroutines(self._word(task, "coroutine"))
            awaits = "running" if task == running else awaits
            yield task, text, awaits, thing, self._awaited_by(task), inside[:_MOST_WAITERS], frames
            node = self._word(node, "next")
        raise UnreadableError

    def _coroutines(self, coroutine: int) -> tuple[list[tuple[str, str, int]], str, int, list[int]]:
        """Return (frames, type of what they await, object that they wait for, objects of `async with`) of a task."""
        frames, inside, awaits, thing, lock, name = list[tuple[str, str, int]](), list[int](), "", 0, 0, ""
        for _ in range(_MOST_DEPTH):
            is_future, name = name == _OF_FUTURE, self._type(coroutine)[0]
            if name in _WRAPPERS:
                coroutine = self._word(coroutine, _FIRST_MEMBER)
                continue
            if name not in _WITH_FRAME:
                is_done = is_future and self._word(coroutine, self._at["is_task"] - 4, 4) in _DONE
                awaits, thing = "" if is_done else name, coroutine
                break
            state = self._word(coroutine, "frame_state", 1, signed=True)
            if state > _EXECUTING:
                break
            frame, own, held, coroutine = self._frame(coroutine + self._at["frame"])
            frames.append(frame)
            inside += held
            lock = own if _SYNCHRONIZES.search(frame[1]) else lock
            is_call = state == _EXECUTING and coroutine and self._type(coroutine)[0] in _WITH_FRAME
            if not coroutine or not (state == _AWAITING or is_call):
                break
        return frames[::-1], awaits, lock or thing, inside

    def _frame(self, frame: int) -> tuple[tuple[str, str, int], int, list[int], int]:
        """Return ((function, file, line), first local variable, objects of `async with`, top of the stack)."""
        code = self._word(frame, "code") & ~_TAGS
        if code not in self._codes:
            lines = self._word(code, "lines")
            content = self.read(lines + self._at["bytes"], min(self._word(lines, "bytes_size"), _MOST_LINES))
            table = LineTable(content, self._word(code, "first_line", 4), _MINOR)
            texts = self._text(self._word(code, "name")), self._text(self._word(code, "file"))
            self._codes[code] = *texts, table, self._word(self._word(code, "local_names"), "tuple_size")
        name, file, table, nr_locals = self._codes[code]
        line = table.line_of((self._word(frame, "instruction") - code - self._at["instructions"]) // 2)
        begin = frame + self._at["locals"]
        size = min(max(self._word(frame, "stack_top") - begin, 0) // 8, _MOST_SLOTS)
        slots = [word & ~_TAGS for (word,) in struct.iter_unpack("<Q", self.read(begin, 8 * size))]
        stack = slots[nr_locals:]
        held = [own for exit_, own in zip(stack, stack[1:], strict=False) if exit_ and own and self._is_exit(exit_)]
        place = name, file, min(max(line, 0), _LAST_LINE)
        return place, slots[0] if slots and nr_locals else 0, held, stack[-1] if stack else 0

    def _is_exit(self, slot: int) -> bool:
        with suppress(UnreadableError):  # a slot may hold a number
            return self._type(slot)[0] == "function" and self._text(self._word(slot, _FUNCTION_NAME)) == "__aexit__"
        return False

    def _type(self, thing: int) -> tuple[str, int]:
        """Return name and flags of an object's type."""
        kind = self._word(thing, "type")
        if kind not in self._types:
            name = self._word(kind, "type_name")
            content = self.read(name, min(64, 4096 - name % 4096))  # it may stand at the end of a page
            self._types[kind] = content.split(b"\0")[0].decode("utf-8", "replace"), self._word(kind, "type_flags")
        return self._types[kind]

    def _awaited_by(self, task: int) -> list[int]:
        waiter = self._word(task, "awaited_by")
        if not waiter or not self._word(task, "awaited_by_is_set", 1):
            return [waiter] if waiter else []
        size = min(self._word(waiter, "set_mask") + 1, _MOST_SET)
        table = struct.iter_unpack("<QQ", self.read(self._word(waiter, "set_table"), 16 * size))
        return [key for key, _ in table if key][:_MOST_WAITERS]


def task_payloads(ids: tuple[int, int], times: tuple[int, int, int], tasks: list[Task]) -> list[bytes]:
    """Return payloads (abi.counters.TASKS) of the tasks of a thread's event loop. `ids`: pid, tid. `times`: begin of
    its wait, 0 if the thread has run since; time of the reading; time for which the reading stands."""
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
