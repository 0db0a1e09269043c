# SPDX-License-Identifier: Apache-2.0
"""Find the object that a sleeping thread waits for, by its system call and arguments, as bpf/objects.h does: rows of
`struct offcpu_object`, which `wait_objects.describe` names. Only the kernel itself is asked, for links and texts of
/proc and addresses of sockets; a file system that may not answer is not asked."""

import ctypes
import functools
import os
import platform
import re
import secrets
import socket
import stat
import struct
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.offcpu import UNKNOWN_U32, UNKNOWN_U64, ObjectLost
from perf_offcpu.abi.syscalls import call_numbers, syscall_number
from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.collect.bpf.header import read_header
from perf_offcpu.collect.kernel_totals.user_stacks import read_memory
from perf_offcpu.collect.wait_objects.owners import holder_and_timeout, only_descriptor
from perf_offcpu.collect.wait_objects.sockets import EPOLL
from perf_offcpu.files import descriptor, read_kernel_if_any
from perf_offcpu.resources import bpf_dir

_LINK: Final = re.compile(rb"(pipe|socket):\[(\d+)\]|anon_inode:(.*)|pidfd:.*", re.DOTALL)
_WATCHED: Final = re.compile(rb"^tfd: *(\d+) .* ino:([0-9a-f]+) ", re.MULTILINE)  # of an epoll instance's fdinfo
_MOUNT_ID: Final = re.compile(rb"^mnt_id:\t(\d+)$", re.MULTILINE)
_REMOTE: Final = re.compile(rb"fuse|nfs|cifs|smb|9p|ceph|afs|autofs")  # types of file systems that may not answer
_KINDS: Final = {
    stat.S_IFREG: ObjectKind.FILE,
    stat.S_IFDIR: ObjectKind.DIRECTORY,
    stat.S_IFCHR: ObjectKind.CHARACTER,
    stat.S_IFBLK: ObjectKind.BLOCK,
    stat.S_IFIFO: ObjectKind.PIPE,
}
_TIMESPEC, _WAITV = struct.Struct("=QQ"), struct.Struct("=QQQ")
_COMMAND: Final = 0x7F  # FUTEX_CMD_MASK: without the bits for private futexes and for the clock
_FUTEX_WAITS: Final = (0, 6, 9, 11, 13)  # WAIT, LOCK_PI, WAIT_BITSET, WAIT_REQUEUE_PI, LOCK_PI2 of linux/futex.h
_P_PID, _P_PIDFD, _TIMER_ABSTIME, _CLOCK_MONOTONIC = 1, 3, 1, 1
_MOST_PATH: Final = 256
_LIBC = ctypes.CDLL(None, use_errno=True)


class WaitObject(NamedTuple):
    """The object of a wait: id (0 for none), timeout in ns, tid of the lock's holder, `abi.offcpu.ObjectLost` flags."""

    object_id: int = 0
    asked_ns: int = UNKNOWN_U64
    holder_tid: int = UNKNOWN_U32
    object_lost: int = 0


class CallObjects:
    """Find the objects that system calls wait for. `wanted`: False to find only timeouts and holders of locks."""

    def __init__(self, wanted: bool) -> None:
        self._wanted, self._secret = wanted, secrets.token_bytes(16)
        self._dtype = read_header(bpf_dir() / "off_cpu.h").structs["object"]
        self._calls = call_numbers(platform.machine())
        self._known = set[int]()
        self._new: list[NDArray[Any]] = []

    def take_objects(self) -> NDArray[Any]:
        """Return the objects that `find` met first since the last call, as rows of `struct offcpu_object`."""
        rows, self._new = np.array(self._new, self._dtype), []
        return rows

    def find(self, pid: int, tid: int, since_ns: int, syscall: int, arguments: Sequence[int], sp: int) -> WaitObject:
        """Return the object of a thread that waits in a system call; keep a new one for `take_objects`. `since_ns`:
        begin of the wait. `syscall`: its number. `arguments`: its six words. `sp`: the thread's stack pointer."""
        if syscall not in self._calls:
            return WaitObject()
        object_form, timeout = self._calls[syscall]
        asked_ns, holder = _asked_ns(tid, timeout, arguments, since_ns), UNKNOWN_U32
        if object_form == "futex" and arguments[1] & _COMMAND in _FUTEX_WAITS:
            owner, limit_ns = holder_and_timeout(pid, tid, arguments, since_ns)
            holder, asked_ns = owner or UNKNOWN_U32, UNKNOWN_U64 if limit_ns is None else limit_ns
        if not self._wanted or object_form == "none":
            return WaitObject(0, asked_ns, holder)
        row = np.zeros((), self._dtype)
        row["pid"], row["sp"], row["number"], row["fd"], row["asked_ns"] = pid, sp, -1, -1, asked_ns
        identity = self._describe(row, pid, tid, object_form, arguments)
        if identity is None:
            return WaitObject(0, asked_ns, holder, int(row["lost"]))
        words = repr((int(row["kind"]), *identity)).encode()
        row["id"] = int.from_bytes(blake2b(words, digest_size=8, key=self._secret).digest(), "little") or 1
        if (object_id := int(row["id"])) not in self._known:
            self._known.add(object_id)
            self._new.append(row)
        return WaitObject(object_id, asked_ns, holder)

    def _describe(
        self, row: NDArray[Any], pid: int, tid: int, object_form: str, arguments: Sequence[int]
    ) -> tuple[object, ...] | None:
        """Fill in `row` (`struct offcpu_object`) for a system call; return the values that identify the object, None if
        there is none. `object_form`: kind of argument that names the object, from `call_numbers`."""
        first, second = arguments[0], arguments[1]
        fd = _s32(first)
        if object_form in ("futex", "futexes"):
            return _futex(row, tid, object_form, arguments)
        if object_form in ("semaphores", "messages"):
            return _number(row, ObjectKind[object_form.upper()], fd)
        if object_form in ("path", "path_at"):
            return _path(row, tid, first if object_form == "path" else second)
        if object_form == "child_id" and first == _P_PIDFD:
            fd = _s32(second)
        elif object_form in ("child", "child_id", "fork"):
            return _child(row, tid, object_form, arguments)
        elif object_form in ("poll", "select"):
            fd = only_descriptor(tid, arguments, object_form == "select")
            if fd < 0 and (object_form == "poll" or not first or not any(arguments[1:4])):
                return _number(row, ObjectKind.DESCRIPTORS, _s32(second) if object_form == "poll" else 0)
        return self._source_of_events(row, pid, fd) if fd >= 0 else None

    def _source_of_events(self, row: NDArray[Any], pid: int, fd: int) -> tuple[object, ...] | None:
        """Fill in `row` (`struct offcpu_object`) for a descriptor, or, for an epoll instance without timeout that
        watches one descriptor, for that; return the values that identify the object, None if the descriptor is gone."""
        identity = self._descriptor(row, pid, fd)
        is_epoll = row["kind"] == ObjectKind.ANONYMOUS and bytes(row["name"]).rstrip(b"\0") == EPOLL
        if not is_epoll or row["asked_ns"] != UNKNOWN_U64:
            return identity
        return self._only_watched(row, pid, fd) or identity

    def _only_watched(self, row: NDArray[Any], pid: int, fd: int) -> tuple[object, ...] | None:
        """Fill in `row` for the only descriptor that an epoll instance watches; return the values that identify it.
        Return None and leave `row` unchanged if there are several, or the number is of another file by now."""
        watched = _WATCHED.findall(read_kernel_if_any(f"/proc/{pid}/fdinfo/{fd}", 1 << 16))
        if len(watched) != 1:
            return None
        (number, inode), only = watched[0], row.copy()
        only["name"] = 0
        identity = self._descriptor(only, pid, int(number))
        if identity is None or (only["kind"] != ObjectKind.ANONYMOUS and int(only["inode"]) != int(inode, 16)):
            return None
        row[...] = only
        return identity

    def _descriptor(self, row: NDArray[Any], pid: int, fd: int) -> tuple[object, ...] | None:
        path = f"/proc/{pid}/fd/{fd}".encode()
        try:
            link = os.readlink(path)  # direct: not followed
        except OSError:
            row["lost"] = ObjectLost.CLOSED
            return None
        row["fd"] = fd
        if match := _LINK.fullmatch(link):
            row["inode"] = int(match[2] or 0)
            row["kind"] = {b"pipe": ObjectKind.PIPE, b"socket": ObjectKind.SOCKET}.get(match[1], ObjectKind.ANONYMOUS)
            if row["kind"] == ObjectKind.ANONYMOUS:
                name = match[3] or b"[pidfd]"
                row["name"][: len(name)] = np.frombuffer(name, np.uint8)
                return pid, fd, name
            if row["kind"] == ObjectKind.SOCKET:
                _add_addresses(row, pid, fd)
            return int(row["inode"]), bytes(row["remote"]), int(row["remote_port"])
        if _is_remote(pid, fd):
            row["lost"] = ObjectLost.FAULT
            return None
        try:
            facts = os.stat(path)  # direct: of a file system that answers, and nothing is opened
        except OSError:
            row["lost"] = ObjectLost.CLOSED
            return None
        row["kind"] = _KINDS.get(stat.S_IFMT(facts.st_mode), ObjectKind.FILE)
        if len(link) < len(row["name"]):  # for when the process has ended before its objects are named
            row["name"][: len(link)] = np.frombuffer(link, np.uint8)
        row["inode"], row["device"] = facts.st_ino, os.major(facts.st_dev) << 20 | os.minor(facts.st_dev)
        return facts.st_ino, facts.st_dev


def _s32(number: int) -> int:
    return (number & 0xFFFFFFFF ^ 0x80000000) - 0x80000000


def _number(row: NDArray[Any], kind: ObjectKind, number: int) -> tuple[object, ...]:
    row["kind"], row["number"] = kind, number
    return number, int(row["pid"]) if kind == ObjectKind.PROCESS else 0


def _futex(row: NDArray[Any], tid: int, what: str, arguments: Sequence[int]) -> tuple[object, ...] | None:
    address, operation, value = arguments[:3]
    if what == "futexes":  # struct futex_waitv; several are no one object
        waitv = read_memory(tid, address, _WAITV.size) if operation == 1 else b""
        if not waitv:
            return None
        value, address, operation = _WAITV.unpack(waitv)
        operation &= 0x80
    elif operation & _COMMAND not in _FUTEX_WAITS:
        return None
    row["kind"], row["address"], row["protocol"] = ObjectKind.FUTEX, address, operation & 0xFFFF
    row["number"] = _s32(value)
    return int(row["pid"]), address


def _path(row: NDArray[Any], tid: int, address: int) -> tuple[object, ...] | None:
    path = read_memory(tid, address, _MOST_PATH).partition(b"\0")[0]
    row["kind"], row["name"][: len(path)] = ObjectKind.PATH, np.frombuffer(path, np.uint8)
    return (path,) if path else None


def _child(row: NDArray[Any], tid: int, object_form: str, arguments: Sequence[int]) -> tuple[object, ...]:
    """Fill in `row` (`struct offcpu_object`) for the child that a call waits for: for vfork() the last child, else the
    given one, -1 for any; return the values that identify it."""
    if object_form == "fork":
        children = read_kernel_if_any(f"/proc/{int(row['pid'])}/task/{tid}/children", 1 << 16).split()
        return _number(row, ObjectKind.PROCESS, int(children[-1]) if children else -1)
    child = _s32(arguments[0] if object_form == "child" else arguments[1] if arguments[0] == _P_PID else -1)
    return _number(row, ObjectKind.PROCESS, max(child, 0) or -1)


def _is_remote(pid: int, fd: int) -> bool:
    """Return True if a descriptor's file is, or may be, on a file system that may not answer (network, FUSE)."""
    mount = _MOUNT_ID.search(read_kernel_if_any(f"/proc/{pid}/fdinfo/{fd}", 1 << 16))
    return mount is None or _is_remote_mount(pid, mount[1])


@functools.lru_cache(1 << 10)
def _is_remote_mount(pid: int, mount: bytes) -> bool:
    mounts = read_kernel_if_any(f"/proc/{pid}/mountinfo", 1 << 20)
    line = re.search(rb"^%s .* - (\S+) " % mount, mounts, re.MULTILINE)
    return line is None or bool(_REMOTE.match(line[1]))


def _add_addresses(row: NDArray[Any], pid: int, fd: int) -> None:
    """Fill in family, protocol and addresses of a socket in `row` (`struct offcpu_object`), from a duplicate of it."""
    with suppress(OSError):
        number = syscall_number("pidfd_getfd", platform.machine())
        with descriptor(os.pidfd_open(pid)) as process:
            copy = int(_LIBC.syscall(ctypes.c_long(number), process, fd, 0))
        if copy < 0:
            return
        with socket.socket(fileno=copy) as own:
            row["family"], row["protocol"] = int(own.family), own.proto
            for side, ask in (("local", own.getsockname), ("remote", own.getpeername)):
                with suppress(OSError):
                    _add_address(row, side, ask())


def _add_address(row: NDArray[Any], side: str, address: Any) -> None:
    family = int(row["family"])
    if family in (socket.AF_INET, socket.AF_INET6):
        packed = np.frombuffer(socket.inet_pton(family, address[0].partition("%")[0]), np.uint8)
        row[side][: len(packed)], row[f"{side}_port"] = packed, address[1]
    elif family == socket.AF_UNIX and address and not row["name"].any():
        name = (os.fsencode(address) if isinstance(address, str) else address)[: len(row["name"])]
        row["name"][: len(name)], row["own_name"] = np.frombuffer(name, np.uint8), side == "local"


def _asked_ns(tid: int, timeout: str, arguments: Sequence[int], since_ns: int) -> int:
    """Return the timeout of a system call, ns; UNKNOWN_U64 for none, or if unknown. `timeout`: kind and number of the
    argument that holds it, from `call_numbers`. `since_ns`: begin of the call."""
    if timeout in ("ms_2", "ms_3"):
        limit = _s32(arguments[int(timeout[-1])])
        return limit * 1_000_000 if limit > 0 else UNKNOWN_U64
    word = {"spec_0": 0, "spec_2": 2, "spec_3": 3, "clock": 2}.get(timeout, -1)
    spec = read_memory(tid, arguments[word], _TIMESPEC.size) if word >= 0 and arguments[word] else b""
    if not spec:
        return UNKNOWN_U64
    seconds, rest = _TIMESPEC.unpack(spec)
    moment = min(seconds * 10**9 + rest, UNKNOWN_U64 - 1)
    if timeout != "clock" or not arguments[1] & _TIMER_ABSTIME:
        return int(moment)
    return max(moment - since_ns, 0) if arguments[0] == _CLOCK_MONOTONIC else UNKNOWN_U64
