# SPDX-License-Identifier: Apache-2.0
"""Read the Python functions of threads that stand still, from outside: of waits that have not ended, and as an ordinary
user. The BPF program reads the others when they end (bpf/python.h), by the same offsets (`offsets`)."""

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from perf_offcpu import losses
from perf_offcpu.abi.counters import PYTHON, PYTHON_MAGIC, VERSION
from perf_offcpu.binary.line_table import LineTable
from perf_offcpu.collect.bpf.last_tasks import LastTasks
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.kernel_totals.user_stacks import Unread, of_each
from perf_offcpu.collect.python.memory import Memory, UnreadableError, switches_of

_MOST_S, _MOST_THREAD_S = 4.0, 0.5  # time for all; CPU time of one thread
_MOST_FRAMES, _MOST_THREADS = 1024, 4096
_MOST_NAME, _MOST_LINES = 1000, 16 << 10
_MOST_TEXT: Final = 48 << 10  # bytes of a thread's functions, which leave room for the rest of a record
_MOST_LINE: Final = 10**9 - 1
_BYTES_SIZE, _BYTES = 16, 32  # of a bytes object: its size, its content
_FIRST_WITH_ID: Final = 11  # of Python 3: threads tell the id that the kernel knows
_UNSAID: Final = dict.fromkeys(("tag", "direct", "relative", "unit_shift", "entry_each", "entry_marked"), 0)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")

Functions = list[tuple[str, str, int, int]]
"""(name, file, line, call) of each Python function of a thread, leaf first. `call`: number of the call of the
interpreter's C function that runs it, counted from the root."""


def with_python_functions(last: LastTasks, offsets: Mapping[int, dict[str, int]], unread: Unread) -> LastTasks:
    """Return `last` with the payloads that name the Python functions of waiting threads. `offsets`: of each process
    that runs CPython (`PythonProcesses.offsets`). `unread`: counts threads that ran meanwhile or could not be read."""
    pid, tid, since, switches = (last.tasks[name].tolist() for name in ("pid", "tid", "switch_out_ns", "nr_switches"))
    rows = [row for row in last.waiting().tolist() if offsets.get(pid[row])]

    def read(row: int) -> tuple[int, Functions]:
        return read_functions(pid[row], tid[row], offsets[pid[row]])

    answers = of_each(rows, [pid[row] for row in rows], read, unread, _MOST_S) if rows else {}
    sound = {row: functions for row, (count, functions) in answers.items() if count == switches[row]}
    unread.lost.add(losses.PYTHON_UNREAD, len(rows) - len(sound))
    payloads = [functions_payload(pid[row], tid[row], since[row], calls) for row, calls in sound.items() if calls]
    return replace(last, python=(*last.python, *payloads))


def read_functions(pid: int, tid: int, offsets: dict[str, int]) -> tuple[int, Functions]:
    """Return (context switches of a thread, -1 if it has run meanwhile; its Python functions, maybe none). Raises
    OSError: it has ended; UnreadableError. `offsets`: members of `struct offcpu_python`."""
    before, own_id = switches_of(pid, tid)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:  # direct: a file of /proc
        reader = FunctionReader(Memory(memory.fileno(), time.process_time() + _MOST_THREAD_S), offsets)
        functions = reader.functions(own_id)
    return (before if switches_of(pid, tid)[0] == before else -1), functions


class FunctionReader:
    """Reader of the functions of one process. `offsets`: members of `struct offcpu_python` (`offsets`)."""

    def __init__(self, memory: Memory, offsets: dict[str, int]) -> None:
        self._memory, self._at = memory, _UNSAID | offsets
        self._codes: dict[int, tuple[str, str, LineTable]] = {}

    def functions(self, own_id: int) -> Functions:
        """Return the functions of a thread, [] if it runs none. `own_id`: its id in its own PID namespace. Raises
        UnreadableError."""
        at, word = self._at, self._memory.number
        frame, places, firsts = self._frame_of(own_id), list[tuple[str, str, int]](), list[int]()
        for _ in range(_MOST_FRAMES):
            if not frame:
                break
            mark = word(frame + at["entry"], 1)
            if mark >= at["least_shim"]:
                firsts[-1:] = [1] if firsts else []
            else:
                code = word(frame + at["code"]) & ~at["tag"]
                index = word(frame + at["instruction"]) & at["index_mask"]
                index -= code + at["instructions"] if at["relative"] else 0
                places.append(self._place(code, index >> at["unit_shift"]))
                firsts.append(at["entry_each"] | (mark & at["entry_marked"]))
            frame = word(frame + at["previous"])
        calls = sum(firsts)
        numbers = [calls - sum(firsts[:row]) for row in range(len(firsts))]
        return [(*place, number) for place, number in zip(places, numbers, strict=True)]

    def _frame_of(self, own_id: int) -> int:
        """Return the address of the frame that a thread runs, 0 if it runs none."""
        at, word, left = self._at, self._memory.number, _MOST_THREADS
        if at["minor"] < _FIRST_WITH_ID:
            raise UnreadableError
        interpreter = word(at["interpreters"])
        while interpreter and left > 0:
            thread = word(interpreter + at["threads"])
            while thread and left > 0:
                left -= 1
                if word(thread + at["thread_id"] + 8) == own_id:  # native_thread_id
                    frame = word(thread + at["thread_frame"])
                    frame = frame if at["direct"] or not frame else word(frame + at["c_frame"])
                    if frame:
                        return frame
                thread = word(thread + at["next_thread"])
            left -= 1
            interpreter = word(interpreter + at["next_interpreter"])
        return 0

    def _place(self, code: int, index: int) -> tuple[str, str, int]:
        """Return (name, file, line) of an instruction of a code object."""
        if code not in self._codes:
            self._codes[code] = self._describe(code + self._at["code_begin"])
        name, file, table = self._codes[code]
        return name, file, min(max(table.line_of(index), 0), _MOST_LINE)

    def _describe(self, begin: int) -> tuple[str, str, LineTable]:
        at, number = self._at, self._memory.number
        places = [number(begin + at[member]) for member in ("name", "file")]
        name, file = (self._memory.text(place, at["compact"], at["ascii_less"], _MOST_NAME) for place in places)
        lines = number(begin + at["lines"])
        table = self._memory.read(lines + _BYTES, min(number(lines + _BYTES_SIZE), _MOST_LINES))
        first_line = number(begin + at["first_line"], 4)
        return _CONTROL.sub("?", name), _CONTROL.sub("?", file), LineTable(table, first_line, at["minor"])


def functions_payload(pid: int, tid: int, switch_out_ns: int, functions: Functions) -> bytes:
    """Return the payload (abi.counters.PYTHON) of a thread, with as many functions, from the leaf on, as have room."""
    lines: list[bytes] = []
    size = 0
    for name, file, line, call in functions:
        text = f"{name}\t{file}\t{line}\t{call}\n".encode("utf-8", "replace")
        size += len(text)
        if size > _MOST_TEXT:
            break
        lines.append(text)
    values = {"magic": PYTHON_MAGIC, "version": VERSION, "nr": len(lines), "text": b"".join(lines)}
    return PYTHON.pack(values | {"pid": pid, "tid": tid, "switch_out_ns": switch_out_ns}, NATIVE)
