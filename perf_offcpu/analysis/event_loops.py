# SPDX-License-Identifier: Apache-2.0
"""Sum up what the tasks of event loops wait for, by the functions of asyncio in which their coroutines stand. A task
holds a lock if it is in the lock's `async with` and does not wait for it; one taken otherwise has no known holder."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from perf_offcpu.abi.counters import GOROUTINES
from perf_offcpu.analysis.stack_walk import innermost_node
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import EventLoop, LoopTask, SampleFlag
from perf_offcpu.text import basename, printable

RUNNING, READY = "running", "ready to run"
_HELD_UP = frozenset(("asyncio.Lock", "asyncio.Semaphore", "asyncio.Barrier", "asyncio.Queue.put"))
_SHOWN, _SHOWN_LOOPS = 2, 3  # groups of a loop and holders of a lock; loops
_LEAST_PERCENT = 5  # least `LoopTimeRow.percent` of a row that a sentence is about
_WORDS = {
    "sleep": "a timer (asyncio.sleep)",
    "Server.serve_forever": "the next connection",
    "BaseSelectorEventLoop.sock_accept": "the next connection",
    "TaskGroup._aexit": "tasks of its group",
    "TaskGroup.__aexit__": "tasks of its group",
    "_wait": "other tasks (asyncio.wait)",
    "StreamReader._wait_for_data": "data of a stream",
    "FlowControlMixin._drain_helper": "room in a stream's buffer",
}
_TYPES = {"_asyncio.Future": "a future", "_GatheringFuture": "other tasks (asyncio.gather)"}


class TaskGroup(NamedTuple):
    """Tasks of one event loop that wait for the same thing in the same function."""

    tasks: int
    waits_for: str
    function: str  # of the program; "" if all coroutines are asyncio's
    holders: list[str]  # tasks that hold the lock, or the loop
    names: list[str]
    members: list[LoopTask]
    held_by: list[LoopTask]

    @property
    def is_held_up(self) -> bool:
        """Return True if the tasks wait for a lock, semaphore or barrier of asyncio, or for room in a queue."""
        return self.waits_for in _HELD_UP


class LoopRow(NamedTuple):
    """Event loop with its tasks in groups: the running task first, then tasks that are held up."""

    comm: str
    loop: EventLoop
    groups: list[TaskGroup]


class LoopTimeRow(NamedTuple):
    """Tasks of an event loop held up for one reason, or a task that blocked the loop; sums of all readings."""

    comm: str
    pid: int
    tid: int
    waits_for: str
    function: str
    held_by: str  # functions of the tasks that hold the lock
    tasks: float  # on average over time
    percent: float  # of the time of all tasks of the loop; of the loop's time if the task blocks it
    ready: float  # tasks that a task that blocks the loop keeps waiting, on average while it does


def loop_rows(profile: Profile) -> list[LoopRow]:
    """Return the event loops at the recording's end, of threads with samples; those with tasks held up come first."""
    comm_of = _comms(profile)
    loops = [loop for loop in profile.loops if loop.tid in comm_of and not loop.weight_ns]
    rows = [LoopRow(comm_of[loop.tid], loop, groups_of(loop)) for loop in loops]
    return sorted(rows, key=lambda row: -sum(group.tasks for group in row.groups if group.is_held_up))


def _comms(profile: Profile) -> dict[int, str]:
    """Return tid → comm, printable, of the threads of event loops that have samples."""
    samples, tids = profile.samples, {loop.tid for loop in profile.loops}
    comms = dict(zip(samples.tid.tolist(), samples.comm.tolist(), strict=True)) if tids else {}
    return {tid: printable(profile.strings[comms[tid]]) for tid in tids & comms.keys()}


def loop_time_rows(profile: Profile) -> list[LoopTimeRow]:
    """Return what held up tasks or blocked loops over time, of threads with samples, the heaviest of a loop first."""
    comm_of = _comms(profile)
    sums: defaultdict[tuple[int, int], Counter[tuple[str, str, str]]] = defaultdict(Counter)
    loop_ns, task_ns, ready_ns = (Counter[tuple[int, int]]() for _ in range(3))
    for loop in profile.loops:
        if not (loop.weight_ns and loop.tid in comm_of) or any(task.name == GOROUTINES for task in loop.tasks):
            continue
        groups, key = groups_of(loop), (loop.pid, loop.tid)
        loop_ns[key] += loop.weight_ns * bool(groups)
        task_ns[key] += loop.weight_ns * len(loop.tasks)
        if any(group.waits_for == RUNNING for group in groups):
            ready_ns[key] += loop.weight_ns * sum(group.tasks for group in groups if group.waits_for == READY)
        for group in groups:
            if group.is_held_up or group.waits_for == RUNNING:
                holders = " and ".join(sorted({place_of(task) for task in group.held_by})[:_SHOWN])
                sums[key][group.waits_for, group.function, holders] += loop.weight_ns * group.tasks
    rows = list[LoopTimeRow]()
    for (pid, tid), places in sums.items():
        key, comm = (pid, tid), comm_of[tid]
        for place, ns in places.most_common():
            blocks = place[0] == RUNNING
            percent, ready = 100 * ns / (loop_ns if blocks else task_ns)[key], ready_ns[key] / ns if blocks else 0.0
            rows.append(LoopTimeRow(comm, pid, tid, *place, ns / loop_ns[key], percent, ready))
    return rows


def _time_part(row: LoopTimeRow) -> str:
    where = f" in {row.function}" if row.function else ""
    if row.waits_for == RUNNING:
        kept = f", {row.ready:.3g} ready tasks on average wait for it" if row.ready else ""
        return f"a task blocks it{where} ({row.percent:.0f} % of the time){kept}"
    held = f"held by {row.held_by}" if row.held_by else "holder not known"
    return (
        f"{row.tasks:.3g} tasks on average wait for {row.waits_for}{where} ({row.percent:.0f} % of their time), {held}"
    )


def in_unread_loops(profile: Profile) -> int:
    """Return the number of samples in event loops of processes with no task read (unsupported CPython version)."""
    names = ("BaseEventLoop.run_forever (base_events.py)", "run_forever (base_events.py)")  # before 3.11: the latter
    runs = np.isin(profile.frames.symbol, [*map(profile.strings.find, names)])
    samples = profile.samples.take(~np.isin(profile.samples.pid, [loop.pid for loop in profile.loops]))
    return int((innermost_node(profile, samples.stack.astype(np.int64), runs) >= 0).sum()) if runs.any() else 0


def groups_of(loop: EventLoop) -> list[TaskGroup]:
    """Return a loop's tasks in groups by awaited thing and function: running, then held-up ones, then the largest."""
    by_thing: dict[tuple[str, str, int], list[LoopTask]] = defaultdict(list)
    inside: dict[int, list[LoopTask]] = defaultdict(list)
    names = {task.address: task.name for task in loop.tasks}
    for task in loop.tasks:
        for thing in task.inside - {task.awaited}:
            inside[thing].append(task)
        awaited = _waits_for(task, names)
        by_thing[awaited, _function(task), task.awaited if awaited in _HELD_UP else 0].append(task)
    running, groups = [task for task in loop.tasks if task.awaits == RUNNING], []
    for (awaited, function, thing), tasks in by_thing.items():
        held_by = inside[thing] if thing else running if awaited == READY else []
        holders, own_names = [f"{task.name} ({place_of(task)})" for task in held_by], [task.name for task in tasks]
        groups.append(TaskGroup(len(tasks), awaited, function, holders, own_names, tasks, held_by))
    return sorted(groups, key=lambda group: (group.waits_for != RUNNING, not group.is_held_up, -group.tasks))


def sentences_of(rows: list[LoopRow], times: Sequence[LoopTimeRow] = ()) -> list[str]:
    """Return sentences on loops with a blocking task or tasks held up, by `rows` (the end of the recording), or else by
    `times` (all of it): on the first ones, then the number of the others."""
    sentences, told = list[str](), set[int]()
    for row in rows:
        ready = sum(group.tasks for group in row.groups if group.waits_for == READY)
        parts = [_part(group, ready) for group in row.groups if group.is_held_up or group.waits_for == RUNNING]
        sentences += [f"event loop of {row.comm} {row.loop.tid}: {'; '.join(parts[:_SHOWN])}"] if parts else []
        told |= {row.loop.tid} if parts else set()
    for (comm, tid), group in groupby(times, key=lambda row: (row.comm, row.tid)):
        heavy = [_time_part(row) for row in group if row.percent >= _LEAST_PERCENT and tid not in told]
        sentences += [f"event loop of {comm} {tid}, over time: {'; '.join(heavy[:_SHOWN])}"] if heavy else []
    more = len(sentences) - _SHOWN_LOOPS
    return sentences[:_SHOWN_LOOPS] + ([f"and {more} more event loops with tasks that are held up"] if more > 0 else [])


def held_up_waits(profile: Profile) -> I64:
    """Return the rows of samples, int64: unfinished waits of event loops with tasks held up. Their threads are not
    idle, although they wait for events."""
    ends = [loop for loop in profile.loops if not loop.weight_ns]
    waits = {loop[:3] for loop in ends if any(group.is_held_up for group in groups_of(loop))}
    samples = profile.samples
    rows = np.flatnonzero(samples.has(SampleFlag.STILL_BLOCKED))
    ids = zip(*(column[rows].tolist() for column in (samples.pid, samples.tid, samples.switch_out_ns)), strict=True)
    return rows[[wait in waits for wait in ids]]


def _part(group: TaskGroup, ready: int) -> str:
    where = f" in {group.function}" if group.function else ""
    if group.waits_for == RUNNING:
        kept = f", {ready} ready {'task waits' if ready == 1 else 'tasks wait'} for it" if ready else ""
        return f"{group.names[0]} blocks it{where}{kept}"
    waits, more = "task waits" if group.tasks == 1 else "tasks wait", len(group.holders) - _SHOWN
    holders = ", ".join(group.holders[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    held = f"held by {holders}" if holders else "holder not known"
    return f"{group.tasks} {waits} for {group.waits_for}{where}, {held}"


def _waits_for(task: LoopTask, names: dict[int, str]) -> str:
    if task.awaits == RUNNING:
        return RUNNING
    if task.awaits in ("", "NoneType") or not task.frames:
        return READY
    function, file, _ = task.frames[0]
    if basename(file) in ("locks.py", "queues.py") and "/asyncio/" in file:
        return f"asyncio.{function if basename(file) == 'queues.py' else function.partition('.')[0]}"
    if "/asyncio/" in file:
        return _WORDS.get(function, f"asyncio: {function}")
    return f"task {names[task.awaited]}" if task.awaited in names else _TYPES.get(task.awaits, task.awaits)


def _function(task: LoopTask) -> str:
    return next((function for function, file, _ in task.frames if "/asyncio/" not in file), "")


def place_of(task: LoopTask) -> str:
    """Return the innermost function of a task, or `LEAF in FUNCTION` with the program's innermost function."""
    leaf, own = task.frames[0][0] if task.frames else READY, _function(task)
    return f"{leaf} in {own}" if own and own != leaf else leaf
