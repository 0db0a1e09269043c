# SPDX-License-Identifier: Apache-2.0
"""Make lanes for event-loop tasks and goroutines, which have no thread of their own. A span lasts from the previous
reading to its own (`Recording.loops`); adjacent equal spans are merged; between readings nothing is known. Each task
has a lane. Goroutines are counted by stack: a lane holds those that wait for the same thing in the same function, and
the text of a span tells their mean number."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain

import numpy as np

from perf_offcpu.abi.counters import GOROUTINES
from perf_offcpu.analysis import goroutines
from perf_offcpu.analysis.event_loops import READY, RUNNING, groups_of
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import EventLoop
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable

MOST_LANES, _MOST_HOLDERS, _LEAST = 200, 2, 0.01
_SAME_NS = 1_000_000  # spans of one text that are nearer to each other are one
_LOCKS = ("sync.Mutex.", "sync.RWMutex.", "asyncio.Lock", "asyncio.Semaphore")
_KINDS = {RUNNING: "running", READY: "runnable", "runnable": "runnable", "sleep": "sleep"}
_KINDS |= {"a timer (asyncio.sleep)": "sleep"}
_Key = tuple[int, int, int, str]  # pid, tid of the loop, address of the task, title
_Span = tuple[int, int, str, str, str]  # begin and end, ns; name, its kind, detail


@frozen
class Lane:
    """Spans of one task, group of goroutines or path, with texts: k spans in order of time, without overlap."""

    title: str
    pid: int
    begin_ns: I64  # int64[k], the recording's clock
    end_ns: I64  # int64[k]
    name: I64  # int64[k], index into `names`
    detail: I64  # int64[k], index into `details`
    names: list[str]
    kinds: list[str]  # of each name: running, runnable, not recorded, or the class of the wait
    details: list[str]


def task_lanes(profile: Profile) -> list[Lane]:
    """Return the lanes of the processes that have samples in a profile: by process, the longest waits for locks first,
    and at most `MOST_LANES`; a last one without spans tells how many are missing. Texts are printable."""
    pids = frozenset(profile.samples.pid.tolist()) if profile.loops else frozenset()
    readings = (loop for loop in profile.loops if loop.weight_ns and loop.pid in pids)
    loops = sorted(readings, key=lambda loop: loop.read_ns)
    spans: defaultdict[_Key, list[_Span]] = defaultdict(list)
    for key, span in chain(_of_goroutines(loops), *map(_of_tasks, loops)):
        spans[key].append(span)
    lanes = [_lane(key, _joined(parts)) for key, parts in spans.items()]
    held_up_ns = [-sum(end - begin for begin, end, _, kind, _ in parts if kind == "lock") for parts in spans.values()]
    order = sorted(zip(held_up_ns, range(len(lanes)), strict=True))
    kept = sorted((lanes[row] for _, row in order[:MOST_LANES]), key=lambda lane: lane.pid)
    none, missing = np.empty(0, np.int64), len(lanes) - len(kept)
    more = [Lane(f"{missing} more tasks", kept[-1].pid, none, none, none, none, [], [], [])] if missing else []
    return kept + more


def _of_tasks(loop: EventLoop) -> Iterator[tuple[_Key, _Span]]:
    """Yield (key, span) for each task in a reading of an event loop; spans with equal keys are one lane."""
    for group in groups_of(loop) if all(task.name != GOROUTINES for task in loop.tasks) else ():
        text = {RUNNING: "runs, and blocks the loop"}.get(group.waits_for, group.waits_for)
        text += f" in {group.function}" if group.function else ""
        held = f"held by {' and '.join(group.holders[:_MOST_HOLDERS])}" if group.holders else ""
        for task in group.members:
            title = f"{task.name} ({task.frames[-1][0]})" if task.frames else task.name
            key = loop.pid, loop.tid, task.address, title
            yield key, (loop.read_ns - loop.weight_ns, loop.read_ns, text, _kind(group.waits_for), held)


def _of_goroutines(loops: list[EventLoop]) -> Iterator[tuple[_Key, _Span]]:
    """Yield (key, span) for each process, reading, awaited thing and function of goroutines; equal keys: one lane."""
    sums: Counter[tuple[int, int, int, tuple[str, str]]] = Counter()
    for loop in loops:
        for task in loop.tasks:
            if task.name == GOROUTINES and not goroutines.is_of_runtime(task):
                sums[loop.pid, loop.switch_out_ns, loop.read_ns, goroutines.place_of(task)] += loop.weight_ns
    for (pid, begin_ns, end_ns, (reason, function)), ns in sums.items():
        number = ns / max(end_ns - begin_ns, 1)
        text = f"{number:.3g} on average" if number >= _LEAST else f"less than {_LEAST} on average"
        yield (pid, pid, 0, f"goroutines: {reason} in {function}"), (begin_ns, end_ns, text, _kind(reason), "")


def _kind(waits_for: str) -> str:
    return _KINDS.get(waits_for, "lock" if waits_for.startswith(_LOCKS) else "other")


def _joined(spans: list[_Span]) -> list[_Span]:
    """Return the spans of a lane without overlap; successive spans with equal texts are merged."""
    joined: list[_Span] = []
    for begin, end, *texts in spans:
        last_end = joined[-1][1] if joined else 0
        if joined and [*joined[-1][2:]] == texts and begin - last_end < _SAME_NS:
            joined[-1] = (joined[-1][0], max(end, last_end), *joined[-1][2:])
        elif end > max(begin, last_end):
            text, kind, detail = texts
            joined.append((max(begin, last_end), end, text, kind, detail))
    return joined


def _lane(key: _Key, spans: list[_Span]) -> Lane:
    pid, *_, title = key
    names, details = dict[tuple[str, str], int](), dict[str, int]()
    rows = [
        (begin, end, names.setdefault((text, kind), len(names)), details.setdefault(detail, len(details)))
        for begin, end, text, kind, detail in spans
    ]
    texts, kinds = [printable(text) for text, _ in names], [kind for _, kind in names]
    begin_ns, end_ns, name, detail = np.array(rows, np.int64).reshape(-1, 4).T
    return Lane(printable(title), pid, begin_ns, end_ns, name, detail, texts, kinds, [*map(printable, details)])
