# SPDX-License-Identifier: Apache-2.0
"""Rank the causes for which the threads of a selection waited: the first screen of `fleet report`.

Shares are of the time of all threads, running included: budgets have the time on CPUs and the time waiting for one.
Where the selection leaves out threads or parts of segments, budgets do not fit it: then the time on CPUs is not
known, and the time waiting for a CPU is that inside the selected waits. Waits for the end of threads and processes
take as long as what these do, and idle threads only wait for work: neither is ranked."""

from collections import Counter
from typing import Any

from perf_offcpu.abi.offcpu import EVENT_NAME
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.fleet.engine import records
from perf_offcpu.fleet.hosts import of_hosts
from perf_offcpu.fleet.queries import IDLE, Selected, grouped
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable

_ON_CPU, _QUOTA, _CHILD = WaitClass.RUNQUEUE.label, WaitClass.THROTTLED.label, WaitClass.CHILD.label
_BY_THREADS = (WaitClass.LOCK.label, WaitClass.PIPE.label, WaitClass.STOPPED.label)
"""Classes whose waits other threads end; in other classes, the waker often is the thread that an interrupt hit."""


@frozen
class FleetCause:
    """Sum of the waits of one class in ns, without the time that threads waited for a CPU after their wake-up."""

    wait_class: str  # "" unknown
    weight: int
    comms: dict[str, int]  # weight by comm of the waiting threads, largest first; printable
    enders: dict[str, int]  # weight by comm of the threads that ended the waits, in the same form


@frozen
class FleetCauses:
    """Causes of the waits of a selection, and the times that are not ranked; ns."""

    running: int | None  # time on CPUs; None if it is not known
    causes: list[FleetCause]
    ends: FleetCause  # waits for the end of threads and processes
    idle: int  # off-CPU time of threads that only wait for work

    @property
    def whole(self) -> int:
        """Return the ns that are 100 % of the causes' shares: the time on CPUs and that of all causes."""
        return (self.running or 0) + sum(cause.weight for cause in self.causes)


def causes_of(selected: Selected) -> FleetCauses | None:
    """Rank the causes of a selection; return None unless off-CPU time is its only event."""
    if selected.selection.events != (EVENT_NAME,):
        return None
    names = ("class", "comm", "waker", IDLE, "blocked", "runq", "weight")
    groups = records(selected.tables.engine.run(grouped(selected, names[:4])), names)
    blocked: dict[str, Counter[str]] = {}
    enders: dict[str, Counter[str]] = {}
    on_cpu, idle = Counter[str](), 0
    for name, comm, waker, is_idle, blocked_ns, runq_ns, weight in groups:
        if is_idle:
            idle += weight
            continue
        on_cpu[comm] += weight if name == _ON_CPU else runq_ns
        if name != _ON_CPU:
            blocked.setdefault(name, Counter())[comm] += blocked_ns
            if name in _BY_THREADS:
                enders.setdefault(name, Counter())[waker] += blocked_ns
    budgets = _budget_times(selected)
    running, waiting, throttled = budgets or (None, on_cpu, blocked.get(_QUOTA, Counter()))
    blocked |= {_ON_CPU: waiting, _QUOTA: throttled}
    causes = [_cause(name, comms, enders.get(name, Counter())) for name, comms in blocked.items()]
    causes = sorted(
        (cause for cause in causes if cause.weight > 0), key=lambda cause: (-cause.weight, cause.wait_class)
    )
    ends = next((cause for cause in causes if cause.wait_class == _CHILD), FleetCause(_CHILD, 0, {}, {}))
    return FleetCauses(running, [cause for cause in causes if cause is not ends], ends, idle)


def _cause(name: str, comms: Counter[str], enders: Counter[str]) -> FleetCause:
    shown = ({printable(text): int(ns) for text, ns in sums.most_common()} for sums in (comms, enders))
    return FleetCause(name, int(comms.total()), *shown)


def _budget_times(selected: Selected) -> tuple[int, Counter[str], Counter[str]] | None:
    """Return (ns on CPUs, ns waiting for a CPU by comm, ns throttled by comm) of the threads' budgets; None if there
    are none, or if the selection is narrower than whole threads and segments."""
    selection = selected.selection
    if selection.comms or selection.classes or selection.objects or selection.containers or selection.idle != "show":
        return None
    if (selection.since_ns, selection.until_ns) != (None, None):
        return None
    rows: Any = of_hosts(selected.tables.table("budgets"), selected.spans, selected.all_spans, time="begin_ns")
    sums = rows.group_by("comm").aggregate(
        running=rows.running_ns.sum(),
        waiting=(rows.runnable_ns + rows.preempted_ns).sum(),
        throttled=rows.throttled_ns.sum(),
    )
    columns = list(records(selected.tables.engine.run(sums), ("comm", "running", "waiting", "throttled")))
    if not columns:
        return None
    waiting = Counter({comm or "": ns for comm, _, ns, _ in columns})
    throttled = Counter({comm or "": ns for comm, _, _, ns in columns})
    return sum(running for _, running, _, _ in columns), waiting, throttled
