# SPDX-License-Identifier: Apache-2.0
"""Select samples of a dataset: by time, host, label, event, class, object, comm and container."""

import calendar
import datetime
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any

from perf_offcpu.abi.offcpu import EVENT_NAME
from perf_offcpu.errors import UsageError
from perf_offcpu.structs import frozen
from perf_offcpu.units import time_ns

_GIGA = 10**9
_LABEL = re.compile(r"([^=,]+)=(.*)", re.DOTALL)
_LAST_NS = calendar.timegm((2200, 1, 1, 0, 0, 0)) * _GIGA  # latest time of a dataset (`dataset.dataset`)
_IDLE = {"hide": "left out", "only": "alone"}


@frozen
class Selection:
    """Criteria for samples and hosts: a sample must match each given criterion, by any of its values."""

    since_ns: int | None = None  # ns since 1970, UTC; a wait is at its end
    until_ns: int | None = None  # not included
    hosts: tuple[str, ...] = ()  # names or ids
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    events: tuple[str, ...] = (EVENT_NAME,)
    classes: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()  # parts of names, with * and ?
    comms: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()  # beginnings of ids, or names of containers or pods
    idle: str = "show"  # `hide` leaves out threads that merely wait for work, `only` all others

    def describe(self) -> str:
        """Return all criteria as text; "everything" without criteria."""
        parts = [*self._of_hosts(), *(f"{name} {'|'.join(values)}" for name, values in self._of_samples())]
        parts += [f"threads that merely wait for work {_IDLE[self.idle]}"] if self.idle in _IDLE else []
        return ", ".join(parts) or "everything"

    def describe_hosts(self) -> str:
        """Return the criteria for hosts, labels and time as text; "everything" without criteria."""
        return ", ".join(self._of_hosts()) or "everything"

    def _of_hosts(self) -> list[str]:
        parts = [f"{name}={'|'.join(values)}" for name, values in self.labels.items()]
        parts += [f"host {'|'.join(self.hosts)}"] if self.hosts else []
        parts += [f"since {utc(self.since_ns)}"] if self.since_ns is not None else []
        parts += [f"until {utc(self.until_ns)}"] if self.until_ns is not None else []
        return parts

    def _of_samples(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        events = () if self.events == (EVENT_NAME,) else self.events
        named = ("event", events), ("comm", self.comms), ("class", self.classes)
        others = ("object", self.objects), ("container", self.containers)
        return ((name, values) for name, values in (*named, *others) if values)


def utc(ns: int) -> str:
    """Format a time (ns since 1970) in UTC: `2026-11-22 14:00:05`."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(ns // _GIGA))
    except (ValueError, OverflowError, OSError):
        return f"{ns} ns"


def parse_time(option: str, text: str, now_ns: int) -> int:
    """Parse `2026-11-22T14:00`, `14:00` (today, UTC) or `-2h` (before `now_ns`) to ns since 1970, within 1970 to 2200;
    raise UsageError, which names the `option`, for other texts."""
    ago_ns = time_ns(text[1:]) if text.startswith("-") else None
    if ago_ns is not None:
        return max(0, now_ns - ago_ns)
    is_today = re.fullmatch(r"\d{2}:\d{2}(:\d{2})?", text, re.ASCII)
    day = time.strftime("%Y-%m-%dT", time.gmtime(now_ns // _GIGA)) if is_today else ""
    try:
        moment = datetime.datetime.fromisoformat(day + text)
    except ValueError:
        forms = "2026-11-22T14:00 (UTC), 14:00 (today, UTC), -2h, -3d"
        raise UsageError(f"{option}: '{text}' is not a time: {forms}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    microseconds = (moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1)
    return min(max(0, microseconds * 1000), _LAST_NS)


def parse_labels(option: str, texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Parse texts such as `service=web` to name → alternative values; raise UsageError, which names the `option`."""
    labels: dict[str, tuple[str, ...]] = {}
    for text in texts:
        match = _LABEL.fullmatch(text)
        if not match:
            raise UsageError(f"{option}: '{text}' is not of the form NAME=VALUE")
        labels[match[1]] = (*labels.get(match[1], ()), match[2])
    return labels


def baseline(selection: Selection, text: str, now_ns: int) -> Selection:
    """Return the baseline of a selection by the argument of --baseline, `version=1.4` or `since=-2d,until=-1d`: labels
    replace labels of the same name, a time or host replaces all times or hosts. Raise UsageError for other texts."""
    labels = parse_labels("--baseline", text.split(","))
    times = {name: labels.pop(name)[-1] for name in ("since", "until") if name in labels}
    if times:
        since, until = (
            parse_time(f"--baseline {name}", times[name], now_ns) if name in times else None
            for name in ("since", "until")
        )
        if since is not None and until is not None and since >= until:
            raise UsageError(f"--baseline: since={times['since']} is not before until={times['until']}")
        selection = replace(selection, since_ns=since, until_ns=until)
    hosts = labels.pop("host", selection.hosts)
    return replace(selection, hosts=hosts, labels={**selection.labels, **labels})


def filtered(samples: Any, selection: Selection) -> Any:
    """Filter the Ibis table `samples` by all criteria but hosts and labels (see `hosts.of_hosts`)."""
    import ibis

    conditions = [samples.event.isin(selection.events), *in_hours(samples, selection)]
    if selection.since_ns is not None:
        conditions.append(samples.time_ns >= selection.since_ns)
    if selection.until_ns is not None:
        conditions.append(samples.time_ns < selection.until_ns)
    for column, values in (("class", selection.classes), ("comm", selection.comms)):
        if values:
            conditions.append(samples[column].isin(values))
    if selection.idle != "show":
        conditions.append(samples.idle == (selection.idle == "only"))
    if selection.objects:
        conditions.append(ibis.or_(*(samples.object.re_search(_pattern(pattern)) for pattern in selection.objects)))
    if selection.containers:
        names = [samples[column].isin(selection.containers) for column in ("pod", "container_name")]
        conditions.append(ibis.or_(*map(samples.container.startswith, selection.containers), *names))
    return samples.filter(*conditions)


def in_hours(table: Any, selection: Selection) -> list[Any]:
    """Return Ibis conditions on the partition columns (date, hour), so that an engine opens only the selected hours."""
    import ibis

    conditions = []
    if selection.since_ns is not None:
        day, hour = _hour(selection.since_ns)
        first = ibis.date(day)
        conditions.append((table.date > first) | ((table.date == first) & (table.hour >= hour)))
    if selection.until_ns is not None:
        day, hour = _hour(selection.until_ns - 1)
        last = ibis.date(day)
        conditions.append((table.date < last) | ((table.date == last) & (table.hour <= hour)))
    return conditions


def cut_to_times(table: Any, selection: Selection) -> tuple[Any, Any]:
    """Return Ibis expressions of `begin_ns` and `end_ns` of a table's rows, cut to the selected time."""
    import ibis

    begin, end = table.begin_ns, table.end_ns
    if selection.since_ns is not None:
        begin = ibis.greatest(begin, ibis.literal(selection.since_ns, "int64"))
    if selection.until_ns is not None:
        end = ibis.least(end, ibis.literal(selection.until_ns, "int64"))
    return begin, end


def _hour(ns: int) -> tuple[datetime.date, int]:
    hour_start = time.gmtime(ns // _GIGA)
    return datetime.date(hour_start.tm_year, hour_start.tm_mon, hour_start.tm_mday), hour_start.tm_hour


def _pattern(text: str) -> str:
    """Convert a pattern with * and ? to a regular expression that all engines know."""
    return "".join({"*": ".*", "?": "."}.get(char) or re.escape(char) for char in text)
