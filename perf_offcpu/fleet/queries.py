# SPDX-License-Identifier: Apache-2.0
"""Build queries of a dataset as Ibis expressions: samples summed by keys, and ranked. Sums of times are decimals of 38
digits: 63 bits hold 292 years only, less than a day of a large fleet."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.errors import UsageError
from perf_offcpu.fleet.engine import records
from perf_offcpu.fleet.hosts import Span, chosen, of_hosts, recorded_times, spans_of, with_label
from perf_offcpu.fleet.profile import KEYS as STACK_KEYS
from perf_offcpu.fleet.profile import MARKS, profile_of
from perf_offcpu.fleet.selection import Selection, cut_to_times, filtered, in_hours, utc
from perf_offcpu.fleet.tables import Tables
from perf_offcpu.losses import LossCause, Losses, Stage
from perf_offcpu.model.coverage import Sampling
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.report.style import plural
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable

IDLE = "idle"  # a boolean column; its values as a key are 1 and 0
CONTAINER_KEYS = "container pod namespace container_name image".split()
KEYS = {name: name for name in f"comm pid tid event state class syscall object cgroup {IDLE}".split() + CONTAINER_KEYS}
KEYS |= {"host": "host_id", "waker": "waker_comm", "stack": "stack_id"}
"""Key → column of `samples`. Every label of a host is a key, too."""
NUMBERS = frozenset({"pid", "tid", "stack", IDLE})
SUMS = ("weight", "blocked", "runq", "waits", "uncounted", "samples", "first_ns", "last_ns")
RUNQUEUE = WaitClass.RUNQUEUE.label
_WIDE = "decimal(38, 0)"
BLOCK = "block of time"  # a key that no label can be: the number of a block of time (`in_blocks`), as text
_LENGTH = "length of each"  # a key that no label can be: the step of a wait's length, `_STEPS` steps for each octave
_STEPS = 16


@frozen
class Selected:
    """Samples of a selection, as a query that is not yet run, and the spans of their hosts (`fleet.hosts`)."""

    tables: Tables
    selection: Selection
    spans: list[Span]  # of the selected hosts
    all_spans: list[Span]  # of all hosts that recorded in the selected time
    samples: Any  # an Ibis table
    block_ns: int = 0  # length of the blocks of time (`in_blocks`); 0 if there are none

    @property
    def first_ns(self) -> int:
        """Return the begin of the recorded time, ns since 1970, UTC; 0 if nothing was recorded."""
        return min((span.first_ns for span in self.spans), default=0)

    @property
    def label_names(self) -> list[str]:
        """Return the names of all labels of the selected hosts, sorted."""
        return sorted({name for span in self.spans for name in span.labels})

    @property
    def recorded(self) -> Counter[str]:
        """Return host_id → ns of the selected time that the host recorded."""
        recorded: Counter[str] = Counter()
        for span in self.spans:
            recorded[span.host_id] += span.recorded_ns
        return recorded


def select(tables: Tables, selection: Selection) -> Selected:
    """Make the query of the selected samples; it is run later. Raise UsageError if no host fits."""
    tables.check_versions(selection.until_ns)
    every = spans_of(tables, selection)
    if not every and (selection.since_ns, selection.until_ns) != (None, None):
        raise UsageError(_nothing_recorded(tables, selection))
    spans = chosen(every, selection) if selection.hosts or selection.labels else every
    samples = of_hosts(filtered(tables.table("samples"), selection), spans, every)
    return Selected(tables, selection, spans, every, samples)


def _nothing_recorded(tables: Tables, selection: Selection) -> str:
    hosts = tables.table("hosts")
    times = hosts.aggregate(first=hosts.begin_ns.min(), last=hosts.end_ns.max())
    ((first, last),) = records(tables.engine.run(times, of_rows=False), ("first", "last"))
    reach = "has no hosts" if first is None else f"reaches from {utc(first)} to {utc(last)} UTC"
    return f"no host recorded {selection.describe_hosts()}: {tables.path} {reach}"


def host_names(selected: Selected) -> dict[str, str]:
    """Return host_id → printable name; hosts of the same name get the first characters of the id appended."""
    names = {span.host_id: printable(span.hostname or span.host_id) for span in selected.all_spans}
    times = Counter(names.values())
    return {id_: f"{name} ({printable(id_)[:8]})" if times[name] > 1 else name for id_, name in names.items()}


def grouped(selected: Selected, keys: Sequence[str]) -> Any:
    """Sum the samples by keys: return an Ibis table with a column for each key (-1 or "" if unknown), and the SUMS."""
    samples, labels = selected.samples, [key for key in keys if not is_column(key)]
    names = [column_of(key) for key in keys]
    if not labels:
        return _summed(samples, names)
    if not all(span.is_whole for span in selected.spans):
        for label in labels:
            samples = with_label(samples, label, selected.spans, column_of(label))
        return _summed(samples, names)
    plain = list(filter(is_column, keys))
    by_host = _summed(samples, [*plain, *([] if "host" in plain else ["host"])])
    by_host = by_host.mutate(host_id=by_host.host)
    for label in labels:
        by_host = with_label(by_host, label, selected.spans, column_of(label))
    return folded(by_host, names)


def column_of(key: str) -> str:
    """Return the name of a key's column in the result of `grouped`: the key, or `label_KEY` for a label of hosts."""
    return key if is_column(key) else f"label_{key}"


def is_column(key: str) -> bool:
    """Return True if the key is a column of the samples, False if it is a label."""
    return key in KEYS or key in ("marks", BLOCK, _LENGTH)


def folded(groups: Any, keys: Sequence[str]) -> Any:
    """Sum the result of `grouped` further: return an Ibis table by the columns `keys`, a part of its keys."""
    sums = {name: groups[name].sum() for name in SUMS if not name.endswith("_ns")}
    sums |= {"first_ns": groups.first_ns.min(), "last_ns": groups.last_ns.max()}
    return groups.group_by(list(keys)).aggregate(**sums) if keys else groups.aggregate(**sums)


def ranked(groups: Any, limit: int | None, *, by: str = "weight") -> Any:
    """Return an Ibis table of at most `limit` rows of `groups` (None: all), the largest `by` first, with the number and
    the weight of all rows as columns all_groups, all_weight."""
    import ibis

    keys = [name for name in groups.columns if name not in SUMS]
    every = ibis.window()
    counted = groups.mutate(all_groups=groups.count().over(every), all_weight=groups.weight.sum().over(every))
    ordered = counted.order_by([ibis.desc(by), *([ibis.desc("weight")] if by != "weight" else []), *keys])
    return ordered if limit is None else ordered.limit(limit)


def in_blocks(selected: Selected, begin_ns: int, length_ns: int) -> tuple[Selected, dict[str, int]]:
    """Cut the time from `begin_ns` on into blocks: return the selection with BLOCK, the number of the block, as a
    further key, and block → recorded ns of its single host."""
    number = ((selected.samples.time_ns - begin_ns) / length_ns).floor().cast("int64").cast("string")
    cut = replace(selected, samples=selected.samples.mutate(**{BLOCK: number}), block_ns=length_ns)
    recorded: Counter[str] = Counter()
    for begin, end in recorded_times(selected.tables, selected.selection, {span.host_id for span in selected.spans}):
        for block in range((begin - begin_ns) // length_ns, (end - 1 - begin_ns) // length_ns + 1):
            block_ns = begin_ns + block * length_ns
            recorded[str(block)] += min(end, block_ns + length_ns) - max(begin, block_ns)
    return cut, {block: recorded[block] for block in sorted(recorded, key=int) if recorded[block] > 0}


def lengths_of(
    selected: Selected, keys: Sequence[str], unit: str, units: Sequence[str], part: float
) -> dict[Any, float]:
    """Return values of `keys` → quantile `part` (0 to 1) of the lengths of waits, ns, at most 2.2 % off. Counted are
    the waits whose key `unit` ("host" or BLOCK) is one of `units`. Waits in a sum have its mean length; sums of unknown
    numbers of waits are left out."""
    samples = selected.samples
    timed = (samples.off_ns > 0) & (samples["count"] > 0) & ((samples.flags & int(SampleFlag.UNTIMED)) == 0)
    timed &= samples[KEYS.get(unit, unit)].isin(sorted(units))
    groups = grouped(replace(selected, samples=samples.filter(timed)), [*keys, _LENGTH])
    columns = [column_of(key) for key in keys]
    sums = selected.tables.engine.run(groups.select(*columns, _LENGTH, "waits"))
    steps: dict[Any, Counter[int]] = {}
    for *key, step, waits in records(sums, [*columns, _LENGTH, "waits"]):
        steps.setdefault(tuple(key), Counter())[step] += waits
    return {key: 2 ** ((_percentile(counts, part) + 0.5) / _STEPS) for key, counts in steps.items()}


def _percentile(counts: Counter[int], part: float) -> int:
    """Return the quantile `part` (0 to 1) of values; `counts`: value → number of occurrences."""
    left = part * counts.total()
    for value, count in sorted(counts.items()):
        left -= count
        if left <= 0:
            return value
    return max(counts)


def _summed(samples: Any, keys: Sequence[str]) -> Any:
    """Sum an Ibis table of samples by the columns `keys`: return a table of these columns and the sums (SUMS)."""
    named, weight, runq = {}, samples.weight_ns, samples.runq_ns.fill_null(0)
    for key in keys:
        if key == "marks":
            named[key] = samples.flags & int(MARKS)
            continue
        if key == _LENGTH:
            each = (samples.off_ns < samples.weight_ns).ifelse(samples.off_ns, samples.off_ns / samples["count"])
            named[key] = (each.cast("float64").log2() * _STEPS).floor().cast("int64")
            continue
        column = samples[KEYS.get(key, key)]
        named[key] = column.cast("int64").fill_null(-1) if key in NUMBERS else column.fill_null("")
    sums = {
        "weight": weight.cast(_WIDE).sum(),
        "blocked": (samples["class"].fill_null("") == RUNQUEUE).ifelse(0, weight - runq).cast(_WIDE).sum(),
        "runq": runq.cast(_WIDE).sum(),
        "waits": samples["count"].sum(),
        "uncounted": (samples.flags & int(SampleFlag.UNTIMED)).cast("boolean").sum(),
        "samples": samples.count(),
        "first_ns": samples.time_ns.min(),
        "last_ns": samples.time_ns.max(),
    }
    return samples.group_by(**named).aggregate(**sums) if named else samples.aggregate(**sums)


@frozen
class Gap:
    """Total time for which a host recorded nothing, for one cause."""

    host: str
    cause: str
    ns: int


def losses_of(selected: Selected) -> dict[tuple[str, bool], int]:
    """Sum the losses of segments of the selected hosts that overlap the selected time: return (printable cause, True
    for a loss or False for a mere note) → count."""
    losses, selection = selected.tables.table("losses"), selected.selection
    conditions = [losses["count"] > 0, *in_hours(losses, replace(selection, since_ns=None))]
    if selection.since_ns is not None:
        conditions.append(losses.end_ns > selection.since_ns)
    if selection.until_ns is not None:
        conditions.append(losses.begin_ns < selection.until_ns)
    of_segments = of_hosts(losses, selected.spans, selected.all_spans, time="begin_ns")
    groups = of_segments.filter(*conditions).group_by("cause", "is_loss")
    sums = groups.aggregate(total=of_segments["count"].sum()).order_by("cause")
    rows = records(selected.tables.engine.run(sums), ("cause", "is_loss", "total"))
    return {(printable(cause), is_loss): total for cause, is_loss, total in rows}


def gaps_of(selected: Selected) -> list[Gap]:
    """Return the times for which selected hosts recorded nothing, cut to the selected time, the longest first."""
    table, selection = selected.tables.table("gaps"), selected.selection
    rows = table.filter(True, *in_hours(table, replace(selection, until_ns=None)))  # in the hour of their end
    begin, end = cut_to_times(rows, selection)
    rows = of_hosts(rows, selected.spans, selected.all_spans, time="end_ns")  # the begin of a segment
    each = rows.select("host_id", "cause", begin=begin, end=end).distinct()
    each = each.filter(each.begin < each.end)
    sums = each.group_by("host_id", "cause").aggregate(ns=(each.end - each.begin).cast(_WIDE).sum())
    names = host_names(selected)
    gaps = [
        Gap(names.get(host) or printable(host), printable(cause), int(ns))
        for host, cause, ns in records(selected.tables.engine.run(sums), ("host_id", "cause", "ns"))
    ]
    return sorted(gaps, key=lambda gap: (-gap.ns, gap.host, gap.cause))


def profile_of_selected(selected: Selected) -> Profile:
    """Sum the selected samples by STACK_KEYS and return them as a profile; raise UsageError if there are none."""
    groups = selected.tables.engine.run(ranked(grouped(selected, STACK_KEYS), None))
    if not groups["stack"]:
        raise UsageError(f"{selected.tables.path}: no samples of {selected.selection.describe()}")
    profile = profile_of(selected.tables, groups, selected.tables.path)
    profile.losses = _missing(selected)
    profile.meta.sampling = Sampling(max((span.period_ns for span in selected.spans), default=0))
    return profile


def _missing(selected: Selected) -> Losses:
    """Return the losses of the selected segments; seconds that hosts did not record are losses, too."""
    losses = Losses()
    for (text, is_loss), count in losses_of(selected).items():
        losses.add(LossCause(Stage.SAMPLES, "", text, is_loss=is_loss), count)
    for gap in gaps_of(selected):
        text = f"s that {gap.host} did not record ({gap.cause})"
        losses.add(LossCause(Stage.SAMPLES, "", text), -(-gap.ns // 10**9))
    return losses


def title_of(selected: Selected) -> str:
    """Return the title of a picture: dataset, selection and number of hosts; printable."""
    hosts = plural(len({span.host_id for span in selected.spans}), "host")
    return printable(f"{selected.tables.path}: {selected.selection.describe()} ({hosts})")
