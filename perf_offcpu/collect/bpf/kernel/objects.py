# SPDX-License-Identifier: Apache-2.0
"""Offsets of members with which the BPF program finds what a thread waits for (bpf/objects.h)."""

from __future__ import annotations

from perf_offcpu.collect.bpf.kernel.members import Defines, all_offsets, machine_offsets
from perf_offcpu.collect.system.btf import Btf

_POINTER = 8

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
_ARGUMENTS = ("TASK_STATUS", "REGS_PSTATE", *(f"REGS_ARG_{number}" for number in range(4)))
"""Arguments of a system call in the saved registers, and what shows a 32-bit program."""


def object_members(btf: Btf) -> Defines:
    """Return the offsets with which objects of waits are found; 0 for all if one is missing."""
    files, protocol = all_offsets(btf, _OBJECTS), btf.member("sock", "sk_protocol")
    arguments = machine_offsets(btf, _ARGUMENTS) or dict.fromkeys(_ARGUMENTS, 0)
    epoll = all_offsets(btf, _EPOLL)
    if any(int(epoll[name]) > _HEAD_BYTES - _POINTER for name in epoll if name != "EVENTPOLL_READY"):
        epoll = dict.fromkeys(epoll, 0)
    optional = {**all_offsets(btf, _IPV6), **all_offsets(btf, _UNIX)}  # af_unix may be a module
    in_head = [int(offset) for name, offset in (files | optional).items() if name in _IN_HEAD]
    width = {"SOCK_PROTOCOL_SIZE": protocol.size if protocol else 0}
    found = {**files, **width, **arguments, **optional, **epoll}
    can = files["TASK_FILES"] and arguments["REGS_ARG_0"] and max(in_head) <= _HEAD_BYTES - 16
    return found if can else dict.fromkeys(found, 0)
