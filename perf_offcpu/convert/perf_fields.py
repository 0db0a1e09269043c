# SPDX-License-Identifier: Apache-2.0
"""The fields of `perf-offcpu script`, and `-F`, with which they are chosen as in perf.

perf's own names mean what they mean there (tools/perf/Documentation/perf-script.txt). The others are
what perf has no words for; they show only on off-cpu samples, as `key=value`, `-` where unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perf_offcpu.errors import UsageError

PERF_FIELDS = {
    "comm": "name of the thread",
    "pid": "process (tgid)",
    "tid": "thread",
    "cpu": "CPU; for off-cpu time the one on which the thread went on",
    "time": "seconds; for off-cpu time the end of the (last) wait, - if it has none",
    "period": "weight: ns of off-cpu time, or what the event counts",
    "event": "name of the event",
    "cgroup": "path of the cgroup",
    "ip": "address, of each frame or of the sample",
    "sym": "function",
    "symoff": "offset in the function",
    "dso": "object that holds the code",
    "srcline": "source file and line, below each frame; dso[address] where unknown",
}
"""Name → meaning of the fields that perf has, too."""

OWN_FIELDS = {
    "state": "task state while waiting, a letter as in ps; R: preempted",
    "class": "what is waited for: lock, disk, network, pipe, sleep, poll, … (Documentation/wait-classes.md)",
    "syscall": "system call waited in; none: a page fault, preemption, a kernel thread",
    "count": "number of waits",
    "longest": "ns: the longest of them",
    "switch_out": "seconds: begin of the (first) wait",
    "wakeup": "seconds: when it was woken",
    "waker": "pid/tid of who woke it",
    "waker_stack": "functions of the waker, root first, `;` between them",
    "runq": "ns of the period from wake-up to running",
    "flags": "what else is known: aggregated, preempted, no_user_stack, …",
}
"""Name → meaning of the fields that only this project has."""

DEFAULT_FIELDS = ("comm", "tid", "cpu", "time", "period", "event", "ip", "sym", "symoff", "dso")
"""perf's defaults. It leaves out what an event has not recorded, and the period of tracepoints."""

FRAME_FIELDS = frozenset({"ip", "sym", "dso"})
"""Any of these makes the frames show."""


@dataclass(frozen=True, slots=True)
class FieldChoice:
    """Which fields to show.

    Args:
        shown: names of fields.
        asked: those of them that the user named: shown even where an event lacks them.
    """

    shown: frozenset[str] = frozenset(DEFAULT_FIELDS)
    asked: frozenset[str] = frozenset()

    def has(self, *names: str) -> bool:
        """Whether any of these fields is shown."""
        return not self.shown.isdisjoint(names)


def choose_fields(texts: Iterable[str]) -> FieldChoice:
    """The fields that the values of `-F` ask for: a list (`comm,tid,ip,sym`) instead of the defaults, or
    changes to them (`+state,-cpu`).

    Raises:
        UsageError: a field is unknown, or a list and changes are mixed.
    """
    words = [word.strip() for text in texts for word in text.split(",") if word.strip()]
    changes = [word for word in words if word[0] in "+-"]
    if changes and len(changes) < len(words):
        raise UsageError("--fields: a list of fields and changes to the defaults (+x, -x) cannot be mixed")
    if not changes:
        named = frozenset(map(_known, words))
        return FieldChoice(named, named) if named else FieldChoice()
    shown, asked = frozenset(DEFAULT_FIELDS), frozenset[str]()
    for word in changes:
        name = {_known(word[1:])}
        shown, asked = (shown | name, asked | name) if word[0] == "+" else (shown - name, asked - name)
    return FieldChoice(shown, asked)


def _known(name: str) -> str:
    if name not in PERF_FIELDS and name not in OWN_FIELDS:
        raise UsageError(f"--fields: no field '{name}' (known: {', '.join([*PERF_FIELDS, *OWN_FIELDS])})")
    return name
