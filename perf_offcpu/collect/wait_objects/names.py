# SPDX-License-Identifier: Apache-2.0
"""Name wait objects from /proc, while the process lives: paths, the mapping that holds a futex, addresses. Nothing here
opens a file of the process, nor asks its file system, which may hang: readlink() of /proc/PID/fd/N and the text of
/proc/PID/fdinfo/N and /proc/PID/maps come from the kernel's own memory."""

import functools
import os
import re
import socket
import struct
from typing import Any, Final

from perf_offcpu.collect.existing.maps import mappings_at, parse_maps, read_maps
from perf_offcpu.collect.kernel_totals.user_stacks import read_memory
from perf_offcpu.collect.system.cgroups import MOUNTS, unescaped
from perf_offcpu.files import kernel_lines, read_kernel, read_kernel_if_any

_INODE: Final = re.compile(rb"^ino:\t(\d+)$", re.MULTILINE)
_FLAGS: Final = re.compile(rb"^flags:\t([0-7]+)$", re.MULTILINE)
_PID: Final = re.compile(rb"^Pid:\t(\d+)$", re.MULTILINE)
MOST_NAME: Final = 4096
_ARENA: Final = 64 << 20  # at whose multiples glibc maps memory for malloc(), also right after a library
PIDFD: Final = b"[pidfd]"
"""The kernel's name of a descriptor for a process (pidfd) before these had a file system of their own (6.9)."""
RING: Final = b"[io_uring]"
_SQE: Final = struct.Struct("=BBHi56x")  # struct io_uring_sqe: code, flags, priority, descriptor
_SQES, _MOST_SQES = 0x10000000, 4096  # IORING_OFF_SQES

_FAMILIES = {1: "unix", 16: "netlink", 17: "packet", 38: "alg", 40: "vsock", 44: "xdp"}  # include/linux/socket.h: AF_*
_PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmp6", 132: "sctp", 262: "mptcp"}
"""Names of protocols by number (include/uapi/linux/in.h: IPPROTO_*)."""
_MAPPED: Final = bytes(10) + b"\xff\xff"  # the first bytes of an IPv6 address that stands for one of IPv4 (RFC 4291)


def _in_fdinfo(pid: int, fd: int, line: re.Pattern[bytes]) -> bytes:
    """Return the first group of the pattern `line` in /proc/PID/fdinfo/FD; b"" if there is none."""
    match = line.search(read_kernel_if_any(f"/proc/{pid}/fdinfo/{fd}", 1 << 20))
    return match[1] if match else b""


def descriptor_path(pid: int, fd: int, inode: int) -> bytes:
    """Return the path of an open descriptor; b"" if it is closed or another file by now. `inode`: the expected one."""
    if _in_fdinfo(pid, fd, _INODE) != b"%d" % inode:  # Linux before 5.14 has no such line
        return b""
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}".encode())[:MOST_NAME]  # direct: not followed
    except OSError:
        return b""


def access_mode(pid: int, fd: int) -> int | None:
    """Return the access mode of a descriptor, os.O_RDONLY, O_WRONLY or O_RDWR; None if it is closed."""
    flags = _in_fdinfo(pid, fd, _FLAGS)
    return int(flags, 8) & os.O_ACCMODE if flags else None


def process_of(pid: int, fd: int) -> bytes:
    """Return `[pidfd] of 1234` if a descriptor is a pidfd of process 1234; b"" if it is no pidfd."""
    process = _in_fdinfo(pid, fd, _PID)
    return process and PIDFD + b" of " + process


def requests_in(pid: int, fd: int) -> list[tuple[int, int, int, int]]:
    """Return the requests (code, flags, priority, descriptor) that are still in the submission queue of an io_uring,
    done or not; before Linux 6.10, none."""
    try:
        inode = int(_in_fdinfo(pid, fd, _INODE) or -1)
        queues = [area for area in parse_maps(read_maps(pid)) if area.inode == inode and area.offset == _SQES]
        sizes = [min(queue.end - queue.start, _MOST_SQES * _SQE.size) for queue in queues[:1]]
        return [request for request in _SQE.iter_unpack(read_memory(pid, queues[0].start, sizes[0])) if request[0]]
    except (OSError, IndexError):
        return []


def endpoint(family: int, address: bytes, port: int) -> bytes:
    """Return address and port as text, `10.0.0.7:5432` or `[::1]:80`; b"" if both are 0. `family`: AF_INET or AF_INET6.
    `address`: 16 bytes, of which IPv4 takes the first 4."""
    if not port and not any(address):
        return b""
    if family == socket.AF_INET6 and address.startswith(_MAPPED):
        family, address = socket.AF_INET, address[12:]
    if family == socket.AF_INET:
        return f"{socket.inet_ntop(socket.AF_INET, address[:4])}:{port}".encode()
    return f"[{socket.inet_ntop(socket.AF_INET6, address)}]:{port}".encode()


def place_of(maps: bytes, address: int, sp: int) -> bytes:
    """Return the kind of memory at an address: "heap", "stack", the name of a mapped file, for shared memory with
    +offset; b"" if unknown. `maps`: text of /proc/PID/maps. `sp`: a thread's stack pointer."""
    mapping, before = mappings_at(maps, address)
    if mapping is None:
        return b""
    if mapping.permissions.endswith(b"s"):
        return b"%s+%#x" % (mapping.name[:MOST_NAME], address - mapping.start + mapping.offset)
    if mapping.inode:
        return mapping.name[:MOST_NAME]
    if mapping.name == b"[stack]" or mapping.start <= sp < mapping.end:
        return b"stack"
    if not mapping.name and before and before.end == mapping.start and before.inode:
        return b"heap" if mapping.start % _ARENA == 0 else before.name[:MOST_NAME]  # .bss goes on after .data
    return b"heap"


def comm_of(pid: int) -> bytes:
    """Return the comm of a process; b"" if it has ended."""
    return read_kernel_if_any(f"/proc/{pid}/comm", 64)[:-1]


Texts = dict[str, bytes]


def socket_texts(row: Any) -> Texts:
    """Return the texts of a socket (`struct offcpu_object`): "protocol", and "local", "remote" address or "name"."""
    family, number = int(row["family"]), int(row["protocol"])
    if family in (socket.AF_INET, socket.AF_INET6):
        protocol = _PROTOCOLS.get(number, f"ip protocol {number}").encode()
        local = endpoint(family, bytes(row["local"]), int(row["local_port"]))
        remote = endpoint(family, bytes(row["remote"]), int(row["remote_port"])) if row["remote_port"] else b""
        return {"protocol": protocol, "local": local, "remote": remote}
    texts = {"protocol": _FAMILIES.get(family, f"family {family}").encode()}
    if family == socket.AF_UNIX:  # abstract names begin with @, as ss prints them
        path = bytes(row["name"]).rstrip(b"\0")
        texts["name"] = path.replace(b"\0", b"@") if path[:1] == b"\0" else path.split(b"\0")[0]
    return texts


class Mounts:
    """Complete paths by the mounts that the recorder sees (proc_pid_mountinfo(5)), read at the first call of `path`.
    For a file that is closed by now, BPF has read only the names up to the root of its file system."""

    @functools.cached_property
    def _by_device(self) -> dict[tuple[int, int], list[tuple[bytes, bytes]]]:
        """Device (major, minor) → [(directory in its file system, mount point of this directory)]."""
        mounts: dict[tuple[int, int], list[tuple[bytes, bytes]]] = {}
        for line in kernel_lines(read_kernel(MOUNTS)):
            if words := re.match(rb"\d+ \d+ (\d+):(\d+) ([^ ]+) ([^ ]+) ", line):
                place = unescaped(words[3]), unescaped(words[4])
                mounts.setdefault((int(words[1]), int(words[2])), []).append(place)
        return mounts

    def path(self, names: bytes, device: int) -> bytes:
        """Return the path of a file as the recorder sees it; from the root of its file system if that is not mounted
        here; without its first names if `names` do not reach the root. `names`: of the file, its directory and so on,
        each with a NUL; "/" for the root of the file system. `device`: of the file system, major << 20 | minor."""
        parts = names.rstrip(b"\0").split(b"\0")
        if parts[-1] != b"/":
            return b"/".join(reversed(parts))
        path = b"/" + b"/".join(reversed(parts[:-1]))
        for root, point in self._by_device.get((device >> 20, device & 0xFFFFF), []):
            inside = root.rstrip(b"/")
            if path == inside or path.startswith(inside + b"/"):
                return os.path.join(point, path[len(inside) :].lstrip(b"/"))
        return path
