# SPDX-License-Identifier: Apache-2.0
"""The fields of `perf-offcpu script`, and `-F`, with which they are chosen as in perf.

perf's own names mean what they mean there (tools/perf/Documentation/perf-script.txt). The others are
what perf has no words for; they show only on off-cpu samples, as `key=value`, `-` where unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from perf_offcpu.errors import UsageError

PERF_FIELDS = {
    "comm": "name of the thread",
    "pid": "process (tgid)",
    "tid": "thread",
    "cpu": "CPU; for off-cpu time the one on which the thread went on",
    "time": "seconds; for off-cpu time the end of the (last) wait, - if it has none",
    "period": "weight: ns of off-cpu time, or what the event counts",
    "event": "name of the event",
    "trace": "what a tracepoint said, by the kernel's recipe; where that cannot be followed, name=value",
    "addr": "data address (perf record -d); of page faults with sym and dso",
    "data_src": "where the data was: operation, cache level, snoop, TLB, lock",
    "weight": "cost of the access, as the event counts it",
    "ins_lat": "latency of the instruction, cycles",
    "retire_lat": "cycles since the instruction before retired",
    "transaction": "flags of a transaction that was aborted, in hex; not in perf",
    "cgroup": "path of the cgroup",
    "ip": "address, of each frame or of the sample",
    "sym": "function",
    "symoff": "offset in the function",
    "dso": "object that holds the code",
    "srcline": "source file and line, below each frame; dso[address] where unknown",
    "iregs": "registers at the sample (perf record --intr-regs)",
    "uregs": "registers of user space (perf record --user-regs)",
    "brstack": "branches, the last one first: FROM/TO/predicted/transaction/abort/cycles/type",
    "brstacksym": "the same with functions",
    "bpf-output": "bytes that a BPF program sent",
    "phys_addr": "physical address of the data (perf record --phys-data)",
    "data_page_size": "size of the page of the data",
    "code_page_size": "size of the page of the code",
}
"""Name → meaning of the fields that perf has, too."""

_AS_NAMED = ("addr", "data_src", "transaction", "phys_addr", "data_page_size", "code_page_size")

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

DEFAULT_FIELDS = ("comm", "tid", "cpu", "time", "period", "event", "trace", "ip", "sym", "symoff", "dso")
"""perf's defaults. It leaves out what an event has not recorded, and the period of tracepoints."""

EVENT_TYPES = ("hw", "sw", "trace", "raw", "synth")
"""perf's names of types of events: `-F trace:comm,trace` is for tracepoints alone. Of synthesized events (by
decoders of processor traces) recordings hold none."""

LOADED = {
    "trace": ("trace",),
    "weight": ("weight", "var1_dw"),
    "ins_lat": ("var2_w",),
    "retire_lat": ("var3_w",),
    "iregs": ("regs_intr", "regs_intr_abi"),
    "uregs": ("regs_user", "regs_user_abi"),
    "brstack": ("branch_stack",),
    "brstacksym": ("branch_stack",),
    "bpf-output": ("raw",),
} | {name: (name,) for name in _AS_NAMED}
"""Field → the names under which samples hold it, `decode.field_store.ALL_FIELDS`."""

FRAME_FIELDS = frozenset({"ip", "sym", "dso"})
"""Any of these makes the frames show."""


@dataclass(frozen=True, slots=True)
class FieldChoice:
    """Which fields to show.

    Args:
        shown: names of fields.
        asked: those of them that the user named: shown even where an event lacks them.
        of_type: what is shown of events of some types, in place of that.
    """

    shown: frozenset[str] = frozenset(DEFAULT_FIELDS)
    asked: frozenset[str] = frozenset()
    of_type: Mapping[str, FieldChoice] = field(default_factory=dict)

    def has(self, *names: str) -> bool:
        """Whether any of these fields is shown."""
        return not self.shown.isdisjoint(names)

    def anywhere(self) -> frozenset[str]:
        """The fields that are shown of any event."""
        return self.shown.union(*(one.shown for one in self.of_type.values()))

    def all_asked(self) -> frozenset[str]:
        """The fields that the user named for any event."""
        return self.asked.union(*(one.asked for one in self.of_type.values()))

    def to_load(self) -> set[str]:
        """What samples have to be loaded with."""
        return {name for shown in self.anywhere() for name in LOADED.get(shown, ())}


def choose_fields(texts: Iterable[str]) -> FieldChoice:
    """The fields that the values of `-F` ask for: a list (`comm,tid,ip,sym`) instead of the defaults, or
    changes to them (`+state,-cpu`); of events of one type alone behind its name (`trace:comm,trace`).

    Raises:
        UsageError: a field or type is unknown, or a list and changes are mixed.
    """
    lists: dict[str, list[str]] = {}
    for text in texts:
        kind, colon, rest = text.rpartition(":")
        if colon and kind.strip() not in EVENT_TYPES:
            raise UsageError(f"--fields: no type of events '{kind}' (known: {', '.join(EVENT_TYPES)})")
        lists.setdefault(kind.strip(), []).append(rest)
    every = _chosen(lists.pop("", []), FieldChoice())
    return replace(
        every, of_type={kind: _chosen(one, every, may_be_empty=True) for kind, one in lists.items()}
    )


def _chosen(texts: list[str], before: FieldChoice, may_be_empty: bool = False) -> FieldChoice:
    words = [word.strip() for text in texts for word in text.split(",") if word.strip()]
    changes = [word for word in words if word[0] in "+-"]
    if changes and len(changes) < len(words):
        raise UsageError("--fields: a list of fields and changes to the defaults (+x, -x) cannot be mixed")
    if not changes:
        named = frozenset(map(_known, words))
        return FieldChoice(named, named) if named or may_be_empty else before
    shown, asked = before.shown, before.asked
    for word in changes:
        name = {_known(word[1:])}
        shown, asked = (shown | name, asked | name) if word[0] == "+" else (shown - name, asked - name)
    return FieldChoice(shown, asked)


def _known(name: str) -> str:
    if name not in PERF_FIELDS and name not in OWN_FIELDS:
        raise UsageError(f"--fields: no field '{name}' (known: {', '.join([*PERF_FIELDS, *OWN_FIELDS])})")
    return name
