# SPDX-License-Identifier: Apache-2.0
"""Names of system calls by number, for the architectures that Linux distributions are built for.

A number depends on the architecture, and on three of them on the program, too:

    x86-64    numbers with bit 30 set are x32's; those of 32-bit programs (int 0x80, sysenter) are i386's
    arm64     32-bit programs use arm's numbers
    s390x, …  31-bit programs, which current kernels no longer run

No field of a sample marks 32-bit programs; the kernel's entry functions in its stack do (see
`is_compat_entry`). Sources: see `abi.syscall_tables`.

What arguments mean (`call_numbers`) is named as in bpf/off_cpu.h: `enum offcpu_call_kind` and `enum
offcpu_timeout`, in lower case and without their prefixes. Sources: man pages of section 2.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from perf_offcpu.abi import syscall_tables as tables

X32_BIT = 1 << 30  # arch/x86/include/uapi/asm/unistd.h: __X32_SYSCALL_BIT
_64 = (tables.SHARED,)
_32 = (tables.TIME64, tables.SHARED)
_OLD = tables.FIRST_PORTS
_TABLES: dict[str, tuple[str, ...]] = {
    "x86_64": (tables.X86_64, *_64),
    "i386": (_OLD, tables.I386, *_32),
    "aarch64": (tables.GENERIC, *_64),
    "riscv64": (tables.GENERIC, *_64),
    "loongarch64": (tables.GENERIC, *_64),
    "arm": (_OLD, tables.ARM, *_32),
    "s390x": (_OLD, tables.S390X, *_64),
    "ppc64": (_OLD, tables.POWERPC64, *_64),
}
_ALIASES = (
    (re.compile(r"amd64"), "x86_64"),
    (re.compile(r"i[3-6]86|x86"), "i386"),
    (re.compile(r"arm64"), "aarch64"),
    (re.compile(r"arm.*"), "arm"),
    (re.compile(r"s390"), "s390x"),
    (re.compile(r"ppc64le|powerpc.*"), "ppc64"),
)
"""Names that `uname -m` and perf's header use."""
_COMPAT = {"x86_64": "i386", "aarch64": "arm"}
_COMPAT_ENTRY = re.compile(
    r"(?:__)?do_(?:fast_syscall_32|int80_emulation|int80_syscall_32|SYSENTER_32)|entry_(?:INT80|SYSENTER|SYSCALL)"
    r"_compat.*|int80_emulation|asm_int80_emulation|do_el0_svc_compat|el0_svc_compat|el0t_32_sync.*"
)


def syscall_names(arch: str, *, compat: bool = False) -> Mapping[int, str]:
    """Return number → name on an architecture, as `uname -m` prints it; nothing for an unknown one.

    With `compat`, those of a 32-bit program on a 64-bit kernel.
    """
    name = next((table for pattern, table in _ALIASES if pattern.fullmatch(arch)), arch)
    return _names(_COMPAT.get(name, name) if compat else name)


def syscall_number(name: str, arch: str) -> int:
    """Return the number of a system call on an architecture; raise ValueError if it has none."""
    return min(number for number, known in syscall_names(arch).items() if known == name)  # x32 is above


def is_compat_entry(function: str) -> bool:
    """Return whether only system calls of 32-bit programs pass through this function of the kernel."""
    return _COMPAT_ENTRY.fullmatch(function) is not None


@functools.cache
def _names(arch: str) -> Mapping[int, str]:
    names: dict[int, str] = {}
    for text in _TABLES.get(arch, ()):
        names |= _numbered(text)
    names = {number: name for number, name in names.items() if name != "-"}
    if arch == "x86_64":
        own = _numbered(tables.X32)
        shared = {number: name for number, name in names.items() if name not in own.values()}
        names |= {X32_BIT | number: name for number, name in (shared | own).items()}
    return names


def _numbered(text: str) -> dict[int, str]:
    names: dict[int, str] = {}
    number = 0
    for word in text.split():
        if word.endswith(":"):
            number = int(word[:-1])
        else:
            names[number] = word
            number += 1
    return names


SYSCALL_NUMBERS = 512  # numbers of system calls that the table may have; those of x32 are larger

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
