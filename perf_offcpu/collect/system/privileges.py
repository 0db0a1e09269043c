# SPDX-License-Identifier: Apache-2.0
"""Privileges, limits and priority of this process: which privileges it lacks for recording, and how it gives up those
that it does not need. Source: capabilities(7), capset(2), prctl(2)."""

import contextlib
import ctypes
import os
import re
import resource
from collections.abc import Callable
from typing import Final

from perf_offcpu.errors import CapabilityError
from perf_offcpu.files import read_kernel_if_any

CAP_DAC_OVERRIDE: Final = 1  # include/uapi/linux/capability.h
CAP_DAC_READ_SEARCH: Final = 2
CAP_IPC_LOCK: Final = 14
CAP_SYS_PTRACE: Final = 19
CAP_SYS_ADMIN: Final = 21
CAP_SYS_NICE: Final = 23
CAP_SYSLOG: Final = 34
CAP_PERFMON: Final = 38
CAP_BPF: Final = 39
CAP_CHECKPOINT_RESTORE: Final = 40
READING: Final = 1 << CAP_DAC_READ_SEARCH | 1 << CAP_SYS_PTRACE | 1 << CAP_SYSLOG | 1 << CAP_CHECKPOINT_RESTORE
"""Capabilities to read files and memory of other users' processes, files below /proc/PID/root, addresses in
/proc/kallsyms, and files that processes have mapped, through /proc/PID/map_files."""
USES: Final = {
    "CAP_BPF": (CAP_BPF, "only own processes are recorded, without BPF"),
    "CAP_PERFMON": (CAP_PERFMON, "only own processes are recorded, without BPF"),
    "CAP_SYS_PTRACE": (CAP_SYS_PTRACE, "no mappings of other users' processes: their stacks have no names"),
    "CAP_DAC_READ_SEARCH": (CAP_DAC_READ_SEARCH, "no build-ids of files that are closed to root's uid"),
    "CAP_SYSLOG": (CAP_SYSLOG, "no map of the kernel in the file: kernel frames have names on this machine only"),
    "CAP_IPC_LOCK": (CAP_IPC_LOCK, "rings of 512 kB a CPU, or what ulimit -l allows"),
    "CAP_SYS_NICE": (CAP_SYS_NICE, "usual priority: full rings may lose waits on a busy machine"),
    "CAP_CHECKPOINT_RESTORE": (CAP_CHECKPOINT_RESTORE, "no build-ids of mapped files that were removed or replaced"),
    "CAP_SYS_ADMIN": (
        CAP_SYS_ADMIN,
        "no run times of BPF programs, no mount of tracefs, nothing at perf_event_paranoid 3",
    ),
}
"""Capability → (number, what is missing without it), most important first. CAP_SYS_ADMIN alone stands for CAP_BPF,
CAP_PERFMON, CAP_SYSLOG's and CAP_CHECKPOINT_RESTORE's part, too. tests/kernel/test_unprivileged.py removes each."""
_VERSION_3: Final = 0x20080522
_PR_SET_NO_NEW_PRIVS: Final = 38
_NEEDED = {"CAP_PERFMON": CAP_PERFMON, "CAP_BPF": CAP_BPF}  # since 5.8; CAP_SYS_ADMIN before
_FIRST_USER_NAMESPACE = 0xEFFFFFFD  # PROC_USER_INIT_INO, include/linux/proc_ns.h
_SECCOMP_FILTER = "2"


def read_text(path: str) -> str:
    """Return the text of a file of /proc or /sys without the newline; "" if it cannot be read."""
    return os.fsdecode(read_kernel_if_any(path)).strip()


def _status(field: str) -> str:
    match = re.search(rf"^{field}:\s*(\S+)", read_text("/proc/self/status"), re.MULTILINE)
    return match[1] if match else ""


def capabilities() -> set[int]:
    """Return the numbers (CAP_*) of this process's effective capabilities."""
    mask = int(_status("CapEff") or "0", 16)
    return {number for number in range(64) if mask >> number & 1}


def is_in_user_namespace() -> bool:
    """Return True if this process is in a user namespace, where capabilities do not count for the machine."""
    try:
        return os.stat("/proc/self/ns/user").st_ino != _FIRST_USER_NAMESPACE
    except OSError:
        return False


def lockdown() -> str:
    """Return the kernel's lockdown mode: "integrity" or "confidentiality", "none" without lockdown."""
    match = re.search(r"\[(\w+)\]", read_text("/sys/kernel/security/lockdown"))
    return match[1] if match else "none"


def has_seccomp_filter() -> bool:
    """Return True if a seccomp filter of this process may refuse system calls."""
    return _status("Seccomp") == _SECCOMP_FILTER


def paranoid() -> str:
    """Return the value of sysctl kernel.perf_event_paranoid as text, or "unknown"."""
    return read_text("/proc/sys/kernel/perf_event_paranoid") or "unknown"


def privilege_remedy() -> str:
    """Return advice on the smallest change that gives this process the rights that it lacks for recording."""
    if is_in_user_namespace():
        return (
            "this is a user namespace, whose capabilities do not count for that: record from outside, "
            "as root or with CAP_BPF and CAP_PERFMON"
        )
    held = capabilities()
    missing = [name for name, number in _NEEDED.items() if number not in held]
    if CAP_SYS_ADMIN in held or not missing:
        # Capabilities suffice: something else forbids it.
        if lockdown() == "confidentiality":
            return "the kernel is locked down (confidentiality): boot it without lockdown"
        if has_seccomp_filter():
            return "leave perf_event_open(2) and bpf(2) in the container's seccomp profile"
        return "a security policy of this machine forbids it (SELinux, BPF LSM, …): ask its administrator"
    options = " ".join(f"--cap-add {name.removeprefix('CAP_')}" for name in missing)
    return f"run as root, or with {' and '.join(missing)} (in a container: {options})"


def keep_rights(kept: int = 0) -> None:
    """Drop all capabilities but those in the bit mask `kept`, for good; keep all if the kernel refuses (seccomp)."""
    with contextlib.suppress(OSError):
        keep_capabilities(kept)


def keep_capabilities(kept: int) -> None:
    """Drop all capabilities of this thread but those in the bit mask `kept`, for good. Raises OSError: refused."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    words = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: low words, then high words
    if libc.capget(header, words):
        raise OSError(ctypes.get_errno(), "capabilities cannot be read")
    for row, shift in ((0, 0), (3, 32)):
        permitted = words[row + 1] & kept >> shift & 0xFFFFFFFF
        words[row], words[row + 1], words[row + 2] = permitted, permitted, 0
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.capset(header, words):
        raise OSError(ctypes.get_errno(), "capabilities cannot be given up")


HIGHEST_PRIORITY = -20


def too_many_files() -> CapabilityError:
    """Return the error to raise for EMFILE: events, rings and BPF need some descriptors for each CPU."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CapabilityError(f"too many open files (the limit is {limit})", "raise it with ulimit -n")


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors to the hard one: each event takes one per CPU."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def raise_priority(realtime: int) -> None:
    """Raise this process's priority to nice -20, or to SCHED_FIFO `realtime` if not 0: rings that are not drained in
    time lose records. Nice -20 gets the recorder onto a CPU soon among hundreds of runnable tasks, yet cannot starve
    them when there is much to copy. Raises CapabilityError: `realtime` is refused."""
    try:
        if realtime:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(realtime))
        else:
            os.setpriority(os.PRIO_PROCESS, 0, HIGHEST_PRIORITY)
    except OSError as problem:
        if realtime:
            raise CapabilityError(
                f"real-time priority {realtime} is refused ({problem.strerror})",
                "run as root, with a priority from 1 to 99",
            ) from None


def niceness() -> Callable[[], None]:
    """Return a function that sets the nice value of the thread or process that calls it to that of the current thread;
    it does nothing if that is not allowed. (What a real-time thread starts begins with nice 0.)"""
    nice = os.getpriority(os.PRIO_PROCESS, 0)

    def take() -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, nice)

    return take
