# SPDX-License-Identifier: Apache-2.0
"""The kernel side of the recorder: bpf/off_cpu.bpf.c compiled, loaded, attached, switched on and off, read.

    with OffCpuProgram(OffCpuConfig(targets=Targets.PIDS)) as program:
        program.add_target(pid)
        for cpu, event in bpf_output_events.items():
            program.set_output(cpu, event.fileno())
        program.attach()
        program.enable()
        ...                                  # samples arrive in the events' rings
        program.disable()
        sums = program.drain_sums()          # what was too short for a sample
        offsets, ips = program.stacks(sums["stack"])

What the program does is told in its own header. Here it is compiled for the running kernel (`bpf_kernel`),
loaded and attached through file descriptors only: nothing is pinned, so the kernel removes everything when
this process ends, however it ends.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.collect import bpf_syscall
from perf_offcpu.collect.bpf_attr import AttachType, ProgramType
from perf_offcpu.collect.bpf_build import build
from perf_offcpu.collect.bpf_cache import ProgramCache, Recipe
from perf_offcpu.collect.bpf_header import SharedHeader, read_header
from perf_offcpu.collect.bpf_kernel import (
    KernelFacts,
    check_privileges,
    controller_offset,
    explore,
    pid_namespace_level,
)
from perf_offcpu.collect.bpf_last import LastTasks, parse_tasks
from perf_offcpu.collect.bpf_maps import MAP_NAMES, ProgramMaps
from perf_offcpu.collect.bpf_syscall import VerifierError
from perf_offcpu.collect.btf import VMLINUX_BTF, Btf
from perf_offcpu.collect.clock import now_ns
from perf_offcpu.collect.kprobe import Kprobe
from perf_offcpu.collect.states import DEFAULT_STATES, ShortWaits, mode_mask
from perf_offcpu.errors import CapabilityError, RecordingError
from perf_offcpu.resources import PROGRAM, bpf_dir

_LICENSE = "Dual BSD/GPL"
_FILTER = "offcpu_filter"
_ON_SWITCH = {"offcpu_switch": "sched_switch"}
_SWITCHED = "offcpu_switched"
_ON_EXIT = {_SWITCHED: "sched_exit_tp"}
_ON_WAKE_UP = {"offcpu_waking": "sched_waking"}
_FIRST, _LAST = "offcpu_first", "offcpu_last"  # iterators over tasks
_ON_BIRTH = {"offcpu_fork": "sched_process_fork", "offcpu_exec": "sched_process_exec"}
PID_NAMESPACE = Path("/proc/self/ns/pid")
FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO, include/linux/proc_ns.h
_WINDOWS_A_SECOND = 10  # RATE_WINDOW_NS in bpf/output.h
EARLY_BELOW_NS = 10_000
"""Thresholds below which most waits of a busy machine become samples: their kernel stacks are taken early."""

_LOCKDOWN = Path("/sys/kernel/security/lockdown")


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
    budget_entries: int = 16384
    """Threads that may end between two calls of `drain_budgets`."""
    target_entries: int = 4096


@dataclass(frozen=True, slots=True)
class ProgramStats:
    """Cost of one BPF program since it was loaded; zero unless sysctl kernel.bpf_stats_enabled is 1."""

    runs: int
    run_time_ns: int
    misses: int
    """Runs left out because the program was running on that CPU already."""


class OffCpuProgram:
    """The BPF program, loaded but neither attached nor enabled; a context manager.

    Args:
        use_cache: take what was compiled before, if it was, and keep what is compiled.

    Raises:
        CapabilityError: no bcc, no BTF, no privilege, a kernel too old.
        RecordingError: the program does not compile, or the kernel refuses it.
    """

    def __init__(
        self, config: OffCpuConfig | None = None, *, btf_path: Path = VMLINUX_BTF, use_cache: bool = True
    ) -> None:
        self.config = config or OffCpuConfig()
        self._programs: dict[str, int] = {}
        self._probe: Kprobe | None = None
        self._links: list[int] = []
        self._maps: ProgramMaps | None = None
        check_privileges()
        btf = Btf.load(btf_path)
        facts = explore(btf)
        self._tracepoints = _tracepoints(self.config, facts)
        self._iterators = () if facts.task_iterator is None else (_FIRST, _LAST)
        try:
            self._probe = None if self.ends_at_exit else _probe(self.config, facts)
            self._build(btf, facts, ProgramCache.usual() if use_cache else None)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ends_at_exit(self) -> bool:
        """Whether waits end, and samples are sent, in the sleeper's own context.

        Then the perf core's fields of the record (TID, CPU, registers, stack bytes, cgroup) are its too;
        otherwise they are those of the task that left the CPU.
        """
        return _SWITCHED in self._tracepoints or self._probe is not None

    # Life

    def _build(self, btf: Btf, facts: KernelFacts, cache: ProgramCache | None) -> None:
        source = bpf_dir() / PROGRAM
        header = read_header(source.with_name("off_cpu.h"))
        by_probe = self._probe is not None
        options = _defines(self.config, facts, header.enums["mode"], self.ends_at_exit, by_probe)
        options |= _target_defines(self.config, facts, btf)
        functions = [*self._tracepoints, *([_SWITCHED] if by_probe else []), _FILTER, *self._iterators]
        self._load(Recipe(source, facts.defines, options, functions, MAP_NAMES), header, facts, cache)

    def _load(
        self, recipe: Recipe, header: SharedHeader, facts: KernelFacts, cache: ProgramCache | None
    ) -> None:
        config = self.config
        entries = {
            "sums": config.sum_entries,
            "stacks": config.stack_entries,
            "budgets": config.budget_entries,
        }

        def load(functions: Mapping[str, bytes], maps: Mapping[str, int]) -> None:
            try:
                for name in recipe.functions:
                    self._programs[name] = _load_program(name, functions[name], self._tracepoints, facts)
                own = {name: maps[name] for name in recipe.maps}
                self._maps = ProgramMaps(own, header, entries, config.threshold_ns)
            except OSError:
                self.close()
                raise

        try:
            build(recipe, load, cache)
        except VerifierError as error:
            raise _refusal(error) from error

    def attach(self) -> None:
        """Put the programs on their tracepoints; they record nothing until `enable`."""
        name = _SWITCHED
        try:
            if self._probe:
                self._probe.attach(self._programs[name])
            for name in self._tracepoints:
                self._links.append(bpf_syscall.open_raw_tracepoint(self._programs[name]))
        except OSError as error:
            self.detach()
            raise RecordingError(f"BPF program {name} cannot be attached ({error.strerror})") from error

    def detach(self) -> None:
        """Take the programs off their tracepoints; sums and counters stay readable."""
        while self._links:
            os.close(self._links.pop())
        if self._probe:
            self._probe.close()

    def close(self) -> None:
        """Detach and give everything back. Closing twice is allowed."""
        self.detach()
        while self._programs:
            os.close(self._programs.popitem()[1])
        if self._maps is not None:
            self._maps.close()
            self._maps = None

    @property
    def maps(self) -> ProgramMaps:
        """The program's maps.

        Raises:
            RecordingError: it is closed.
        """
        if self._maps is None:
            raise RecordingError("the BPF program is closed")
        return self._maps

    # Switches

    def enable(self) -> None:
        """Begin to record; tasks that wait already are looked up, so that their waits are known, too."""
        self.maps.set_control(enabled=1, begin_ns=now_ns())
        if _FIRST in self._programs:
            bpf_syscall.run_iterator(self._programs[_FIRST])

    def disable(self) -> None:
        """Stop recording; when this returns no program is at work any more and no sample follows."""
        self.maps.set_control(enabled=0, end_ns=now_ns())
        self.maps.wait_for_programs()

    def set_threshold(self, threshold_ns: int) -> None:
        """Change from how many ns on a wait becomes a sample."""
        self.maps.set_control(threshold_ns=threshold_ns)

    def set_output(self, cpu: int, perf_event_fd: int) -> None:
        """Send the samples of waits that end on `cpu` to this perf event (bpf-output, of the same CPU)."""
        self.maps.set_output(cpu, perf_event_fd)

    def add_target(self, target: int, kind: str = "") -> None:
        """Record this target.

        Args:
            target: an id, those of tasks as the recorder's own pid namespace has them.
            kind: `process`, `thread`, `user` (effective uid) or `cpu`, as the config asks for; "" for what
                `Targets.PIDS` or `Targets.TIDS` says.
        """
        self.maps.set_target(kind or ("thread" if self.config.targets is Targets.TIDS else "process"), target)

    def add_comm(self, comm: bytes) -> None:
        """Record threads of this name (`by_comm`)."""
        self.maps.set_comm(comm)

    def add_group(self, group: int) -> None:
        """Record tasks in this control group or below (`by_group`), by the inode of its directory."""
        self.maps.set_group(group)

    def arm_command(self, tgid: int) -> None:
        """Record this process from its next exec on (`Targets.COMMAND`)."""
        self.maps.set_target("process", tgid, "target_armed")

    @property
    def filter_fd(self) -> int:
        """For PERF_EVENT_IOC_SET_BPF: a program that passes samples of recorded tasks, and counts them."""
        return self._programs[_FILTER]

    # What was gathered

    def drain_sums(self) -> NDArray[np.void]:
        """Take out what has been summed so far; safe while recording, nothing is lost or counted twice.

        Returns:
            One row per thread, state, cgroup and stack, with the members of `struct offcpu_sum_key` and
            `struct offcpu_sum` of bpf/off_cpu.h as fields (`pid`, `tid`, `state`, `cgroup`, `stack`,
            `total_ns`, `count`, `longest_ns`, `first_switch_out_ns`, `last_switch_in_ns`, `prev_state`,
            `lost`, …). `stack` is for `stacks()`; 0 is none.
        """
        return self.maps.drain_sums()

    def stacks(self, hashes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """User stacks of the sums drained last, by the hashes in their field `stack`.

        Returns:
            offsets int64[n + 1] and ips uint64[offsets[n]]: the frames of hash i are
            ips[offsets[i]:offsets[i + 1]], leaf first, without context markers; none for hash 0.
        """
        return self.maps.user_stacks.find(hashes)

    def drain_budgets(self) -> NDArray[np.void]:
        """Take out the budgets of the threads that have ended since the last call; safe while recording.

        Returns:
            Rows of `struct offcpu_budget` (bpf/off_cpu.h); `ns` is indexed by `enum offcpu_mode`.
        """
        return self.maps.drain_budgets()

    def last_tasks(self) -> LastTasks:
        """What the recorded tasks that live do at the end: their budgets, and who still waits where.

        Only after `disable`. Empty where the kernel has no iterators over tasks.
        """
        raw = bpf_syscall.run_iterator(self._programs[_LAST]) if _LAST in self._programs else b""
        return parse_tasks(raw, self.maps.header, self.maps.end_ns, self.config.budget)

    @property
    def modes(self) -> tuple[str, ...]:
        """What a thread can do: the enumerators of `enum offcpu_mode`, in order."""
        return self.maps.header.enums["mode"]

    def rate(self) -> dict[str, int]:
        """Of the limit of samples a second, the members of `struct offcpu_rate` (bpf/off_cpu.h)."""
        return self.maps.rate()

    def counters(self) -> dict[str, int]:
        """What happened to waits, by cause, over all CPUs since loading.

        Returns:
            For each counter of `enum offcpu_counter` (bpf/off_cpu.h says what they mean) the number of events
            and, under `<name>_ns`, the time of the waits concerned where it is known; and `missed_runs`: how
            often a program was left out because it was running on that CPU already.
        """
        return {**self.maps.counters(), "missed_runs": sum(s.misses for s in self.run_stats().values())}

    def run_stats(self) -> dict[str, ProgramStats]:
        """Runs, run time and misses of each loaded program, by its name."""
        infos = {name: bpf_syscall.program_info(fd) for name, fd in self._programs.items()}
        return {
            name: ProgramStats(info.run_cnt, info.run_time_ns, info.recursion_misses)
            for name, info in infos.items()
        }


def compiled_before() -> int:
    """For how many configs the programs are kept from earlier starts, so that no compiler is needed.

    Raises:
        CapabilityError: no BTF, a kernel too old.
    """
    cache, facts = ProgramCache.usual(), explore(Btf.load())
    recipe = Recipe(bpf_dir() / PROGRAM, facts.defines, {}, (), MAP_NAMES)
    return cache.count(recipe) if cache else 0


def _tracepoints(config: OffCpuConfig, facts: KernelFacts) -> dict[str, str]:
    """The programs to attach and where to, in this order: who is seen waiting has been seen coming."""
    births = {} if config.targets is Targets.ALL else _ON_BIRTH
    at_exit = _ON_EXIT if facts.has_exit_tp and not config.in_switch else {}
    wake_ups = _ON_WAKE_UP if config.wakers else {}
    return {**births, **wake_ups, **at_exit, **_ON_SWITCH}


def _probe(config: OffCpuConfig, facts: KernelFacts) -> Kprobe | None:
    """What stands in for a tracepoint in the sleeper's context, where that is needed; None if nothing can."""
    if not config.in_sleeper or config.in_switch or not facts.switch_end:
        return None
    try:
        return Kprobe(facts.switch_end)
    except OSError:
        return None


def _load_program(name: str, code: bytes, tracepoints: Mapping[str, str], facts: KernelFacts) -> int:
    if name == _FILTER:
        return bpf_syscall.load_program(ProgramType.PERF_EVENT, name, code, _LICENSE)
    if name == _SWITCHED and name not in tracepoints:
        return bpf_syscall.load_program(ProgramType.KPROBE, name, code, _LICENSE)
    if name in tracepoints:
        btf_id, kind = facts.tracepoints[tracepoints[name]].btf_id, AttachType.TRACE_RAW_TP
    else:
        btf_id, kind = facts.task_iterator or 0, AttachType.TRACE_ITER
    return bpf_syscall.load_program(ProgramType.TRACING, name, code, _LICENSE, btf_id, kind)


def _defines(
    config: OffCpuConfig, facts: KernelFacts, modes: Sequence[str], at_exit: bool, by_probe: bool
) -> dict[str, int | str]:
    """The constants that off_cpu.bpf.c asks for, besides those that the kernel decides."""
    return {
        "OFFCPU_AT_EXIT": int(at_exit),
        "OFFCPU_BY_PROBE": int(by_probe),
        "OFFCPU_KERNEL_EARLY": int(at_exit and config.kernel_stacks and config.threshold_ns < EARLY_BELOW_NS),
        "OFFCPU_DEFER_USER": int(at_exit and config.deferred_stacks),
        "OFFCPU_KERNEL_THREADS": int(config.kernel_threads),
        "OFFCPU_STATES": mode_mask(config.states, modes),
        "OFFCPU_KERNEL_STACKS": int(config.kernel_stacks),
        "OFFCPU_SUM_STACKS": int(config.short_waits is ShortWaits.STACKS),
        "OFFCPU_DROP_SHORT": int(config.short_waits is ShortWaits.DROP),
        "OFFCPU_MIN_BLOCK_NS": config.min_block_ns,
        "OFFCPU_MAX_RATE": max(1, config.max_rate // _WINDOWS_A_SECOND) if config.max_rate else 0,
        "OFFCPU_WAKERS": int(config.wakers),
        "OFFCPU_WAKER_STACKS": int(config.wakers and config.waker_stacks),
        "OFFCPU_BUDGET": int(config.budget),
        "OFFCPU_BUDGETS": config.budget_entries if config.budget else 1,
        "OFFCPU_CGROUPS": int(config.cgroups and "TASK_CGROUPS" in facts.defines),
        "OFFCPU_SUMS": config.sum_entries,
        "OFFCPU_STACKS": config.stack_entries,
        "OFFCPU_TARGETS_MAX": config.target_entries,
    }


def _target_defines(config: OffCpuConfig, facts: KernelFacts, btf: Btf) -> dict[str, int]:
    """The constants that targets.h asks for.

    Raises:
        CapabilityError: the kernel's BTF has nothing that tells what is asked for.
    """
    namespace = PID_NAMESPACE.stat().st_ino
    group = 0 if config.by_group is None else 2 if config.by_group else 1
    css = controller_offset(btf, config.by_group) if config.by_group else 0
    if css is None:
        raise CapabilityError(
            f"this kernel has no control group controller {config.by_group}",
            "name a group of another hierarchy",
        )
    return {
        "OFFCPU_EVERYBODY": int(config.targets is Targets.ALL),
        "OFFCPU_BY_THREAD": int(config.targets in (Targets.TIDS, Targets.TASKS)),
        "OFFCPU_BY_PROCESS": int(config.targets in (Targets.PIDS, Targets.TASKS, Targets.COMMAND)),
        "OFFCPU_BY_CPU": int(config.by_cpu),
        "OFFCPU_BY_USER": int(config.by_user),
        "OFFCPU_BY_COMM": int(config.by_comm),
        "OFFCPU_BY_GROUP": group,
        "CSS_SET_CSS": css,
        "OFFCPU_PID_LEVEL": 0 if namespace == FIRST_PID_NAMESPACE else pid_namespace_level(facts),
        "OFFCPU_PID_NAMESPACE": namespace,
    }


def _refusal(error: VerifierError) -> CapabilityError | RecordingError:
    """Why the kernel did not take a program, as far as the user can change it."""
    try:
        locked = "[confidentiality]" in _LOCKDOWN.read_text()
    except OSError:
        locked = False
    if locked:
        return CapabilityError(
            "kernel lockdown (confidentiality) keeps BPF programs from reading kernel memory",
            "boot with lockdown=integrity or without",
        )
    last_words = "\n".join(error.log.splitlines()[-12:])
    return RecordingError(f"the kernel refuses BPF program {error.name} ({error.strerror}):\n{last_words}")
