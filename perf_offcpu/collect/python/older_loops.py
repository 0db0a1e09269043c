# SPDX-License-Identifier: Apache-2.0
"""Read the tasks of one event loop from the memory of a process that runs CPython 3.11 to 3.13. asyncio.tasks has a
WeakSet of all tasks; the loop that a thread runs is in the thread's dict, in 3.13 in its thread state. Offsets are of
builds for 64-bit machines (Include/internal of CPython; FutureObj, TaskObj in Modules/_asynciomodule.c); offsets of the
interpreter come from the module `offsets`.

Before 3.14 a task does not refer to the tasks that await it. They are found by what each task awaits: another task
directly, or by gather(), wait(), wait_for(), a TaskGroup, not by shield() or as_completed()."""

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from perf_offcpu.collect.python.loop_tasks import DONE, MOST_OFFSET, MOST_TASKS, MOST_WAITERS, TAGS, Loop, Tables, Task
from perf_offcpu.collect.python.memory import UnreadableError
from perf_offcpu.collect.python.offsets import offsets_of

_HEAD, _MOST_FRAMES, _MOST_BASES = 800, 1024, 4
_OF_ALL: Final = {
    "type": 8, "type_name": 24, "type_flags": 168, "base": 256, "tuple_size": 16, "local_names": 96, "locals": 72,
    "stack_top": 64, "set_mask": 32, "set_table": 40, "bytes_size": 16, "bytes": 32, "basic_size": 32,
}  # fmt: skip
_FIRST_WITH_TABLE, _MODULES = 13, 88  # where _Py_DebugOffsets has interpreter_state.imports_modules
_TABLES: Final = "_current_tasks _all_tasks _scheduled_tasks _eager_tasks".split()  # _all_tasks: 3.11
_NAMES: Final = "modules running_loop frame frame_state owner waiter coroutine task_name future_state task_size".split()
_OF_MINOR: Final = {
    11: dict(zip(_NAMES, (888, 128, 80, 75, 69, 128, 136, 144, 88, 176), strict=True)),
    12: dict(zip(_NAMES, (944, 112, 72, 67, 70, 128, 136, 144, 88, 176), strict=True)),
    13: dict(zip(_NAMES, (0, 304, 72, 67, 70, 112, 120, 128, 96, 144), strict=True)),
}
_LOOP_OF_FUTURE, _REFERENT, _DICT_OF_MODULE = 16, 16, 16
_KEYS, _LOG2_BYTES, _KIND, _ENTRIES, _INDICES = 32, 9, 10, 24, 32  # offset of a dict's keys, and of their members
_GENERAL, _BY_GENERATOR, _SET_ENTRY, _REMOVED = 0, 1, 16, 2**64 - 1  # kinds of dict's keys, frame's owner
_VALUES: Final = {11: -32, 12: -24, 13: 24}  # where an object has its attributes, or (before 3.13) their address
_MOST_ATTRIBUTES, _FIRST_INLINE, _FIRST_IN_STATE, _WITH_HOLDER = 8, 13, 13, 11
_HELD_LOOP, _HELD_PID = 16, 24  # of a _RunningLoopHolder
_DICT_IN_TYPE, _MANAGED_DICT, _MOST_DICT, _SPLIT = 288, -24, 1 << 10, 40  # tp_dictoffset; its object if that is -1
_LIST_SIZE, _LIST = 16, 24
_AWAITS_TASKS: Final = re.compile(r"(TaskGroup\._\w+|_wait|wait_for) .*/asyncio/task(s|groups)\.py")


class OlderLoop(Loop):
    """Reader of the tasks of one thread's event loop in CPython 3.11 to 3.13. Methods raise UnreadableError."""

    _tables = Tables(0, 0, 0)

    def find_tasks(self, minor: int, runtime: int) -> int:
        """Return the address of the dict of the module asyncio.tasks, 0 if it was not imported. `minor`: of the version
        of CPython. `runtime`: address of `_PyRuntime`. Raises UnreadableError."""
        interpreter = self.word(self.prepare(Tables(minor, runtime, 0)))
        (module,) = self._values(self.word(interpreter, "modules"), ["asyncio.tasks"])
        return self.word(module, _DICT_OF_MODULE) if module else 0

    def prepare(self, tables: Tables) -> int:
        """Set `at`, name → offset; return the address of a pointer to the first interpreter. Raises UnreadableError."""
        offsets = offsets_of(head := self.read(tables.runtime, _HEAD), tables.minor)
        if not offsets or offsets["minor"] != tables.minor or tables.minor not in _OF_MINOR:
            raise UnreadableError
        self._tables = tables
        self.at = {**offsets, **_OF_ALL, **_OF_MINOR[tables.minor]}
        if tables.minor >= _FIRST_WITH_TABLE:
            self.at["modules"] = min(int.from_bytes(head[_MODULES : _MODULES + 8], "little"), MOST_OFFSET)
        self.at["native_id"] = offsets["thread_id"] + 8
        self.minor, self.str_head, self.ascii_less = tables.minor, offsets["compact"], offsets["ascii_less"]
        return tables.runtime + offsets["interpreters"]

    def loop_of(self, thread: int) -> int:
        """Return the address of the event loop that a thread runs, 0 if none. `thread`: address of its thread state."""
        loop = self.word(thread, "running_loop")
        if loop and self.minor < _FIRST_IN_STATE:  # it is the thread's dict
            (loop,) = self._values(loop, ["__asyncio_running_event_loop__"])
        if loop and self.minor == _WITH_HOLDER:  # a forked child has that of its parent
            loop = self.word(loop, _HELD_LOOP) if self.word(loop, _HELD_PID, 4) == self._tables.own_pid else 0
        return loop if loop and self.type_of(loop)[0] != "NoneType" else 0

    def tasks(self, thread: int) -> Iterator[Task]:
        """Yield the unfinished tasks of a thread's loop, by name; then raise UnreadableError if some cannot be read.
        `thread`: address of the thread state."""
        loop = self.loop_of(thread)
        current, *sets = self._values(self._tables.asyncio, _TABLES)
        running = next((task for key, task in self._entries(current) if key == loop), 0)
        addresses = [task for task in self._all_tasks(*sets) if self._is_waiting_in(task, loop)]
        facts, awaited_by = dict[int, tuple[Any, ...]](), defaultdict[int, list[int]](list)
        with suppress(UnreadableError):
            for task in addresses[:MOST_TASKS]:
                waiter = self.word(task, "waiter")
                facts[task] = self.name_of(task), waiter, *self.coroutines(self.word(task, "coroutine"))
        for task, (_, waiter, *_, thing, _) in facts.items():
            for awaited in facts.keys() & {waiter, *self._awaited_with(thing)}:
                awaited_by[awaited].append(task)
        for task in sorted(facts, key=lambda task: (len(facts[task][0]), facts[task][0])):
            name, waiter, frames, awaits, thing, inside = facts[task]
            if task == running:
                frames, awaits = self._running(thread, self.word(task, "coroutine") + self.at["frame"]), "running"
            awaits = awaits if waiter or task == running else ""
            yield task, name, awaits, thing, awaited_by[task][:MOST_WAITERS], inside[:MOST_WAITERS], frames
        if len(facts) < len(addresses):
            raise UnreadableError

    def _all_tasks(self, all_tasks: int, scheduled: int, eager: int) -> set[int]:
        """Return addresses of all tasks, ended ones, too: members of two WeakSets, one of which exists, and a set.
        `all_tasks`, `scheduled`, `eager`: addresses of these variables of asyncio.tasks, 0 if missing."""
        tasks = set(self._members(eager)) if eager else set()
        for weak_set in filter(None, (all_tasks, scheduled)):
            tasks.update(self.word(reference, _REFERENT) for reference in self._members(self._set_in(weak_set)))
        return tasks

    def _is_waiting_in(self, thing: int, loop: int) -> bool:
        """Return True if the object at address `thing` is an unfinished task of the loop at address `loop`."""
        kind = self.word(thing, "type") if thing else 0
        for _ in range(_MOST_BASES):
            if kind and self.facts_of_type(kind)[0] == "_asyncio.Task":
                if self.word(kind, "basic_size") != self.at["task_size"]:  # the offsets are of another layout
                    raise UnreadableError
                return self.word(thing, _LOOP_OF_FUTURE) == loop and self.word(thing, "future_state", 1) not in DONE
            kind = self.word(kind, "base") if kind else 0
        return False

    def _running(self, thread: int, last: int) -> list[tuple[str, str, int]]:
        """Return (function, file, line) of each coroutine that a thread runs, leaf first, up to the frame at address
        `last`; [] if this frame is not reached. `thread`: address of the thread state."""
        frame, places = self.word(thread, "thread_frame"), list[tuple[str, str, int]]()
        frame = self.word(frame, "c_frame") if frame and not self.at.get("direct") else frame
        left = _MOST_FRAMES
        while frame and (left := left - 1):
            if self.word(frame, "owner", 1) == _BY_GENERATOR:
                places.append(self.frame_of(frame)[0])
            if frame == last:
                return places
            frame = self.word(frame, "previous")
        return []

    def _slots(self, frame: int) -> list[int]:
        return self.addresses(frame + self.at["locals"], self.word(frame, "stack_top", 4, signed=True))

    def _thing_of(self, frame: tuple[str, str, int], first: int) -> int:
        return first if _AWAITS_TASKS.match(" ".join(frame[:2])) else super()._thing_of(frame, first)

    def _awaited_with(self, thing: int) -> list[int]:
        """Return addresses of the futures that an awaited object stands for: members of a set or TaskGroup, children of
        gather(), else the object itself. `thing`: its address."""
        with suppress(UnreadableError):
            name = self.type_of(thing)[0] if thing else ""
            if name in ("set", "TaskGroup"):
                return self._members(thing if name == "set" else self._set_in(thing))
            if name == "_GatheringFuture":
                children = self._children_of(thing)
                return self.addresses(self.word(children, _LIST), self.word(children, _LIST_SIZE), MOST_TASKS)
        return [thing]

    def _children_of(self, thing: int) -> int:
        offset = self.word(self.word(thing, "type"), _DICT_IN_TYPE)  # of its dict, or -1
        variables = self.word(thing, offset if offset < _MOST_DICT else _MANAGED_DICT)
        if not (values := self.word(variables, _SPLIT)):
            return self._values(variables, ["_children"])[0]
        return self._first(values + (8 if self.minor >= _FIRST_INLINE else 0), "list")

    def _set_in(self, thing: int) -> int:
        """Return the address of the first set among an object's attribute values. `thing`: address of the object."""
        values = thing + _VALUES[self.minor]
        if self.minor < _FIRST_INLINE:
            values = self.word(values) + 1 & ~TAGS  # 3.12 has the address less one
        return self._first(values, "set")

    def _first(self, values: int, kind: str) -> int:
        for value in self.addresses(values, _MOST_ATTRIBUTES) if values else ():
            if value and self.type_of(value)[0] == kind:
                return value
        raise UnreadableError

    def _members(self, thing: int) -> list[int]:
        """Return the addresses of the members of a set. `thing`: address of the set."""
        table = self.read(self.word(thing, "set_table"), _SET_ENTRY * (self.word(thing, "set_mask") + 1))
        words = iter(memoryview(table).cast("Q").tolist())
        return [key for key, hash_ in zip(words, words, strict=True) if key and hash_ != _REMOVED]

    def _entries(self, thing: int) -> Iterator[tuple[int, int]]:
        """Yield (address of key, address of value) of each entry of the dict at address `thing`."""
        keys = self.word(thing, _KEYS)
        number, is_general = self.word(keys, _ENTRIES), self.word(keys, _KIND, 1) == _GENERAL
        begin, words = keys + _INDICES + (1 << min(self.word(keys, _LOG2_BYTES, 1), 40)), 3 if is_general else 2
        rows = memoryview(self.read(begin, 8 * words * number)).cast("Q").tolist()
        yield from zip(rows[words - 2 :: words], rows[words - 1 :: words], strict=True)

    def _values(self, thing: int, names: list[str]) -> list[int]:
        """Return the address of the value of each key in `names`, 0 if missing. `thing`: address of the dict."""
        values, lengths = dict[str, int](), set(map(len, names))
        for key, value in self._entries(thing):
            if key and value and self.word(key, 16) in lengths and (name := self.str_of(key)) in names:
                values[name] = value
        return [values.get(name, 0) for name in names]
