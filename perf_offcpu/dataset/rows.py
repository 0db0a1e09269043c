# SPDX-License-Identifier: Apache-2.0
"""Make the columns of the tables of a dataset from a profile."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np

from perf_offcpu.analysis.classes.classify import classify, of_idle_threads
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.callpaths.keys import Texts, merged, named, sample_texts
from perf_offcpu.dataset.content import Content, taken
from perf_offcpu.dataset.schema import TABLES
from perf_offcpu.errors import UsageError
from perf_offcpu.losses import by_text
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Spans
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable

_CONTAINER = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
"""Form of container ids, by which Docker, containerd, CRI-O and podman name control groups."""
_CLOCK_SLACK_NS = 60 * 10**9


class ContainerNames(NamedTuple):
    """Names of a container; "" if not known."""

    pod: str = ""
    namespace: str = ""
    container_name: str = ""
    image: str = ""


@frozen
class Host:
    """Identity and facts of a host from one boot to the next."""

    host_id: str  # /etc/machine-id, or the host name
    boot_id: str = ""  # /proc/sys/kernel/random/boot_id; "" unknown
    hostname: str = ""
    kernel: str = ""
    cpus: int = 0
    arch: str = ""
    labels: dict[str, str] | None = None
    containers: Mapping[str, ContainerNames] = field(default_factory=dict)  # names by id


def host_of(
    profile: Profile,
    labels: Mapping[str, str] | None = None,
    host_id: str = "",
    boot_id: str = "",
    containers: Mapping[str, ContainerNames] | None = None,
) -> Host:
    """Return the host of a recording; its id is `host_id` or else its name. Raise UsageError if it has neither."""
    meta, name = profile.meta, printable(profile.meta.hostname)
    if not (host_id or name):
        raise UsageError(f"{meta.source}: it does not say of which host it is")
    facts = printable(meta.os_release), meta.nr_cpus, printable(meta.arch)
    return Host(host_id or name, boot_id, name, *facts, dict(labels or {}), containers or {})


@frozen
class Span:
    """Recorded time of a profile in ns since 1970, UTC."""

    offset_ns: int  # UTC minus the recording's clock
    begin_ns: int
    end_ns: int
    parts: Spans  # the times between pauses, at least one


def span_of(profile: Profile) -> Span:
    """Return the recorded time of a profile; raise UsageError if the recording has no wall-clock time."""
    meta = profile.meta
    begin, end = meta.begin_ns or max(meta.first_ns, 0), meta.end_ns or max(meta.last_ns, 0)
    # A recorder in a time namespace notes a clock that the kernel's times do not follow (decode.join).
    shifted = meta.wall_clock_at_ns > max(end, meta.last_ns) + _CLOCK_SLACK_NS > _CLOCK_SLACK_NS
    if not meta.wall_clock_ns or shifted:
        raise UsageError(
            f"{meta.source}: it does not say what time it was, and a dataset holds the times of many hosts: "
            "record with perf-offcpu, or with perf record -k mono"
        )
    offset = meta.wall_clock_ns - meta.wall_clock_at_ns
    if not begin:  # no record has a time
        begin = end = meta.wall_clock_at_ns
    end = max(begin, end)
    parts = tuple((first + offset, last + offset) for first, last in meta.parts or ((begin, end),))
    return Span(offset, begin + offset, end + offset, parts)


def sample_columns(profile: Profile, content: Content, host: Host, span: Span) -> dict[str, Any]:
    """Return the columns of table `samples`, sorted by (time_ns, stack_id)."""
    samples, offcpu, waits = profile.samples, profile.is_offcpu(), classify(profile)
    texts = sample_texts(profile, waits)
    never_blocked = offcpu & (waits.wait_class == WaitClass.RUNQUEUE)
    runq = np.where(never_blocked, samples.period, samples.runq_ns)
    columns: dict[str, Any] = {
        "time_ns": np.where(samples.time_ns >= 0, samples.time_ns + span.offset_ns, span.end_ns),
        "off_ns": np.where(offcpu, samples.length_ns(), 0),
        "weight_ns": samples.period,
        "runq_ns": (runq, ~offcpu | (runq < 0)),
        "count": samples.count,
        "event": _known(texts["event"]),
        "pid": samples.pid,
        "tid": samples.tid,
        "comm": texts["comm"],
        "cpu": (samples.cpu, samples.cpu < 0),
        "state": texts["state"],
        "class": texts["wait_class"],
        "idle": of_idle_threads(profile, waits.for_work),
        "syscall": texts["syscall"],
        "object_kind": texts["object_kind"],
        "object": texts["object"],
        **_addresses(profile),
        "network": texts["network"],
        "waker_pid": (samples.waker_pid, samples.waker_pid < 0),
        "waker_tid": (samples.waker_tid, samples.waker_tid < 0),
        "waker_comm": texts["waker_comm"],
        "cgroup": texts["cgroup"],
        **_containers(texts["cgroup"], host.containers),
        "stack_id": content.stack_of[samples.stack],
        "waker_stack_id": content.stack_of[samples.waker_stack],
        "flags": samples.flags.astype(np.int64),
        **_host_columns(host, len(samples)),
    }
    order = np.lexsort((columns["stack_id"], columns["time_ns"]))
    return {name: taken(column, order) for name, column in columns.items()}


def _addresses(profile: Profile) -> dict[str, Texts]:
    """Return local_address and remote_address of the connections that the samples waited for; null without one."""
    ends = {"local_address": profile.objects.local, "remote_address": profile.objects.remote}
    of_samples = {name: np.append(end, np.uint32(0))[profile.samples.object] for name, end in ends.items()}
    return {name: named(end, profile.strings, end != 0) for name, end in of_samples.items()}


def _host_columns(host: Host, rows: int) -> dict[str, Any]:
    return {"host_id": _same_text(host.host_id, rows), "boot_id": _same_text(host.boot_id, rows)}


def _same_text(text: str, rows: int) -> Texts:
    return Texts([printable(text)], np.zeros(rows, np.int64))


def _known(texts: Texts) -> Texts:
    """Replace the nulls of a column by ""."""
    return Texts([*texts.texts, ""], np.where(texts.codes < 0, len(texts.texts), texts.codes))


def _containers(cgroups: Texts, names: Mapping[str, ContainerNames]) -> dict[str, Texts]:
    """Return the columns on containers: id, from the control group's path (the innermost of several), and its names."""
    ids_in_path = [_CONTAINER.findall(path) for path in cgroups.texts]
    ids = [ids_of_path[-1] if ids_of_path else "" for ids_of_path in ids_in_path]
    named_ids = [names.get(id_, ContainerNames()) for id_ in ids]
    columns = {"container": ids} | {name: [getattr(row, name) for row in named_ids] for name in ContainerNames._fields}
    return {name: _where_known(texts, cgroups.codes) for name, texts in columns.items()}


def _where_known(texts: list[str], codes: I64) -> Texts:
    """Return the column of `texts[codes]`, null where the text is "" or the code is -1."""
    is_known = np.array([*map(bool, texts), False], np.bool_)
    return merged(texts, codes, is_known[codes])


def budget_columns(profile: Profile, host: Host, span: Span) -> dict[str, Any]:
    """Return the columns of table `budgets`; no rows if the recording has no budgets of threads."""
    budget = profile.budget
    columns: dict[str, Any] = {
        "begin_ns": budget.begin_ns + span.offset_ns,
        "end_ns": budget.end_ns + span.offset_ns,
        "comm": named(profile.comms_at(budget.tid, budget.end_ns), profile.strings),
        **_host_columns(host, len(budget)),
    }
    return columns | {
        column.name: getattr(budget, column.name) for column in TABLES["budgets"] if column.name not in columns
    }


def loss_columns(profile: Profile, host: Host, span: Span) -> dict[str, Any]:
    """Return the columns of table `losses`: counts of all losses, and of notes on the data."""
    losses = list(by_text(profile.losses).items())
    return {
        "begin_ns": np.full(len(losses), span.begin_ns),
        "end_ns": np.full(len(losses), span.end_ns),
        "cause": merged([printable(str(cause)) for cause, _ in losses], np.arange(len(losses))),
        "count": np.array([count for _, count in losses], np.int64),
        "is_loss": np.array([cause.is_loss for cause, _ in losses], np.bool_),
        **_host_columns(host, len(losses)),
    }


@frozen
class Gap:
    """Time for which a host recorded nothing, in ns since 1970, UTC."""

    begin_ns: int
    end_ns: int
    cause: str  # in words


def gap_columns(gaps: Sequence[Gap], host: Host) -> dict[str, Any]:
    """Return the columns of table `gaps`."""
    return {
        "begin_ns": np.array([gap.begin_ns for gap in gaps], np.int64),
        "end_ns": np.array([gap.end_ns for gap in gaps], np.int64),
        "cause": merged([printable(gap.cause) for gap in gaps], np.arange(len(gaps))),
        **_host_columns(host, len(gaps)),
    }


def host_columns(profile: Profile, host: Host, offset_ns: int, parts: Spans) -> dict[str, Any]:
    """Return the columns of table `hosts`: a row for each recorded time in `parts`; `offset_ns`: UTC minus its
    clock."""
    import pyarrow as pa

    number = len(parts)
    labels = [(printable(key), printable(value)) for key, value in sorted((host.labels or {}).items())]
    return {
        **{name: _same_text(getattr(host, name), number) for name in ("hostname", "kernel", "arch")},
        "cpus": np.full(number, host.cpus, np.int32),
        "labels": pa.array([labels] * number, pa.map_(pa.string(), pa.string())),
        "begin_ns": np.array([begin for begin, _ in parts], np.int64),
        "end_ns": np.array([end for _, end in parts], np.int64),
        "clock_offset_ns": np.full(number, offset_ns),
        "period_ns": np.full(number, profile.meta.sampling.period_ns),
        **_host_columns(host, number),
    }
