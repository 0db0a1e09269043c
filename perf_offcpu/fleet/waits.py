# SPDX-License-Identifier: Apache-2.0
"""Show single waits of a selection, the longest first: examples of a row of a report, each with its stack."""

from collections.abc import Iterator, Sequence
from typing import Any

from perf_offcpu.abi.offcpu import EVENT_NAME
from perf_offcpu.callpaths.options import Name
from perf_offcpu.errors import UsageError
from perf_offcpu.fleet.profile import MARKS, tree_of
from perf_offcpu.fleet.queries import Selected, host_names
from perf_offcpu.fleet.report import Head
from perf_offcpu.fleet.selection import utc
from perf_offcpu.fleet.text import head
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.report import style as say
from perf_offcpu.report.style import Style
from perf_offcpu.report.terminal import frame_lines
from perf_offcpu.structs import frozen
from perf_offcpu.text import UNKNOWN, printable

_TEXTS = ("comm", "class", "object", "syscall", "waker_comm")
_NUMBERS = ("time_ns", "off_ns", "runq_ns", "pid", "tid", "waker_tid")


@frozen
class LongWait:
    """A single wait: a row of table `samples`, with its stack."""

    host: str  # name
    columns: dict[str, Any]  # column of `samples` (_TEXTS, _NUMBERS) → value; texts are printable
    frames: Sequence[Name]  # root first


def longest_waits(selected: Selected, limit: int | None) -> list[LongWait]:
    """Return the `limit` (None: 2^20) longest waits, without sums; raise UsageError if other events are selected."""
    import ibis

    if selected.selection.events != (EVENT_NAME,):
        raise UsageError(f"--event: waits are of {EVENT_NAME} alone")
    samples = selected.samples
    is_single = (samples["count"] <= 1) | (samples.off_ns < samples.weight_ns)  # the latter: drawn by a period
    is_timed = (samples.off_ns > 0) & ((samples.flags & int(SampleFlag.UNTIMED)) == 0)
    texts = {name: samples[name].fill_null("") for name in _TEXTS}
    numbers = {name: samples[name].fill_null(-1) for name in _NUMBERS}
    stacks = {"stack_id": samples.stack_id.fill_null(0)}
    chosen = samples.filter(is_single & is_timed).select("host_id", "flags", **stacks, **texts, **numbers)
    order = [ibis.desc("off_ns"), "time_ns", "host_id", "tid"]
    columns = selected.tables.engine.run(chosen.order_by(order).limit(limit or 1 << 20))
    marks = [flags & int(MARKS) for flags in columns["flags"]]
    tree = tree_of(selected.tables, columns["comm"], columns["stack_id"], columns["time_ns"], marks)
    names = host_names(selected)
    return [
        LongWait(names.get(host) or printable(host), dict(zip((*_TEXTS, *_NUMBERS), row, strict=True)), path[1:])
        for host, *row, path in zip(
            columns["host_id"],
            *(map(printable, columns[name]) for name in _TEXTS),
            *(columns[name] for name in _NUMBERS),
            tree.names_of(tree.of_sample),
            strict=True,
        )
    ]


def wait_lines(waits: Sequence[LongWait], facts: Head, style: Style) -> Iterator[str]:
    """Yield the lines of `fleet waits`."""
    yield from head(facts, style)
    yield from say.section("Longest waits, at their end in UTC", style)
    for wait in waits:
        row = wait.columns
        length = f"{say.amount(row['off_ns'], 'ns', style)} {style.unit}"
        by = f"ended by {row['waker_comm']}/{row['waker_tid']}" if row["waker_comm"] else ""
        thread = f"{row['comm']}/{row['tid']}"
        words = (length, utc(row["time_ns"]), wait.host, thread, row["class"] or UNKNOWN, row["object"], by)
        yield "  ".join(filter(None, words))
        yield from frame_lines(wait.frames, style)
