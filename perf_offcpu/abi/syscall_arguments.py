# SPDX-License-Identifier: Apache-2.0
"""List the arguments of system calls that name objects or time limits.

Values are enumerators of bpf/off_cpu.h: `enum offcpu_call_kind` and `enum offcpu_timeout`, in lower case and
without their prefixes. Sources: man pages of section 2.
"""

from __future__ import annotations

from collections.abc import Mapping

from perf_offcpu.abi.syscalls import syscall_names

SYSCALL_NUMBERS = 512
"""Numbers of system calls that the table may have; those of x32 are larger."""

_DESCRIPTOR = """
read write pread64 pwrite64 readv writev preadv pwritev preadv2 pwritev2 recvfrom recvmsg recvmmsg sendto
sendmsg sendmmsg connect accept accept4 shutdown fsync fdatasync flock ftruncate fallocate fadvise64 readahead
getdents getdents64 ioctl fcntl lseek fstat newfstat fchmod fchown syncfs sync_file_range splice tee vmsplice
copy_file_range io_uring_enter mq_timedsend mq_timedreceive fsetxattr fgetxattr
""".split()
_PATH = "open stat lstat truncate mkdir rmdir unlink rename creat chmod execve".split()
_PATH_AT = "openat openat2 newfstatat statx mkdirat unlinkat renameat renameat2 execveat".split()

CALLS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(_DESCRIPTOR, ("descriptor", "none")),
    **dict.fromkeys(_PATH, ("path", "none")),
    **dict.fromkeys(_PATH_AT, ("path_at", "none")),
    "sendfile": ("send_file", "none"),
    "poll": ("poll", "ms_2"),
    "ppoll": ("poll", "spec_2"),
    "epoll_wait": ("epoll", "ms_3"),
    "epoll_pwait": ("epoll", "ms_3"),
    "epoll_pwait2": ("epoll", "spec_3"),
    "futex": ("futex", "futex"),
    "wait4": ("child", "none"),
    "waitid": ("child_id", "none"),
    "semop": ("semaphores", "none"),
    "semtimedop": ("semaphores", "none"),
    "msgsnd": ("messages", "none"),
    "msgrcv": ("messages", "none"),
    "nanosleep": ("none", "spec_0"),
    "clock_nanosleep": ("none", "clock"),
}
"""System call → (what its arguments name, where its time limit is)."""


def call_numbers(arch: str) -> dict[int, tuple[str, str]]:
    """Return number → entry of CALLS on an architecture."""
    names = {number: name for number, name in syscall_names(arch).items() if number < SYSCALL_NUMBERS}
    return {number: CALLS[name] for number, name in names.items() if name in CALLS}
