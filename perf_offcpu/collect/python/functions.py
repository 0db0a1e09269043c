# SPDX-License-Identifier: Apache-2.0
"""Read the Python functions of blocked threads from outside of their process: for waits that have not ended, and in
recordings without BPF. For waits that end, the BPF program reads them (bpf/python.h), by the same offsets."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache
from itertools import accumulate, islice
from typing import Final

from perf_offcpu.abi.counters import PYTHON, PYTHON_MAGIC, VERSION
from perf_offcpu.binary.line_table import LineTable
from perf_offcpu.collect.bpf.last_tasks import LastTasks
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.kernel_totals.user_stacks import Unread, read_by_row
from perf_offcpu.collect.python.memory import Memory, UnreadableError, switches_of

_MOST_S, _MOST_THREAD_S = 4.0, 0.5  # time for all; CPU time of one thread
_MOST_FRAMES, _MOST_THREADS = 1024, 4096
_MOST_NAME, _MOST_LINES = 1000, 16 << 10
_MOST_TEXT: Final = 48 << 10  # bytes of a thread's functions, which leave room for the rest of a record
_MOST_LINE: Final = 10**9 - 1
_BYTES_SIZE, _BYTES = 16, 32  # of a bytes object: its size, its content
_CODE_BYTES, _MOST_CODES = 168, 4096
_FIRST_WITH_ID: Final = 11  # minor version from which a thread state holds the tid
_UNSAID: Final = dict.fromkeys(("tag", "direct", "relative", "unit_shift", "entry_each", "entry_marked"), 0)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")

Functions = list[tuple[str, str, int, int]]
"""(name, file, line, call) of each Python function of a thread, leaf first. `call`: number of the call of the
interpreter's C function that runs it, counted from the root."""
Wait = tuple[int, int, int]
"""(pid, tid, begin in ns) of a wait."""


def with_python_functions(
    last: LastTasks,
    offsets: Mapping[int, dict[str, int]],
    unread: Unread,
    functions_of_wait: dict[Wait, Functions],
    *,
    least_ns: int = 0,
) -> LastTasks:
    """Return `last` with further `payloads`: the Python functions of waiting threads, without threads that
    run or end meanwhile. `offsets`: `PythonProcesses.offsets`. `unread`: counts threads that cannot be read.
    `functions_of_wait`: earlier results, used for waits that still last; updated. `least_ns`: shortest wait."""
    pid, tid, since, switches = (last.tasks[name].tolist() for name in ("pid", "tid", "switch_out_ns", "nr_switches"))
    rows = [row for row in last.waiting().tolist() if offsets.get(pid[row]) and last.end_ns - since[row] >= least_ns]

    @cache
    def reader_of(pid: int) -> FunctionReader:
        return FunctionReader(pid, offsets[pid])

    def read(row: int) -> tuple[int, Functions]:
        try:
            return read_functions(tid[row], reader_of(pid[row]))
        except (FileNotFoundError, ProcessLookupError):
            return -1, []

    wait_of = {row: (pid[row], tid[row], since[row]) for row in rows}
    new = [row for row, wait in wait_of.items() if wait not in functions_of_wait]
    answers = read_by_row(last.tasks, new, read, unread, _MOST_S) if new else {}
    read_now = {wait_of[row]: calls for row, (count, calls) in answers.items() if count == switches[row]}
    functions = {wait: functions_of_wait[wait] for wait in wait_of.values() if wait in functions_of_wait} | read_now
    functions_of_wait.clear()
    functions_of_wait |= islice(functions.items(), _MOST_THREADS)
    payloads = [functions_payload(wait, calls) for wait, calls in functions.items() if calls]
    return replace(last, payloads=(*last.payloads, *payloads))


def read_functions(tid: int, reader: FunctionReader) -> tuple[int, Functions]:
    """Return (number of context switches of a thread, -1 if it has run meanwhile; its Python functions, [] for none).
    Raises OSError: the thread has ended; UnreadableError: its memory cannot be read."""
    before, own_id = switches_of(reader.pid, tid)
    functions = reader.functions(own_id)
    return (before if switches_of(reader.pid, tid)[0] == before else -1), functions


_line_table = lru_cache(_MOST_CODES)(LineTable)  # by content


class FunctionReader:
    """Reader of the Python functions of one process's threads. It caches addresses of thread states and contents of
    code objects, and checks both before each use. `offsets`: members of `struct offcpu_python`."""

    def __init__(self, pid: int, offsets: dict[str, int]) -> None:
        self.pid, self._offsets = pid, _UNSAID | offsets
        self._threads = dict[int, int]()
        self._codes = dict[tuple[int, bytes], tuple[str, str, LineTable]]()

    def functions(self, own_id: int) -> Functions:
        """Return the Python functions of a thread that stands still, [] if it runs none. `own_id`: its tid in its own
        PID namespace. Raises OSError: the process has ended; UnreadableError: its memory cannot be read."""
        with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as file:  # direct: a file of /proc
            return self.functions_in(Memory(file.fileno(), time.process_time() + _MOST_THREAD_S), own_id)

    def functions_in(self, memory: Memory, own_id: int) -> Functions:
        """Return the Python functions of a thread, [] if it runs none. `memory`: of its process, open. `own_id`: its
        tid in its own PID namespace. Raises UnreadableError."""
        offsets, places, firsts = self._offsets, list[tuple[str, str, int]](), list[int]()
        # Before 3.12, an address may be that of another code object by now.
        if not offsets["version"] or len(self._codes) > _MOST_CODES:
            self._codes.clear()
        frame = self._frame_of(memory, own_id)
        for _ in range(_MOST_FRAMES):
            if not frame:
                break
            view = memory.read(frame, offsets["frame_size"])
            code, index, frame = (_word(view, offsets[member]) for member in ("code", "instruction", "previous"))
            if (mark := view[offsets["entry"]]) >= offsets["least_shim"]:
                firsts[-1:] = [1] if firsts else []
                continue
            code &= ~offsets["tag"]
            index = (index & offsets["index_mask"]) - (code + offsets["instructions"] if offsets["relative"] else 0)
            name, file, table = self._code(memory, code)
            places.append((name, file, min(max(table.line_of(index >> offsets["unit_shift"]), 0), _MOST_LINE)))
            firsts.append(offsets["entry_each"] | (mark & offsets["entry_marked"]))
        calls = list(accumulate(reversed(firsts)))
        return [(*place, call) for place, call in zip(places, reversed(calls), strict=True)]

    def _frame_of(self, memory: Memory, own_id: int) -> int:
        """Return the address of a thread's innermost Python frame, 0 if none. `own_id`: tid in its PID namespace."""
        offsets, word, left = self._offsets, memory.number, _MOST_THREADS
        if offsets["minor"] < _FIRST_WITH_ID:
            raise UnreadableError
        with suppress(UnreadableError):
            if (kept := self._threads.pop(own_id, 0)) and (frame := self._frame_at(memory, kept, own_id)):
                return frame
        self._threads.clear()
        interpreter = word(offsets["interpreters"])
        while interpreter and left > 0:
            thread = word(interpreter + offsets["threads"])
            while thread and left > 0:
                left -= 1
                if frame := self._frame_at(memory, thread, own_id):
                    return frame
                thread = word(thread + offsets["next_thread"])
            left -= 1
            interpreter = word(interpreter + offsets["next_interpreter"])
        return 0

    def _frame_at(self, memory: Memory, thread: int, own_id: int) -> int:
        """Return the address of the innermost frame of a thread state; 0 if it has none or its thread's tid in its own
        PID namespace is not `own_id`. `thread`: address of the thread state."""
        offsets = self._offsets
        id_ = memory.number(thread + offsets["thread_id"] + 8)  # native_thread_id
        self._threads[id_] = thread
        if id_ != own_id:
            return 0
        frame = memory.number(thread + offsets["thread_frame"])
        return frame if offsets["direct"] or not frame else memory.number(frame + offsets["c_frame"])

    def _code(self, memory: Memory, code: int) -> tuple[str, str, LineTable]:
        """Return (function, file, line table) of a code object. `code`: its address."""
        offsets = self._offsets
        head = memory.read(code, _CODE_BYTES)
        if (code, head) not in self._codes:
            name, file = (
                memory.text(_word(head, offsets[member]), offsets["compact"], offsets["ascii_less"], _MOST_NAME)
                for member in ("name", "file")
            )
            lines = _word(head, offsets["lines"])
            table = memory.read(lines + _BYTES, min(memory.number(lines + _BYTES_SIZE), _MOST_LINES))
            line_table = _line_table(table, _word(head, offsets["first_line"]) & 0xFFFFFFFF, offsets["minor"])
            self._codes[code, head] = _CONTROL.sub("?", name), _CONTROL.sub("?", file), line_table
        return self._codes[code, head]


def _word(view: bytes, offset: int) -> int:
    return int.from_bytes(view[offset : offset + 8], "little")


def functions_payload(wait: Wait, functions: Functions) -> bytes:
    """Return the payload (`abi.counters.PYTHON`) of a wait; functions far from the leaf are cut at _MOST_TEXT bytes."""
    lines: list[bytes] = []
    size = 0
    for name, file, line, call in functions:
        text = f"{name}\t{file}\t{line}\t{call}\n".encode("utf-8", "replace")
        size += len(text)
        if size > _MOST_TEXT:
            break
        lines.append(text)
    values = {"magic": PYTHON_MAGIC, "version": VERSION, "nr": len(lines), "text": b"".join(lines)}
    return PYTHON.pack(values | dict(zip(("pid", "tid", "switch_out_ns"), wait, strict=True)), NATIVE)
