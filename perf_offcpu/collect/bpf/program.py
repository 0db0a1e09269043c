# SPDX-License-Identifier: Apache-2.0
"""The BPF program of the recorder: bpf/off_cpu.bpf.c compiled, loaded, attached, and switched on and off.

    with OffCpuProgram(OffCpuConfig(targets=Targets.PIDS)) as program:
        program.maps.add_target(pid)
        for cpu, event in bpf_output_events.items():
            program.maps.set_output(cpu, event.fileno())
        program.attach()
        program.enable()
        ...                                  # samples arrive in the events' rings
        program.disable()
        sums, stacks, _ = program.maps.drain()     # waits that were too short for a sample
        user_stacks = stacks.find(sums["stack"])

The C file describes what the program does. Here it is compiled for the running kernel (`kernel.facts`), loaded and
attached through file descriptors only: nothing is pinned, so the kernel removes everything when this process ends."""

import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from perf_offcpu.abi.syscalls import call_numbers
from perf_offcpu.collect.bpf import defines
from perf_offcpu.collect.bpf import syscall as bpf_syscall
from perf_offcpu.collect.bpf.attr import AttachType, ProgramInfo, ProgramType
from perf_offcpu.collect.bpf.cache import ProgramCache, Recipe, build
from perf_offcpu.collect.bpf.config import OffCpuConfig, Targets
from perf_offcpu.collect.bpf.header import read_header
from perf_offcpu.collect.bpf.kernel.facts import KernelFacts, check_privileges, explore, kept_facts, setting_defines
from perf_offcpu.collect.bpf.last_tasks import LastTasks, parse_tasks
from perf_offcpu.collect.bpf.maps import MAP_NAMES, ProgramMaps
from perf_offcpu.collect.bpf.object import with_kernel_functions, with_late_values
from perf_offcpu.collect.bpf.syscall import VerifierError
from perf_offcpu.collect.events.perf_event import Kprobe
from perf_offcpu.collect.system.background import side_by_side
from perf_offcpu.collect.system.btf import Btf
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.system.privileges import lockdown
from perf_offcpu.errors import CapabilityError, RecordingError
from perf_offcpu.resources import PROGRAM, bpf_dir
from perf_offcpu.structs import Closing

_FIRST, _LAST = "offcpu_first", "offcpu_last"  # iterators over tasks
_FILTER = "offcpu_filter"
_LICENSE = "Dual BSD/GPL"


class OffCpuProgram(Closing):
    """Load the BPF program, neither attached nor enabled yet; a context manager. `use_cache`: read and keep compiled
    programs and facts about the kernel in the user's cache. Raises CapabilityError: no bcc, no BTF, no privilege, or
    the kernel is too old; RecordingError: the program does not compile, or the kernel refuses it."""

    def __init__(self, config: OffCpuConfig | None = None, *, use_cache: bool = True) -> None:
        self.config = config or OffCpuConfig()
        self._programs: dict[str, int] = {}
        self._probe: Kprobe | None = None
        self._links: list[int] = []
        self._maps: ProgramMaps | None = None
        self.draws_stacks = False
        """True if sums of short waits have no stack, and the program takes stacks of randomly drawn waits."""
        self.reads_python = False
        """True if samples have the Python functions of processes in the BPF map `pythons`."""
        self.names_on_cpu = False
        """True if on-CPU samples have the Python functions, too."""
        self.follows_jvms = False
        """True if interpreted methods count in the numbers of stacks of processes in the BPF map `jvms`."""
        check_privileges()
        facts = kept_facts() if use_cache else explore(Btf.load())
        self._tracepoints = defines.tracepoints_of(self.config, facts)
        self._iterators = () if facts.task_iterator is None else (_FIRST, _LAST)
        try:
            self._probe = None if self.ends_at_exit else _open_probe(self.config, facts)
            self._build(facts, ProgramCache.usual() if use_cache else None)
        except BaseException:
            self.close()
            raise

    @property
    def ends_at_exit(self) -> bool:
        """True if samples are sent in the sleeper's own context, so that the perf core's fields (TID, CPU, registers,
        stack bytes, cgroup) are the sleeper's; else they are those of the task that left the CPU."""
        return defines.SWITCHED in self._tracepoints or self._probe is not None

    def _build(self, facts: KernelFacts, cache: ProgramCache | None) -> None:
        source = bpf_dir() / PROGRAM
        header = read_header(source.with_name("off_cpu.h"))
        by_probe = self._probe is not None
        options = defines.option_defines(self.config, facts, self.ends_at_exit, by_probe)
        options |= defines.target_defines(self.config)
        self.draws_stacks = bool(options["OFFCPU_SUM_DRAWN"])
        self.reads_python = bool(options["OFFCPU_PYTHON"])
        late = defines.late_values(facts)
        values = [late.get(name, 0) for name in header.enums["late"]]
        control = defines.control_values(self.config, header.enums["mode"], self.ends_at_exit)
        functions = [*self._tracepoints, *([defines.SWITCHED] if by_probe else []), _FILTER, *self._iterators]
        functions += [defines.PYTHON] if options["OFFCPU_PYTHON"] else []

        def load(code: Mapping[str, bytes], maps: Mapping[str, int]) -> None:
            def load_each(names: Sequence[str]) -> None:
                for name in names:
                    instructions = with_late_values(with_kernel_functions(code[name]), values)
                    self._programs[name] = _load_program(name, instructions, self._tracepoints, facts)

            try:
                # Half of the verifier's time is for one program.
                by_size = sorted(functions, key=lambda name: len(code[name]), reverse=True)
                side_by_side(lambda: load_each(by_size[:1]), lambda: load_each(by_size[1:]))
                self._maps = ProgramMaps({name: maps[name] for name in MAP_NAMES}, header, control)
                self._maps.describe_calls(call_numbers(platform.machine()))
                if defines.PYTHON in functions:
                    self._maps.set_python_program(self._programs[defines.PYTHON])
            except OSError:
                self._unload()  # not the probe: if cached programs are refused, compiled ones follow
                raise

        try:
            kernel = facts.defines | setting_defines()
            self.follows_jvms = bool(options["OFFCPU_JVMS"] and kernel["OFFCPU_MAY_GOTO"])
            self.names_on_cpu = bool(self.reads_python and kernel["OFFCPU_MAY_GOTO"])
            build(Recipe(source, kernel, options, functions, MAP_NAMES), load, cache)
        except VerifierError as error:
            raise _refusal(error) from error

    def attach(self) -> None:
        """Attach the programs to their tracepoints; they record nothing until `enable`."""
        name = defines.SWITCHED
        try:
            if self._probe:
                self._probe.attach(self._programs[name])
            for name in self._tracepoints:
                self._links.append(bpf_syscall.open_raw_tracepoint(self._programs[name]))
        except OSError as error:
            self.detach()
            raise RecordingError(f"BPF program {name} cannot be attached ({error.strerror})") from error

    def detach(self) -> None:
        """Detach the programs; sums and counters stay readable."""
        while self._links:
            os.close(self._links.pop())
        if self._probe:
            self._probe.detach()

    def close(self) -> None:
        """Detach and close all descriptors. Closing twice is allowed."""
        self.detach()
        if self._probe:
            self._probe.close()
        self._unload()

    def _unload(self) -> None:
        while self._programs:
            os.close(self._programs.popitem()[1])
        if self._maps is not None:
            self._maps.close()
            self._maps = None

    @property
    def maps(self) -> ProgramMaps:
        """The program's maps. Raises RecordingError: the program is closed."""
        if self._maps is None:
            raise RecordingError("the BPF program is closed")
        return self._maps

    def enable(self) -> None:
        """Begin to record, or go on after `disable`; run an iterator that notes tasks that are waiting already."""
        self.maps.start()
        if _FIRST in self._programs:
            bpf_syscall.run_iterator(self._programs[_FIRST])
            config = self.config
            gains_properties = config.by_user or config.by_comm or config.by_group is not None
            self.maps.set_control(all_found=config.targets is not Targets.ALL and not gains_properties)

    def disable(self) -> None:
        """Stop recording; when this returns, no program runs any more and no sample follows."""
        self.maps.stop()

    @property
    def filter_fd(self) -> int:
        """Descriptor, for PERF_EVENT_IOC_SET_BPF, of a program that passes only samples of targets and counts them."""
        return self._programs[_FILTER]

    def last_tasks(self) -> LastTasks:
        """Return budgets and unfinished waits of the recorded tasks that live, at the end of the recording; before
        `disable`, at this moment, although they may change while the iterator runs (`LastTasks.unless_disturbed`).
        Empty if the kernel has no iterators over tasks."""
        end_ns = self.maps.end_ns or now_ns()
        raw = bpf_syscall.run_iterator(self._programs[_LAST]) if _LAST in self._programs else b""
        return parse_tasks(raw, self.maps.header, end_ns, self.config.budget)

    def counters(self) -> dict[str, int]:
        """Return the counters of all CPUs since loading: name of `enum offcpu_counter` (bpf/off_cpu.h) → number of
        events, NAME_ns → their off-cpu time, 0 if unknown, and `missed_runs` → number of runs that the kernel left out
        because the program was running on that CPU already."""
        return {**self.maps.counters(), "missed_runs": sum(info.recursion_misses for info in self.run_stats().values())}

    def run_stats(self) -> dict[str, Any]:
        """Return name → `attr.ProgramInfo` (struct bpf_prog_info) of each loaded program."""
        return {name: bpf_syscall.read_info(fd, ProgramInfo()) for name, fd in self._programs.items()}


def _open_probe(config: OffCpuConfig, facts: KernelFacts) -> Kprobe | None:
    """Open the kprobe that ends waits in the sleeper's context, as sched_exit_tp does; None if unwanted or refused."""
    if not config.in_sleeper or config.in_switch or not facts.switch_end:
        return None
    try:
        return Kprobe(facts.switch_end)
    except OSError:
        return None


def _load_program(name: str, code: bytes, tracepoints: Mapping[str, str], facts: KernelFacts) -> int:
    """Load the BPF function `name`; return its descriptor. `code`: its instructions. `tracepoints`: BPF function →
    tracepoint, of the functions that are attached to one."""
    if name == _FILTER:
        return bpf_syscall.load_program(ProgramType.PERF_EVENT, name, code, _LICENSE)
    attached = defines.SWITCHED if name == defines.PYTHON else name
    if attached == defines.SWITCHED and attached not in tracepoints:
        return bpf_syscall.load_program(ProgramType.KPROBE, name, code, _LICENSE)
    if attached in tracepoints:
        btf_id, kind = facts.tracepoints[tracepoints[attached]].btf_id, AttachType.TRACE_RAW_TP
    else:
        btf_id, kind = facts.task_iterator or 0, AttachType.TRACE_ITER
    return bpf_syscall.load_program(ProgramType.TRACING, name, code, _LICENSE, btf_id, kind)


def _refusal(error: VerifierError) -> CapabilityError | RecordingError:
    """Return the error to raise for a program that the kernel refuses, with a remedy if the user can apply one."""
    if lockdown() == "confidentiality":
        return CapabilityError(
            "kernel lockdown (confidentiality) keeps BPF programs from reading kernel memory",
            "boot with lockdown=integrity or without",
        )
    end_of_log = "\n".join(error.log.splitlines()[-12:])
    return RecordingError(f"the kernel refuses BPF program {error.name} ({error.strerror}):\n{end_of_log}")
