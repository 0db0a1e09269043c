# SPDX-License-Identifier: Apache-2.0
"""Look up offsets of members of the task, and of the structures that lead from it to control groups, users, pid
namespaces, files and locks. 0 means that this kernel lacks the member: no optional member is first in its structure."""

import platform
import time
from collections.abc import Mapping, Sequence

from perf_offcpu.collect.system.btf import Btf
from perf_offcpu.errors import CapabilityError, FormatError
from perf_offcpu.tables import read_table

Defines = dict[str, int | str]  # preprocessor constants of the BPF program

KERNEL_NEEDED = "boot Linux 5.15 or newer"
_POINTER = 8

_TABLES = dict(read_table(__file__))
"""Feature → constant → "struct.member" of which it is the offset."""


def task_members(btf: Btf) -> Defines:
    """Return constant → offset for the members of tasks; 0 for an optional member that is missing, and for all members
    of a feature that lacks one. TASK_ON_CPU_TYPE is a C type. Raises CapabilityError: a necessary member is missing."""
    features = _features(btf, "cgroup-id", "kernel-figures", "run-queue", "callers")
    return {**_needed(btf), **features, **offsets(btf, _TABLES["throttling"] | _TABLES["properties"])}


def offsets(btf: Btf, members: Mapping[str, str]) -> Defines:
    """Return constant → offset of its member, 0 if the kernel lacks it. `members`: constant → "struct.member"."""
    member_of = {name: btf.member(*path.split(".", 1)) for name, path in members.items()}
    return {name: member.offset if member else 0 for name, member in member_of.items()}


def all_offsets(btf: Btf, members: Mapping[str, str]) -> Defines:
    """Return constant → offset of its member, or 0 for all if the kernel lacks any. `members`: as for `offsets`."""
    is_complete = all(btf.member(*path.split(".", 1)) for path in members.values())
    return offsets(btf, members) if is_complete else dict.fromkeys(members, 0)


def _features(btf: Btf, *names: str) -> Defines:
    return {name: offset for feature in names for name, offset in all_offsets(btf, _TABLES[feature]).items()}


def machine_members() -> dict[str, str]:
    """Return constant → "struct.member" (or "struct.member+BYTES") for this architecture; {} if it is not supported."""
    return _TABLES.get(platform.machine(), {})


def machine_offsets(btf: Btf, names: Sequence[str]) -> Defines | None:
    """Return constant → offset for `names`, whose members depend on the architecture; 0 if this architecture has no
    such member. Return None if the architecture is not supported, or the kernel's BTF lacks a member."""
    places: Defines = dict.fromkeys(names, 0)
    members = machine_members()
    for name in members.keys() & set(names):
        path, _, more = members[name].partition("+")
        if (member := btf.member(*path.split(".", 1))) is None:
            return None
        places[name] = member.offset + int(more or 0)
    return places if members else None


def _needed(btf: Btf) -> Defines:
    # `state` became `__state` in 2f064a59a11f ("sched: Change task_struct::state"), Linux 5.14.
    task = offsets(btf, _TABLES["task"])
    if not task["TASK_STATE"]:
        task |= offsets(btf, {"TASK_STATE": "task_struct.state"})
    missing = [path for name, path in _TABLES["task"].items() if not task[name]]
    if missing:
        raise CapabilityError(f"kernel {platform.release()} has no {missing[0]} in its BTF", KERNEL_NEEDED)
    # A whole int up to 6.18, a byte on 7.3: the verifier refuses to read more than the member.
    on_cpu = btf.member("task_struct", "on_cpu")
    width = f"u{8 * on_cpu.size}" if on_cpu and on_cpu.size in (1, 2, 4) else "u32"
    return task | {"TASK_ON_CPU_TYPE": width}


def controller_offset(btf: Btf, controller: str) -> int | None:
    """Return the offset in `struct css_set` of the pointer to the css (group's state) of a v1 controller; None if the
    kernel has no such controller. `controller`: name, such as "cpu"."""
    number = btf.enumerator("cgroup_subsys_id", f"{controller}_cgrp_id")
    pointers = btf.member("css_set", "subsys")
    return None if number is None or pointers is None else pointers.offset + number * _POINTER


_COARSE_CLOCK = 6  # CLOCK_MONOTONIC_COARSE: its resolution is a tick of the kernel (CONFIG_HZ)
_HEAD_BYTES = 96  # HEAD_BYTES in bpf/descriptors.h: the first bytes of an inode, socket or item of epoll, read at once
_IN_HEAD = {"INODE_MODE", "INODE_INO", "INODE_SB", "SOCK_FAMILY", "SOCK_NUM", "SOCK_DPORT", *_TABLES["ipv6"]}
_ARGUMENTS = ("TASK_STATUS", "TASK_KERNEL_SP", *(f"REGS_ARG_{number}" for number in range(4)))
"""Constants for saved arguments of a system call, the mark of a 32-bit program, and the saved stack pointer."""


def object_members(btf: Btf) -> Defines:
    """Return constant → offset (or size) of members that lead to a wait's object; all 0 if a needed one is missing."""
    files, protocol = _features(btf, "objects"), btf.member("sock", "sk_protocol")
    arguments = machine_offsets(btf, _ARGUMENTS) or dict.fromkeys(_ARGUMENTS, 0)
    epoll = _features(btf, "epoll")
    if any(int(epoll[name]) > _HEAD_BYTES - _POINTER for name in epoll if name != "EVENTPOLL_READY"):
        epoll = dict.fromkeys(epoll, 0)
    optional = _features(btf, "ipv6", "unix")  # af_unix may be a module
    in_head = [int(offset) for name, offset in (files | optional).items() if name in _IN_HEAD]
    width = {"SOCK_PROTOCOL_SIZE": protocol.size if protocol else 0}
    others = _features(btf, "fork", "mapped", "polled") | _kernel_locks(btf) | _tcp(btf)
    defines = {**files, **width, **arguments, **optional, **epoll, **others}
    can = files["TASK_FILES"] and arguments["REGS_ARG_0"] and max(in_head) <= _HEAD_BYTES - 16
    return defines if can else dict.fromkeys(defines, 0)


def _kernel_locks(btf: Btf) -> Defines:
    """Return constant → offset of members that identify a kernel lock; TASK_BLOCKER is 0 if tasks do not note locks."""
    mapping, lock = btf.member("inode", "i_data"), btf.member("address_space", "invalidate_lock")
    invalidate = {"INODE_INVALIDATE_LOCK": mapping.offset + lock.offset if mapping and lock else 0}
    owner = offsets(btf, {"RW_SEMAPHORE_OWNER": "rw_semaphore.owner"})
    locks = _features(btf, "kernel-locks") | owner | _features(btf, "mmap-lock", "mmap-head", "mmap-first")
    return {**locks, **invalidate}


def _tcp(btf: Btf) -> Defines:
    """Return constant → offset of the members with facts about a TCP connection; TCP_SRTT is 0 if the kernel lacks any.
    TCP_CHRONO_TYPE: byte at whose first bit chrono_type (two bits in older kernels) begins; 0 if it begins elsewhere.
    TCP_TICK_US: length of a tick of the kernel, us."""
    first = btf.member("tcp_sock", "rtt_min"), btf.member("minmax_sample", "v")
    defines = _features(btf, "tcp") if all(first) else dict.fromkeys(_TABLES["tcp"], 0)
    try:
        chrono = btf.member("tcp_sock", "chrono_type", low_bits=True)
    except FormatError:  # it begins within a byte
        chrono = None
    defines["TCP_CHRONO_TYPE"] = chrono.offset if chrono else 0
    min_rtt = sum(member.offset for member in first if member)
    return {**defines, "TCP_MIN_RTT": min_rtt, "TCP_TICK_US": round(1e6 * time.clock_getres(_COARSE_CLOCK))}
