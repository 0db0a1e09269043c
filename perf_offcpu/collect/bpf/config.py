# SPDX-License-Identifier: Apache-2.0
"""What the BPF program is to record, and how."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from perf_offcpu.collect.states import DEFAULT_STATES, ShortWaits


class Targets(enum.StrEnum):
    """Whose waits are recorded."""

    ALL = "all"
    """Everybody's, kernel threads excepted."""
    PIDS = "pids"
    """Those of processes added by id, of threads and children they start from then on."""
    TIDS = "tids"
    """Those of threads added by id, of threads and children they start from then on."""
    TASKS = "tasks"
    """Those of processes and of threads, added by id, of threads and children they start from then on."""
    COMMAND = "command"
    """Those of a process that was armed, from its next exec on, and of all it starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffCpuConfig:
    """What to record and how."""

    targets: Targets = Targets.ALL
    threshold_ns: int = 1_000_000
    """Waits from here on become samples; 0: every wait does."""
    short_waits: ShortWaits = ShortWaits.STACKS
    """What becomes of the others."""
    min_block_ns: int = 0
    """Waits shorter than that are left out and counted."""
    max_rate: int = 0
    """Samples a second from which on the threshold rises by itself; 0 for any number."""
    kernel_stacks: bool = True
    """Put kernel frames in front of the user's, in samples."""
    sum_callers: bool = False
    """Tell sums by their callers without frame pointers, and send the first wait of each: where its stack is
    copied with it (`OffCpuProgram.tells_callers`)."""
    wakers: bool = True
    """Note wake-ups: blocked time and run-queue delay apart, and who woke."""
    deferred_stacks: bool = False
    """Leave the user stacks of samples to the perf core, where samples are sent by the sleeper."""
    waker_stacks: bool = False
    """Take the waker's stack, for waits that are over the threshold when they are woken."""
    budget: bool = True
    """Keep account of what every thread does with its time."""
    cgroups: bool = False
    """Note the cgroup v2 of the sleeper."""
    states: str = DEFAULT_STATES
    """Letters of the states that count as a wait (`collect.states`)."""
    kernel_threads: bool = False
    """Record kernel threads, too."""
    in_switch: bool = False
    """End waits in sched_switch even where the kernel has sched_exit_tp."""
    in_sleeper: bool = False
    """End waits in the sleeper's own context even where that takes a kprobe: for copies of its stack."""
    by_cpu: bool = False
    """Only waits that begin, and samples taken, on CPUs that are added."""
    by_user: bool = False
    """Only those of users who are added."""
    by_comm: bool = False
    """Only those of threads with a comm that is added."""
    by_group: str | None = None
    """Only those of control groups that are added and of groups below: "" for groups of cgroup v2, or a
    controller (say "cpu") for those of its v1 hierarchy."""
    sum_entries: int = 16384
    stack_entries: int = 8192
    caller_entries: int = 32768
    """Callers that are known to have been sent; those not seen for the longest time are forgotten."""
    budget_entries: int = 16384
    """Threads that may end between two calls of `drain_budgets`."""
    target_entries: int = 4096
