# SPDX-License-Identifier: Apache-2.0
"""Print bottlenecks: the delay that each causes, the threads that wait for it, and its stacks."""

from __future__ import annotations

from collections.abc import Iterator

from perf_offcpu.causality.cascade import Held
from perf_offcpu.report import style as say
from perf_offcpu.report.causality.bottlenecks import Bottleneck, Bottlenecks, StackHeld, is_device
from perf_offcpu.report.style import Style
from perf_offcpu.report.terminal import frame_lines

_HOW = {
    Held.RUNNING: "running",
    Held.RUNNABLE: "waiting for a CPU",
    Held.WAITING: "waiting",
    Held.NOT_RECORDED: "not recorded",
    Held.CUT: "behind more threads than are followed",
}
_NAMES = 4


def render(found: Bottlenecks, style: Style) -> Iterator[str]:
    """Return the lines of the report, without line ends."""
    yield say.comment(f"Recording: {found.source or '-'}")
    yield say.comment(
        f"Bottlenecks: where {say.exact_amount(found.total_ns, 'ns', style)} of waits end, with the waits of "
        "the threads behind"
    )
    if found.unplaced_ns:
        summed = say.exact_amount(found.unplaced_ns, "ns", style)
        yield say.comment(f"Not in it: {summed} of short waits, which were summed (--off-cpu-thresh 0)")
    if not found.has_wakers:
        yield say.comment("The recording has no wakers: each thread waits for nobody known.")
    for number, one in enumerate(found.shown, 1):
        yield from _bottleneck(number, one, found, style)
    if found.others:
        rest = say.exact_amount(found.other_ns, "ns", style)
        yield say.comment(f"and {say.plural(found.others, 'other')}: {rest}")


def _bottleneck(number: int, one: Bottleneck, found: Bottlenecks, style: Style) -> Iterator[str]:
    percent = 100 * one.held_ns / (found.total_ns or 1)
    held = say.exact_amount(one.held_ns, "ns", style)
    yield from say.section(f"{number}. {_listed(one.members)}: {held}, {percent:.1f} % of all waits", style)
    states = [f"{_HOW[how]} {say.amount(ns, 'ns', style)} {style.unit}" for how, ns in one.held.items() if ns]
    if states and not is_device(one):
        yield say.comment(f"  {', '.join(states)}")
    if one.behind:
        yield say.comment(f"  waited for by {_times(one.behind, style)}")
    if one.passed_on:
        yield say.comment(f"  itself waited for {_times(one.passed_on, style)}")
    elif one.is_knot and not is_device(one):
        yield say.comment("  a knot: waited for nobody else")
    yield ""
    if not style.stacks:
        return
    for stack in one.stacks:
        yield from _stack(stack, one, style)
    for ns, what in ((one.other_stacks, "in other stacks"), (one.no_stack, "running without a CPU sample")):
        if ns:
            yield say.comment(f"{say.amount(ns, 'ns', style)} {style.unit} {what}")


def _stack(stack: StackHeld, one: Bottleneck, style: Style) -> Iterator[str]:
    share = f"{100 * stack.ns / (one.held_ns or 1):.2f}%"
    yield f"{share:>9}  {stack.comm}  {say.amount(stack.ns, 'ns', style)} {style.unit}  {_HOW[stack.how]}"
    yield from frame_lines(stack.frames, style)


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more


def _times(rows: list[tuple[str, int]], style: Style) -> str:
    shown = [f"{name} ({say.amount(ns, 'ns', style)} {style.unit})" for name, ns in rows[:_NAMES]]
    return ", ".join(shown) + (" and others" if len(rows) > _NAMES else "")
