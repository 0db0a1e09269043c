# SPDX-License-Identifier: Apache-2.0
"""Settings and limits of this machine that a recording depends on: the quiet half of `health`.

Each function gives (is it good, what was seen, what to do about it).
"""

from __future__ import annotations

import os
import platform
import re
import resource
from pathlib import Path

from perf_offcpu.collect.events.tracepoints import DEBUGFS, TRACEFS
from perf_offcpu.collect.existing.cgroups import cgroup2_mount
from perf_offcpu.collect.system.cpus import online_cpus

Limit = tuple[bool, str, str]

_CAP_SYS_ADMIN, _CAP_PERFMON, _CAP_BPF = 21, 38, 39  # include/uapi/linux/capability.h
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO, include/linux/proc_ns.h
_FIRST_USER_NAMESPACE = 0xEFFFFFFD  # PROC_USER_INIT_INO
_SECCOMP_FILTER = "2"
_EVENTS_PER_CPU = 4


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _status(field: str) -> str:
    match = re.search(rf"^{field}:\s*(\S+)", _read("/proc/self/status"), re.MULTILINE)
    return match[1] if match else ""


def paranoid() -> str:
    """kernel.perf_event_paranoid, or "unknown"."""
    return _read("/proc/sys/kernel/perf_event_paranoid") or "unknown"


def capabilities() -> set[int]:
    """The numbers of the effective capabilities."""
    mask = int(_status("CapEff") or "0", 16)
    return {number for number in range(64) if mask >> number & 1}


def bpf_obstacle() -> str:
    """Why bpf(2) refuses programs, as far as that can be seen from here; empty if it cannot."""
    held = capabilities()
    if _CAP_SYS_ADMIN not in held and not {_CAP_PERFMON, _CAP_BPF} <= held:
        return "neither CAP_SYS_ADMIN nor CAP_BPF and CAP_PERFMON are held"
    if os.stat("/proc/self/ns/user").st_ino != _FIRST_USER_NAMESPACE:
        return "this is a user namespace, whose root is not root"
    if _lockdown() == "confidentiality":
        return "the kernel is locked down (confidentiality)"
    if _status("Seccomp") == _SECCOMP_FILTER:
        return "a seccomp filter is in force, as in containers"
    return ""


def kernel_symbols() -> Limit:
    """Whether /proc/kallsyms tells addresses."""
    try:
        with open("/proc/kallsyms", "rb") as lines:
            first = lines.readline().split()
    except OSError as problem:
        return False, f"/proc/kallsyms: {problem.strerror}", "mount /proc; kernel frames stay numbers without"
    if first and int(first[0], 16):
        return True, "/proc/kallsyms tells addresses", ""
    restrict = _read("/proc/sys/kernel/kptr_restrict")
    advice = "run as root" + (", with sysctl kernel.kptr_restrict=1" if restrict == "2" else "")
    return False, f"/proc/kallsyms hides addresses (kernel.kptr_restrict is {restrict or 'unknown'})", advice


def _lockdown() -> str:
    match = re.search(r"\[(\w+)\]", _read("/sys/kernel/security/lockdown"))
    return match[1] if match else "none"


def lockdown() -> Limit:
    """Whether the kernel lets BPF programs read its memory."""
    if (mode := _lockdown()) == "confidentiality":
        advice = "boot without lockdown=confidentiality (lockdown=integrity does no harm)"
        return False, "confidentiality: BPF programs may not read kernel memory", advice
    return True, mode, ""


def locked_memory() -> Limit:
    """Whether rings and maps may be as large as is wanted."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft >> 10} KiB"
    budget = _read("/proc/sys/kernel/perf_event_mlock_kb")
    # perf_mmap() asks for CAP_IPC_LOCK beyond the two limits, unless perf_event_paranoid is -1.
    if 14 in capabilities() or paranoid() == "-1" or limit == "unlimited":
        return True, f"not limited for this user (ulimit -l {limit})", ""
    found = f"{limit}, and {budget} KiB a CPU of perf rings"
    return False, found, "run as root, or with CAP_IPC_LOCK, or ulimit -l unlimited; else use a small -m"


def open_files() -> Limit:
    """Whether there are descriptors for the events of all CPUs."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _EVENTS_PER_CPU * len(online_cpus()) + 64
    found = f"{hard}, {needed} needed for {len(online_cpus())} CPUs"
    return hard >= needed, found, "" if hard >= needed else f"ulimit -n {needed}"


def pid_namespace() -> Limit:
    """Whether process ids here are those that BPF sees."""
    box = container()
    if os.stat("/proc/self/ns/pid").st_ino == _FIRST_PID_NAMESPACE:
        return True, f"the machine's own{box and ', in a container of kind '}{box}", ""
    advice = "record outside of the container (docker run --pid=host, hostPID: true)"
    return False, f"not the machine's own{box and ': '}{box}; BPF sees other ids than /proc here", advice


def container() -> str:
    """What kind of container this is; empty if none can be seen."""
    if named := re.search(r"\0container=(\w+)", "\0" + _read("/proc/1/environ")):
        return named[1]
    marks = {"docker": "/.dockerenv", "podman": "/run/.containerenv"}
    return next((kind for kind, path in marks.items() if os.path.exists(path)), "")


def cgroups() -> Limit:
    """Whether the unified hierarchy is mounted."""
    mount = cgroup2_mount(Path("/proc/self/mountinfo").read_bytes())
    if mount is None:
        return (
            False,
            "no cgroup2 file system is mounted: no names of cgroups",
            "mount -t cgroup2 none /sys/fs/cgroup",
        )
    return True, f"cgroup2 on {os.fsdecode(mount)}", ""


def tracefs() -> Limit:
    """Check that the numbers of tracepoints can be looked up."""
    for place in (TRACEFS, DEBUGFS / "tracing"):
        if os.access(place / "events", os.R_OK | os.X_OK):
            return True, str(place), ""
    is_mounted = any(map(os.path.ismount, (TRACEFS, DEBUGFS)))
    if not is_mounted and _CAP_SYS_ADMIN in capabilities():
        return True, "not mounted yet: -e with a tracepoint mounts it", ""
    advice = "run as root" if is_mounted and os.geteuid() else f"as root: mount -t tracefs tracefs {TRACEFS}"
    return False, f"not to be read on {platform.node()}: -e with a tracepoint fails", advice
