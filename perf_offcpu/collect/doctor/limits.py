# SPDX-License-Identifier: Apache-2.0
"""Check settings and limits of this machine that a recording depends on.

Each check returns (whether all is well, what was found, what to do about it).
"""

from __future__ import annotations

import os
import platform
import re
import resource

from perf_offcpu.collect.bpf.defines import FIRST_PID_NAMESPACE
from perf_offcpu.collect.events.tracepoints import DEBUGFS, TRACEFS
from perf_offcpu.collect.system import privileges
from perf_offcpu.collect.system.cgroups import cgroup2_mount
from perf_offcpu.collect.system.cpus import online_cpus
from perf_offcpu.collect.system.privileges import CAP_SYS_ADMIN, capabilities, read_text
from perf_offcpu.files import read_kernel

Result = tuple[bool, str, str]

_EVENTS_PER_CPU = 4


def bpf_obstacle() -> str:
    """Return why bpf(2) refuses programs; "" if that cannot be seen from here."""
    held = capabilities()
    if CAP_SYS_ADMIN not in held and not {privileges.CAP_PERFMON, privileges.CAP_BPF} <= held:
        return "neither CAP_SYS_ADMIN nor CAP_BPF and CAP_PERFMON are held"
    if privileges.is_in_user_namespace():
        return "this is a user namespace, whose root is not root"
    if privileges.lockdown() == "confidentiality":
        return "the kernel is locked down (confidentiality)"
    return "a seccomp filter is in force, as in containers" if privileges.has_seccomp_filter() else ""


def kernel_symbols() -> Result:
    """Check that /proc/kallsyms shows addresses."""
    try:
        with open("/proc/kallsyms", "rb") as lines:
            first = lines.readline().split()
    except OSError as problem:
        return False, f"/proc/kallsyms: {problem.strerror}", "mount /proc; kernel frames stay numbers without"
    if first and int(first[0], 16):
        return True, "/proc/kallsyms shows addresses", ""
    restrict = read_text("/proc/sys/kernel/kptr_restrict")
    advice = "run as root" + (", with sysctl kernel.kptr_restrict=1" if restrict == "2" else "")
    return False, f"/proc/kallsyms hides addresses (kernel.kptr_restrict is {restrict or 'unknown'})", advice


def lockdown() -> Result:
    """Check that the kernel lets BPF programs read its memory."""
    if (mode := privileges.lockdown()) == "confidentiality":
        advice = "boot without lockdown=confidentiality (lockdown=integrity does no harm)"
        return False, "confidentiality: BPF programs may not read kernel memory", advice
    return True, mode, ""


def locked_memory() -> Result:
    """Check that rings and maps may be as large as they should."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft >> 10} KiB"
    budget = read_text("/proc/sys/kernel/perf_event_mlock_kb")
    # perf_mmap() asks for CAP_IPC_LOCK beyond the two limits, unless perf_event_paranoid is -1.
    if privileges.CAP_IPC_LOCK in capabilities() or privileges.paranoid() == "-1" or limit == "unlimited":
        return True, f"not limited for this user (ulimit -l {limit})", ""
    found = f"{limit}, and {budget} KiB a CPU of perf rings"
    return False, found, "run as root, or with CAP_IPC_LOCK, or ulimit -l unlimited; else use a small -m"


def open_files() -> Result:
    """Check that there are descriptors for the events of all CPUs."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _EVENTS_PER_CPU * len(online_cpus()) + 64
    found = f"{hard}, {needed} needed for {len(online_cpus())} CPUs"
    return hard >= needed, found, "" if hard >= needed else f"ulimit -n {needed}"


def pid_namespace() -> Result:
    """Check that process ids here are those that BPF sees."""
    box = container()
    if os.stat("/proc/self/ns/pid").st_ino == FIRST_PID_NAMESPACE:
        return True, f"the machine's own{box and ', in a container of kind '}{box}", ""
    advice = "record outside of the container (docker run --pid=host, hostPID: true)"
    return False, f"not the machine's own{box and ': '}{box}; BPF sees other ids than /proc here", advice


def container() -> str:
    """Return the kind of container this is; "" if it cannot be seen."""
    if named := re.search(r"\0container=(\w+)", "\0" + read_text("/proc/1/environ")):
        return named[1]
    marks = {"docker": "/.dockerenv", "podman": "/run/.containerenv"}
    # direct: names that only root can make
    return next((kind for kind, path in marks.items() if os.path.exists(path)), "")


def cgroups() -> Result:
    """Check that the unified hierarchy is mounted."""
    mount = cgroup2_mount(read_kernel("/proc/self/mountinfo"))
    if mount is None:
        advice = "mount -t cgroup2 none /sys/fs/cgroup"
        return False, "no cgroup2 file system is mounted: no names of cgroups", advice
    return True, f"cgroup2 on {os.fsdecode(mount)}", ""


def tracefs() -> Result:
    """Check that the numbers of tracepoints can be looked up."""
    for place in (TRACEFS, DEBUGFS / "tracing"):
        if os.access(place / "events", os.R_OK | os.X_OK):  # direct: a directory of tracefs
            return True, str(place), ""
    is_mounted = any(map(os.path.ismount, (TRACEFS, DEBUGFS)))
    if not is_mounted and CAP_SYS_ADMIN in capabilities():
        return True, "not mounted yet: -e with a tracepoint mounts it", ""
    advice = "run as root" if is_mounted and os.geteuid() else f"as root: mount -t tracefs tracefs {TRACEFS}"
    return False, f"not to be read on {platform.node()}: -e with a tracepoint fails", advice
