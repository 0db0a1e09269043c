# SPDX-License-Identifier: Apache-2.0
"""Read the tasks of one event loop from the memory of a process that runs CPython 3.14. CPython's tables for debuggers
hold the offsets: `_Py_DebugOffsets`, at the begin of the section `.PyRuntime`, and `Py_AsyncioModuleDebugOffsets`
(Modules/_asynciomodule.c), the section `.AsyncioDebug`. Memory may hold anything: all reads are bounded."""

import re
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from perf_offcpu.binary.line_table import LineTable
from perf_offcpu.collect.python.memory import Memory, UnreadableError

MOST_TASKS, MOST_THREADS = 2000, 4096
_MOST_DEPTH, _MOST_SLOTS, MOST_WAITERS = 64, 256, 64
_MOST_SET, _MOST_LINES, _MOST_NAME, MOST_OFFSET = 1024, 16 << 10, 250, 1 << 20  # bytes and characters
TAGS, _LAST_LINE = 7, 10**9 - 1
_MINOR, _COOKIE, _HEAD = 14, b"xdebugpy", 704
_OFFSETS: Final = {
    "interpreters": 40, "next_interpreter": 64, "threads": 72, "next_thread": 192, "native_id": 224, "code": 264,
    "instruction": 272, "locals": 280, "stack_top": 296, "file": 320, "name": 336, "lines": 344, "first_line": 352,
    "local_names": 368, "instructions": 384, "type": 408, "type_name": 424, "type_flags": 440, "tuple_size": 464,
    "set_table": 512, "set_mask": 520, "bytes_size": 600, "bytes": 608, "frame": 680, "frame_state": 688, "next": 696,
}  # fmt: skip
"""Name of an offset → its place in `_Py_DebugOffsets` of 3.14."""
_DEBUG_NAMES: Final = (
    "task_size task_name awaited_by is_task awaited_by_is_set coroutine node interpreter_size tasks_of_interpreter "
    "thread_size running_loop running_task tasks"
).split()
_DEBUG_TABLE: Final = struct.Struct("<13Q")
_IS_INT: Final = 1 << 24  # Py_TPFLAGS_LONG_SUBCLASS
_AWAITING, _EXECUTING = -1, 0  # enum _framestate; greater ones have ended
_FIRST_MEMBER, _FUNCTION_NAME = 16, 32  # the awaited object of _WRAPPERS; func_name of PyFunctionObject
_FUNCTION, _SELF = 16, 24  # of PyMethodObject
_WITH_FRAME: Final = "coroutine generator async_generator".split()
_OF_FUTURE, DONE = "_asyncio.FutureIter", (1, 2)  # enum fut_state: cancelled, finished
_WRAPPERS: Final = f"coroutine_wrapper async_generator_asend async_generator_athrow {_OF_FUTURE}".split()
_SYNCHRONIZES: Final = re.compile(r"/asyncio/(?:locks|queues)\.py$")

Task = tuple[int, str, str, int, list[int], list[int], list[tuple[str, str, int]]]
"""(address, name, type of the awaited object, address of the object waited for, addresses of tasks that await it,
addresses of objects of `async with`, [(function, file, line), leaf first]) of a task, as in `abi.counters.TASKS`."""


class Tables(NamedTuple):
    """Addresses in a process that runs CPython 3.`minor` and has imported asyncio."""

    minor: int
    runtime: int  # `_PyRuntime`
    asyncio: int  # `Py_AsyncioModuleDebugOffsets`; before 3.14 the dict of the module asyncio.tasks
    own_pid: int = 0  # pid in the process's own PID namespace


class Loop(Memory):
    """Reader of the tasks of an event loop. `at`: name → offset of a member in CPython. Raises UnreadableError."""

    minor, str_head, ascii_less = _MINOR, 56, 16  # the last two: as `compact`, `ascii_less` of `Memory.text`

    def __init__(self, fd: int, until_s: float, pages: Collection[int]) -> None:
        super().__init__(fd, until_s, pages)
        self.at: dict[str, int] = {}
        self._types: dict[int, tuple[str, int]] = {}
        self._codes: dict[int, tuple[str, str, LineTable, int]] = {}

    def prepare(self, tables: Tables) -> int:
        """Set `at`, name → offset; return the address of a pointer to the first interpreter. Raises UnreadableError."""
        head = self.read(tables.runtime, _HEAD)
        self.at = {name: int.from_bytes(head[place : place + 8], "little") for name, place in _OFFSETS.items()}
        debug = _DEBUG_TABLE.unpack(self.read(tables.asyncio, _DEBUG_TABLE.size))
        self.at |= dict(zip(_DEBUG_NAMES, debug, strict=True))
        is_free_threaded = head[16]
        if head[:8] != _COOKIE or head[10] != _MINOR or is_free_threaded or max(self.at.values()) > MOST_OFFSET:
            raise UnreadableError
        self.at["future_state"] = self.at["is_task"] - 4
        return tables.runtime + self.at["interpreters"]

    def threads(self, tables: Tables, only: int = 0) -> dict[int, int]:
        """Return tid in its own PID namespace → address of the thread state, for each thread that runs an event loop.
        `only`: leave out all tids but this one, unless 0."""
        left, interpreter, threads = MOST_THREADS, self.word(self.prepare(tables)), dict[int, int]()
        while interpreter:
            thread = self.word(interpreter, "threads")
            while thread and left > 0:
                left -= 1
                own_id = self.word(thread, "native_id")
                if only in (0, own_id) and self.loop_of(thread):
                    threads[own_id] = thread
                thread = self.word(thread, "next_thread")
            left -= 1
            interpreter = self.word(interpreter, "next_interpreter") if left > 0 else 0
        return threads

    def loop_of(self, thread: int) -> int:
        """Return the address of the event loop that a thread runs, 0 if none. `thread`: address of its thread state."""
        return self.word(thread, "running_loop")

    def word(self, base: int, member: str | int = 0, size: int = 8, *, signed: bool = False) -> int:
        """Return the integer of `size` bytes at address `base` + `member`, an offset or a name of one in `at`."""
        return self.number(base + (self.at[member] if isinstance(member, str) else member), size, signed=signed)

    def str_of(self, address: int) -> str:
        """Return the text of the str object at an address, at most _MOST_NAME characters."""
        return self.text(address, self.str_head, self.ascii_less, _MOST_NAME)

    def tasks(self, thread: int) -> Iterator[Task]:
        """Yield the unfinished tasks of a thread's loop, oldest first. `thread`: address of the thread state."""
        head, running = thread + self.at["tasks"], self.word(thread, "running_task")
        node = self.word(head, "next")
        for _ in range(MOST_TASKS):
            if node == head:
                return
            task = node - self.at["node"]
            frames, awaits, thing, inside = self.coroutines(self.word(task, "coroutine"))
            awaits = "running" if task == running else awaits
            yield task, self.name_of(task), awaits, thing, self._awaited_by(task), inside[:MOST_WAITERS], frames
            node = self.word(node, "next")
        raise UnreadableError

    def name_of(self, task: int) -> str:
        """Return the name of the task at an address, such as "Task-7"."""
        name = self.word(task, "task_name")
        is_number = self.type_of(name)[1] & _IS_INT
        return f"Task-{self.word(name, 24, 4)}" if is_number else self.str_of(name)

    def coroutines(self, coroutine: int) -> tuple[list[tuple[str, str, int]], str, int, list[int]]:
        """Return ([(function, file, line), leaf first], type of the awaited object, address of the object waited for,
        addresses of the objects of `async with`) of a task. `coroutine`: address of its outermost coroutine."""
        frames, inside, awaits, thing, lock, name = list[tuple[str, str, int]](), list[int](), "", 0, 0, ""
        for _ in range(_MOST_DEPTH):
            is_future, name = name == _OF_FUTURE, self.type_of(coroutine)[0]
            if name in _WRAPPERS:
                coroutine = self.word(coroutine, _FIRST_MEMBER)
                continue
            if name not in _WITH_FRAME:
                is_done = is_future and self.word(coroutine, "future_state", 1) in DONE
                awaits, thing = "" if is_done else name, coroutine
                break
            state = self.word(coroutine, "frame_state", 1, signed=True)
            if state > _EXECUTING:
                break
            frame, own, held, coroutine = self.frame_of(coroutine + self.at["frame"])
            frames.append(frame)
            inside += held
            lock = self._thing_of(frame, own) or lock
            is_call = state == _EXECUTING and coroutine and self.type_of(coroutine)[0] in _WITH_FRAME
            if not coroutine or not (state == _AWAITING or is_call):
                break
        return frames[::-1], awaits, lock or thing, inside

    def _thing_of(self, frame: tuple[str, str, int], first: int) -> int:
        """Return `first` (address of a frame's first local variable) if the frame's file is asyncio/locks.py or
        queues.py, where this is the object waited for; else 0. `frame`: (function, file, line)."""
        return first if _SYNCHRONIZES.search(frame[1]) else 0

    def frame_of(self, frame: int) -> tuple[tuple[str, str, int], int, list[int], int]:
        """Return ((function, file, line), first local variable, objects of `async with`, top of the evaluation stack)
        of the frame at an address; objects as addresses, 0 for none."""
        code = self.word(frame, "code") & ~TAGS
        if code not in self._codes:
            lines = self.word(code, "lines")
            content = self.read(lines + self.at["bytes"], min(self.word(lines, "bytes_size"), _MOST_LINES))
            table = LineTable(content, self.word(code, "first_line", 4), self.minor)
            texts = self.str_of(self.word(code, "name")), self.str_of(self.word(code, "file"))
            self._codes[code] = *texts, table, self.word(self.word(code, "local_names"), "tuple_size")
        name, file, table, nr_locals = self._codes[code]
        line = table.line_of((self.word(frame, "instruction") - code - self.at["instructions"]) // 2)
        slots = self._slots(frame)
        stack = slots[nr_locals:]
        place = name, file, min(max(line, 0), _LAST_LINE)
        held = filter(None, map(self._held, stack, [*stack[1:], 0]))
        return place, slots[0] if slots and nr_locals else 0, [*held], stack[-1] if stack else 0

    def _slots(self, frame: int) -> list[int]:
        """Return the addresses in the slots of the frame at an address: local variables, then evaluation stack."""
        begin = frame + self.at["locals"]
        return self.addresses(begin, (self.word(frame, "stack_top") - begin) // 8)

    def addresses(self, begin: int, number: int, most: int = _MOST_SLOTS) -> list[int]:
        """Return `number` words from `begin` on, at most `most`, without the tag bits of references."""
        content = self.read(begin, 8 * min(max(number, 0), most))
        return [word & ~TAGS for (word,) in struct.iter_unpack("<Q", content)]

    def _held(self, slot: int, above: int) -> int:
        """Return the address of the object of an `async with` block; 0 if `slot` is not its `__aexit__`. `slot` and
        `above`: contents of adjacent slots of a frame's stack. In 3.14 `slot` holds the function, `above` the object;
        before, `slot` holds a method bound to the object."""
        with suppress(UnreadableError):  # a slot may hold a number
            kind = self.type_of(slot)[0] if slot else ""
            function, thing = slot, above
            if kind == "method":
                function, thing = self.word(slot, _FUNCTION), self.word(slot, _SELF)
            is_exit = kind in ("method", "function") and self.str_of(self.word(function, _FUNCTION_NAME)) == "__aexit__"
            return thing if is_exit else 0
        return 0

    def type_of(self, thing: int) -> tuple[str, int]:
        """Return (name, tp_flags) of the type of the object at address `thing`."""
        return self.facts_of_type(self.word(thing, "type"))

    def facts_of_type(self, kind: int) -> tuple[str, int]:
        """Return (name, tp_flags) of the type at address `kind`."""
        if kind not in self._types:
            name = self.word(kind, "type_name")
            content = self.read(name, min(64, 4096 - name % 4096))  # it may stand at the end of a page
            self._types[kind] = content.split(b"\0")[0].decode("utf-8", "replace"), self.word(kind, "type_flags")
        return self._types[kind]

    def _awaited_by(self, task: int) -> list[int]:
        waiter = self.word(task, "awaited_by")
        if not waiter or not self.word(task, "awaited_by_is_set", 1):
            return [waiter] if waiter else []
        size = min(self.word(waiter, "set_mask") + 1, _MOST_SET)
        table = struct.iter_unpack("<QQ", self.read(self.word(waiter, "set_table"), 16 * size))
        return [key for key, _ in table if key][:MOST_WAITERS]
