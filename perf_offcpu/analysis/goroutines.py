# SPDX-License-Identifier: Apache-2.0
"""Sum up where goroutines wait while they have no thread (`record --goroutines`). Their times are those of goroutines:
they are shown next to the waits of threads, and never added to them."""

import re
from collections import Counter, defaultdict
from itertools import groupby
from typing import NamedTuple

from perf_offcpu.abi.counters import GOROUTINES
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import LoopTask
from perf_offcpu.text import printable

_LIBRARY = re.compile(
    r"(runtime|syscall|sync|time|net|os|io|bufio|context|database/sql|golang\.org/x/sys/.*|"
    r"(internal|runtime|net|os|io|log|crypto|encoding)/.*)\.[^/]*"
)
_LOCK = re.compile(r"sync\.\(\*(\w+)\)\.(\w+)")
_SHOWN = 3  # rows of a process, and processes


class GoroutineRow(NamedTuple):
    """Goroutines of a process that wait for the same thing in the same function of the program."""

    comm: str
    pid: int
    waits_for: str
    function: str
    ns: int
    goroutines: float  # on average over time
    percent: float  # of the time of all goroutines of the process


def goroutine_rows(profile: Profile) -> list[GoroutineRow]:
    """Return goroutines by process, awaited thing and function, heaviest first, without those of Go's runtime itself,
    like the program's own list (/debug/pprof/goroutine)."""
    sums: defaultdict[int, Counter[tuple[str, str]]] = defaultdict(Counter)
    spans: defaultdict[int, set[tuple[int, int]]] = defaultdict(set)
    rows = [(loop, task) for loop in profile.loops for task in loop.tasks if task.name == GOROUTINES]
    for loop, task in rows:
        spans[loop.pid].add((loop.switch_out_ns, loop.read_ns))
        if not is_of_runtime(task):
            sums[loop.pid][place_of(task)] += loop.weight_ns
    comm_of = dict(zip(profile.samples.pid.tolist(), profile.samples.comm.tolist(), strict=True)) if rows else {}
    lasted = {pid: max(sum(end - begin for begin, end in parts), 1) for pid, parts in spans.items()}
    return [
        GoroutineRow(
            printable(profile.strings[comm_of[pid]]), pid, *place, ns, ns / lasted[pid], 100 * ns / ns_of_place.total()
        )
        for pid, ns_of_place in sums.items()
        for place, ns in (ns_of_place.most_common() if pid in comm_of else ())
    ]


def goroutine_sentences(rows: list[GoroutineRow]) -> list[str]:
    """Return a sentence for each of the first _SHOWN processes."""
    sentences = []
    for (comm, pid), group in groupby(rows, key=lambda row: row[:2]):
        shown = [*group][:_SHOWN]
        parts = [f"{row.goroutines:.3g} in {row.waits_for} in {row.function} ({row.percent:.0f} %)" for row in shown]
        sentences.append(f"goroutines of {comm} {pid} that wait: {', '.join(parts)}")
    return sentences[:_SHOWN]


def is_of_runtime(task: LoopTask) -> bool:
    """Return True for goroutines that Go's runtime started for itself."""
    root = task.frames[-1][0] if task.frames else ""
    return root.startswith("runtime.") and root != "runtime.main"


def place_of(task: LoopTask) -> tuple[str, str]:
    """Return (reason of the wait, innermost function of the program, else the outermost frame). Go before 1.20 reports
    `semacquire` for locks: then the lock method on the stack (`sync.Mutex.Lock`) is the reason."""
    names = [name for name, *_ in task.frames]
    function = next((name for name in names if not _LIBRARY.fullmatch(name)), "".join(names[-1:]))
    locks = [lock for lock in map(_LOCK.fullmatch, names) if lock] if task.awaits == "semacquire" else []
    return f"sync.{locks[-1][1]}.{locks[-1][2]}" if locks else task.awaits, function
