# SPDX-License-Identifier: Apache-2.0
"""The system call perf_event_open(2), called through libc's syscall(), and the ioctls of its file descriptors.
`refusal` explains an errno, which means different things for different events."""

import ctypes
import errno
import fcntl
import os
import platform
import sys
from pathlib import Path
from typing import Final

from perf_offcpu.abi.attr import Attr, PerfType
from perf_offcpu.abi.syscalls import syscall_number
from perf_offcpu.binary.layout import Order
from perf_offcpu.collect.system import privileges
from perf_offcpu.collect.system.cpus import online_cpus
from perf_offcpu.errors import CapabilityError, PerfOffcpuError, RecordingError

NATIVE: Final[Order] = "<" if sys.byteorder == "little" else ">"
"""Byte order of this machine, and so of all its recordings."""

_FLAG_FD_CLOEXEC = 1 << 3
_PARANOID_OF_DEBIAN = 3  # of a patch of Debian's kernels; others have values up to 2
KPROBE_TYPE = Path("/sys/bus/event_source/devices/kprobe/type")

# _IO('$', n) and friends, include/uapi/linux/perf_event.h; the same on x86, arm64, riscv and s390.
_IOC_ENABLE = 0x2400
_IOC_DISABLE = 0x2401
_IOC_SET_OUTPUT = 0x2405
_IOC_SET_BPF = 0x40042408
_IOC_ID = 0x80082407

_LIBC = ctypes.CDLL(None, use_errno=True)
_SYSCALL = _LIBC.syscall
_SYSCALL.restype = ctypes.c_long


def open_event(attr: Attr, cpu: int, tid: int = -1) -> int:
    """Open an event on one CPU, for one thread (`tid`) or all tasks (-1); return its file descriptor, which is closed
    on exec. Raises OSError with the errno of perf_event_open(2)."""
    number = ctypes.c_long(syscall_number("perf_event_open", platform.machine()))
    others = tid, cpu, -1, _FLAG_FD_CLOEXEC  # -1: no group
    fd = _SYSCALL(number, ctypes.c_char_p(attr.pack(order=NATIVE)), *map(ctypes.c_long, others))
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(fd)


def can_open(attr: Attr, cpu: int, tid: int = -1) -> bool:
    """Return True if the kernel lets this process open the event on `cpu`, for one thread (`tid`) or all tasks (-1)."""
    try:
        os.close(open_event(attr, cpu, tid))
    except OSError:
        return False
    return True


def enable(fd: int) -> None:
    """Enable an event: it counts and writes records from now on."""
    fcntl.ioctl(fd, _IOC_ENABLE, 0)


def disable(fd: int) -> None:
    """Stop an event; when this returns, it writes no more records."""
    fcntl.ioctl(fd, _IOC_DISABLE, 0)


def redirect(fd: int, ring_owner: int) -> None:
    """Make the event `fd` write into the ring of the event `ring_owner`, which has the same CPU and clock."""
    fcntl.ioctl(fd, _IOC_SET_OUTPUT, ring_owner)


def set_filter(fd: int, program_fd: int) -> None:
    """Attach a BPF program to an event: type PERF_EVENT decides which samples are written, KPROBE runs at a kprobe."""
    fcntl.ioctl(fd, _IOC_SET_BPF, program_fd)


def event_id(fd: int) -> int:
    """Return the id by which records of the kernel name the event with this descriptor."""
    buffer = bytearray(8)
    fcntl.ioctl(fd, _IOC_ID, buffer)
    return int.from_bytes(buffer, sys.byteorder)


def refusal(problem: OSError, name: str, attr: Attr, tid: int = -1) -> PerfOffcpuError:
    """Return the error to raise for `problem` of perf_event_open(2) with the event `name`; `tid`: -1 for all tasks."""
    hardware = attr.type not in (PerfType.SOFTWARE, PerfType.TRACEPOINT)
    if hardware and problem.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV, errno.EINVAL):
        return CapabilityError(
            f"event {name}: this machine has no hardware counter for it (virtual machines often have none)",
            "use -e cpu-clock",
        )
    if problem.errno in (errno.EACCES, errno.EPERM) and tid >= 0:
        return _refusal_of_thread(attr, tid, privileges.paranoid())
    if problem.errno in (errno.EACCES, errno.EPERM):
        return CapabilityError(
            f"event {name} may not be opened for all processes (kernel.perf_event_paranoid is {privileges.paranoid()})",
            privileges.privilege_remedy(),
        )
    if problem.errno in (errno.EMFILE, errno.ENFILE):
        return privileges.too_many_files()
    if problem.errno == errno.ENOSYS:
        return CapabilityError("this kernel has no perf events", "use one built with CONFIG_PERF_EVENTS")
    return RecordingError(f"event {name}: the kernel refuses it: {problem.strerror}")


def _refusal_of_thread(attr: Attr, tid: int, level: str) -> CapabilityError:
    """Return the error to raise for a refused event of one thread. `level`: value of kernel.perf_event_paranoid;
    kernels without Debian's patch treat 3 as 2, so an event of the own thread is tried."""
    is_for_root = level.isdigit() and int(level) >= _PARANOID_OF_DEBIAN and not can_open(attr, -1, 0)
    if is_for_root and privileges.CAP_SYS_ADMIN not in privileges.capabilities():
        reason = f"kernel.perf_event_paranoid is {level}: this kernel leaves all perf events to CAP_SYS_ADMIN"
        return CapabilityError(reason, "run as root, or set it to 2: sysctl kernel.perf_event_paranoid=2")
    reason = f"thread {tid} may not be observed: it is of another user, or runs a set-user-ID program"
    return CapabilityError(reason, privileges.privilege_remedy())


class Kprobe:
    """Open a kprobe, through perf's PMU of kprobes (Linux 4.17), to which a BPF program can be attached. `function`:
    name in kallsyms. Raises OSError: the kernel has no kprobes, or does not allow one there.

    Kernels before 6.16 have no tracepoint after a switch, where the next thread is `current` already. All of them have
    finish_task_switch(), which that thread runs first. The kernel's BTF lacks it, so only a kprobe can be attached
    there, as in bcc's own offcputime.

    Source: perf_kprobe_init() in kernel/trace/trace_event_perf.c; `kprobe_func` and `probe_offset` in
    include/uapi/linux/perf_event.h."""

    def __init__(self, function: str) -> None:
        name = ctypes.create_string_buffer(function.encode())
        try:
            kind = int(KPROBE_TYPE.read_text())
        except (FileNotFoundError, ValueError):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP)) from None
        # One event is enough: the program runs on every CPU, whatever the CPU of the event.
        attr = Attr(type=kind, config1=ctypes.addressof(name), sample_period=1)
        self._fd = open_event(attr, online_cpus()[0])
        self._has_program = False

    def attach(self, program_fd: int) -> None:
        """Run a program of type KPROBE at the function until `detach`. Later calls ignore `program_fd` and run the
        first program again. Raises OSError: the kernel refuses the program."""
        if not self._has_program:
            set_filter(self._fd, program_fd)
            self._has_program = True
        enable(self._fd)

    def detach(self) -> None:
        """Stop running the program, until `attach`."""
        if self._fd >= 0 and self._has_program:
            disable(self._fd)

    def close(self) -> None:
        """Detach the program for good. Closing twice is allowed."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
