# SPDX-License-Identifier: Apache-2.0
"""Decode `offcpu-counters` and `offcpu-task` samples: losses, limits, budgets, wait objects, Python frames, tasks."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi import counters as layouts
from perf_offcpu.abi.attr import PerfType, SoftwareConfig
from perf_offcpu.abi.wait_objects import MAGIC as OBJECTS_MAGIC
from perf_offcpu.abi.wait_objects import OBJECTS, TEXTS
from perf_offcpu.binary.layout import Order, to_int
from perf_offcpu.decode.python_lines import Code, Functions, read_codes
from perf_offcpu.errors import LayoutError
from perf_offcpu.losses import LossCause, Losses, Stage
from perf_offcpu.model.columns import Strings
from perf_offcpu.model.coverage import united
from perf_offcpu.model.recording import Budget, EventLoop, LoopTask, Spans, WaitObjects
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.structs import mutable
from perf_offcpu.text import printable

ObjectRow = dict[str, Any]  # fields of an object by name, with texts as bytes


def read_objects(payload: bytes, order: Order) -> dict[int, ObjectRow]:
    """Return id → wait object of an OBJECTS payload; raise LayoutError if it is damaged."""
    values = OBJECTS.unpack(payload, order)
    rows, texts = values["objects"], values["text"].split(b"\0")
    if len(texts) != len(TEXTS) * len(rows) + 1 or not rows:
        raise LayoutError(f"wait objects: {len(texts)} texts of {len(rows)} objects")
    texts_of_row = (texts[begin : begin + len(TEXTS)] for begin in range(0, len(texts) - 1, len(TEXTS)))
    return {row["id"]: row | dict(zip(TEXTS, own, strict=True)) for row, own in zip(rows, texts_of_row, strict=True)}


def object_table(objects: Mapping[int, ObjectRow], strings: Strings) -> WaitObjects:
    """Return `objects` (by id) as a table sorted by id; texts are interned in `strings`, pids of no process are -1."""
    rows = [objects[id_] for id_ in sorted(objects)]
    columns: dict[str, Any] = {name: strings.intern_all(row[name] for row in rows) for name in TEXTS}
    for name in ("id", "kind", "device", "inode", "number", "operation", "address", "peer_inode"):
        columns[name] = [row[name] for row in rows]
    for name in ("pid", "peer_pid"):  # 0 is no process of a user
        columns[name] = [row[name] if 0 < row[name] < 2**31 else -1 for row in rows]
    return WaitObjects.filled(len(rows), **columns)


_HEAD = layouts.BUDGETS.offset("budgets")
BUDGET_SUMS = (
    "running_ns", "runnable_ns", "preempted_ns", "throttled_ns", "interruptible_ns", "uninterruptible_ns",
    "idle_ns", "other_ns", "switches",
)  # fmt: skip
_LIMIT, _MOST_LINE = np.uint64(2**62), 2**31 - 1
_FUNCTION = re.compile(r"(?P<name>[^\t]*)\t(?P<file>[^\t]*)\t(?P<line>[0-9]{1,9})\t(?P<call>[0-9]{1,9})")
_Reading = tuple[int, int, int, int, int]  # fields of EventLoop before its tasks


def is_counters(spec: EventSpec) -> bool:
    """Return True if an evsel holds payloads of the recorder (`offcpu-counters`, `offcpu-task`), no measured events."""
    is_named = spec.name in (layouts.EVENT_NAME, layouts.TASK_EVENT)
    return is_named and (spec.attr.type, spec.attr.config) == (PerfType.SOFTWARE, SoftwareConfig.BPF_OUTPUT)


@mutable
class CollectorAccount:
    """Adds up times, losses and tables of the recorder's own samples (`offcpu-counters`, `offcpu-task`), if any."""

    # begin_ns, end_ns: CLOCK_MONOTONIC: waits that end in between are in the file
    begin_ns: int = 0
    end_ns: int = 0
    spans: list[tuple[int, int]] = field(default_factory=list)  # (begin, end) of each sample of counters
    threshold_ns: int = 0  # waits of at least this length are samples of their own
    counted: Losses = field(default_factory=Losses)  # losses by cause
    budgets: list[Budget] = field(default_factory=list)  # of threads, in the order of the file
    python: dict[tuple[int, int], Functions] = field(default_factory=dict)  # (tid, begin of the wait) → functions
    loops: dict[_Reading, list[LoopTask]] = field(default_factory=dict)
    loop_tasks: dict[bytes, LoopTask] = field(default_factory=dict)  # by their lines, which are often the same
    codes: dict[int, Code] = field(default_factory=dict)  # Python functions by id
    perf_maps: dict[int, bytes] = field(default_factory=dict)  # lines of perf maps by pid
    notes: dict[str, tuple[int, int]] = field(default_factory=dict)  # (number, ns) of each counter by name
    objects: dict[int, ObjectRow] = field(default_factory=dict)  # wait objects by id

    def take(self, payloads: Iterable[bytes], order: Order, counters: Losses) -> None:
        """Add raw `offcpu-counters` and `offcpu-task` payloads; count damaged ones in `counters` as BAD_SAMPLE."""
        for payload in payloads:
            try:
                self._take(payload, order)
            except LayoutError:
                counters.add(losses.BAD_SAMPLE)

    def _take(self, payload: bytes, order: Order) -> None:
        """Add one payload of the recorder, whose magic tells its layout; raise LayoutError if it is damaged."""
        magic = to_int(payload[:4], order)
        if magic == layouts.BUDGET_MAGIC:
            self.budgets.append(read_budgets(payload, order))
        elif magic == OBJECTS_MAGIC:
            self.objects |= read_objects(payload, order)
        elif magic == layouts.PYTHON_MAGIC:
            self.python |= read_functions(payload, order)
        elif magic == layouts.TASKS_MAGIC:
            reading, loop_tasks = read_loop_tasks(payload, order, self.loop_tasks)
            self.loops.setdefault(reading, []).extend(loop_tasks)
        elif magic == layouts.CODES_MAGIC:
            self.codes |= read_codes(payload, order)
        elif magic == layouts.JIT_MAP_MAGIC:
            values = layouts.JIT_MAP.unpack(payload, order)
            text, pid = bytes(values["text"]).rstrip(b"\0"), values["pid"]
            is_next = not text.startswith(b":apart")  # else a newer map of the JVM, which has the older ones, too
            self.perf_maps[pid] = self.perf_maps.get(pid, b"") + text if is_next else text
        else:
            self._read_counters(payload, order)

    def event_loops(self) -> tuple[EventLoop, ...]:
        """Return readings of event loops: of each thread the last one taken at an end of the recording, or of a part of
        it, then all that were taken meanwhile (`weight_ns` > 0)."""
        readings = [EventLoop(*reading, tuple(tasks)) for reading, tasks in self.loops.items()]
        last = {(loop.pid, loop.tid): loop for loop in readings if loop.tasks and not loop.weight_ns}
        return *last.values(), *(loop for loop in readings if loop.weight_ns)

    def _read_counters(self, payload: bytes, order: Order) -> None:
        """Add times and losses of a counters payload; raise LayoutError if it is damaged, skip an unknown magic."""
        values = layouts.COUNTERS.unpack(payload, order)
        if values["magic"] != layouts.MAGIC:
            return
        begin, end, threshold = (min(values[name], 2**63 - 1) for name in ("begin_ns", "end_ns", "threshold_ns"))
        # An account for each time between pauses; and other tools may have put several files into one.
        self.spans.append((begin, end))
        self.begin_ns = min(begin, self.begin_ns or begin)
        self.end_ns = max(end, self.end_ns)
        self.threshold_ns = max(threshold, self.threshold_ns)
        for counter in values["counters"]:
            cause = _cause(counter["name"].split(b"\0", 1)[0].decode("utf-8", "surrogateescape"))
            if cause.is_loss:
                self.counted.add(cause, counter["events"])
            self._note(cause, counter["events"], min(counter["ns"], 2**63 - 1))

    def _note(self, cause: LossCause, events: int, ns: int) -> None:
        """Add events and ns of one counter of the recorder to `notes[cause.name]`; of STACK_PERIOD, SAMPLING_PERIOD and
        THRESHOLD_RAISED, keep the largest ns instead of the sum."""
        count, known_ns = self.notes.get(cause.name, (0, 0))
        is_sum = cause not in (losses.STACK_PERIOD, losses.SAMPLING_PERIOD, losses.THRESHOLD_RAISED)
        self.notes[cause.name] = count + events, known_ns + ns if is_sum else max(known_ns, ns)

    def parts(self) -> Spans:
        """Return (begin, end) in ns of each span that was recorded between pauses, ascending; () without pauses."""
        spans = united(span for span in self.spans if span[0] > 0)  # others are damaged
        return tuple(spans) if len(spans) > 1 else ()


def _cause(name: str) -> LossCause:
    """Return the LossCause that a counter of the recorder names; a new one for an unknown name (a newer recorder's)."""
    cause = losses.CAUSES.get(name)
    is_ours = cause is not None and cause.stage in (Stage.BPF, Stage.RECORDER)
    return cause if cause and is_ours else LossCause(Stage.RECORDER, name, f"collector: {name}")


def read_functions(payload: bytes, order: Order) -> dict[tuple[int, int], Functions]:
    """Return (tid, begin of the wait in ns) → functions, leaf first, of a PYTHON payload; LayoutError if damaged."""
    values, functions = layouts.PYTHON.unpack(payload, order), Functions()
    for text in values["text"].decode("utf-8", "replace").strip("\0\n").split("\n"):
        match = _FUNCTION.fullmatch(text)
        if match is None or values["tid"] >= 1 << 31 or values["switch_out_ns"] >= _LIMIT:
            raise LayoutError("Python functions: no line of a function, or an impossible wait")
        functions.append((match["name"], match["file"], int(match["line"]), int(match["call"])))
    return {(values["tid"], values["switch_out_ns"]): functions}


def read_loop_tasks(payload: bytes, order: Order, by_line: dict[bytes, LoopTask]) -> tuple[_Reading, list[LoopTask]]:
    """Return (reading, tasks) of a TASKS payload: fields of EventLoop before its tasks, and the tasks; LayoutError if
    damaged. `by_line`: line of a payload → task, which equal lines share; new lines are added."""
    values = layouts.TASKS.unpack(payload, order)
    ids, times = (values["pid"], values["tid"]), (values["switch_out_ns"], values["read_ns"], values["weight_ns"])
    lines = values["text"].strip(b"\0\n").split(b"\n") if values["nr"] else []
    try:
        for line in lines:
            by_line[line] = by_line.get(line) or _read_task(line)
    except (ValueError, TypeError, RecursionError, OverflowError) as problem:
        raise LayoutError(f"tasks of an event loop: {problem}") from None
    if max(ids) >= 1 << 31 or max(times) >= _LIMIT or not (lines or values["weight_ns"]):
        raise LayoutError("tasks of an event loop: impossible ids or times")
    return ids + times, [by_line[line] for line in lines]


def _read_task(line: bytes) -> LoopTask:
    address, name, awaits, awaited, by, inside, frames = json.loads(line)
    places = tuple((printable(str(name)), str(file), min(max(int(line), 0), _MOST_LINE)) for name, file, line in frames)
    sets = frozenset(map(int, by)), frozenset(map(int, inside))
    return LoopTask(int(address), printable(str(name)), printable(str(awaits)), int(awaited), *sets, places)


def read_budgets(payload: bytes, order: Order) -> Budget:
    """Return the budgets in a BUDGETS payload, a row a thread; raise LayoutError if it is damaged. Impossible rows (an
    end before the begin, a time or sum of 2^62 ns or more) are left out."""
    number = to_int(payload[_HEAD - 2 : _HEAD], order)
    dtype = layouts.budget_layout(payload, order).dtype(order)
    if _HEAD + number * dtype.itemsize > len(payload):
        raise LayoutError(f"budgets: {len(payload)} bytes, too few for {number} threads")
    rows = np.zeros(number, layouts.BUDGET.dtype(order))
    rows[list(dtype.names or ())] = np.frombuffer(payload, dtype, number, _HEAD)
    sound = (rows["begin_ns"] <= rows["end_ns"]) & (rows["end_ns"] < _LIMIT)
    for name in (*BUDGET_SUMS, "stopped_ns", "traced_ns"):
        sound &= rows[name] < _LIMIT
    rows = rows[sound]
    return Budget.filled(
        len(rows),
        pid=rows["pid"].astype(np.uint32).view(np.int32),
        tid=rows["tid"].astype(np.uint32).view(np.int32),
        own_pid=_own_ids(rows["own_pid"]),
        own_tid=_own_ids(rows["own_tid"]),
        stopped_ns=(rows["stopped_ns"] + rows["traced_ns"]).astype(np.int64),
        **{name: rows[name].astype(np.int64) for name in ("begin_ns", "end_ns", *BUDGET_SUMS)},
    )


def _own_ids(column: NDArray[Any]) -> NDArray[Any]:
    ids = column.astype(np.int64)  # -1 is no value of an unsigned column
    return np.where((ids > 0) & (ids < 1 << 31), ids, -1).astype(np.int32)
