# SPDX-License-Identifier: Apache-2.0
"""Make the JSON document of `perf-offcpu report --json`. Weights are integers in the unit that the document names (ns
for time); rows are sorted by weight, and frames are root first. `version` grows when a key changes its meaning or is
removed, not for a new key. Every key is described in Documentation/perf-offcpu-report.txt."""

from typing import Any

from perf_offcpu.causality.locks import DeadThread, ends_after
from perf_offcpu.model.recording import Meta
from perf_offcpu.report.breakdowns import FunctionTable, GroupTable, Histogram
from perf_offcpu.report.objects import LockRow, ObjectRow
from perf_offcpu.report.summary import StackRow, Summary
from perf_offcpu.report.thread_budgets import BudgetRow, BudgetTable
from perf_offcpu.report.totals import cut_fields, fields, frame, total_fields
from perf_offcpu.report.verdict.causes import Cause, Place
from perf_offcpu.report.verdict.numbers import Verdict
from perf_offcpu.report.verdict.text import lines_of
from perf_offcpu.text import printable

VERSION = 2

_SAMPLING = "period_ns longest_period_ns waits waits_ns estimated_waits estimated_ns"


def document(summary: Summary) -> dict[str, Any]:
    """Return the summary as dicts, lists, integers and printable texts, for `--json`."""
    meta, event, objects = summary.meta, summary.beside, summary.objects
    machine = fields(meta, "file=source hostname os_release arch cpus=nr_cpus")
    command = {"command": list(map(printable, meta.cmdline)), **fields(meta.sampling, "stack_period_ns")}
    subject = {"events": list(map(printable, summary.subject)), **fields(summary, "offcpu=is_offcpu unit")}
    return {
        "version": VERSION,
        "recording": machine | command | fields(meta, "first_ns last_ns paused_ns"),
        "sampling": fields(meta.sampling, _SAMPLING) if meta.sampling else None,
        "events": [fields(row, "name unit samples") | total_fields(row.total) for row in summary.events],
        "subject": subject | total_fields(summary.total),
        "verdict": summary.verdict and _verdict(summary.verdict, meta),
        "threads": [
            fields(row, "comm pid tid idle_because")
            | total_fields(row.total)
            | {"beside": event and fields(event, "event=name") | fields(row.beside, "weight count")}
            for row in summary.threads
        ],
        "more_threads": cut_fields(summary.more_threads),
        "stacks": [_stack(row) for row in summary.stacks],
        "more_stacks": cut_fields(summary.more_stacks),
        "budget": summary.budget and _budget(summary.budget),
        "groups": _groups(summary.groups),
        "objects": {"rows": list(map(_object, objects.rows)), "more": cut_fields(objects.more)}
        | fields(objects, "without"),
        "oversleep": summary.oversleep and fields(summary.oversleep, "sleeps median longest interrupted"),
        **deadlock_fields(summary.deadlocks),
        "event_loops": [
            {"comm": row.comm, **fields(row.loop, "pid tid")}
            | {"waits": [fields(group, "tasks waits_for function holders names") for group in row.groups]}
            for row in summary.loops
        ],
        "event_loop_times": [row._asdict() for row in summary.loop_times],
        "goroutines": [row._asdict() for row in summary.goroutines],
        "functions": summary.functions and _functions(summary.functions),
        "histogram": summary.histogram and _histogram(summary.histogram),
        "notes": {str(cause): count for cause, count in summary.notes.items()},
        "losses": {printable(str(cause)): count for cause, count in summary.losses.items()},
    }


def _stack(row: StackRow) -> dict[str, Any]:
    return {
        "comm": row.comm,
        **total_fields(row.total),
        **fields(row, "states classes"),
        "syscalls": {printable(name): weight for name, weight in row.syscalls.items() if name},
        **fields(row, "still_blocked error_ns"),
        "frames": list(map(frame, row.frames)),
    }


def _verdict(verdict: Verdict, meta: Meta) -> dict[str, Any]:
    blocked = "comm pid tid wait_class object network function weight since began_before"
    numbers = "weight threads running runq others unrecorded idle_threads idle still_blocked command"
    numbers += " greenlets tasks virtual_threads goroutines"
    return {
        "lines": list(map(printable, lines_of(verdict, meta))),
        **fields(verdict, numbers),
        "causes": [_cause(cause) for cause in verdict.causes],
        "elsewhere": [_cause(cause) for cause in verdict.elsewhere],
        "longest_blocked": [fields(thread, blocked) for thread in verdict.longest_blocked],
        "loss": verdict.loss and fields(verdict.loss, "cause count percent of causes"),
    }


def _cause(cause: Cause) -> dict[str, Any]:
    places = [fields(place, "function weight object mostly") | _waiting(place) for place in cause.places]
    facts = fields(cause, "wait_class program meaning weight functions cpus command")
    return facts | _waiting(cause) | {"places": places}


def _waiting(row: Cause | Place) -> dict[str, Any]:
    peers = fields(row.peers, "role comms")
    network = {label: part._asdict() for label, part in row.network.items()}
    return {"threads": row.threads.number, "comms": row.threads.comms, "peers": peers, "network": network}


def _budget(table: BudgetTable) -> dict[str, Any]:
    def cells(row: BudgetRow) -> dict[str, Any]:
        return {
            **fields(row, "comm pid tid wall running runnable"),
            "blocked": {letter or "?": ns for letter, ns in row.blocked.items()},
            **fields(row, "unknown threads cgroup"),
        }

    return {
        "derived": table.derived,
        "by": table.by,
        "threads": list(map(cells, table.rows)),
        "more_threads": table.more,
        "rest": list(map(cells, table.rest)),
        "total": table.total and cells(table.total),
    }


def _groups(table: GroupTable) -> dict[str, Any]:
    rows = []
    for row in table.rows:
        parts = fields(row, "runq blocked") if table.runq_known else {"runq": None, "blocked": None}
        rows.append({"values": list(row.values), **total_fields(row.total), **parts})
    return {"keys": list(table.keys), "rows": rows, "more": cut_fields(table.more)}


def _functions(table: FunctionTable) -> dict[str, Any]:
    return {"rows": [frame(row.name) | fields(row, "inclusive own") for row in table.rows], "more": table.more}


def _histogram(table: Histogram) -> dict[str, Any]:
    buckets = [fields(bucket, "from=low below=high count weight") for bucket in table.buckets]
    return {"buckets": buckets, "sums": {"samples": table.sums, **total_fields(table.summed)}}


def _object(row: ObjectRow) -> dict[str, Any]:
    return fields(row, "name kind wait_class") | total_fields(row.total) | fields(row, "threads role by network")


def lock_fields(lock: LockRow) -> dict[str, Any]:
    """Return a lock as a dict, for `--json`; `role` says whether `hands` are threads that held or released it."""
    counts = fields(lock, "queue hand_overs changed weight_known weight_unknown waiting_in")
    hands = [
        fields(hand, "comm pid tid weight times function") | {"frames": list(map(frame, hand.frames))}
        for hand in lock.hands
    ]
    return _object(lock.row) | counts | {"hands": hands, "more_hands": cut_fields(lock.more_hands)}


def deadlock_fields(circles: list[list[DeadThread]]) -> dict[str, Any]:
    """Return circles of waiting threads as a dict, for `--json`: `timed_circles` have a timeout, `deadlocks` none."""
    columns = "comm pid tid lock function weight began_before asked_ns is_over"
    documents: dict[str, Any] = {"deadlocks": [], "timed_circles": []}
    for circle in circles:
        name = "deadlocks" if ends_after(circle) < 0 else "timed_circles"
        documents[name].append([fields(thread, columns) for thread in circle])
    return documents
