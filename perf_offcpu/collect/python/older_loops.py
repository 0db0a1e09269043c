# SPDX-License-Identifier: Apache-2.0
"""Read the tasks of one event loop from the memory of a process that runs CPython 3.11 to 3.13. asyncio.tasks has a
WeakSet of all tasks, each of which knows its loop, as does the state of a thread that runs one. Offsets are those of
builds for 64-bit machines: Include/internal of CPython, and FutureObj and TaskObj in Modules/_asynciomodule.c; those of
the interpreter: `offsets`.

Before 3.14 a task does not know who awaits it: only a task that another one awaits directly does here."""

from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Final

from perf_offcpu.collect.python.loop_tasks import DONE, MOST_TASKS, MOST_WAITERS, TAGS, Loop, Tables, Task
from perf_offcpu.collect.python.memory import UnreadableError
from perf_offcpu.collect.python.offsets import offsets_of

_HEAD, _MOST_FRAMES, _MOST_ENTRIES, _MOST_BASES = 800, 1024, 1 << 16, 4
_OF_ALL: Final = {
    "type": 8, "type_name": 24, "type_flags": 168, "base": 256, "tuple_size": 16, "local_names": 96, "locals": 72,
    "stack_top": 64, "set_mask": 32, "set_table": 40, "bytes_size": 16, "bytes": 32, "basic_size": 32,
}  # fmt: skip
_NAMES: Final = "modules running_loop frame frame_state owner waiter future_state task_size".split()
_OF_MINOR: Final = {
    11: dict(zip(_NAMES, (888, 128, 80, 75, 69, 128, 88, 176), strict=True)),
    12: dict(zip(_NAMES, (944, 112, 72, 67, 70, 128, 88, 176), strict=True)),
    13: dict(zip(_NAMES, (7656, 304, 72, 67, 70, 112, 96, 144), strict=True)),
}
_LOOP_OF_FUTURE, _REFERENT, _SELF, _FUNCTION, _FUNCTION_NAME, _DICT_OF_MODULE = 16, 16, 24, 16, 32, 16
_KEYS, _LOG2_BYTES, _KIND, _ENTRIES, _INDICES = 32, 9, 10, 24, 32  # of a dict: its keys, and members of these
_GENERAL, _BY_GENERATOR, _SET_ENTRY = 0, 1, 16  # kinds of a dict's keys and of a frame's owner; bytes
_VALUES: Final = {11: -32, 12: -24, 13: 24}  # where an object has its attributes, or (before 3.13) their address
_MOST_ATTRIBUTES, _BEFORE_INLINE = 8, 13
_WITH_HOLDER, _FIRST_WITH_MEMBER, _LOOP_OF_HOLDER = (
    11,
    13,
    16,
)  # of the loop that a thread runs, before 3.13 in its dict


class OlderLoop(Loop):
    """Reader of the tasks of one thread."""

    def __init__(self, fd: int, until_s: float, pages: Collection[int]) -> None:
        super().__init__(fd, until_s, pages)
        self._offsets: dict[str, int] = {}
        self._asyncio = 0

    def find_tasks(self, minor: int, runtime: int) -> int:
        """Return the address of the variables of asyncio.tasks, 0 if it was not imported. Raises UnreadableError."""
        interpreter = self.word(self.prepare(Tables(minor, runtime, 0)))
        (module,) = self._values(self.word(interpreter, "modules"), ["asyncio.tasks"])
        return self.word(module, _DICT_OF_MODULE) if module else 0

    def prepare(self, tables: Tables) -> int:
        """Do as in later versions; `at` has the names of later versions."""
        offsets = offsets_of(self.read(tables.runtime, _HEAD), tables.minor)
        if not offsets or offsets["minor"] != tables.minor or tables.minor not in _OF_MINOR:
            raise UnreadableError
        self.at, self._offsets, self._asyncio = (
            {**offsets, **_OF_ALL, **_OF_MINOR[tables.minor]},
            offsets,
            tables.asyncio,
        )
        self.at |= {"native_id": offsets["thread_id"] + 8, "coroutine": self.at["waiter"] + 8}
        self.at["task_name"] = self.at["waiter"] + 16
        self.minor, self.str_head = tables.minor, offsets["compact"]
        self.ascii_less = offsets["ascii_less"]
        return tables.runtime + offsets["interpreters"]

    def loop_of(self, thread: int) -> int:
        """Return the event loop that a thread runs, 0 if none."""
        loop = self.word(thread, "running_loop")
        if self.minor < _FIRST_WITH_MEMBER:  # it is the thread's dict
            (loop,) = self._values(loop, ["__asyncio_running_event_loop__"]) if loop else (0,)
            loop = self.word(loop, _LOOP_OF_HOLDER) if loop and self.minor == _WITH_HOLDER else loop
        return loop if loop and self.type_of(loop)[0] != "NoneType" else 0

    def _frames_of(self, thread: int) -> list[int]:
        """Return the Python frames of a thread, leaf first."""
        frame, frames = self.word(thread, "thread_frame"), list[int]()
        frame = self.word(frame, self._offsets["c_frame"]) if frame and not self._offsets.get("direct") else frame
        while frame and len(frames) < _MOST_FRAMES:
            frames += [frame] if self.word(frame, "entry", 1) < self.at["least_shim"] else []
            frame = self.word(frame, "previous")
        return frames

    def tasks(self, thread: int) -> Iterator[Task]:
        """Yield the tasks that have not ended, by name."""
        loop = self.loop_of(thread)
        names = ["_current_tasks", "_all_tasks", "_scheduled_tasks", "_eager_tasks"]
        current, *weak, eager = self._values(self._asyncio, names)
        running = next((task for key, task in self._entries(current) if key == loop), 0)
        references = [word for thing in weak if thing for word in self._members(self._set_in(thing))]
        tasks = dict.fromkeys(self.word(reference, _REFERENT) for reference in references)
        tasks |= dict.fromkeys(self._members(eager) if eager else ())
        own = [task for task in tasks if task and self._is_task(task) and self._is_of(task, loop)]
        waiter_of = {task: self.word(task, "waiter") for task in own[:MOST_TASKS]}
        awaited_by = defaultdict[int, list[int]](list)
        for task, waiter in waiter_of.items():
            awaited_by[waiter].append(task)
        named = sorted((self.name_of(task), task) for task in waiter_of)
        for name, task in sorted(named, key=lambda pair: (len(pair[0]), pair)):
            coroutine = self.word(task, "coroutine")
            places, awaits, thing, inside = self.coroutines(coroutine)
            if task == running:
                places, awaits = self._running(self._frames_of(thread), coroutine + self.at["frame"]), "running"
            elif not waiter_of[task]:
                awaits = ""
            yield task, name, awaits, thing, awaited_by[task][:MOST_WAITERS], inside[:MOST_WAITERS], places
        if len(own) > MOST_TASKS:
            raise UnreadableError

    def _is_of(self, task: int, loop: int) -> bool:
        return self.word(task, _LOOP_OF_FUTURE) == loop and self.word(task, "future_state", 1) not in DONE

    def _is_task(self, thing: int) -> bool:
        kind = self.word(thing, "type")
        for _ in range(_MOST_BASES):
            if kind and self.facts_of_type(kind)[0] == "_asyncio.Task":
                if self.word(kind, "basic_size") != self.at["task_size"]:  # the offsets are of another layout
                    raise UnreadableError
                return True
            kind = self.word(kind, "base") if kind else 0
        return False

    def _running(self, frames: list[int], own: int) -> list[tuple[str, str, int]]:
        """Return the coroutines that run in a thread, leaf first, up to the frame `own` of the task's own."""
        inner = frames[: frames.index(own) + 1] if own in frames else []
        return [self.frame_of(frame)[0] for frame in inner if self.word(frame, "owner", 1) == _BY_GENERATOR]

    def _slots(self, frame: int) -> list[int]:
        return self.addresses(frame + self.at["locals"], self.word(frame, "stack_top", 4, signed=True))

    def _held(self, stack: list[int]) -> list[int]:
        return [self.word(slot, _SELF) for slot in stack if slot and self._is_exit(slot)]

    def _is_exit(self, slot: int) -> bool:
        with suppress(UnreadableError):  # a slot may hold a number
            if self.type_of(slot)[0] == "method":
                return self.str_of(self.word(self.word(slot, _FUNCTION), _FUNCTION_NAME)) == "__aexit__"
        return False

    def _set_in(self, thing: int) -> int:
        """Return the first attribute of an object that is a set."""
        values = thing + _VALUES[self.minor]
        if self.minor < _BEFORE_INLINE:
            values = self.word(values) + 1 & ~TAGS  # 3.12 has the address less one
        for value in self.addresses(values, _MOST_ATTRIBUTES) if values else ():
            if value and self.type_of(value)[0] == "set":
                return value
        raise UnreadableError

    def _members(self, thing: int) -> list[int]:
        """Return the members of a set."""
        number = self.word(thing, "set_mask") + 1
        if number > _MOST_ENTRIES:
            raise UnreadableError
        content = self.read(self.word(thing, "set_table"), _SET_ENTRY * number)
        return [word for word in memoryview(content).cast("Q")[::2].tolist() if word]

    def _entries(self, thing: int) -> Iterator[tuple[int, int]]:
        """Yield (key, value) of a dict."""
        keys = self.word(thing, _KEYS)
        number, is_general = self.word(keys, _ENTRIES), self.word(keys, _KIND, 1) == _GENERAL
        begin, words = keys + _INDICES + (1 << min(self.word(keys, _LOG2_BYTES, 1), 40)), 3 if is_general else 2
        if number > _MOST_ENTRIES:
            raise UnreadableError
        rows = memoryview(self.read(begin, 8 * words * number)).cast("Q").tolist()
        yield from zip(rows[words - 2 :: words], rows[words - 1 :: words], strict=True)

    def _values(self, thing: int, names: list[str]) -> list[int]:
        """Return the values of keys of a dict, 0 for those that it has not."""
        values, lengths = dict[str, int](), set(map(len, names))
        for key, value in self._entries(thing):
            if key and value and self.word(key, 16) in lengths and (name := self.str_of(key)) in names:
                values[name] = value
        return [values.get(name, 0) for name in names]
