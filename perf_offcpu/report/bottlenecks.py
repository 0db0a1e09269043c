# SPDX-License-Identifier: Apache-2.0
"""Find the bottlenecks of a cascade: the threads and devices where most waiting time ends, with stacks. Waits for a CPU
end at [CPU] and are summed from the threads' budgets. Timers rank without plain sleeps, which hold up no thread."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from perf_offcpu.analysis.times.timeline import Timeline
from perf_offcpu.causality.cascade import DEVICES, Cascade, Held
from perf_offcpu.causality.path_stacks import of_one_event, shared_out
from perf_offcpu.convert.callgraph.waits import Component, components, graph_of, labels_of
from perf_offcpu.model.columns import group, sum_by
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Budget
from perf_offcpu.report import style as say
from perf_offcpu.report.breakdowns import HeavyStack, heavy_stacks
from perf_offcpu.report.style import Style
from perf_offcpu.report.terminal import frame_lines
from perf_offcpu.report.totals import fields
from perf_offcpu.structs import frozen
from perf_offcpu.text import thread_label

VERSION = 1
MIN_SHARE = 0.5  # percent of all waits below which an edge of the graph is left out
_SHOWN, _STACKS = 3, 3
_CPU = "[CPU]"
_TIMERS = DEVICES[2:]


@frozen
class StackHeld(HeavyStack):
    """Stack in which threads of a bottleneck were while other threads waited for them."""

    how: Held  # RUNNING: of CPU samples; WAITING: of a wait


@frozen
class Bottleneck:
    """End of chains of waits, with their time: a comm, a device, or a group of comms that wait for each other."""

    members: tuple[str, ...]
    is_knot: bool  # it waited for no other component
    held: dict[Held, int]  # ns of the waits that end in it, by its state in that time
    behind: list[tuple[str, int]]  # (comm, ns) that waited for it, or for each other in it, the longest first
    passed_on: list[tuple[str, int]]  # (comm or device, ns) that it waited for, the longest first
    stacks: list[StackHeld]
    other_stacks: int  # ns in further stacks
    no_stack: int  # ns of running without a CPU sample

    @property
    def held_ns(self) -> int:
        """Return the ns of all waits that end in the bottleneck."""
        return sum(self.held.values())


@frozen
class Bottlenecks:
    """The bottlenecks in which most waits end, and sums of those that are not shown."""

    source: str
    total_ns: int  # of all waits, those for a CPU included
    unplaced_ns: int  # of waits that were only summed: not in `total_ns`
    shown: list[Bottleneck]
    others: int  # number of further components in which waits end
    other_ns: int  # of the waits that end in these components
    dropped: int  # number of light edges that the search for components dropped
    has_wakers: bool


def bottlenecks_of(profile: Profile, timeline: Timeline, cascade: Cascade, budget: Budget | None = None) -> Bottlenecks:
    """Return the heaviest bottlenecks of a cascade. `budget`: of the threads whose waits for a CPU count."""
    graph = graph_of(cascade, "", per_thread=False, min_share=MIN_SHARE)
    parts = [component for component in components(graph) if component.held > 0]
    stacks, for_cpu = _Stacks(profile, timeline, cascade), _waits_for_cpu(profile, budget or Budget())
    ranks = {part.members[0]: part.held - _slept(part.members[0], graph) for part in parts}
    ranks |= {part.members[0]: part.held_ns for part in for_cpu}
    parts.sort(key=lambda part: -ranks[part.members[0]])
    shown = [*for_cpu, *(_bottleneck(part, graph, stacks) for part in parts[:_SHOWN])]
    shown = sorted(shown, key=lambda part: -ranks[part.members[0]])[:_SHOWN]
    held, total = sum(part.held_ns for part in shown), cascade.total_ns + sum(part.held_ns for part in for_cpu)
    others = len(parts) + len(for_cpu) - len(shown), total - held
    dropped, has_wakers = graph.graph["dropped"], bool((profile.samples.waker_tid >= 0).any())
    return Bottlenecks(profile.meta.source, total, cascade.unplaced_ns, shown, *others, dropped, has_wakers)


def _slept(name: str, graph: Any) -> int:
    """Return the ns of the waits for timer `name`, without other waits that these delay; 0 for other nodes."""
    edges = graph.in_edges(name, data="waited") if name in _TIMERS else ()
    return sum(waited for _, _, waited in edges)


def _waits_for_cpu(profile: Profile, budget: Budget) -> list[Bottleneck]:
    """Return [CPU] as a bottleneck, in a list; [] if no thread of the budget waited for a CPU."""
    waited = budget.runnable_ns + budget.preempted_ns
    if not waited.any():
        return []
    comm = profile.comms_at(budget.tid, budget.end_ns)
    first, group_of = group(comm)
    sums = sum_by(group_of, waited, len(first)).tolist()
    names = [thread_label(profile.strings[row]) for row in comm[first].tolist()]
    held = dict.fromkeys(Held, 0) | {Held.RUNNABLE: sum(sums)}
    return [Bottleneck((_CPU,), True, held, _longest_first(zip(names, sums, strict=True)), [], [], 0, 0)]


def _longest_first(times: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(times, key=lambda item: (-item[1], item[0]))


def _bottleneck(component: Component, graph: Any, stacks: "_Stacks") -> Bottleneck:
    members = set(component.members)
    behind, passed_on = Counter[str](), Counter[str]()
    for waiter, target, facts in graph.edges(data=True):
        if target in members:
            behind[waiter] += facts["weight"]
        elif waiter in members:
            passed_on[target] += facts["weight"]
    held = {state: sum(graph.nodes[member][f"held_{state.name.lower()}"] for member in members) for state in Held}
    waited = _longest_first(behind.items()), _longest_first(passed_on.items())
    heaviest, others, bare = stacks.of(component.members)
    return Bottleneck(component.members, component.is_knot, held, *waited, heaviest, others, bare)


class _Stacks:
    """Stacks of waits and CPU samples, each with the ns of waits that end in it."""

    def __init__(self, profile: Profile, timeline: Timeline, cascade: Cascade) -> None:
        self._profile = profile
        labels, label_of = labels_of(cascade, per_thread=False)
        self._label = {label: row for row, label in enumerate(labels)}
        first_device = len(cascade.tracks)
        ends, kept = np.flatnonzero(cascade.target >= first_device), np.flatnonzero(cascade.kept_ns)
        waits = np.append(cascade.row[ends], cascade.row[kept])
        weight = np.append(cascade.carried_ns[ends], cascade.kept_ns[kept])
        node = np.append(cascade.target[ends], cascade.waiter[kept])
        samples = of_one_event(profile, np.flatnonzero(cascade.held_up))
        samples = samples[np.argsort(timeline.track[samples], kind="stable")]
        track = timeline.track[samples]
        running = cascade.held_ns[:first_device, Held.RUNNING]
        parts = shared_out(running, track, cascade.held_up[samples])
        self._rows = np.append(waits, samples)
        self._weight = np.append(weight, parts)
        self._of = label_of[np.append(node, track)]
        self._how = np.repeat([Held.WAITING, Held.RUNNING], [len(waits), len(samples)])
        self._bare = sum_by(label_of[: len(running)], running, len(labels))
        self._bare -= sum_by(label_of[track], parts, len(labels))

    def of(self, members: tuple[str, ...]) -> tuple[list[StackHeld], int, int]:
        """Return (heaviest stacks of nodes `members`, ns in their other stacks, ns of running without a sample)."""
        numbers = [self._label[member] for member in members]
        is_own, stacks = np.isin(self._of, numbers), list[StackHeld]()
        for state in (Held.WAITING, Held.RUNNING):
            rows = np.flatnonzero(is_own & (self._how == state))
            heaviest = heavy_stacks(self._profile, self._rows[rows], self._weight[rows], _STACKS)
            stacks += [StackHeld(stack.comm, stack.frames, stack.weight, state) for stack in heaviest]
        stacks.sort(key=lambda stack: (-stack.weight, stack.comm, stack.frames))
        stacks = stacks[:_STACKS]
        others = int(self._weight[is_own].sum()) - sum(stack.weight for stack in stacks)
        return stacks, others, int(self._bare[numbers].sum())


def document(bottlenecks: Bottlenecks) -> dict[str, Any]:
    """Return the bottlenecks as dicts, lists, integers and printable texts, for `--json`; times in ns."""
    return {
        "version": VERSION,
        **fields(bottlenecks, "recording=source total=total_ns unplaced=unplaced_ns"),
        "bottlenecks": list(map(_row, bottlenecks.shown)),
        "others": fields(bottlenecks, "number=others held=other_ns"),
        "dropped_edges": bottlenecks.dropped,
    }


def _row(bottleneck: Bottleneck) -> dict[str, Any]:
    stacks = [
        {"comm": stack.comm, "state": stack.how.name.lower(), "frames": stack.labels, "held": stack.weight}
        for stack in bottleneck.stacks
    ]
    return {
        "members": list(bottleneck.members),
        **fields(bottleneck, "knot=is_knot held=held_ns"),
        "held_by_state": {state.name.lower(): ns for state, ns in bottleneck.held.items()},
        "behind": dict(bottleneck.behind),
        "passed_on": dict(bottleneck.passed_on),
        "stacks": stacks,
        **fields(bottleneck, "other_stacks running_without_sample=no_stack"),
    }


_HOW = {
    Held.RUNNING: "running",
    Held.RUNNABLE: "waiting for a CPU",
    Held.WAITING: "waiting",
    Held.NOT_RECORDED: "not recorded",
    Held.CUT: "deeper in a chain of waits than is followed",
}
_NAMES = 4


def render(bottlenecks: Bottlenecks, style: Style) -> Iterator[str]:
    """Yield the lines of the report, without line ends."""
    yield say.comment(f"Recording: {bottlenecks.source or '-'}")
    total = say.exact_amount(bottlenecks.total_ns, "ns", style)
    yield say.comment(f"Bottlenecks: where {total} of threads' waits end, those for a CPU included")
    if bottlenecks.unplaced_ns:
        summed = say.exact_amount(bottlenecks.unplaced_ns, "ns", style)
        yield say.comment(f"Not in it: {summed} of short waits, which were summed (--off-cpu-thresh 0)")
    if not bottlenecks.has_wakers:
        yield say.comment("The recording has no wakers: the threads that ended waits are not known.")
    for number, bottleneck in enumerate(bottlenecks.shown, 1):
        yield from _bottleneck_lines(number, bottleneck, bottlenecks, style)
    yield from say.and_more(bottlenecks.others, "other", say.exact_amount(bottlenecks.other_ns, "ns", style))


def _bottleneck_lines(number: int, bottleneck: Bottleneck, bottlenecks: Bottlenecks, style: Style) -> Iterator[str]:
    members, held_ns = bottleneck.members, bottleneck.held_ns
    percent, held = 100 * held_ns / (bottlenecks.total_ns or 1), say.exact_amount(held_ns, "ns", style)
    more = f" and {len(members) - _NAMES} more" if len(members) > _NAMES else ""
    title = f"{number}. {', '.join(members[:_NAMES])}{more}: {held}, {percent:.1f} % of all waits"
    yield from say.section(title, style)
    is_device = members[0] in (*DEVICES, _CPU)
    states = [f"{_HOW[state]} {say.time(ns, style)}" for state, ns in bottleneck.held.items() if ns]
    if states and not is_device:
        yield say.comment(f"  {', '.join(states)}")
    if bottleneck.behind:
        yield say.comment(f"  waited for by {_times(bottleneck.behind, style)}")
    if bottleneck.passed_on:
        yield say.comment(f"  itself waited for {_times(bottleneck.passed_on, style)}")
    elif bottleneck.is_knot and not is_device:
        yield say.comment("  a knot: waited for no other thread")
    yield ""
    if not style.stacks:
        return
    for stack in bottleneck.stacks:
        facts = f"{stack.comm}  {say.time(stack.weight, style)}  {_HOW[stack.how]}"
        yield f"{say.share(stack.weight, held_ns):>9}  {facts}"
        yield from frame_lines(stack.frames, style)
    if bottleneck.other_stacks:
        yield say.comment(f"{say.time(bottleneck.other_stacks, style)} in other stacks")
    if bottleneck.no_stack:
        yield say.comment(f"{say.time(bottleneck.no_stack, style)} running without a CPU sample")


def _times(rows: list[tuple[str, int]], style: Style) -> str:
    shown = [f"{name} ({say.time(ns, style)})" for name, ns in rows[:_NAMES]]
    return ", ".join(shown) + (" and others" if len(rows) > _NAMES else "")
