# SPDX-License-Identifier: Apache-2.0
"""Parse the output of the BPF program's iterator over tasks at the end of a recording or of one of its files. A task is
a header (`struct offcpu_last`), its budget up to its last change, and the frames of its stacks, whose numbers are in
the header."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.collect.bpf.header import SharedHeader
from perf_offcpu.model.columns import is_among

U64 = NDArray[np.uint64]
WAITING_FOR_CPU = "runnable", "throttled", "preempted"
"""Modes in which a thread waits for a CPU only (`enum offcpu_mode`)."""


@dataclass(frozen=True, slots=True)
class LastTasks:
    """Tasks that lived when the recording, or a file of it, ended.

    Args:
        end_ns: time of that end.
        tasks: rows of `struct offcpu_last`.
        kernel, user: frames of each row, leaf first; empty if the task does not wait.
        budgets: rows of `struct offcpu_budget`, complete up to `end_ns` or a little later; empty without budgets.
        copies: the top of each row's user stack, b"" where it was not copied.
        python: payloads that name the Python functions of waiting tasks (`abi.counters.PYTHON`).
    """

    end_ns: int
    tasks: NDArray[Any]
    kernel: tuple[U64, ...]
    user: tuple[U64, ...]
    budgets: NDArray[Any]
    copies: tuple[bytes, ...] = ()
    python: tuple[bytes, ...] = ()

    def waiting(self) -> NDArray[np.int64]:
        """Return int64: the rows of tasks that wait in a recorded state."""
        return np.flatnonzero(self.tasks["waits"])

    def stand_still(self, later: LastTasks) -> NDArray[np.bool_]:
        """Return bool[n]: True for tasks that have not run between this run of the iterator and a later one."""
        return _are_among(self.tasks, later.tasks, ("tid", "nr_switches"))

    def unless_disturbed(self, later: LastTasks, drained_ns: int) -> LastTasks:
        """Return a copy with the reliable waits and budgets alone: tasks may have gone on while the iterator ran.

        A wait is reliable if it goes on in a `later` run: then its stacks did not change in this one. A budget is
        reliable if it adds up; otherwise it was read while it changed, and that of the later run is taken. States that
        began after `drained_ns`, the time of the last drain of the rings, are not: the record that names their thread
        may still be in a ring. Unreliable states are left to a later file.
        """
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
    """Return the budgets whose ns add up to end_ns - begin_ns."""
    adds_up = budgets["ns"].sum(axis=1) == budgets["end_ns"] - budgets["begin_ns"]
    return budgets[np.flatnonzero(adds_up)]


def _are_among(rows: NDArray[Any], others: NDArray[Any], names: tuple[str, ...]) -> NDArray[np.bool_]:
    """Return bool[n]: True for rows whose fields `names` equal those of a row of `others`."""
    return is_among(_joined(rows, names), np.sort(_joined(others, names)))


def _joined(rows: NDArray[Any], names: tuple[str, ...]) -> NDArray[Any]:
    """Return V[8 * names] for each row: its fields `names`, each as u64, joined to one value that can be compared."""
    fields = np.stack([rows[name].astype(np.uint64) for name in names], axis=1)
    joined: NDArray[Any] = np.ascontiguousarray(fields).view(f"V{8 * len(names)}").reshape(-1)
    return joined


def parse_tasks(raw: bytes, header: SharedHeader, end_ns: int, with_budget: bool) -> LastTasks:
    """Parse the output of the iterator. `header`: layouts of its structures. `end_ns`: end of the recording.
    `with_budget`: it contains budgets."""
    task, budget = header.structs["last"], header.structs["budget"]
    rows, budgets = [], []
    kernel: list[U64] = []
    user: list[U64] = []
    at = 0
    while at + task.itemsize <= len(raw):
        row = np.frombuffer(raw, task, 1, at)
        at += task.itemsize
        if with_budget:
            budgets.append(np.frombuffer(raw, budget, 1, at))
            at += budget.itemsize
        for frames, name in ((kernel, "nr_kernel"), (user, "nr_user")):
            number = int(row[name][0])
            frames.append(np.frombuffer(raw, np.uint64, number, at))
            at += 8 * number
        rows.append(row)
    tasks = np.concatenate([np.empty(0, task), *rows])
    # A task that began to wait after the end has not waited in this recording.
    tasks["waits"] *= tasks["switch_out_ns"] < end_ns
    kept = np.concatenate([np.empty(0, budget), *budgets])
    if with_budget:
        _complete(kept, tasks, header, end_ns)
    return LastTasks(end_ns, tasks, tuple(kernel), tuple(user), kept)


def _complete(budgets: NDArray[Any], tasks: NDArray[Any], header: SharedHeader, end_ns: int) -> None:
    """Add to the budgets, in place, the time from each task's last change to `end_ns`, so that their ns add up."""
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
    budgets["queued_ns"] = tasks["queued_ns"] + np.where(waits_for_cpu, end - since, end - border)
    budgets["pid"], budgets["tid"] = tasks["pid"], tasks["tid"]
    budgets["end_ns"] = end
