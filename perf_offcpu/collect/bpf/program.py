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

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.collect.bpf import syscall as bpf_syscall
from perf_offcpu.collect.bpf.build import build
from perf_offcpu.collect.bpf.cache import ProgramCache, Recipe
from perf_offcpu.collect.bpf.config import OffCpuConfig, Targets
from perf_offcpu.collect.bpf.defines import (
    SWITCHED,
    control_values,
    option_defines,
    target_defines,
    tells_callers,
    tracepoints_of,
)
from perf_offcpu.collect.bpf.header import SharedHeader, read_header
from perf_offcpu.collect.bpf.kernel_facts import KernelFacts, check_privileges, explore
from perf_offcpu.collect.bpf.kprobe import Kprobe
from perf_offcpu.collect.bpf.load import FILTER, load_program, probe_of, refusal
from perf_offcpu.collect.bpf.maps import MAP_NAMES, ProgramMaps
from perf_offcpu.collect.bpf.syscall import VerifierError
from perf_offcpu.collect.kernel_totals.last_states import LastTasks, parse_tasks
from perf_offcpu.collect.system.btf import VMLINUX_BTF, Btf
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.errors import RecordingError
from perf_offcpu.resources import PROGRAM, bpf_dir

_FIRST, _LAST = "offcpu_first", "offcpu_last"  # iterators over tasks


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
        self._tracepoints = tracepoints_of(self.config, facts)
        self._iterators = () if facts.task_iterator is None else (_FIRST, _LAST)
        try:
            self._probe = None if self.ends_at_exit else probe_of(self.config, facts)
            self.tells_callers = self.ends_at_exit and tells_callers(self.config, facts)
            """Whether sums have a `caller`, and the first wait of each was sent."""
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
        return SWITCHED in self._tracepoints or self._probe is not None

    # Life

    def _build(self, btf: Btf, facts: KernelFacts, cache: ProgramCache | None) -> None:
        source = bpf_dir() / PROGRAM
        header = read_header(source.with_name("off_cpu.h"))
        by_probe = self._probe is not None
        options = option_defines(self.config, facts, self.ends_at_exit, by_probe)
        options |= target_defines(self.config, facts, btf)
        functions = [*self._tracepoints, *([SWITCHED] if by_probe else []), FILTER, *self._iterators]
        self._load(Recipe(source, facts.defines, options, functions, MAP_NAMES), header, facts, cache)

    def _load(
        self, recipe: Recipe, header: SharedHeader, facts: KernelFacts, cache: ProgramCache | None
    ) -> None:
        config = self.config
        control = control_values(config, header.enums["mode"], self.ends_at_exit)
        entries = {
            "sums": config.sum_entries,
            "stacks": config.stack_entries,
            "budgets": config.budget_entries,
        }

        def load(functions: Mapping[str, bytes], maps: Mapping[str, int]) -> None:
            try:
                for name in recipe.functions:
                    self._programs[name] = load_program(name, functions[name], self._tracepoints, facts)
                own = {name: maps[name] for name in recipe.maps}
                self._maps = ProgramMaps(own, header, entries, control)
            except OSError:
                self._unload()  # and nothing else: what was kept may be refused, and compiled anew
                raise

        try:
            build(recipe, load, cache)
        except VerifierError as error:
            raise refusal(error) from error

    def attach(self) -> None:
        """Put the programs on their tracepoints; they record nothing until `enable`."""
        name = SWITCHED
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
        self._unload()

    def _unload(self) -> None:
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
        return self._programs[FILTER]

    # What was gathered

    def drain_sums(self, *, end_of_file: bool = False) -> NDArray[np.void]:
        """Take out what has been summed so far; safe while recording, nothing is lost or counted twice.

        Args:
            end_of_file: from here on the stacks of callers are sent anew: those sent before are in the file
                that these sums go to. The rings must have been emptied just before.

        Returns:
            One row per thread, state, cgroup and stack, with the members of `struct offcpu_sum_key` and
            `struct offcpu_sum` of bpf/off_cpu.h as fields (`pid`, `tid`, `state`, `cgroup`, `stack`,
            `total_ns`, `count`, `longest_ns`, `first_switch_out_ns`, `last_switch_in_ns`, `lost`,
            …). `stack` is for `stacks()`; 0 is none.
        """
        return self.maps.drain_sums(end_of_file)

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

    @property
    def end_ns(self) -> int:
        """When `disable` was called; 0 before."""
        return self.maps.end_ns

    def last_tasks(self) -> LastTasks:
        """What the recorded tasks that live do at the end: their budgets, and who still waits where.

        Before `disable`, it is what they do now, and they may go on while they are looked at
        (`LastTasks.unless_disturbed`). Empty where the kernel has no iterators over tasks.
        """
        end_ns = self.end_ns or now_ns()
        raw = bpf_syscall.run_iterator(self._programs[_LAST]) if _LAST in self._programs else b""
        return parse_tasks(raw, self.maps.header, end_ns, self.config.budget)

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

    def output_failures(self) -> list[int]:
        """How many samples found no perf event, by CPU."""
        return self.maps.by_cpu("output_failed")

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
