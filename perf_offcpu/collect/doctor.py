# SPDX-License-Identifier: Apache-2.0
"""Try out, part by part, what this machine lets a recorder do: the first half of `perf-offcpu doctor`. Nothing is
derived from a version where it can be tried: events are opened, BPF programs are loaded, the collector's program is
compiled and passes the verifier. Everything is closed at once. Settings and limits follow."""

import enum
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from perf_offcpu.abi.attr import Attr, AttrFlag, PerfType, ReadFormat
from perf_offcpu.collect.bpf.cache import ProgramCache, Recipe
from perf_offcpu.collect.bpf.compile import import_bcc
from perf_offcpu.collect.bpf.defines import FIRST_PID_NAMESPACE
from perf_offcpu.collect.bpf.kernel.facts import check_privileges, explore, setting_defines
from perf_offcpu.collect.bpf.program import OffCpuProgram
from perf_offcpu.collect.events import evsels
from perf_offcpu.collect.events.parser import DEBUGFS, TRACEFS
from perf_offcpu.collect.events.perf_event import Kprobe, can_open
from perf_offcpu.collect.system import privileges
from perf_offcpu.collect.system.btf import VMLINUX_BTF, Btf
from perf_offcpu.collect.system.cgroups import cgroup2_mount
from perf_offcpu.collect.system.cpus import online_cpus
from perf_offcpu.collect.system.privileges import CAP_SYS_ADMIN, capabilities, paranoid, read_text
from perf_offcpu.errors import CapabilityError, PerfOffcpuError
from perf_offcpu.files import read_kernel
from perf_offcpu.resources import PROGRAM, bpf_dir


class State(enum.StrEnum):
    """State of a part of the machine, as `perf-offcpu doctor` shows it."""

    WORKS = "works"
    LIMITED = "limited"  # recording works, with less to show for it
    MISSING = "missing"  # features that need this part do not work


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of checking one part of the machine: its group, name, state, the facts found, advice ("" for none)."""

    group: str
    part: str
    state: State
    found: str
    advice: str = ""


Result = tuple[bool, str, str]  # (True if all is well, the finding, the remedy)

RECORDING = "recording"
_EVENTS_PER_CPU = 4
_PYTHON_OLDEST = (3, 11)
_ESSENTIAL = {"Python", "bcc", "BTF", "BPF", "kernel", "collector", "perf events"}
_NEEDS = {
    "kernel": ("BTF",),
    "collector": ("bcc", "BTF", "BPF", "kernel"),
    "hardware counters": ("perf events",),
    "deferred callchains": ("perf events",),
}


def examine() -> Iterator[Finding]:
    """Check each part of the machine that recording uses, essential ones first, and yield a finding for each."""
    bad: set[str] = set()
    for part, check in _CHECKS.items():
        lacking = [name for name in _NEEDS.get(part, ()) if name in bad]
        try:
            if lacking:
                raise CapabilityError(f"not tried without {lacking[0]}", "")
            works, fact, advice = check()
            state = State.WORKS if works else State.LIMITED
        except (PerfOffcpuError, OSError) as problem:
            bad.add(part)
            state = State.MISSING if part in _ESSENTIAL else State.LIMITED
            fact, advice = str(problem), ""
            if isinstance(problem, CapabilityError):
                fact, advice = problem.what, problem.remedy
        yield Finding(RECORDING, part, state, fact, advice)


def _python() -> Result:
    fact = f"{platform.python_version()}, {sys.executable}"
    if sys.version_info < _PYTHON_OLDEST:
        raise CapabilityError(fact, "use Python 3.11 or newer")
    return True, fact, ""


def _bcc() -> Result:
    try:
        bcc = import_bcc()
    except CapabilityError as problem:
        raise CapabilityError(problem.what + _compiled_before(), problem.remedy) from problem
    return True, f"{getattr(bcc, '__version__', 'of unknown version')}, {bcc.__file__}", ""


def _compiled_before() -> str:
    """Return "; it was compiled …" if programs for this kernel are cached, which need no compiler; else ""."""
    try:
        cache, kernel = ProgramCache.usual(), explore(Btf.load()).defines | setting_defines()
        count = cache.count(Recipe(bpf_dir() / PROGRAM, kernel, {}, (), ())) if cache else 0
    except (PerfOffcpuError, OSError):
        count = 0
    times = "once" if count == 1 else f"{count} times"
    return f"; it was compiled {times} for this kernel, recording as then still works" if count else ""


def _btf() -> Result:
    Btf.load()
    # direct: a file of /sys
    return True, f"{VMLINUX_BTF}, {VMLINUX_BTF.stat().st_size / 1e6:.1f} MB", ""


def _bpf() -> Result:
    try:
        check_privileges()
    except CapabilityError as problem:
        cause = _bpf_obstacle()
        raise CapabilityError(f"{problem.what}{cause and '; '}{cause}", problem.remedy) from problem
    return True, "programs can be loaded", ""


def _kernel() -> Result:
    facts = explore(Btf.load())
    release = platform.release()
    if facts.has_exit_tp:
        return True, f"{release}, with tracepoint sched_exit_tp", ""
    fact = f"{release}, without tracepoint sched_exit_tp"
    try:
        Kprobe(facts.switch_end).close()
    except OSError:
        remedy = "boot Linux 6.16 or newer, or one with kprobes, for whole user stacks (--call-graph cfi)"
        return False, f"{fact}, without kprobes", remedy
    return True, f"{fact}: a kprobe at {facts.switch_end} takes copies of stacks", ""


def _collector() -> Result:
    begin = time.monotonic()
    with OffCpuProgram(use_cache=False):
        return True, f"compiled, verified and loaded in {time.monotonic() - begin:.2f} s", ""


def _events() -> Result:
    cpus = online_cpus()
    support = evsels.probe_support(cpus[0])
    evsels.CpuEvent("offcpu-time", evsels.offcpu_attr(support, 0), cpus).close()
    evsels.CpuEvent("dummy", evsels.tracker_attr(support), cpus).close()
    return True, f"on {len(cpus)} CPUs, perf_event_paranoid {paranoid()}", ""


def _capabilities() -> Result:
    held = capabilities()
    missing = [(name, without) for name, (number, without) in privileges.USES.items() if number not in held]
    if CAP_SYS_ADMIN in held:
        missing = [(name, without) for name, without in missing if name not in ("CAP_BPF", "CAP_PERFMON")]
    if not missing:
        return True, "all that recording uses", ""
    advice = "; ".join(f"without {name}: {without}" for name, without in missing)
    return False, f"{len(missing)} of {len(privileges.USES)} are missing", advice


def _own_processes() -> Result:
    attr = evsels.tracker_attr(evsels.Support(ReadFormat.ID))
    flags = attr.flags | AttrFlag.CONTEXT_SWITCH | AttrFlag.INHERIT | AttrFlag.EXCLUDE_KERNEL
    evsels.CpuEvent("dummy", attr._replace(flags=flags), online_cpus()[:1], os.getpid()).close()
    return True, "can be recorded without BPF, too (record --unprivileged)", ""


def _hardware_counters() -> Result:
    attr = Attr(type=PerfType.HARDWARE, config=0, sample_period=1_000_000, flags=AttrFlag.DISABLED)
    if can_open(attr, online_cpus()[0]):
        return True, "-e cycles can be used", ""
    return False, "none, as in most virtual machines", "on-CPU samples come from -e cpu-clock"


def _deferred() -> Result:
    cpu = online_cpus()[0]
    if evsels.with_deferral(evsels.probe_support(cpu), cpu):
        return True, "--call-graph fp,defer can be used", ""
    return False, "this kernel has none", "boot Linux 7.0 or newer for --call-graph fp,defer"


def _bpf_obstacle() -> str:
    """Return a sentence on why bpf(2) refuses programs; "" if no cause can be seen."""
    held = capabilities()
    if CAP_SYS_ADMIN not in held and not {privileges.CAP_PERFMON, privileges.CAP_BPF} <= held:
        return "neither CAP_SYS_ADMIN nor CAP_BPF and CAP_PERFMON are held"
    if privileges.is_in_user_namespace():
        return "this is a user namespace, whose root is not root"
    if privileges.lockdown() == "confidentiality":
        return "the kernel is locked down (confidentiality)"
    return "a seccomp filter is in force, as in containers" if privileges.has_seccomp_filter() else ""


def _kernel_symbols() -> Result:
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


def _lockdown() -> Result:
    if (mode := privileges.lockdown()) == "confidentiality":
        advice = "boot without lockdown=confidentiality (lockdown=integrity does no harm)"
        return False, "confidentiality: BPF programs may not read kernel memory", advice
    return True, mode, ""


def _locked_memory() -> Result:
    # Rings and maps may be as large as they should.
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft >> 10} KiB"
    budget = read_text("/proc/sys/kernel/perf_event_mlock_kb")
    # perf_mmap() asks for CAP_IPC_LOCK beyond the two limits, unless perf_event_paranoid is -1.
    if privileges.CAP_IPC_LOCK in capabilities() or privileges.paranoid() == "-1" or limit == "unlimited":
        return True, f"not limited for this user (ulimit -l {limit})", ""
    fact = f"{limit}, and {budget} KiB a CPU of perf rings"
    return False, fact, "run as root, or with CAP_IPC_LOCK, or ulimit -l unlimited; else use a small -m"


def _open_files() -> Result:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _EVENTS_PER_CPU * len(online_cpus()) + 64
    fact = f"{hard}, {needed} needed for {len(online_cpus())} CPUs"
    return hard >= needed, fact, "" if hard >= needed else f"ulimit -n {needed}"


def _pid_namespace() -> Result:
    box = _container()
    if os.stat("/proc/self/ns/pid").st_ino == FIRST_PID_NAMESPACE:
        return True, f"the machine's own{box and ', in a container of kind '}{box}", ""
    advice = "record outside of the container (docker run --pid=host, hostPID: true)"
    return False, f"not the machine's own{box and ': '}{box}; only its processes are recorded", advice


def _container() -> str:
    """Return the kind of container in which this process runs, such as "docker"; "" if none can be seen."""
    if named := re.search(r"\0container=(\w+)", "\0" + read_text("/proc/1/environ")):
        return named[1]
    marks = {"docker": "/.dockerenv", "podman": "/run/.containerenv"}
    # direct: names that only root can make
    return next((kind for kind, path in marks.items() if os.path.exists(path)), "")


def _cgroups() -> Result:
    mount = cgroup2_mount(read_kernel("/proc/self/mountinfo"))
    if mount is None:
        advice = "mount -t cgroup2 none /sys/fs/cgroup"
        return False, "no cgroup2 file system is mounted: no names of cgroups", advice
    return True, f"cgroup2 on {os.fsdecode(mount)}", ""


def _tracefs() -> Result:
    for place in (TRACEFS, DEBUGFS / "tracing"):
        if os.access(place / "events", os.R_OK | os.X_OK):  # direct: a directory of tracefs
            return True, str(place), ""
    is_mounted = any(map(os.path.ismount, (TRACEFS, DEBUGFS)))
    if not is_mounted and CAP_SYS_ADMIN in capabilities():
        return True, "not mounted yet: -e with a tracepoint mounts it", ""
    advice = "run as root" if is_mounted and os.geteuid() else f"as root: mount -t tracefs tracefs {TRACEFS}"
    return False, "cannot be read: -e with a tracepoint fails", advice


_CHECKS: dict[str, Callable[[], Result]] = {
    "Python": _python,
    "bcc": _bcc,
    "BTF": _btf,
    "BPF": _bpf,
    "kernel": _kernel,
    "collector": _collector,
    "perf events": _events,
    "own processes": _own_processes,
    "capabilities": _capabilities,
    "hardware counters": _hardware_counters,
    "deferred callchains": _deferred,
    "kernel symbols": _kernel_symbols,
    "lockdown": _lockdown,
    "locked memory": _locked_memory,
    "open files": _open_files,
    "pid namespace": _pid_namespace,
    "cgroups": _cgroups,
    "tracefs": _tracefs,
}
