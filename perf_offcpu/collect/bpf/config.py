# SPDX-License-Identifier: Apache-2.0
"""Configuration of the BPF program. States of a thread off the CPU have the letters of ps and perf. The BPF program
defines them (`mode_of()` in bpf/facts.h): S and D include the freezable states, D also the killable ones, which differ
in the raw state in the file. Q, which ps lacks: runnable, but the control group's quota of CPU time is used up."""

import enum
from dataclasses import dataclass

from perf_offcpu.errors import UsageError

DEFAULT_THRESHOLD_NS = 1_000_000
COPIES_A_SECOND = 16 << 20
"""Bytes of copies of stacks a second, on all CPUs, above which copies are short; above its double there are none.
Programs have some thousand stacks of 2 to 8 KB; new ones without end would fill the disk."""
STACK_PERIOD_NS = 1_000_000
"""Time of a thread's waits under the threshold for which one user stack is taken (`ShortWaits.SAMPLED`), ns."""


class Targets(enum.StrEnum):
    """Way to choose the tasks whose waits are recorded."""

    ALL = "all"  # all tasks but kernel threads
    PIDS = "pids"  # processes added by id, and the threads and children that they start from then on
    TIDS = "tids"  # threads added by id, and the threads and children that they start from then on
    TASKS = "tasks"  # processes and threads added by id, and the threads and children that they start from then on
    COMMAND = "command"  # a process that was armed, from its next exec on, and the tasks that it starts


class ShortWaits(enum.StrEnum):
    """Way to handle waits under the threshold."""

    SAMPLED = "sampled"  # sum them by thread, state, system call and cgroup; take the stacks of some, by their time
    STACKS = "stacks"  # sum them by user stack, too: each wait's stack is walked
    THREADS = "threads"  # sum them without stack: they cost no stack walk
    DROP = "drop"  # leave them out; count only their number and time


_MODES = "interruptible uninterruptible idle stopped traced preempted other throttled".split()
MODES = dict(zip("SDITtRPQ", _MODES, strict=True))
"""Letter → enumerator of `enum offcpu_mode` (bpf/off_cpu.h)."""

DEFAULT_STATES = "SDITtQ"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitOptions:
    """Options of the user that decide which waits the BPF program records, and how."""

    threshold_ns: int = DEFAULT_THRESHOLD_NS  # shortest wait that becomes a sample; 0: every wait
    off_cpu_period_ns: int = 0  # off-CPU time of a thread for each sample; 0: use the threshold instead
    short_waits: ShortWaits = ShortWaits.SAMPLED  # how waits under the threshold are handled
    min_block_ns: int = 0  # shorter waits are left out and counted
    max_rate: int = 0  # samples a second above which the threshold rises by itself; 0 for any number
    kernel_stacks: bool = True  # callchains of samples have a kernel part
    wakers: bool = True  # trace wake-ups: to separate blocked time from run-queue delay, and to record the waker
    waker_stacks: bool = False  # take the waker's stack, for waits that are over the threshold at the wake-up
    objects: bool = True  # note the object of each wait over the threshold: file, socket, pipe, lock or process
    object_names: bool = True  # note names and paths of these objects
    lock_owners: bool = False  # note who holds a lock when a wait for it begins
    python: bool = True  # read the Python functions of waits over the threshold
    budget: bool = True  # account for all time of every thread
    states: str = DEFAULT_STATES  # letters of the states that count as a wait (`MODES`)
    kernel_threads: bool = False  # record kernel threads, too

    @property
    def least_ns(self) -> int:
        """Length of the shortest wait that may become a sample, ns."""
        return 0 if self.off_cpu_period_ns else self.threshold_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class OffCpuConfig(WaitOptions):
    """Complete configuration of the BPF program: the user's options, and values that the recorder derives from them."""

    targets: Targets = Targets.ALL
    copy_bytes: int = 0
    """Usual size of the copies of user stacks in samples, 0 for none. A copy ends where the stack ends, and each stack
    is copied once (bpf/copies.h). With copies, sums are kept by caller, found without frame pointers, and the first
    wait of each caller is sent as a sample with a copy, however short it is (bpf/callers.h)."""
    deferred_stacks: bool = False
    """Have the perf core walk the user stacks of samples later, if waits end in the sleeper's own context."""
    in_switch: bool = False  # end waits in sched_switch even where the kernel has sched_exit_tp
    in_sleeper: bool = False
    """End waits in the sleeper's own context even where that takes a kprobe: for copies of its stack."""
    by_cpu: bool = False  # record only waits that begin, and samples taken, on CPUs that are added
    by_user: bool = False  # record only tasks of users that are added
    by_comm: bool = False  # record only threads with a comm that is added
    by_group: str | None = None
    """Record only tasks in control groups that are added, and in groups below: "" for groups of cgroup v2, or a
    controller (such as "cpu") for those of its v1 hierarchy."""
    sum_entries: int = 16384  # sums between two calls of `drain`
    stack_entries: int = 8192  # different user stacks of these sums
    caller_entries: int = 32768  # hashes of stacks whose copy was sent; the least recently used are forgotten
    budget_entries: int = 16384  # threads that may end between two calls of `drain`
    target_entries: int = 1024
    object_entries: int = 16384  # objects that are known to have been described; the least recently used are forgotten
    python_entries: int = 4096  # processes that run Python
    jvm_entries: int = 256  # JVMs whose stacks get numbers by interpreted methods, too (`ProgramMaps.set_jvm`)
    code_entries: int = 32768  # Python functions that are known to have been described
    new_code_entries: int = 2048  # Python functions that may be found between two calls of `take_codes`
    new_object_entries: int = 4096  # objects that may be found between two calls of `take_objects`


def parse_states(text: str) -> str:
    """Return the letters of a list such as "S,D,R" without commas. Raises UsageError: one is no state (`MODES`)."""
    letters = [letter.strip() for letter in text.split(",")]
    for letter in letters:
        if letter not in MODES:
            raise UsageError(f"--switch-states {text}: {letter!r} is not one of {', '.join(MODES)}")
    return "".join(dict.fromkeys(letters))
