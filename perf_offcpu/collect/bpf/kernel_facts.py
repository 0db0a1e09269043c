# SPDX-License-Identifier: Apache-2.0
"""Facts about the running kernel with which the BPF program is compiled.

Kernel differences are looked up, not derived from version numbers: the kernel's BTF has a member, a
tracepoint or a helper, or not. What the program cannot do without raises a `CapabilityError`; for other
features it gets a constant that turns them off.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perf_offcpu.collect.bpf.attr import ProgramType
from perf_offcpu.collect.bpf.kernel_probes import has_may_goto
from perf_offcpu.collect.bpf.kprobe import switch_end
from perf_offcpu.collect.bpf.object import KERNEL_FUNCTION
from perf_offcpu.collect.bpf.syscall import load_program, run_program
from perf_offcpu.collect.system.btf import Btf, Tracepoint
from perf_offcpu.collect.system.btf_walk import Kind
from perf_offcpu.collect.system.kallsyms import KALLSYMS, read_bytes, symbol_address
from perf_offcpu.errors import CapabilityError

MAX_FRAMES = 127  # PERF_MAX_STACK_DEPTH, the default of kernel.perf_event_max_stack

Defines = dict[str, int | str]
"""Preprocessor constants of the BPF program."""

_POINTER = 8
_KERNEL_NEEDED = "boot Linux 5.15 or newer"
_SYSCALL_REGISTER = {"x86_64": "orig_ax", "aarch64": "syscallno"}  # in struct pt_regs; -1 if in none
_USER_REGISTERS = {"x86_64": ("ip", "sp", "bp"), "aarch64": ("pc", "sp", "regs")}  # and the frame pointer
_FP_OF_ARM64 = 29 * 8  # x29, in pt_regs.regs
_REGISTER_BYTES = {"x86_64": 21 * 8, "aarch64": 34 * 8}  # the user ABI's part of struct pt_regs

_TRACEPOINTS = (
    "sched_switch", "sched_exit_tp", "sched_waking", "sched_process_fork", "sched_process_exec",
)  # fmt: skip
_OPTIONAL = {"sched_exit_tp"}

# Constant → structure and member of which it is the offset.
_TASK = {
    "TASK_STATE": "task_struct.__state",
    "TASK_FLAGS": "task_struct.flags",
    "TASK_PID": "task_struct.pid",
    "TASK_TGID": "task_struct.tgid",
    "TASK_START_TIME": "task_struct.start_time",
    "TASK_NVCSW": "task_struct.nvcsw",
    "TASK_NIVCSW": "task_struct.nivcsw",
    "TASK_EXIT_STATE": "task_struct.exit_state",
    "TASK_ON_CPU": "task_struct.on_cpu",
}
_CGROUP_ID = {
    "TASK_CGROUPS": "task_struct.cgroups",
    "CSS_SET_DFL_CGRP": "css_set.dfl_cgrp",
    "CGROUP_KN": "cgroup.kn",
    "KERNFS_NODE_ID": "kernfs_node.id",
}
"""The id of a task's cgroup v2 is task->cgroups->dfl_cgrp->kn->id."""
_KERNEL_FIGURES = {
    "TASK_SUM_EXEC_RUNTIME": "task_struct.se.sum_exec_runtime",
    "TASK_RUN_DELAY": "task_struct.sched_info.run_delay",
}
"""The kernel's own time on CPUs and run-queue delay of a task; the latter with CONFIG_SCHED_INFO only."""
_QUEUE = {
    "TASK_RUN_DELAY": "task_struct.sched_info.run_delay",
    "TASK_LAST_QUEUED": "task_struct.sched_info.last_queued",
    "TASK_CFS_RQ": "task_struct.se.cfs_rq",
    "CFS_RQ_RQ": "cfs_rq.rq",
    "RQ_CLOCK": "rq.clock",
}
"""Since when a task is on a run queue, and the clock of that (CONFIG_SCHED_INFO, CONFIG_FAIR_GROUP_SCHED)."""
_THROTTLING = {"TASK_CFS_RQ": "task_struct.se.cfs_rq", "CFS_RQ_THROTTLE_COUNT": "cfs_rq.throttle_count"}
"""Members that show a throttled control group on kernels without task_struct.throttled (Linux 6.18)."""
_PROPERTIES = {
    "TASK_THREAD_PID": "task_struct.thread_pid",
    "TASK_GROUP_LEADER": "task_struct.group_leader",
    "PID_LEVEL": "pid.level",
    "PID_NUMBERS": "pid.numbers",
    "PID_NAMESPACE_INUM": "pid_namespace.ns.inum",
    "TASK_COMM": "task_struct.comm",
    "TASK_REAL_CRED": "task_struct.real_cred",
    "CRED_EUID": "cred.euid",
    "CSS_SET_SUBSYS": "css_set.subsys",
    "CGROUP_SELF": "cgroup.self",
    "CSS_CGROUP": "cgroup_subsys_state.cgroup",
    "CSS_PARENT": "cgroup_subsys_state.parent",
}
"""Properties by which targets are chosen: pids of their namespace, user, comm, control groups."""
_CALLERS = {
    "TASK_MM": "task_struct.mm",
    "TASK_THREAD_POINTER": "task_struct.thread.fsbase",
    "MM_START_CODE": "mm_struct.start_code",
    "MM_END_CODE": "mm_struct.end_code",
    "MM_MMAP_BASE": "mm_struct.mmap_base",
    "MM_START_STACK": "mm_struct.start_stack",
}
"""The code, libraries and stack of a task, on x86-64."""

_OBJECTS = {
    "TASK_FILES": "task_struct.files",
    "FILES_FDT": "files_struct.fdt",
    "FDTABLE_MAX_FDS": "fdtable.max_fds",
    "FDTABLE_FD": "fdtable.fd",
    "FILE_INODE": "file.f_inode",
    "FILE_OP": "file.f_op",
    "FILE_PRIVATE_DATA": "file.private_data",
    "FILE_DENTRY": "file.f_path.dentry",
    "DENTRY_NAME": "dentry.d_name.name",
    "DENTRY_PARENT": "dentry.d_parent",
    "INODE_MODE": "inode.i_mode",
    "INODE_INO": "inode.i_ino",
    "INODE_SB": "inode.i_sb",
    "SUPER_DEV": "super_block.s_dev",
    "SUPER_MAGIC": "super_block.s_magic",
    "SOCKET_SK": "socket.sk",
    "SOCKET_INODE": "socket_alloc.vfs_inode",
    "SOCK_FAMILY": "sock.__sk_common.skc_family",
    "SOCK_NUM": "sock.__sk_common.skc_num",
    "SOCK_DPORT": "sock.__sk_common.skc_dport",
    "SOCK_DADDR": "sock.__sk_common.skc_daddr",
    "SOCK_RCV_SADDR": "sock.__sk_common.skc_rcv_saddr",
    "SOCK_PROTOCOL": "sock.sk_protocol",
    "SOCK_SOCKET": "sock.sk_socket",
}
"""The way from a descriptor to the file, pipe or socket that it refers to."""
_EPOLL = {
    "EVENTPOLL_READY": "eventpoll.rdllist",
    "EPITEM_READY": "epitem.rdllink",
    "EPITEM_FILE": "epitem.ffd.file",
    "EPITEM_FD": "epitem.ffd.fd",
    "EPITEM_EVENTPOLL": "epitem.ep",
}
"""The way from an epoll instance to the first file that is ready."""
_IPV6 = {
    "SOCK_V6_DADDR": "sock.__sk_common.skc_v6_daddr",
    "SOCK_V6_RCV_SADDR": "sock.__sk_common.skc_v6_rcv_saddr",
}
_UNIX = {
    "UNIX_PEER": "unix_sock.peer",
    "UNIX_ADDR": "unix_sock.addr",
    "UNIX_ADDR_LEN": "unix_address.len",
    "UNIX_ADDR_NAME": "unix_address.name",
}
_HEAD_BYTES = 96
"""HEAD_BYTES in bpf/descriptors.h: the first bytes of an inode, socket or item of epoll, read at once."""
_IN_HEAD = {"INODE_MODE", "INODE_INO", "INODE_SB", "SOCK_FAMILY", "SOCK_NUM", "SOCK_DPORT", *_IPV6}
_ARGUMENTS = {
    "x86_64": {
        "REGS_ARG_0": "pt_regs.di",
        "REGS_ARG_1": "pt_regs.si",
        "REGS_ARG_2": "pt_regs.dx",
        "REGS_ARG_3": "pt_regs.r10",
        "TASK_STATUS": "task_struct.thread_info.status",
    },
    "aarch64": {"REGS_ARG_0": "pt_regs.orig_x0", "REGS_PSTATE": "pt_regs.pstate"},
}
"""Arguments of a system call in the saved registers, and what shows a 32-bit program."""


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """Facts about the running kernel."""

    tracepoints: Mapping[str, Tracepoint]
    """Tracepoints of this kernel that the program can use, by name."""
    defines: Mapping[str, int | str]
    """Preprocessor constants."""
    task_iterator: int | None = None
    """BTF id of the function that identifies iterators over tasks; None before Linux 5.8."""
    switch_end: str = ""
    """The function that a task runs first when it comes to a CPU, for a kprobe; "" if not known."""

    @property
    def has_exit_tp(self) -> bool:
        """True if waits can end in the sleeper's own context (sched_exit_tp, Linux 6.16)."""
        return "sched_exit_tp" in self.tracepoints


def explore(btf: Btf) -> KernelFacts:
    """Look up all facts in the kernel's BTF and symbols.

    Raises:
        CapabilityError: the kernel is too old.
        FormatError: its BTF is damaged.
    """
    found = {name: point for name in _TRACEPOINTS if (point := btf.tracepoint(name))}
    missing = [name for name in _TRACEPOINTS if name not in found and name not in _OPTIONAL]
    if missing or not btf.member("task_struct", "bpf_storage"):
        what = f"the tracepoint {missing[0]} in its BTF" if missing else "BPF task storage"
        raise CapabilityError(f"kernel {platform.release()} lacks {what}", _KERNEL_NEEDED)
    symbols = read_bytes(KALLSYMS)
    defines = {
        **_task_offsets(btf),
        **_all_offsets(btf, _CGROUP_ID),
        **_all_offsets(btf, _KERNEL_FIGURES),
        **_all_offsets(btf, _QUEUE),
        **_all_offsets(btf, _THROTTLING),
        **_offsets(btf, {"TASK_THROTTLED": "task_struct.throttled"}),
        **_offsets(btf, _PROPERTIES),
        **(_all_offsets(btf, _CALLERS) if platform.machine() == "x86_64" else {}),
        **_registers(btf),
        **_object_members(btf),
        **_text_ranges(symbols),
        **_preempt_count(btf),
        "OFFCPU_SWITCH_HAS_STATE": int(found["sched_switch"].args >= 4),  # fa2c3254d7cf, Linux 5.18
        "OFFCPU_FRAME_LIMIT": _frame_limit(),
        "OFFCPU_MAY_GOTO": int(has_may_goto()),
    }
    return KernelFacts(found, defines, btf.type_id(Kind.FUNC, "bpf_iter_task"), switch_end(symbols))


def _offsets(btf: Btf, members: Mapping[str, str]) -> Defines:
    """Return the offsets of the members that this kernel has."""
    found = {name: btf.member(*path.split(".", 1)) for name, path in members.items()}
    return {name: member.offset for name, member in found.items() if member}


def _all_offsets(btf: Btf, members: Mapping[str, str]) -> Defines:
    """Return the offsets of members that are of use together only; nothing if one is missing."""
    found = _offsets(btf, members)
    return found if len(found) == len(members) else {}


def _task_offsets(btf: Btf) -> Defines:
    # `state` became `__state` in 2f064a59a11f ("sched: Change task_struct::state"), Linux 5.14.
    found = _offsets(btf, {"TASK_STATE": "task_struct.state"}) | _offsets(btf, _TASK)
    missing = [path for name, path in _TASK.items() if name not in found]
    if missing:
        raise CapabilityError(f"kernel {platform.release()} has no {missing[0]} in its BTF", _KERNEL_NEEDED)
    # A whole int up to 6.18, a byte on 7.3: the verifier refuses to read more than the member.
    on_cpu = btf.member("task_struct", "on_cpu")
    width = f"u{8 * on_cpu.size}" if on_cpu and on_cpu.size in (1, 2, 4) else "u32"
    return found | {"TASK_ON_CPU_TYPE": width}


def controller_offset(btf: Btf, controller: str) -> int | None:
    """Return the offset in a css_set of the pointer to its group in the v1 hierarchy of a controller."""
    number = btf.enumerator("cgroup_subsys_id", f"{controller}_cgrp_id")
    pointers = btf.member("css_set", "subsys")
    return None if number is None or pointers is None else pointers.offset + number * _POINTER


def pid_namespace_level(facts: KernelFacts) -> int:
    """Return the number of pid namespaces above that of this process, read by a program in its context.

    Raises:
        CapabilityError: the kernel cannot run such a program.
    """
    offsets = [facts.defines.get(name) for name in ("TASK_THREAD_PID", "PID_LEVEL")]
    task_pid, level = (offset if isinstance(offset, int) else -1 for offset in offsets)
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


def _registers(btf: Btf) -> Defines:
    """Return the offsets of saved user registers: the number of the system call, and for stack walks."""
    machine = platform.machine()
    register = btf.member("pt_regs", _SYSCALL_REGISTER.get(machine, "no such"))
    if register is None or not btf.has_string("BPF_FUNC_task_pt_regs"):  # dd6e10fbd9fb, Linux 5.15
        return {"OFFCPU_SYSCALLS": 0, "OFFCPU_USER_REGISTERS": 0}
    ip, sp, fp = (btf.member("pt_regs", name) for name in _USER_REGISTERS[machine])
    walkable = {"OFFCPU_USER_REGISTERS": 0}
    if ip and sp and fp:
        shift = _FP_OF_ARM64 if machine == "aarch64" else 0
        walkable = {"OFFCPU_USER_REGISTERS": 1, "REGS_IP": ip.offset, "REGS_SP": sp.offset}
        walkable |= {"REGS_FP": fp.offset + shift, "REGS_SIZE": _REGISTER_BYTES[machine]}
        code_segment = btf.member("pt_regs", "cs")  # x86: shows 64-bit mode
        if code_segment and machine == "x86_64":
            walkable |= {"OFFCPU_FRAME_POINTERS": 1, "REGS_CS": code_segment.offset}
    return {
        "OFFCPU_SYSCALLS": 1,
        "REGS_SYSCALL": register.offset,
        "REGS_SYSCALL_TYPE": f"s{8 * register.size}",
        **walkable,
    }


def _object_members(btf: Btf) -> Defines:
    """Return the offsets with which objects of waits are found; nothing if one is missing."""
    machine = platform.machine()
    files, protocol = _all_offsets(btf, _OBJECTS), btf.member("sock", "sk_protocol")
    arguments = _all_offsets(btf, _ARGUMENTS.get(machine, {}))
    registers = btf.member("pt_regs", "regs")
    if machine == "aarch64" and arguments and registers:
        arguments |= {f"REGS_ARG_{number}": registers.offset + 8 * number for number in (1, 2, 3)}
    epoll = _all_offsets(btf, _EPOLL)
    if any(int(epoll[name]) > _HEAD_BYTES - _POINTER for name in epoll if name != "EVENTPOLL_READY"):
        epoll = {}
    optional = {**_all_offsets(btf, _IPV6), **_all_offsets(btf, _UNIX)}  # af_unix may be a module
    in_head = [int(offset) for name, offset in (files | optional).items() if name in _IN_HEAD]
    if not in_head or not protocol or "REGS_ARG_3" not in arguments or max(in_head) > _HEAD_BYTES - 16:
        return {}
    return {**files, **arguments, **optional, **epoll, "SOCK_PROTOCOL_SIZE": protocol.size}


_INTERRUPT_MASK = {False: 0x00FF0100, True: 0x1F000100}
"""include/linux/preempt.h: NMI, hard interrupt, serving a soft one (but not: soft ones disabled)."""


def _preempt_count(btf: Btf) -> Defines:
    """Return the place of the preempt count, which shows an interrupt; if it is not found, none is noticed.

    arm64 keeps it in the task. x86 has a per-CPU variable, from 6.2 to 6.13 as a member of `pcpu_hot`. BPF
    cannot have its address, but a task leads to another per-CPU variable, the run queue of its CPU.
    """
    # Locks that disable interrupts count between soft and hard ones where this is: in 7.3, not in 6.18.
    newer = btf.type_id(Kind.VAR, "local_interrupt_disable_state") is not None
    common: Defines = {
        "OFFCPU_PREEMPT_COUNT_OF_TASK": 1,
        "OFFCPU_PREEMPT_COUNT_OF_CPU": 2,
        "INTERRUPT_MASK": _INTERRUPT_MASK[newer],
    }
    of_task = btf.member("task_struct", "thread_info.preempt.count")
    if of_task:
        return {**common, "OFFCPU_PREEMPT_COUNT": 1, "PREEMPT_COUNT": of_task.offset}
    run_queue = _all_offsets(btf, {"TASK_CFS_RQ": "task_struct.se.cfs_rq", "CFS_RQ_RQ": "cfs_rq.rq"})
    count = _distance(btf, "preempt_count", "__preempt_count")
    if not run_queue or count is None:
        return {**common, "OFFCPU_PREEMPT_COUNT": 0}
    found: Defines = {**common, **run_queue, "OFFCPU_PREEMPT_COUNT": 2, "PREEMPT_COUNT": count}
    cast, word = btf.type_id(Kind.FUNC, "bpf_rdonly_cast"), btf.type_id(Kind.STRUCT, "refcount_struct")
    if cast is not None and word is not None:  # a35b9af4ec2c, Linux 6.2
        found |= {"OFFCPU_READ_ONLY_CAST": KERNEL_FUNCTION + cast, "OFFCPU_WORD": word}
    end, in_use = (_distance(btf, name, name) for name in ("hardirq_stack_ptr", "hardirq_stack_inuse"))
    if end is not None and in_use is not None and platform.machine() == "x86_64":
        found |= {"OFFCPU_IRQ_STACK": 1, "IRQ_STACK_PTR": end, "IRQ_STACK_IN_USE": in_use}
    return found


def _distance(btf: Btf, member: str, variable: str) -> str | None:
    """Return how far a per-CPU variable, or member of `pcpu_hot`, is from the run queue; None if unknown."""
    hot, of_hot = btf.per_cpu_offset("pcpu_hot"), btf.member("pcpu_hot", member)
    offset = hot + of_hot.offset if hot is not None and of_hot else btf.per_cpu_offset(variable)
    neighbour = btf.per_cpu_offset("runqueues")
    return None if offset is None or neighbour is None else f"({offset - neighbour}LL)"


def _text_ranges(symbols: bytes) -> Defines:
    """Return the places of code marked `__sched` and of functions; sizes are 0 if hidden.

    Then no frames are skipped, wakers' stacks begin with those of tracing, and each softirq is an interrupt.
    """
    softirq, outlined = (
        _function_range(symbols, "OFFCPU_DO_SOFTIRQ", name) for name in (b"do_softirq", b"do_softirq.part.0")
    )
    begin, end = (symbol_address(symbols, name) for name in (b"__sched_text_start", b"__sched_text_end"))
    return {
        "OFFCPU_SCHED_TEXT": f"{begin:#x}ULL",
        "OFFCPU_SCHED_TEXT_SIZE": end - begin,
        **_function_range(symbols, "OFFCPU_WAKE_UP", b"try_to_wake_up"),
        **_function_range(symbols, "OFFCPU_BACKLOG", b"process_backlog"),
        **(outlined if outlined["OFFCPU_DO_SOFTIRQ_SIZE"] else softirq),
    }


def _function_range(symbols: bytes, constant: str, name: bytes) -> Defines:
    line = symbols.find(b" " + name + b"\n")
    start = symbol_address(symbols, name)
    following = symbols[line + 1 :].split(b"\n", 2)[1] if line >= 0 else b""
    size = int(following.split()[0], 16) - start if following else 0
    return {constant: f"{start:#x}ULL", f"{constant}_SIZE": size if 0 < size < 1 << 16 else 0}


def _frame_limit() -> int:
    try:
        return min(MAX_FRAMES, int(Path("/proc/sys/kernel/perf_event_max_stack").read_text()))
    except (OSError, ValueError):
        return MAX_FRAMES
