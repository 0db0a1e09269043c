# SPDX-License-Identifier: Apache-2.0
"""Parse the output of the BPF program's iterator over tasks at the end of a recording or of one of its files. For each
task it holds a header (`struct offcpu_last`), the budget up to the last change of its mode (with `config.budget`), and
the frames of its kernel and user stack, counted in the header."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.binary.columnar import offsets_of
from perf_offcpu.collect.bpf.header import SharedHeader
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import is_among

U64 = NDArray[np.uint64]
WAITING_FOR_CPU = "runnable", "throttled", "preempted"
"""Modes in which a thread waits for a CPU only (`enum offcpu_mode`)."""


@dataclass(frozen=True, slots=True)
class LastTasks:
    """States of the recorded tasks that lived when the recording, or a file of it, ended."""

    end_ns: int  # time of that end
    tasks: NDArray[Any]  # rows of `struct offcpu_last`
    kernel: Ragged  # addresses of the frames of each row of `tasks`, leaf first; none if the task does not wait
    user: Ragged  # likewise
    budgets: NDArray[Any]
    """Rows of `struct offcpu_budget`, complete up to `end_ns` or a little later; empty without budgets."""
    copies: tuple[bytes, ...] = ()
    """Copy of the top of the user stack of each row of `tasks`, b"" if it was not copied; () without copies."""
    payloads: tuple[bytes, ...] = ()
    """Payloads for `offcpu-counters`: Python functions and event loops of waiting tasks, locks of JVMs."""

    def waiting(self) -> NDArray[np.int64]:
        """Return int64: indices in `tasks` of the tasks that wait in a recorded state."""
        return np.flatnonzero(self.tasks["waits"])

    def stand_still(self, later: "LastTasks") -> NDArray[np.bool_]:
        """Return bool[n], per row of `tasks`: True if `later` has the task with the same number of context switches."""
        return _are_among(self.tasks, later.tasks, ("tid", "nr_switches"))

    def unless_disturbed(self, later: "LastTasks", drained_ns: int) -> "LastTasks":
        """Return a copy with reliable waits and budgets only: tasks may have run while the iterator did. A wait is
        reliable if a `later` run of the iterator finds it, too: then its stacks did not change during this run. Other
        rows get `waits` 0. A budget is reliable if its `ns` add up to its length; else it was read while it changed,
        and that of the later run is taken, if reliable. Waits and budgets that began after `drained_ns`, a time before
        the last drain of the rings, are left out: the record that names the thread may be in a ring."""
        tasks = self.tasks.copy()
        same = _are_among(tasks, later.tasks[later.waiting()], ("tid", "mode", "switch_out_ns"))
        tasks["waits"] *= same & (tasks["switch_out_ns"] < drained_ns)
        sure, others = _sound(self.budgets), _sound(later.budgets)
        thread = ("tid", "begin_ns")
        others = others[_are_among(others, self.budgets, thread)]
        others = others[~_are_among(others, sure, thread)]
        budgets = np.concatenate([sure, others])
        return replace(self, tasks=tasks, budgets=budgets[budgets["begin_ns"] < drained_ns])


def _sound(budgets: NDArray[Any]) -> NDArray[Any]:
    """Return the rows of `struct offcpu_budget` whose times by mode (`ns`) add up to `end_ns` - `begin_ns`."""
    adds_up = budgets["ns"].sum(axis=1) == budgets["end_ns"] - budgets["begin_ns"]
    return budgets[np.flatnonzero(adds_up)]


def _are_among(rows: NDArray[Any], others: NDArray[Any], names: tuple[str, ...]) -> NDArray[np.bool_]:
    """Return bool[n]: True for each of `rows` whose fields `names` equal the same fields of some row of `others`."""
    return is_among(joined_fields(rows, names), np.sort(joined_fields(others, names)))


def joined_fields(rows: NDArray[Any], names: tuple[str, ...]) -> NDArray[Any]:
    """Return void[n], 8 bytes per name: the fields `names` of each row as u64, side by side, to be compared as one."""
    fields = np.stack([rows[name].astype(np.uint64) for name in names], axis=1)
    joined: NDArray[Any] = np.ascontiguousarray(fields).view(f"V{8 * len(names)}").reshape(-1)
    return joined


def parse_tasks(raw: bytes, header: SharedHeader, end_ns: int, with_budget: bool) -> LastTasks:
    """Parse `raw`, the output of the BPF iterator over tasks. `header`: layouts of its structures. `end_ns`: end of the
    recording or file; waits that began later do not count. `with_budget`: `raw` contains budgets."""
    task, budget = header.structs["last"], header.structs["budget"]
    rows, budgets, offset = [], [], 0
    frames: dict[str, list[U64]] = {"nr_kernel": [], "nr_user": []}
    while offset + task.itemsize <= len(raw):
        row = np.frombuffer(raw, task, 1, offset)
        offset += task.itemsize
        if with_budget:
            budgets.append(np.frombuffer(raw, budget, 1, offset))
            offset += budget.itemsize
        for name, words in frames.items():
            number = int(row[name][0])
            words.append(np.frombuffer(raw, np.uint64, number, offset))
            offset += 8 * number
        rows.append(row)
    tasks = np.concatenate([np.empty(0, task), *rows])
    # A task that began to wait after the end has not waited in this recording.
    tasks["waits"] *= tasks["switch_out_ns"] < end_ns
    kept = np.concatenate([np.empty(0, budget), *budgets])
    if with_budget:
        _complete(kept, tasks, header, end_ns)
    kernel, user = (
        Ragged(offsets_of(tasks[name].astype(np.int64)), np.concatenate([np.empty(0, np.uint64), *words]))
        for name, words in frames.items()
    )
    return LastTasks(end_ns, tasks, kernel, user, kept)


def _complete(budgets: NDArray[Any], tasks: NDArray[Any], header: SharedHeader, end_ns: int) -> None:
    """Extend the budgets (row i: of task i) in place, from the last change of the task's mode to `end_ns`."""
    modes = header.enums["mode"]
    since = tasks["switch_out_ns"]
    # A program that was at work when the recording ended may have noted a change just after the end.
    end = np.maximum(since, np.uint64(end_ns))
    woken = np.clip(tasks["wakeup_ns"], since, end)
    blocked = tasks["mode"] > modes.index("preempted")
    border = np.where(blocked & (tasks["wakeup_ns"] != 0), woken, end)
    rows = np.arange(len(tasks))
    budgets["ns"][rows, tasks["mode"]] += border - since
    budgets["ns"][rows, modes.index("runnable")] += end - border
    running = (tasks["mode"] == modes.index("running")) & (budgets["ran_ns"] > 0)
    budgets["ran_ns"] += np.where(running, end - since, 0).astype(np.uint64)
    waits_for_cpu = is_among(tasks["mode"], np.sort([modes.index(name) for name in WAITING_FOR_CPU]))
    # While a thread waits, the kernel's figure of its switch-out counts. The figure of now has a part of this wait if
    # the thread went from one CPU's queue to another's.
    queued = np.where(waits_for_cpu | blocked, budgets["queued_ns"], tasks["queued_ns"])
    budgets["queued_ns"] = queued + np.where(waits_for_cpu, end - since, end - border)
    budgets["pid"], budgets["tid"] = tasks["pid"], tasks["tid"]
    budgets["end_ns"] = end
