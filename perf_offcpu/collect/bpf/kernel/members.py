# SPDX-License-Identifier: Apache-2.0
"""Look up offsets of members of the task, and of the structures that lead from it to control groups, users, pid
namespaces, files and locks. 0 means that this kernel lacks the member: no optional member is first in its structure."""

import platform
import time
from collections.abc import Mapping, Sequence

from perf_offcpu.abi.machine import MACHINES
from perf_offcpu.collect.system.btf import Btf
from perf_offcpu.errors import CapabilityError, FormatError

Defines = dict[str, int | str]  # preprocessor constants of the BPF program

KERNEL_NEEDED = "boot Linux 5.15 or newer"
_POINTER = 8

# Constant → structure and member of which it is the offset.
_TASK = {
    "TASK_STATE": "task_struct.__state",
    "TASK_FLAGS": "task_struct.flags",
    "TASK_BPF_STORAGE": "task_struct.bpf_storage",
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
    "TASK_LAST_QUEUED": "task_struct.sched_info.last_queued",
}
"""The kernel's own time on CPUs and run-queue delay of a task (CONFIG_SCHED_INFO)."""
_RUN_QUEUE = {"TASK_CFS_RQ": "task_struct.se.cfs_rq", "CFS_RQ_RQ": "cfs_rq.rq", "RQ_CLOCK": "rq.clock"}
"""The run queue of a task, and its clock (CONFIG_FAIR_GROUP_SCHED)."""
_THROTTLING = {"TASK_THROTTLED": "task_struct.throttled", "CFS_RQ_THROTTLE_COUNT": "cfs_rq.throttle_count"}
"""Members that show a throttled control group: since Linux 6.18, and before."""
_PROPERTIES = {
    "TASK_THREAD_PID": "task_struct.thread_pid",
    "TASK_GROUP_LEADER": "task_struct.group_leader",
    "PID_LEVEL": "pid.level",
    "PID_NUMBERS": "pid.numbers",
    "PID_NAMESPACE_INUM": "pid_namespace.ns.inum",
    "TASK_COMM": "task_struct.comm",
    "TASK_REAL_CRED": "task_struct.real_cred",
    "CRED_EUID": "cred.euid",
    "CGROUP_SELF": "cgroup.self",
    "CSS_CGROUP": "cgroup_subsys_state.cgroup",
    "CSS_PARENT": "cgroup_subsys_state.parent",
}
"""Properties by which targets are chosen: pids of their namespace, user, comm, control groups."""
_CALLERS = {
    "TASK_MM": "task_struct.mm",
    "MM_START_CODE": "mm_struct.start_code",
    "MM_END_CODE": "mm_struct.end_code",
    "MM_MMAP_BASE": "mm_struct.mmap_base",
    "MM_START_STACK": "mm_struct.start_stack",
}
"""Members that tell where code, libraries and stack of a task are."""


def task_members(btf: Btf) -> Defines:
    """Return constant → offset for the tables above, and a C type for TASK_ON_CPU_TYPE; the offset is 0 for a missing
    member, or for all members of a feature that needs them together. Raises CapabilityError: a member of _TASK is
    missing."""
    return {
        **_needed(btf),
        **all_offsets(btf, _CGROUP_ID),
        **all_offsets(btf, _KERNEL_FIGURES),
        **all_offsets(btf, _RUN_QUEUE),
        **offsets(btf, _THROTTLING),
        **offsets(btf, _PROPERTIES),
        **all_offsets(btf, _CALLERS),
    }


def offsets(btf: Btf, members: Mapping[str, str]) -> Defines:
    """Return constant → offset. `members`: constant → "struct.member"; the offset is 0 if the kernel lacks it."""
    member_of = {name: btf.member(*path.split(".", 1)) for name, path in members.items()}
    return {name: member.offset if member else 0 for name, member in member_of.items()}


def all_offsets(btf: Btf, members: Mapping[str, str]) -> Defines:
    """Return constant → offset as `offsets` does; 0 for all if any member is missing: they are of use only together."""
    is_complete = all(btf.member(*path.split(".", 1)) for path in members.values())
    return offsets(btf, members) if is_complete else dict.fromkeys(members, 0)


def machine_offsets(btf: Btf, names: Sequence[str]) -> Defines | None:
    """Return constant → offset for constants whose member depends on the architecture (`abi.machine`); 0 if this
    architecture has no such member. None if this architecture is not supported, or the kernel's BTF lacks a member."""
    row = MACHINES.get(platform.machine())
    if row is None:
        return None
    wanted = {name: row.members[name] for name in names if name in row.members}
    member_of = {name: btf.member(*path.split(".", 1)) for name, (path, _) in wanted.items()}
    places: Defines = {name: member.offset + wanted[name][1] for name, member in member_of.items() if member}
    return {**dict.fromkeys(names, 0), **places} if len(places) == len(wanted) else None


def _needed(btf: Btf) -> Defines:
    # `state` became `__state` in 2f064a59a11f ("sched: Change task_struct::state"), Linux 5.14.
    task = offsets(btf, _TASK)
    if not task["TASK_STATE"]:
        task |= offsets(btf, {"TASK_STATE": "task_struct.state"})
    missing = [path for name, path in _TASK.items() if not task[name]]
    if missing:
        raise CapabilityError(f"kernel {platform.release()} has no {missing[0]} in its BTF", KERNEL_NEEDED)
    # A whole int up to 6.18, a byte on 7.3: the verifier refuses to read more than the member.
    on_cpu = btf.member("task_struct", "on_cpu")
    width = f"u{8 * on_cpu.size}" if on_cpu and on_cpu.size in (1, 2, 4) else "u32"
    return task | {"TASK_ON_CPU_TYPE": width}


def controller_offset(btf: Btf, controller: str) -> int | None:
    """Return the offset in `struct css_set` of the pointer to a v1 controller's state (css) of the group; None if the
    kernel has no such controller. `controller`: name, such as "cpu"."""
    number = btf.enumerator("cgroup_subsys_id", f"{controller}_cgrp_id")
    pointers = btf.member("css_set", "subsys")
    return None if number is None or pointers is None else pointers.offset + number * _POINTER


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
_FORK = {
    "TASK_CHILDREN": "task_struct.children",
    "TASK_SIBLING": "task_struct.sibling",
    "TASK_VFORK_DONE": "task_struct.vfork_done",
}
"""The children of a task, and whether their parent waits for them as in vfork()."""
_MAPPED = {
    "FOLIO_WAIT_TASK": "wait_page_queue.wait.private",
    "FOLIO_WAIT_FUNC": "wait_page_queue.wait.func",
    "FOLIO_MAPPING": "folio.mapping",
    "INODE_DENTRY": "inode.i_dentry.first",
    "DENTRY_ALIAS": "dentry.d_u.d_alias",
}
"""The way from the stack of a thread in a page fault to the file whose page it waits for (since Linux 5.16)."""
_EPOLL = {
    "EVENTPOLL_READY": "eventpoll.rdllist",
    "EPITEM_READY": "epitem.rdllink",
    "EPITEM_FILE": "epitem.ffd.file",
    "EPITEM_FD": "epitem.ffd.fd",
    "EPITEM_EVENTPOLL": "epitem.ep",
}
"""The way from an epoll instance to the first file that is ready."""
_IPV6 = {"SOCK_V6_DADDR": "sock.__sk_common.skc_v6_daddr", "SOCK_V6_RCV_SADDR": "sock.__sk_common.skc_v6_rcv_saddr"}
_UNIX = {
    "UNIX_PEER": "unix_sock.peer",
    "UNIX_ADDR": "unix_sock.addr",
    "UNIX_ADDR_LEN": "unix_address.len",
    "UNIX_ADDR_NAME": "unix_address.name",
}
_KERNEL_LOCKS = {
    "TASK_BLOCKER": "task_struct.blocker",
    "MUTEX_OWNER": "mutex.owner",
    "SEMAPHORE_LAST_HOLDER": "semaphore.last_holder",
    "RW_SEMAPHORE_OWNER": "rw_semaphore.owner",
    "INODE_RWSEM": "inode.i_rwsem",
    "SUPER_UMOUNT": "super_block.s_umount",
    "SUPER_RENAME_MUTEX": "super_block.s_vfs_rename_mutex",
    "PIPE_MUTEX": "pipe_inode_info.mutex",
}
"""The kernel lock for which a task waits, its owner, and the objects that hold such locks; all since Linux 6.17."""
_MMAP_LOCK = {
    "MM_MMAP_LOCK": "mm_struct.mmap_lock",
    "RWSEM_WAITER_TASK": "rwsem_waiter.task",
    "RWSEM_WAITER_TYPE": "rwsem_waiter.type",
}
"""The lock of a process's mappings, and members of its waiters."""
_MMAP_HEAD = {"MM_MMAP_WAITERS": "mm_struct.mmap_lock.wait_list"}
_MMAP_FIRST = {"MM_MMAP_FIRST": "mm_struct.mmap_lock.first_waiter"}
"""The head of their list; since Linux 7 a pointer to the first, instead."""
_TCP = {
    "TCP_STATE": "sock.__sk_common.skc_state",
    "TCP_RETRANSMITS": "inet_connection_sock.icsk_retransmits",
    "TCP_LAST_RECEIVED": "inet_connection_sock.icsk_ack.lrcvtime",
    "TCP_LAST_SENT": "tcp_sock.lsndtime",
    "TCP_SRTT": "tcp_sock.srtt_us",
    "TCP_RTT": "tcp_sock.rack.rtt_us",
    "TCP_TOTAL_RETRANS": "tcp_sock.total_retrans",
    "TCP_PACKETS_OUT": "tcp_sock.packets_out",
    "TCP_DATA_SEGS_IN": "tcp_sock.data_segs_in",
    "TCP_CHRONO_START": "tcp_sock.chrono_start",
    "TCP_CHRONO_STAT": "tcp_sock.chrono_stat",
}
"""Facts about a TCP connection. A tcp_sock begins with an inet_connection_sock, and that with a sock."""
_COARSE_CLOCK = 6  # CLOCK_MONOTONIC_COARSE: its resolution is a tick of the kernel (CONFIG_HZ)
_HEAD_BYTES = 96  # HEAD_BYTES in bpf/descriptors.h: the first bytes of an inode, socket or item of epoll, read at once
_IN_HEAD = {"INODE_MODE", "INODE_INO", "INODE_SB", "SOCK_FAMILY", "SOCK_NUM", "SOCK_DPORT", *_IPV6}
_ARGUMENTS = ("TASK_STATUS", "TASK_KERNEL_SP", *(f"REGS_ARG_{number}" for number in range(4)))
"""Arguments of a system call in saved registers, members that show a 32-bit program, and the saved stack pointer."""


def object_members(btf: Btf) -> Defines:
    """Return constant → offset (or size) for finding the object of a wait; all 0 if an indispensable one is missing."""
    files, protocol = all_offsets(btf, _OBJECTS), btf.member("sock", "sk_protocol")
    arguments = machine_offsets(btf, _ARGUMENTS) or dict.fromkeys(_ARGUMENTS, 0)
    epoll = all_offsets(btf, _EPOLL)
    if any(int(epoll[name]) > _HEAD_BYTES - _POINTER for name in epoll if name != "EVENTPOLL_READY"):
        epoll = dict.fromkeys(epoll, 0)
    optional = {**all_offsets(btf, _IPV6), **all_offsets(btf, _UNIX)}  # af_unix may be a module
    in_head = [int(offset) for name, offset in (files | optional).items() if name in _IN_HEAD]
    width = {"SOCK_PROTOCOL_SIZE": protocol.size if protocol else 0}
    defines = {
        **files,
        **width,
        **arguments,
        **optional,
        **epoll,
        **all_offsets(btf, _FORK),
        **all_offsets(btf, _MAPPED),
        **_kernel_locks(btf),
        **_tcp(btf),
    }
    can = files["TASK_FILES"] and arguments["REGS_ARG_0"] and max(in_head) <= _HEAD_BYTES - 16
    return defines if can else dict.fromkeys(defines, 0)


def _kernel_locks(btf: Btf) -> Defines:
    """Return constant → offset for identifying a kernel lock; TASK_BLOCKER is 0 if tasks do not note their lock."""
    mapping, lock = btf.member("inode", "i_data"), btf.member("address_space", "invalidate_lock")
    invalidate = {"INODE_INVALIDATE_LOCK": mapping.offset + lock.offset if mapping and lock else 0}
    owner = offsets(btf, {"RW_SEMAPHORE_OWNER": "rw_semaphore.owner"})
    lists = all_offsets(btf, _MMAP_HEAD) | all_offsets(btf, _MMAP_FIRST)
    return {**all_offsets(btf, _KERNEL_LOCKS), **owner, **all_offsets(btf, _MMAP_LOCK), **lists, **invalidate}


def _tcp(btf: Btf) -> Defines:
    """Return constant → offset for the facts about a TCP connection; TCP_SRTT is 0 if the kernel lacks any. Which time
    is running (TCP_CHRONO_TYPE) is a bit field of two bits in older kernels, the first of a byte."""
    first = btf.member("tcp_sock", "rtt_min"), btf.member("minmax_sample", "v")
    defines = all_offsets(btf, _TCP) if all(first) else dict.fromkeys(_TCP, 0)
    try:
        chrono = btf.member("tcp_sock", "chrono_type", low_bits=True)
    except FormatError:  # it begins within a byte
        chrono = None
    defines["TCP_CHRONO_TYPE"] = chrono.offset if chrono else 0
    min_rtt = sum(member.offset for member in first if member)
    return {**defines, "TCP_MIN_RTT": min_rtt, "TCP_TICK_US": round(1e6 * time.clock_getres(_COARSE_CLOCK))}
