# SPDX-License-Identifier: Apache-2.0
"""Facts about the running kernel that the BPF program is compiled with.

Kernel differences are looked for, not derived from version numbers: a member, a tracepoint or a helper is
in the kernel's BTF or it is not. What the program cannot do without is a `CapabilityError` that says so;
for the rest it gets a constant that turns the feature off.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perf_offcpu.collect.bpf.attr import ProgramType
from perf_offcpu.collect.bpf.kprobe import switch_end
from perf_offcpu.collect.bpf.syscall import VerifierError, load_program, run_program
from perf_offcpu.collect.system.btf import Btf, Member, Tracepoint
from perf_offcpu.collect.system.btf_walk import Kind
from perf_offcpu.collect.system.privileges import privilege_remedy
from perf_offcpu.errors import CapabilityError
from perf_offcpu.files import read_kernel

MAX_FRAMES = 127  # PERF_MAX_STACK_DEPTH, the default of kernel.perf_event_max_stack

_POINTER = 8
_KERNEL_NEEDED = "boot Linux 5.15 or newer"
_RETURN_0 = bytes.fromhex("b700000000000000 9500000000000000")  # r0 = 0; exit
_SYSCALL_REGISTER = {"x86_64": "orig_ax", "aarch64": "syscallno"}  # in struct pt_regs; -1 if in none
_USER_REGISTERS = {"x86_64": ("ip", "sp", "bp"), "aarch64": ("pc", "sp", "regs")}  # and the frame pointer
_FP_OF_ARM64 = 29 * 8  # x29, in pt_regs.regs

_TRACEPOINTS = (
    "sched_switch", "sched_exit_tp", "sched_waking", "sched_process_fork", "sched_process_exec",
)  # fmt: skip
_OPTIONAL = {"sched_exit_tp"}


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What was found."""

    tracepoints: Mapping[str, Tracepoint]
    """By name, those that exist of the ones that the program can use."""
    defines: Mapping[str, int | str]
    """Constants for the compiler."""
    task_iterator: int | None = None
    """BTF id of the function that stands for iterators over tasks (Linux 5.8); None if there is none."""
    switch_end: str = ""
    """The function that a task runs first when it comes to a CPU, for a kprobe; "" if not known."""

    @property
    def has_exit_tp(self) -> bool:
        """Whether waits can be ended in the sleeper's own context (sched_exit_tp, Linux 6.16)."""
        return "sched_exit_tp" in self.tracepoints


def check_privileges() -> None:
    """See whether BPF programs may be loaded at all, by loading the smallest.

    Raises:
        CapabilityError: they may not.
    """
    try:
        os.close(load_program(ProgramType.PERF_EVENT, "offcpu_probe", _RETURN_0, "GPL"))
    except VerifierError as error:
        raise CapabilityError(
            f"BPF programs cannot be loaded ({error.strerror})",
            privilege_remedy(),
        ) from error


def explore(btf: Btf, kallsyms: Path = Path("/proc/kallsyms")) -> KernelFacts:
    """Look up everything in the kernel's BTF and symbols.

    Raises:
        CapabilityError: the kernel is too old.
        FormatError: its BTF is damaged.
    """
    found = {name: point for name in _TRACEPOINTS if (point := btf.tracepoint(name))}
    missing = [name for name in _TRACEPOINTS if name not in found and name not in _OPTIONAL]
    if missing or not btf.member("task_struct", "bpf_storage"):
        what = f"the tracepoint {missing[0]} in its BTF" if missing else "BPF task storage"
        raise CapabilityError(f"kernel {platform.release()} lacks {what}", _KERNEL_NEEDED)
    symbols = _read(kallsyms)
    defines = {
        **_task_offsets(btf),
        **_cgroup_offsets(btf),
        **_property_offsets(btf),
        **_caller_offsets(btf),
        **_registers(btf),
        **_scheduler_text(symbols),
        **_wake_up_text(symbols),
        **_preempt_count(btf),
        "OFFCPU_SWITCH_HAS_STATE": int(found["sched_switch"].args >= 4),  # fa2c3254d7cf, Linux 5.18
        "OFFCPU_FRAME_LIMIT": _frame_limit(),
    }
    return KernelFacts(found, defines, btf.type_id(Kind.FUNC, "bpf_iter_task"), switch_end(symbols))


def _need(member: Member | None, name: str) -> int:
    if member is None:
        raise CapabilityError(f"kernel {platform.release()} has no {name} in its BTF", _KERNEL_NEEDED)
    return member.offset


def _task_offsets(btf: Btf) -> dict[str, int | str]:
    # `state` became `__state` in 2f064a59a11f ("sched: Change task_struct::state"), Linux 5.14.
    state = btf.member("task_struct", "__state") or btf.member("task_struct", "state")
    plain = {
        f"TASK_{name.upper()}": _need(btf.member("task_struct", name), f"task_struct.{name}")
        for name in ("flags", "pid", "tgid", "start_time", "nvcsw", "nivcsw", "exit_state", "on_cpu")
    }
    # A whole int up to 6.18, a byte on 7.3: the verifier refuses to read more than the member.
    on_cpu = btf.member("task_struct", "on_cpu")
    width = f"u{8 * on_cpu.size}" if on_cpu and on_cpu.size in (1, 2, 4) else "u32"
    return {**plain, "TASK_STATE": _need(state, "task_struct.__state"), "TASK_ON_CPU_TYPE": width}


def _cgroup_offsets(btf: Btf) -> dict[str, int | str]:
    """The way to the id of a task's cgroup v2: task->cgroups->dfl_cgrp->kn->id; nothing without cgroups."""
    way = {
        "TASK_CGROUPS": btf.member("task_struct", "cgroups"),
        "CSS_SET_DFL_CGRP": btf.member("css_set", "dfl_cgrp"),
        "CGROUP_KN": btf.member("cgroup", "kn"),
        "KERNFS_NODE_ID": btf.member("kernfs_node", "id"),
    }
    found = {name: member.offset for name, member in way.items() if member}
    return dict(found) if len(found) == len(way) else {}


def _property_offsets(btf: Btf) -> dict[str, int | str]:
    """Where tasks keep what targets are chosen by: pids of their namespace, user, comm, control groups."""
    way = {
        "TASK_THREAD_PID": btf.member("task_struct", "thread_pid"),
        "TASK_GROUP_LEADER": btf.member("task_struct", "group_leader"),
        "PID_LEVEL": btf.member("pid", "level"),
        "PID_NUMBERS": btf.member("pid", "numbers"),
        "PID_NAMESPACE_INUM": btf.member("pid_namespace", "ns.inum"),
        "TASK_COMM": btf.member("task_struct", "comm"),
        "TASK_REAL_CRED": btf.member("task_struct", "real_cred"),
        "CRED_EUID": btf.member("cred", "euid"),
        "CSS_SET_SUBSYS": btf.member("css_set", "subsys"),
        "CGROUP_SELF": btf.member("cgroup", "self"),
        "CSS_CGROUP": btf.member("cgroup_subsys_state", "cgroup"),
        "CSS_PARENT": btf.member("cgroup_subsys_state", "parent"),
    }
    return {name: member.offset for name, member in way.items() if member}


def _caller_offsets(btf: Btf) -> dict[str, int | str]:
    """Where a task's code, libraries and stack are; nothing but on x86-64."""
    way = {
        "TASK_MM": btf.member("task_struct", "mm"),
        "TASK_THREAD_POINTER": btf.member("task_struct", "thread.fsbase"),
        "MM_START_CODE": btf.member("mm_struct", "start_code"),
        "MM_END_CODE": btf.member("mm_struct", "end_code"),
        "MM_MMAP_BASE": btf.member("mm_struct", "mmap_base"),
    }
    found = {name: member.offset for name, member in way.items() if member}
    return dict(found) if len(found) == len(way) and platform.machine() == "x86_64" else {}


def controller_offset(btf: Btf, controller: str) -> int | None:
    """Where a css_set points to its group of a v1 hierarchy, by a controller of that hierarchy."""
    number = btf.enumerator("cgroup_subsys_id", f"{controller}_cgrp_id")
    pointers = btf.member("css_set", "subsys")
    return None if number is None or pointers is None else pointers.offset + number * _POINTER


def pid_namespace_level(facts: KernelFacts) -> int:
    """How many pid namespaces lie above that of this process, seen by a program that runs in its context.

    Raises:
        CapabilityError: the kernel has no way to tell.
    """
    way = [facts.defines.get(name) for name in ("TASK_THREAD_PID", "PID_LEVEL")]
    task_pid, level = (offset if isinstance(offset, int) else -1 for offset in way)
    code = (
        bytes.fromhex("85000000 9e000000")  # r0 = bpf_get_current_task_btf()
        + bytes.fromhex("7900") + task_pid.to_bytes(2, sys.byteorder) + bytes(4)  # r0 = r0->thread_pid
        + bytes.fromhex("6100") + level.to_bytes(2, sys.byteorder) + bytes(4)  # r0 = r0->level
        + bytes.fromhex("9500000000000000")  # exit
    )  # fmt: skip
    try:
        fd = load_program(ProgramType.RAW_TRACEPOINT, "offcpu_level", code, "GPL")
    except OSError as error:
        raise CapabilityError(
            f"the kernel does not tell which pid namespace this is ({error.strerror})",
            "record from outside of the container",
        ) from error
    try:
        return run_program(fd)
    finally:
        os.close(fd)


def _registers(btf: Btf) -> dict[str, int | str]:
    """Where a task's saved user registers lie: the system call's number, where a stack walk begins."""
    machine = platform.machine()
    register = btf.member("pt_regs", _SYSCALL_REGISTER.get(machine, "no such"))
    if register is None or not btf.has_string("BPF_FUNC_task_pt_regs"):  # dd6e10fbd9fb, Linux 5.15
        return {"OFFCPU_SYSCALLS": 0, "OFFCPU_USER_REGISTERS": 0}
    ip, sp, fp = (btf.member("pt_regs", name) for name in _USER_REGISTERS[machine])
    walkable = {"OFFCPU_USER_REGISTERS": 0}
    if ip and sp and fp:
        shift = _FP_OF_ARM64 if machine == "aarch64" else 0
        walkable = {"OFFCPU_USER_REGISTERS": 1, "REGS_IP": ip.offset, "REGS_SP": sp.offset}
        walkable["REGS_FP"] = fp.offset + shift
        code_segment = btf.member("pt_regs", "cs")  # x86: whether the task is in 64-bit mode
        if code_segment and machine == "x86_64":
            walkable |= {"OFFCPU_FRAME_POINTERS": 1, "REGS_CS": code_segment.offset}
    return {
        "OFFCPU_SYSCALLS": 1,
        "REGS_SYSCALL": register.offset,
        "REGS_SYSCALL_TYPE": f"s{8 * register.size}",
        **walkable,
    }


_INTERRUPT_MASK = {False: 0x00FF0100, True: 0x1F000100}
"""include/linux/preempt.h: NMI, hard interrupt, serving a soft one (but not: soft ones disabled)."""


def _preempt_count(btf: Btf) -> dict[str, int | str]:
    """Where the count is that tells an interrupt; nowhere if it is not found, then none is told.

    arm64 keeps it in the task. x86 has a per-CPU variable, from 6.2 to 6.13 as a member of `pcpu_hot`. Its
    address is not for BPF to know, but a task leads to another one, the run queue of its CPU.
    """
    ways = {"OFFCPU_PREEMPT_COUNT_OF_TASK": 1, "OFFCPU_PREEMPT_COUNT_OF_CPU": 2}
    # Locks that disable interrupts count between soft and hard ones where this is: in 7.3, not in 6.18.
    newer = btf.type_id(Kind.VAR, "local_interrupt_disable_state") is not None
    ways["INTERRUPT_MASK"] = _INTERRUPT_MASK[newer]
    of_task = btf.member("task_struct", "thread_info.preempt.count")
    if of_task:
        return {**ways, "OFFCPU_PREEMPT_COUNT": 1, "PREEMPT_COUNT": of_task.offset}
    queue, cfs_rq = btf.member("cfs_rq", "rq"), btf.member("task_struct", "se.cfs_rq")
    hot, member = btf.per_cpu_offset("pcpu_hot"), btf.member("pcpu_hot", "preempt_count")
    count = hot + member.offset if hot is not None and member else btf.per_cpu_offset("__preempt_count")
    neighbour = btf.per_cpu_offset("runqueues")
    if not queue or not cfs_rq or count is None or neighbour is None:
        return {**ways, "OFFCPU_PREEMPT_COUNT": 0}
    return {
        **ways,
        "OFFCPU_PREEMPT_COUNT": 2,
        "PREEMPT_COUNT": f"({count - neighbour}LL)",
        "TASK_CFS_RQ": cfs_rq.offset,
        "CFS_RQ_RQ": queue.offset,
    }


def _read(kallsyms: Path) -> bytes:
    try:
        return read_kernel(str(kallsyms))
    except OSError:
        return b""


def _wake_up_text(symbols: bytes) -> dict[str, int | str]:
    """Where try_to_wake_up() lies; size 0 if that is hidden: wakers' stacks begin with tracing then."""
    end = symbols.find(b" try_to_wake_up\n")
    start = _symbol(symbols, b"try_to_wake_up")
    following = symbols[end + 1 :].split(b"\n", 2)[1] if end >= 0 else b""
    size = int(following.split()[0], 16) - start if following else 0
    return {"OFFCPU_WAKE_UP": f"{start:#x}ULL", "OFFCPU_WAKE_UP_SIZE": size if 0 < size < 1 << 16 else 0}


def _scheduler_text(symbols: bytes) -> dict[str, int | str]:
    """Where functions marked `__sched` lie; size 0 if kernel addresses are hidden, then none are skipped."""
    start, end = (_symbol(symbols, name) for name in (b"__sched_text_start", b"__sched_text_end"))
    return {"OFFCPU_SCHED_TEXT": f"{start:#x}ULL", "OFFCPU_SCHED_TEXT_SIZE": end - start}


def _symbol(symbols: bytes, name: bytes) -> int:
    """Address of a symbol in the text of kallsyms, 0 if it is not there."""
    end = symbols.find(b" " + name + b"\n")
    line = symbols.rfind(b"\n", 0, max(end, 0)) + 1
    return int(symbols[line:end].split()[0], 16) if end >= 0 else 0


def _frame_limit() -> int:
    try:
        return min(MAX_FRAMES, int(Path("/proc/sys/kernel/perf_event_max_stack").read_text()))
    except (OSError, ValueError):
        return MAX_FRAMES
