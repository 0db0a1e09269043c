# SPDX-License-Identifier: Apache-2.0
"""Make a profile of event-loop tasks, to be shown like one of threads. A sample is the tasks of one reading that have
the same stack and wait; its weight is their number times the time that the reading stands for. A stack leads from the
outermost task to the innermost coroutine; its leaf is the awaited thing, which is also the sample's object (with the
holder). The comm is the task's outermost function."""

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.attr import Attr, SampleType
from perf_offcpu.abi.counters import GOROUTINES, TASK_EVENT
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.analysis import goroutines
from perf_offcpu.analysis.event_loops import READY, RUNNING, groups_of, place_of
from perf_offcpu.analysis.stack_walk import innermost_node
from perf_offcpu.binary.columnar import offsets_of
from perf_offcpu.errors import UsageError
from perf_offcpu.model.callchains import Ragged, build_stack_tree
from perf_offcpu.model.columns import tables_of
from perf_offcpu.model.coverage import Sampling
from perf_offcpu.model.join import renumbered, shifted
from perf_offcpu.model.profile import Frames, Objects, Profile, ProfileSamples, Stacks
from perf_offcpu.model.recording import Budget, EventLoop, Evsel, LoopTask
from perf_offcpu.objects.perf_map import read_jit_name

_MOST_FRAMES, _MOST_NS, _SELECT = 64, 2**50, "Selector.select (selectors.py)"
_Place = tuple[str, str, int]


def tasks_profile(profile: Profile) -> Profile:
    """Return a profile of the tasks that were read while recording, without samples of threads. Raise UsageError if no
    task was read."""
    readings = [loop for loop in profile.loops if loop.weight_ns]
    waits = [(loop, *wait, number) for loop in readings for wait, number in _waits_in(loop).items()]
    if not waits:
        raise UsageError(
            "--by task: no times of tasks were recorded (asyncio of CPython 3.11 to 3.14, record --goroutines)"
        )
    strings, places, objects = profile.strings.copy(), defaultdict[_Place, int](), defaultdict[str, int]()
    places.default_factory, objects.default_factory = places.__len__, objects.__len__
    chains = [np.array([places[place] for place in stack], np.uint64) for *_, stack, _ in waits]
    lengths = np.array([len(chain) for chain in chains], np.int64)
    parent, frame, stack = build_stack_tree(Ragged(offsets_of(lengths), np.concatenate(chains)))
    rows = [(loop.read_ns, min(loop.weight_ns, _MOST_NS), loop.pid, loop.tid, number) for loop, *_, number in waits]
    columns = dict(zip(("time_ns", "period", "pid", "tid", "count"), np.array(rows, np.int64).T, strict=True))
    cgroup_of = dict(zip(profile.samples.pid.tolist(), profile.samples.cgroup.tolist(), strict=True))
    columns["cgroup"] = np.array([cgroup_of.get(loop.pid, 0) for loop, *_ in waits], np.uint64)
    columns |= {"period": columns["period"] * columns["count"], "object": np.array([objects[row[2]] for row in waits])}
    intern = strings.intern_all
    comms, texts = intern(function for _, function, *_ in waits), intern(objects)
    symbols = intern(read_jit_name(f"py::{name}:{file}").symbol if file else name for name, file, _ in places)
    files, lines = intern(file for _, file, _ in places), [line for _, _, line in places]
    unseen = sum(not loop.tasks for loop in readings)
    return replace(
        profile,
        samples=ProfileSamples.filled(len(waits), **columns, comm=comms, stack=stack, evsel=0),
        stacks=Stacks(parent, frame),
        frames=Frames.filled(len(places), symbol=symbols, file=files, line=lines, cpumode=CpuMode.USER),
        strings=strings,
        evsels=[Evsel(TASK_EVENT, Attr(sample_type=SampleType.CALLCHAIN), "ns")],
        objects=Objects.filled(len(objects), name=texts, stable=texts),
        budget=Budget(),
        loops=(),
        meta=replace(profile.meta, sampling=Sampling()),
        losses=dict(Counter(profile.losses) + Counter({losses.EVENT_LOOP_UNREAD: unseen})),
    )


def with_tasks(profile: Profile) -> Profile:
    """Return the profile with samples of tasks besides those of threads, as an event of their own, sorted by time."""
    if not any(loop.weight_ns and loop.tasks for loop in profile.loops):
        return profile
    evsels = profile.evsels.copy()
    row = next((row for row, event in enumerate(evsels) if event.name == TASK_EVENT), len(evsels))
    first = {name: len(getattr(profile, name)) for name in ("stacks", "frames", "objects")} | {"evsels": row}
    tasks = renumbered(tasks_profile(profile), {name: shifted(number) for name, number in first.items()})
    tables = {name: tables_of(tasks)[name] for name in ("samples", "stacks", "frames", "objects")}
    joined: dict[str, Any] = {name: type(rows).concat([getattr(profile, name), rows]) for name, rows in tables.items()}
    joined["samples"].reorder(np.argsort(joined["samples"].time_ns, kind="stable"))
    evsels[row : row + 1] = tasks.evsels
    return replace(profile, **joined, strings=tasks.strings, evsels=evsels, losses=tasks.losses)


def with_loop_tasks(profile: Profile) -> Profile:
    """Return the profile with a further leaf in stacks of event loops' waits for events: the thing that held-up tasks
    await, else most tasks, in the reading whose span contains the wait's end. Other waits, and sums, stay."""
    readings = sorted((loop for loop in profile.loops if loop.weight_ns), key=lambda loop: loop.read_ns)
    if not readings:
        return profile
    names = (profile.strings[row] for row in profile.frames.symbol.tolist())
    samples, selects = profile.samples, np.array([_SELECT in name for name in names], np.bool_)
    waits = np.flatnonzero(profile.is_offcpu() & np.isin(samples.tid, [loop.tid for loop in readings]))
    waits = waits[innermost_node(profile, samples.stack[waits].astype(np.int64), selects) >= 0]
    strings, texts, label = profile.strings.copy(), {"": -1}, np.full(len(waits), -1)
    for tid in {loop.tid for loop in readings}:
        loops, rows = [loop for loop in readings if loop.tid == tid], np.flatnonzero(samples.tid[waits] == tid)
        ends, spans = np.array([(loop.read_ns, loop.weight_ns) for loop in loops]).T
        text_of = np.array([texts.setdefault(_loop_text(loop), len(texts) - 1) for loop in loops])
        reading = np.minimum(np.searchsorted(ends, time_ns := samples.time_ns[waits[rows]]), len(loops) - 1)
        stands = (ends[reading] - spans[reading] < time_ns) & (time_ns <= ends[reading])
        label[rows[stands]] = text_of[reading[stands]]
    waits, label = waits[label >= 0], label[label >= 0]
    keys, node = np.unique(np.column_stack([samples.stack[waits], label]), axis=0, return_inverse=True)
    stack, new = samples.stack.copy(), keys.astype(np.int32) + np.array([0, len(profile.frames)], np.int32)
    stack[waits] = len(profile.stacks) + node.reshape(-1)
    leaves = Frames.filled(len(texts) - 1, symbol=strings.intern_all([*texts][1:]), cpumode=CpuMode.USER)
    stacks, frames = Stacks.concat([profile.stacks, Stacks(*new.T)]), Frames.concat([profile.frames, leaves])
    samples = samples.with_columns(stack=stack)
    return replace(profile, samples=samples, stacks=stacks, frames=frames, strings=strings)


def _loop_text(loop: EventLoop) -> str:
    for group in groups_of(loop):
        if not group.waits_for.startswith((READY, RUNNING, "task ", "other tasks", "tasks of")):
            return f"[tasks: {' in '.join(filter(None, (group.waits_for, group.function)))}]"
    return ""


def _waits_in(loop: EventLoop) -> Counter[tuple[str, str, tuple[_Place, ...]]]:
    """Return (outermost function, awaited thing with holders, stack leaf first) → number of tasks, of one reading."""
    waits: Counter[tuple[str, str, tuple[_Place, ...]]] = Counter()
    by_address = {task.address: task for task in loop.tasks}
    for group in groups_of(loop):
        event = {RUNNING: "blocks the loop"}.get(group.waits_for, group.waits_for)
        event = "another task" if event.startswith("task ") else event
        holders = " and ".join(sorted({place_of(task) for task in group.held_by})[:2])
        for task in group.members:
            event = goroutines.place_of(task)[0] if task.name == GOROUTINES else event
            function = task.frames[-1][0] if task.frames else ""
            waits[function, f"{event}, held by {holders}" if holders else event, _stack(task, event, by_address)] += 1
    return waits


def _stack(task: LoopTask, awaited: str, by_address: dict[int, LoopTask]) -> tuple[_Place, ...]:
    frames, seen, caller = [(f"[{awaited}]", "", 0)], {0}, task.address
    while caller and len(frames) < _MOST_FRAMES:
        frames += by_address[caller].frames
        seen.add(caller)
        caller = min((by_address.keys() & by_address[caller].awaited_by) - seen, default=0)
    return tuple(frames[:_MOST_FRAMES])
