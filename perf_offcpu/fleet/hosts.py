# SPDX-License-Identifier: Apache-2.0
"""Read the hosts of a dataset: names, labels and recorded time. Labels belong to a segment of a recording, so a host
may change them (`version=1.4`, then `version=1.5`). A span is the time in which a host had the same labels; almost all
hosts have a single one. Spans are few and are kept in memory; a sample belongs to a span by host and time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perf_offcpu.errors import UsageError
from perf_offcpu.fleet.engine import records
from perf_offcpu.fleet.selection import Selection, cut_to_times, in_hours
from perf_offcpu.fleet.tables import Tables
from perf_offcpu.structs import frozen

ALWAYS = (-(1 << 63), (1 << 63) - 1)  # begin and end of the only span of a host
_MOST_LABELS = 1000


@frozen
class Span:
    """Time in which a host had the same labels; times are in ns since 1970, UTC."""

    host_id: str
    hostname: str
    labels: Mapping[str, str]
    cpus: int
    period_ns: int  # the longest off-CPU time that one sample stands for; 0: a threshold was used
    first_ns: int  # begin and end of the recorded time, within the selected time
    last_ns: int
    recorded_ns: int  # within the selected time
    begin_ns: int = ALWAYS[0]  # samples from this time on, up to `end_ns`, belong to the span
    end_ns: int = ALWAYS[1]

    @property
    def is_whole(self) -> bool:
        """Return True if this is the only span of its host: all samples of the host belong to it."""
        return (self.begin_ns, self.end_ns) == ALWAYS


def spans_of(tables: Tables, selection: Selection) -> list[Span]:
    """Return the spans of all hosts that recorded in the selected time, also of hosts that are not selected."""
    segments = _segments(tables.table("hosts"), selection)
    spans: dict[str, list[Span]] = {}
    for span in _rows(tables, _folded(segments)):
        spans.setdefault(span.host_id, []).append(span)
    if tangled := [host for host, of_host in spans.items() if _overlap(of_host)]:
        spans |= {host: [] for host in tangled}
        each = segments.filter(segments.host_id.isin(tangled))
        for span in _rows(tables, each.mutate(recorded=_length(each))):
            spans[span.host_id].append(span)
    return [span for host in sorted(spans) for span in _bounded(_united(spans[host]))]


def chosen(spans: Sequence[Span], selection: Selection) -> list[Span]:
    """Return the spans of the selected hosts and labels; raise UsageError for a host or a label that no span has."""
    for name in selection.hosts:
        if not any(name in (span.hostname, span.host_id) for span in spans):
            raise UsageError(f"--host {name}: no host of this name or id recorded in the selected time")
    for name, values in selection.labels.items():
        _check_label(spans, name, values)
    matching = [
        span
        for span in spans
        if (not selection.hosts or {span.hostname, span.host_id}.intersection(selection.hosts))
        and all(span.labels.get(name, "") in values for name, values in selection.labels.items())
    ]
    if not matching:
        raise UsageError(f"no host fits {selection.describe_hosts()}")
    return matching


def _check_label(spans: Sequence[Span], name: str, values: Iterable[str]) -> None:
    label_values = sorted({span.labels[name] for span in spans if name in span.labels})
    if not label_values:
        labels = sorted({label for span in spans for label in span.labels})
        raise UsageError(f"no host has a label '{name}' (labels: {', '.join(labels) or 'none'})")
    if not set(values) & {*label_values, ""}:
        shown = ", ".join(label_values[:10]) + (", …" if len(label_values) > 10 else "")
        raise UsageError(f"no host has {name}={'|'.join(values)} in the selected time (known: {shown})")


def of_hosts(samples: Any, spans: Sequence[Span], all_spans: Sequence[Span], time: str = "time_ns") -> Any:
    """Filter an Ibis table by its columns `host_id` and `time` (ns) to the rows in `spans`, a part of `all_spans`."""
    import ibis

    if len(spans) == len(all_spans):
        return samples
    conditions = []
    if whole := sorted({span.host_id for span in spans if span.is_whole}):
        conditions.append(samples.host_id.isin(whole))
    for span in spans:
        if not span.is_whole:
            within = (samples[time] >= span.begin_ns) & (samples[time] < span.end_ns)
            conditions.append((samples.host_id == span.host_id) & within)
    return samples.filter(ibis.or_(*conditions))


def with_label(table: Any, name: str, spans: Sequence[Span], column: str) -> Any:
    """Add the hosts' values of the label `name` as a `column` of an Ibis table, '' for none. The table has `host_id`,
    and `time_ns` if a host has several spans."""
    import ibis

    rows = [(span.host_id, span.begin_ns, span.end_ns, span.labels.get(name, "")) for span in spans]
    schema = {"of_host": "string", "from_ns": "int64", "to_ns": "int64", column: "string"}
    labels = ibis.memtable(rows, schema=ibis.schema(schema))
    on = [table.host_id == labels.of_host]
    if not all(span.is_whole for span in spans):
        on += [table.time_ns >= labels.from_ns, table.time_ns < labels.to_ns]
    joined = table.left_join(labels, on).drop("of_host", "from_ns", "to_ns")
    return joined.mutate(**{column: joined[column].fill_null("")})


def _segments(hosts: Any, selection: Selection) -> Any:
    """Return an Ibis table of the distinct segments in the selected time: `begin` and `end` (ns) cut to it, names and
    values of labels as list columns."""
    hosts = hosts.filter(True, *in_hours(hosts, replace(selection, since_ns=None)))
    begin, end = cut_to_times(hosts, selection)
    kept = hosts.select(
        *("host_id", "boot_id", "hostname", "cpus", "period_ns"),
        label_names=hosts.labels.keys()[:_MOST_LABELS],
        label_values=hosts.labels.values()[:_MOST_LABELS],
        begin=begin,
        end=end,
    )
    return kept.filter(kept.begin <= kept.end).distinct()


def recorded_times(tables: Tables, selection: Selection, hosts: set[str]) -> list[tuple[int, int]]:
    """Return sorted (begin, end), ns UTC, of each segment that `hosts` (ids) recorded in the selected time."""
    segments = _segments(tables.table("hosts"), selection)
    columns = tables.engine.run(segments.filter(segments.host_id.isin(sorted(hosts))).select("begin", "end"))
    return sorted(records(columns, ("begin", "end")))


def _length(segments: Any) -> Any:
    return (segments.end - segments.begin).cast("decimal(38, 0)")


def _folded(segments: Any) -> Any:
    """Aggregate `_segments` to a row for each host and set of labels: first begin, last end, recorded ns."""
    same = ["host_id", "hostname", "cpus", "period_ns", "label_names", "label_values"]
    return segments.group_by(same).aggregate(
        begin=segments.begin.min(), end=segments.end.max(), recorded=_length(segments).sum()
    )


def _rows(tables: Tables, table: Any) -> list[Span]:
    columns = tables.engine.run(table)
    labels = (
        {name: value or "" for name, value in sorted(zip(names, values, strict=True))}
        for names, values in zip(columns["label_names"], columns["label_values"], strict=True)
    )
    identities = records(columns, ("host_id", "hostname"))
    facts = records(columns, ("cpus", "period_ns", "begin", "end", "recorded"))
    spans = [
        Span(host_id, name, label, *row) for (host_id, name), label, row in zip(identities, labels, facts, strict=True)
    ]
    return sorted(spans, key=lambda span: (span.first_ns, span.last_ns, sorted(span.labels.items())))


def _overlap(spans: Sequence[Span]) -> bool:
    """Return True if spans of one host with different labels overlap in time; `spans` are sorted by time."""
    different = _united(spans)
    return any(earlier.last_ns > later.first_ns for earlier, later in zip(different, different[1:], strict=False))


def _united(spans: Sequence[Span]) -> list[Span]:
    """Join consecutive spans of one host that have the same labels."""
    united: list[Span] = []
    for span in spans:
        if united and united[-1].labels == span.labels:
            last = united.pop()
            span = replace(  # noqa: PLW2901
                span,
                period_ns=max(last.period_ns, span.period_ns),
                first_ns=min(last.first_ns, span.first_ns),
                last_ns=max(last.last_ns, span.last_ns),
                recorded_ns=last.recorded_ns + span.recorded_ns,
            )
        united.append(span)
    return united


def _bounded(spans: Sequence[Span]) -> list[Span]:
    """Return the spans of a host with `begin_ns` and `end_ns` set so that each sample belongs to exactly one."""
    begins = [ALWAYS[0], *(span.first_ns for span in spans[1:])]
    ends = [*begins[1:], ALWAYS[1]]
    return [replace(span, begin_ns=begin, end_ns=end) for span, begin, end in zip(spans, begins, ends, strict=True)]
