# SPDX-License-Identifier: Apache-2.0
"""What this machine lets a recorder do, tried out part by part: the first half of `perf-offcpu doctor`.

Nothing is derived from a version where it can be tried: events are opened, BPF programs are loaded, the
collector's program is compiled and passes the verifier. Everything is given back at once.
"""

from __future__ import annotations

import enum
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from perf_offcpu.collect.doctor import limits as health_limits
from perf_offcpu.errors import CapabilityError, PerfOffcpuError


class State(enum.StrEnum):
    """How a part is."""

    WORKS = "works"
    LIMITED = "limited"
    """Recording works, with less to show for it."""
    MISSING = "missing"
    """What needs this part does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One part of the machine."""

    group: str
    """What the part is for."""
    part: str
    state: State
    found: str
    """What was seen."""
    advice: str = ""
    """What to do about it; empty if nothing is to be done."""


RECORDING = "recording"
_PYTHON_OLDEST = (3, 11)
_ESSENTIAL = {"Python", "bcc", "BTF", "BPF", "kernel", "collector", "perf events"}
_NEEDS = {
    "kernel": ("BTF",),
    "collector": ("bcc", "BTF", "BPF", "kernel"),
    "hardware counters": ("perf events",),
    "deferred callchains": ("perf events",),
}


def examine() -> Iterator[Finding]:
    """Everything that recording needs or is better for, in the order in which it would fail."""
    bad: set[str] = set()
    for part, look in _LOOKS.items():
        lacking = [name for name in _NEEDS.get(part, ()) if name in bad]
        state, found, advice = _look(look) if not lacking else (None, f"not tried without {lacking[0]}", "")
        if state is None:
            bad.add(part)
            state = State.MISSING if part in _ESSENTIAL else State.LIMITED
        yield Finding(RECORDING, part, state, found, advice)


Seen = tuple[State, str, str]


def _look(look: Callable[[], Seen]) -> tuple[State | None, str, str]:
    """What a look saw; no state if it failed."""
    try:
        return look()
    except CapabilityError as problem:
        return None, problem.what, problem.remedy
    except (PerfOffcpuError, OSError) as problem:
        return None, str(problem), ""


def _python() -> Seen:
    found = f"{platform.python_version()}, {sys.executable}"
    if sys.version_info < _PYTHON_OLDEST:
        return State.MISSING, found, "use Python 3.11 or newer"
    return State.WORKS, found, ""


def _bcc() -> Seen:
    from perf_offcpu.collect.bpf.compile import import_bcc

    try:
        bcc = import_bcc()
    except CapabilityError as problem:
        raise CapabilityError(problem.what + _compiled_before(), problem.remedy) from problem
    return State.WORKS, f"{getattr(bcc, '__version__', 'of unknown version')}, {bcc.__file__}", ""


def _compiled_before() -> str:
    """What to say of programs that can still be used where there is no compiler any more."""
    from perf_offcpu.collect.bpf.program import compiled_before

    try:
        count = compiled_before()
    except (PerfOffcpuError, OSError):
        count = 0
    times = "once" if count == 1 else f"{count} times"
    return f"; it was compiled {times} for this kernel, recording as then still works" if count else ""


def _btf() -> Seen:
    from perf_offcpu.collect.system.btf import VMLINUX_BTF, Btf

    Btf.load()
    return State.WORKS, f"{VMLINUX_BTF}, {VMLINUX_BTF.stat().st_size / 1e6:.1f} MB", ""


def _bpf() -> Seen:
    from perf_offcpu.collect.bpf.kernel_facts import check_privileges

    try:
        check_privileges()
    except CapabilityError as problem:
        cause = health_limits.bpf_obstacle()
        raise CapabilityError(f"{problem.what}{cause and '; '}{cause}", problem.remedy) from problem
    return State.WORKS, "programs can be loaded", ""


def _kernel() -> Seen:
    from perf_offcpu.collect.bpf.kernel_facts import explore
    from perf_offcpu.collect.bpf.kprobe import Kprobe
    from perf_offcpu.collect.system.btf import Btf

    facts = explore(Btf.load())
    release = platform.release()
    if facts.has_exit_tp:
        return State.WORKS, f"{release}, with tracepoint sched_exit_tp", ""
    found = f"{release}, without tracepoint sched_exit_tp"
    try:
        Kprobe(facts.switch_end).close()
    except OSError:
        remedy = "boot Linux 6.16 or newer, or one with kprobes, for whole user stacks (--call-graph cfi)"
        return State.LIMITED, f"{found}, without kprobes", remedy
    return State.WORKS, f"{found}: a kprobe at {facts.switch_end} takes copies of stacks", ""


def _collector() -> Seen:
    from perf_offcpu.collect.bpf.program import OffCpuProgram

    begin = time.monotonic()
    with OffCpuProgram(use_cache=False):
        return State.WORKS, f"compiled, verified and loaded in {time.monotonic() - begin:.2f} s", ""


def _events() -> Seen:
    from perf_offcpu.collect.events.evsels import CpuEvent, offcpu_attr, probe_support, tracker_attr
    from perf_offcpu.collect.system.cpus import online_cpus

    cpus = online_cpus()
    support = probe_support(cpus[0])
    for name, attr in (("offcpu-time", offcpu_attr(support, 0)), ("dummy", tracker_attr(support))):
        CpuEvent(name, attr, cpus).close()
    return State.WORKS, f"on {len(cpus)} CPUs, perf_event_paranoid {health_limits.paranoid()}", ""


def _hardware_counters() -> Seen:
    from perf_offcpu.abi.attr import Attr, AttrFlag, PerfType
    from perf_offcpu.collect.events import perf_event
    from perf_offcpu.collect.system.cpus import online_cpus

    attr = Attr(type=PerfType.HARDWARE, config=0, sample_period=1_000_000, flags=AttrFlag.DISABLED)
    try:
        perf_event.close_event(perf_event.open_event(attr, online_cpus()[0]))
    except OSError:
        return State.LIMITED, "none, as in most virtual machines", "on-CPU samples come from -e cpu-clock"
    return State.WORKS, "-e cycles can be used", ""


def _deferred() -> Seen:
    from perf_offcpu.abi.attr import Attr, AttrFlag, PerfType, SampleType, SoftwareConfig
    from perf_offcpu.collect.events import perf_event
    from perf_offcpu.collect.system.cpus import online_cpus

    plain = Attr(
        type=PerfType.SOFTWARE,
        config=SoftwareConfig.CPU_CLOCK,
        sample_period=1_000_000,
        sample_type=SampleType.CALLCHAIN,
        flags=AttrFlag.DISABLED,
    )
    cpu = online_cpus()[0]
    perf_event.close_event(perf_event.open_event(plain, cpu))
    deferred = Attr(
        type=plain.type,
        config=plain.config,
        sample_period=plain.sample_period,
        sample_type=plain.sample_type,
        flags=AttrFlag.DISABLED | AttrFlag.DEFER_CALLCHAIN,
    )
    try:
        perf_event.close_event(perf_event.open_event(deferred, cpu))
    except OSError:
        return State.LIMITED, "this kernel has none", "boot Linux 7.0 or newer for --call-graph fp,defer"
    return State.WORKS, "--call-graph fp,defer can be used", ""


def _limits(look: Callable[[], tuple[bool, str, str]]) -> Callable[[], Seen]:
    def seen() -> Seen:
        good, found, advice = look()
        return (State.WORKS if good else State.LIMITED), found, advice

    return seen


_LOOKS: dict[str, Callable[[], Seen]] = {
    "Python": _python,
    "bcc": _bcc,
    "BTF": _btf,
    "BPF": _bpf,
    "kernel": _kernel,
    "collector": _collector,
    "perf events": _events,
    "hardware counters": _hardware_counters,
    "deferred callchains": _deferred,
    "kernel symbols": _limits(health_limits.kernel_symbols),
    "lockdown": _limits(health_limits.lockdown),
    "locked memory": _limits(health_limits.locked_memory),
    "open files": _limits(health_limits.open_files),
    "pid namespace": _limits(health_limits.pid_namespace),
    "cgroups": _limits(health_limits.cgroups),
    "tracefs": _limits(health_limits.tracefs),
}
