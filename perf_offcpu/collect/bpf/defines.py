# SPDX-License-Identifier: Apache-2.0
"""Derive the inputs of the BPF program from config and kernel: tracepoints, preprocessor constants, control values, and
late values, known only at loading (`enum offcpu_late`). bpf/off_cpu.bpf.c and bpf/targets.h explain the constants."""

from collections.abc import Sequence
from pathlib import Path

from perf_offcpu.abi.syscalls import SYSCALL_NUMBERS
from perf_offcpu.collect.bpf.config import COPIES_A_SECOND, MODES, STACK_PERIOD_NS, OffCpuConfig, ShortWaits, Targets
from perf_offcpu.collect.bpf.kernel.facts import KernelFacts, pid_namespace_level
from perf_offcpu.collect.bpf.kernel.members import controller_offset
from perf_offcpu.collect.bpf.object import LATE_VALUE
from perf_offcpu.collect.system.btf import Btf, text_address
from perf_offcpu.errors import CapabilityError

SWITCHED = "offcpu_switched"
PYTHON = "offcpu_python"  # called by SWITCHED
_ON_EXIT = {SWITCHED: "sched_exit_tp"}
_ON_BIRTH = {"offcpu_fork": "sched_process_fork", "offcpu_exec": "sched_process_exec"}
_PID_NAMESPACE = Path("/proc/self/ns/pid")
FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO, include/linux/proc_ns.h
_WINDOWS_A_SECOND = 10  # of the limit of the rate
_LEAST_IN_WINDOW = 50  # samples whose number shows their rate well enough to adjust a period (bpf/period.h)
EARLY_BELOW_NS = 10_000
"""Threshold, ns, below which most waits of a busy machine become samples: kernel stacks are taken before the switch."""


def tracepoints_of(config: OffCpuConfig, facts: KernelFacts) -> dict[str, str]:
    """Return BPF function → tracepoint, in the order of attachment. sched_switch comes last, so that for each wait
    whose begin it notes, wake-up and end are traced, too."""
    births = {} if config.targets is Targets.ALL else _ON_BIRTH
    at_exit = _ON_EXIT if facts.has_exit_tp and not config.in_switch else {}
    wake_ups = {"offcpu_waking": "sched_waking"} if config.wakers else {}
    return {**births, **wake_ups, **at_exit, "offcpu_switch": "sched_switch"}


def option_defines(config: OffCpuConfig, facts: KernelFacts, at_exit: bool, by_probe: bool) -> dict[str, int | str]:
    """Return the preprocessor constants for off_cpu.bpf.c that depend on the config. `at_exit`: waits end in the
    sleeper's own context (`OffCpuProgram.ends_at_exit`). `by_probe`: a kprobe does that. Raises CapabilityError: the
    kernel lacks members that `off_cpu_period_ns` needs."""
    if config.off_cpu_period_ns and not (facts.defines["TASK_LAST_QUEUED"] and facts.defines["RQ_CLOCK"]):
        raise CapabilityError(
            "this kernel does not note since when a thread waits for a CPU (CONFIG_SCHED_INFO), as sampling "
            "waits by their length needs",
            "record without --off-cpu-period",
        )
    follows_callers = facts.defines["TASK_MM"] and facts.defines["OFFCPU_FRAME_POINTERS"]
    is_arm64 = facts.defines["OFFCPU_ARM64"]  # its interpreter has other frames
    copies = at_exit and config.copy_bytes > 0 and bool(follows_callers)
    known_early = config.off_cpu_period_ns > 0 or config.threshold_ns < EARLY_BELOW_NS
    with_stacks = config.short_waits in (ShortWaits.STACKS, ShortWaits.SAMPLED) and not config.off_cpu_period_ns
    # Where a wait does not end in the sleeper's context, its stack must be walked before its length is known.
    sum_drawn = with_stacks and at_exit and config.short_waits is ShortWaits.SAMPLED
    sum_stacks = with_stacks and not sum_drawn
    return {
        "OFFCPU_LATE": f"{LATE_VALUE:#x}ULL",
        "OFFCPU_AT_EXIT": int(at_exit),
        "OFFCPU_BY_PROBE": int(by_probe),
        "OFFCPU_KERNEL_EARLY": int(at_exit and config.kernel_stacks and known_early),
        "OFFCPU_SAMPLING": int(config.off_cpu_period_ns > 0),
        "OFFCPU_SUM_DRAWN": int(sum_drawn),
        "OFFCPU_SUM_STACKS": int(sum_stacks),
        "OFFCPU_SUM_CALLERS": int(copies and sum_stacks),
        "OFFCPU_COPIES": int(copies),
        "OFFCPU_CALLERS": config.caller_entries if copies else 1,
        "OFFCPU_JVMS": config.jvm_entries if copies and not is_arm64 else 0,
        "OFFCPU_WAKER_STACKS": int(config.wakers and config.waker_stacks),
        "OFFCPU_PYTHON": config.python_entries if at_exit and config.python and follows_callers else 0,
        "OFFCPU_PYTHON_CODES": config.code_entries,
        "OFFCPU_NEW_CODES": config.new_code_entries,
        "OFFCPU_BUDGET": int(config.budget),
        "OFFCPU_BUDGETS": config.budget_entries if config.budget else 1,
        "OFFCPU_SUMS": config.sum_entries,
        "OFFCPU_STACKS": config.stack_entries,
        "OFFCPU_TARGETS_MAX": config.target_entries,
        **_object_defines(config, facts),
    }


def _object_defines(config: OffCpuConfig, facts: KernelFacts) -> dict[str, int | str]:
    """Return the preprocessor constants for objects.h and locks.h; OFFCPU_OBJECTS is 0 if no objects are noted."""
    objects = config.objects and facts.defines["TASK_FILES"] and facts.defines["OFFCPU_USER_REGISTERS"]
    return {
        "OFFCPU_OBJECTS": config.object_entries if objects else 0,
        "OFFCPU_NEW_OBJECTS": config.new_object_entries,
        "OFFCPU_LOCK_OWNERS": int(bool(objects) and config.lock_owners),
        "OFFCPU_SYSCALL_NUMBERS": SYSCALL_NUMBERS,
    }


_AS_CONFIGURED = (
    "min_block_ns by_user by_cpu by_comm copy_bytes kernel_threads kernel_stacks wakers objects object_names".split()
)
"""Members of `struct offcpu_control` with name and value of a field of `OffCpuConfig`."""


def control_values(config: OffCpuConfig, modes: Sequence[str], at_exit: bool) -> dict[str, int]:
    """Return name → value of the members of `struct offcpu_control` (bpf/off_cpu.h), which the programs read as they
    run. `modes`: enumerators of `enum offcpu_mode`. `at_exit`: as `OffCpuProgram.ends_at_exit`."""
    targets = config.targets
    return {
        **{name: getattr(config, name) for name in _AS_CONFIGURED},
        "threshold_ns": config.least_ns,
        "period_ns": config.off_cpu_period_ns or STACK_PERIOD_NS,
        **_rate_window(config),
        "states": sum(1 << modes.index(MODES[letter]) for letter in set(config.states)),
        "everybody": targets is Targets.ALL,
        "by_process": targets in (Targets.PIDS, Targets.TASKS, Targets.COMMAND),
        "by_thread": targets in (Targets.TIDS, Targets.TASKS),
        "copy_budget": COPIES_A_SECOND,
        "defer_user": at_exit and config.deferred_stacks,
        "drop_short": config.short_waits is ShortWaits.DROP,
    }


def _rate_window(config: OffCpuConfig) -> dict[str, int]:
    """Return `window_ns`, the time over which samples are counted, and `max_rate`, the samples allowed in it (0: any
    number). The window is short, because a threshold that is raised in it leaves waits out for its rest. With a
    sampling period it has at least _LEAST_IN_WINDOW samples, by whose number the period is adjusted."""
    most = max(1, config.max_rate // _WINDOWS_A_SECOND) if config.max_rate else 0
    if not most or not config.off_cpu_period_ns:
        return {"max_rate": most, "window_ns": 10**9 // _WINDOWS_A_SECOND}
    most = max(_LEAST_IN_WINDOW, most)
    return {"max_rate": most, "window_ns": most * 10**9 // config.max_rate}


def target_defines(config: OffCpuConfig) -> dict[str, int]:
    """Return the constants for bpf/targets.h. Raises CapabilityError: this kernel lacks the controller `by_group`."""
    group = 0 if config.by_group is None else 2 if config.by_group else 1
    css = controller_offset(Btf.load(), config.by_group) if config.by_group else 0
    if css is None:
        raise CapabilityError(f"this kernel has no cgroup controller {config.by_group}", "use another hierarchy")
    return {"OFFCPU_BY_GROUP": group, "CSS_SET_CSS": css}


def late_values(facts: KernelFacts) -> dict[str, int]:
    """Return enumerator of `enum offcpu_late` (bpf/off_cpu.h) → value: pid namespace, addresses and sizes of kernel
    code. The loader writes them into the programs. Code that was not found is missing and counts as 0: then stacks keep
    the scheduler's frames, stacks of wakers the frames of tracing, and each softirq counts as an interrupt. Raises
    CapabilityError: the pid namespace cannot be read."""
    namespace = _PID_NAMESPACE.stat().st_ino
    level = 0 if namespace == FIRST_PID_NAMESPACE else pid_namespace_level(facts.defines)
    values = {"pid_level": level, "pid_namespace": namespace}
    text = text_address()
    for name, (offset, size) in facts.code.items() if text else ():
        values |= {name: text + offset, f"{name}_size": size}
    return values
