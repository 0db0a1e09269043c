# SPDX-License-Identifier: Apache-2.0
"""Make the report of a dataset: head, tables by keys, the heaviest stacks."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from perf_offcpu.abi.counters import TASK_EVENT
from perf_offcpu.abi.offcpu import EVENT_NAME
from perf_offcpu.callpaths.options import Name
from perf_offcpu.errors import UsageError
from perf_offcpu.fleet import queries
from perf_offcpu.fleet.engine import records
from perf_offcpu.fleet.profile import tree_of, unit_of
from perf_offcpu.fleet.queries import IDLE, Selected, column_of, folded, grouped, host_names, ranked
from perf_offcpu.fleet.selection import in_hours
from perf_offcpu.report.breakdowns import BLOCKED
from perf_offcpu.structs import frozen
from perf_offcpu.text import UNKNOWN, id_text, printable

SERVICE = "service"  # the label of a table that each report has
OBJECT_KEYS = ("object", *queries.CONTAINER_KEYS)  # keys that a wait need not have
_TOP_KEYS = ("comm", "stack", "class", "marks")
_MOST_STACKS = 2000  # number of heaviest stacks among which stacks with the same functions, but other lines, are summed


@frozen
class Head:
    """Facts on a selection for the lines above a view: source, hosts, recorded time, events, losses."""

    source: str  # path or URL of the dataset
    selection: str  # its criteria in words
    hosts: int
    recorded_ns: int  # of all hosts together
    first_ns: int  # begin and end of the recorded time, ns since 1970, UTC
    last_ns: int
    periods: tuple[int, ...]  # off-CPU time that a sample stands for, of hosts that sampled waits
    events: tuple[str, ...]
    unit: str  # of weights: "ns", or "" for occurrences
    losses: dict[str, int]  # cause → count
    notes: dict[str, int]  # likewise, of facts that are no losses
    gaps: tuple[queries.Gap, ...]  # longest first


@frozen
class Row:
    """Sum of the samples with the same values of some keys; weights in the unit of the event (ns for time)."""

    values: tuple[str, ...]  # printable, in the order of the keys
    weight: int
    blocked: int  # weight without `runq` and waits of class runqueue
    runq: int  # ns of the weight after wake-ups
    waits: int
    waits_are_exact: bool  # False: `waits` is an estimate where waits were sampled, or a lower bound (`are_counted`)
    are_counted: bool  # False: sums of unknown numbers of waits make `waits` a lower bound
    samples: int
    recorded_ns: int = 0  # of the host, in a table of hosts


@frozen
class Table:
    """Table of sums of samples by keys, heaviest rows first; with `by_blocked`, longest blocked first."""

    keys: tuple[str, ...]
    rows: list[Row]
    groups: int  # number of rows, those over the limit included
    weight: int  # of all groups
    by_blocked: bool = False

    @property
    def more(self) -> tuple[int, int]:
        """Return (number, weight) of the rows that the table leaves out, as they are over its limit."""
        return self.groups - len(self.rows), self.weight - sum(row.weight for row in self.rows)


@frozen
class StackRow:
    """Sum of the samples of one comm with the same stack of function names."""

    comm: str
    frames: Sequence[Name]  # root first, the comm itself not included
    weight: int
    waits: int
    classes: dict[str, int]  # weight by class, largest first


@frozen
class StackTable:
    """The heaviest stacks, largest weight first."""

    rows: list[StackRow]
    stacks: int  # number of stacks, those over the limit included
    weight: int  # of all stacks


def head_of(selected: Selected) -> Head:
    """Return the facts on a selection; raise UsageError for an unknown event, or for events of different units."""
    spans, selection = selected.spans, selected.selection
    unit = unit_of(selection.events)
    _check_events(selected)
    lost = queries.losses_of(selected)
    return Head(
        source=printable(selected.tables.path),
        selection=printable(selection.describe()),
        hosts=len({span.host_id for span in spans}),
        recorded_ns=sum(span.recorded_ns for span in spans),
        first_ns=min((span.first_ns for span in spans), default=0),
        last_ns=max((span.last_ns for span in spans), default=0),
        periods=tuple(sorted({span.period_ns for span in spans} - {0})),
        events=tuple(map(printable, selection.events)),
        unit=unit,
        losses={cause: count for (cause, is_loss), count in lost.items() if is_loss},
        notes={cause: count for (cause, is_loss), count in lost.items() if not is_loss},
        gaps=tuple(queries.gaps_of(selected)),
    )


def _check_events(selected: Selected) -> None:
    """Raise UsageError for an event that no recording of the selected time has."""
    selection, samples = selected.selection, selected.tables.table("samples")
    if selection.events == (EVENT_NAME,):
        return
    events = samples.filter(True, *in_hours(samples, selection)).select("event").distinct()
    event_names = selected.tables.engine.run(events.order_by("event"))["event"]
    if unknown := [name for name in selection.events if name not in event_names]:
        shown = ", ".join(event_names) or "none"
        raise UsageError(f"--event: no event '{unknown[0]}' in the selected time (known: {shown})")


def tables_of(selected: Selected, keys: Sequence[str], limit: int | None) -> tuple[list[Table], int]:
    """Return the tables of a report, of at most `limit` rows each (None: all), and the weight of idle threads in them.
    `keys` of one table: of `queries.KEYS`, labels of hosts, BLOCKED. Without keys: a table each by class (of tasks:
    object), service, host and comm."""
    if keys:
        by_blocked = BLOCKED in keys
        kept = tuple(key for key in keys if key != BLOCKED) or ("class",)
        groups = selected.tables.engine.kept(grouped(selected, [*kept, IDLE]))
        columns = [column_of(key) for key in kept]
        table = _table(selected, folded(groups, columns), kept, limit, by_blocked=by_blocked)
        return [table], _idle_weight(selected, groups)
    service = [SERVICE] if SERVICE in selected.label_names else []
    names = ["object" if selected.selection.events == (TASK_EVENT,) else "class", *service, "host", "comm"]
    cube = selected.tables.engine.kept(grouped(selected, [*names, IDLE]))
    tables = [_table(selected, folded(cube, [column_of(name)]), (name,), limit) for name in names]
    return tables, _idle_weight(selected, cube)


def _idle_weight(selected: Selected, groups: Any) -> int:
    columns = selected.tables.engine.run(folded(groups, [IDLE]))
    return sum(weight for weight, idle in zip(columns["weight"], columns[IDLE], strict=True) if idle)


def stacks_of(selected: Selected, limit: int | None) -> StackTable:
    """Return the heaviest stacks, at most `limit` (None: all); stacks of the same function names are one."""
    most = None if limit is None else max(_MOST_STACKS, 20 * limit)
    sums = grouped(selected, _TOP_KEYS).select(*_TOP_KEYS, "weight", "waits", "first_ns")  # reads no others
    groups = selected.tables.engine.run(ranked(sums, most))
    tree = tree_of(selected.tables, *(groups[name] for name in ("comm", "stack", "first_ns", "marks")))
    weights: Counter[int] = Counter()
    waits: Counter[int] = Counter()
    classes: dict[int, Counter[str]] = {}
    sums_of_groups = records(groups, ("weight", "waits", "class"))
    for node, (weight, count, name) in zip(tree.of_sample.tolist(), sums_of_groups, strict=True):
        weights[node] += weight
        waits[node] += count
        classes.setdefault(node, Counter())[name or UNKNOWN] += weight
    nodes = [node for node, _ in weights.most_common(limit)]
    rows = [
        StackRow(comm.label, frames, weights[node], waits[node], dict(classes[node].most_common()))
        for node, (comm, *frames) in zip(nodes, tree.names_of(np.array(nodes, np.int64)), strict=True)
    ]
    number, weight = _all(groups)
    return StackTable(rows, len(weights) + number - len(groups["stack"]), weight)


def _table(
    selected: Selected, groups: Any, keys: tuple[str, ...], limit: int | None, *, by_blocked: bool = False
) -> Table:
    columns = selected.tables.engine.run(ranked(groups, limit, by="blocked" if by_blocked else "weight"))
    names, recorded = host_names(selected), selected.recorded
    is_sampled = EVENT_NAME in selected.selection.events and any(span.period_ns for span in selected.spans)
    values = records(columns, [column_of(key) for key in keys])
    sums = records(columns, ("weight", "blocked", "runq", "waits", "uncounted", "samples"))
    rows = [
        Row(
            tuple(_label(key, value, names) for key, value in zip(keys, group, strict=True)),
            *(weight, blocked, runq, waits, not uncounted and not is_sampled, not uncounted, samples),
            recorded_ns=recorded[group[0]] if keys == ("host",) else 0,
        )
        for group, (weight, blocked, runq, waits, uncounted, samples) in zip(values, sums, strict=True)
    ]
    return Table(keys, rows, *_all(columns), by_blocked=by_blocked)


def _all(columns: dict[str, list[Any]]) -> tuple[int, int]:
    """Return number and weight of all groups from the `columns` of a `ranked` table, which may leave out some."""
    return (columns["all_groups"][0], columns["all_weight"][0]) if columns["all_groups"] else (0, 0)


def _label(key: str, value: Any, hosts: dict[str, str]) -> str:
    if key == "host":
        return hosts.get(value) or printable(value)
    if key in queries.NUMBERS:
        return id_text(value)
    return printable(value) or ("[none]" if key in OBJECT_KEYS else UNKNOWN)


def labels_of_rows(selected: Selected, keys: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> list[tuple[str, ...]]:
    """Convert rows of values of `keys` to printable texts, with names of hosts in place of ids."""
    names = host_names(selected)
    return [tuple(_label(key, value, names) for key, value in zip(keys, row, strict=True)) for row in rows]
