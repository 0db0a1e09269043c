# SPDX-License-Identifier: Apache-2.0
"""Sum losses of the segments of a selection, and the time that its hosts did not record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perf_offcpu.fleet.hosts import of_hosts
from perf_offcpu.fleet.queries import Selected, host_names
from perf_offcpu.fleet.selection import cut_to_times, in_hours
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable


@frozen
class Gap:
    """The time that a host recorded nothing, for one cause."""

    host: str
    cause: str
    ns: int


def losses_of(selected: Selected) -> dict[tuple[str, bool], int]:
    """Return (cause, True for a loss and False for a note) → count, of segments within time and hosts."""
    losses, selection = selected.tables.table("losses"), selected.selection
    conditions: list[Any] = [losses["count"] > 0]
    if selection.since_ns is not None:
        conditions.append(losses.end_ns > selection.since_ns)
    if selection.until_ns is not None:
        conditions.append(losses.begin_ns < selection.until_ns)
    conditions += in_hours(losses, replace(selection, since_ns=None))
    of_segments = of_hosts(losses, selected.spans, selected.all_spans, time="begin_ns")
    groups = of_segments.filter(*conditions).group_by("cause", "is_loss")
    found = groups.aggregate(total=of_segments["count"].sum()).order_by("cause")
    columns = selected.tables.engine.run(found)
    rows = zip(columns["cause"], columns["is_loss"], columns["total"], strict=True)
    return {(printable(cause), is_loss): total for cause, is_loss, total in rows}


def gaps_of(selected: Selected) -> list[Gap]:
    """Return the time that hosts recorded nothing, cut to the selected time, by host and cause."""
    table, selection = selected.tables.table("gaps"), selected.selection
    rows = table.filter(True, *in_hours(table, replace(selection, until_ns=None)))  # in the hour of their end
    begin, end = cut_to_times(rows, selection)
    rows = of_hosts(rows, selected.spans, selected.all_spans, time="end_ns")  # the begin of a segment
    each = rows.select("host_id", "cause", begin=begin, end=end).distinct()
    each = each.filter(each.begin < each.end)
    found = each.group_by("host_id", "cause").aggregate(
        ns=(each.end - each.begin).cast("decimal(38, 0)").sum()
    )
    columns = selected.tables.engine.run(found)
    names = host_names(selected)
    gaps = [
        Gap(names.get(host) or printable(host), printable(cause), int(ns))
        for host, cause, ns in zip(columns["host_id"], columns["cause"], columns["ns"], strict=True)
    ]
    return sorted(gaps, key=lambda gap: (-gap.ns, gap.host, gap.cause))
