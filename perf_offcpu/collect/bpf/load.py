# SPDX-License-Identifier: Apache-2.0
"""Compiled programs into the kernel, and why it does not take them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from perf_offcpu.collect.bpf import syscall as bpf_syscall
from perf_offcpu.collect.bpf.attr import AttachType, ProgramType
from perf_offcpu.collect.bpf.config import OffCpuConfig
from perf_offcpu.collect.bpf.defines import SWITCHED
from perf_offcpu.collect.bpf.kernel_facts import KernelFacts
from perf_offcpu.collect.bpf.kprobe import Kprobe
from perf_offcpu.collect.bpf.syscall import VerifierError
from perf_offcpu.errors import CapabilityError, RecordingError

FILTER = "offcpu_filter"
_LICENSE = "Dual BSD/GPL"
_LOCKDOWN = Path("/sys/kernel/security/lockdown")


def probe_of(config: OffCpuConfig, facts: KernelFacts) -> Kprobe | None:
    """What stands in for a tracepoint in the sleeper's context, where that is needed; None if nothing can."""
    if not config.in_sleeper or config.in_switch or not facts.switch_end:
        return None
    try:
        return Kprobe(facts.switch_end)
    except OSError:
        return None


def load_program(name: str, code: bytes, tracepoints: Mapping[str, str], facts: KernelFacts) -> int:
    """Load a program; gives its descriptor.

    Args:
        tracepoints: of programs that have one, by program.

    Raises:
        OSError: the kernel does not take it (VerifierError).
    """
    if name == FILTER:
        return bpf_syscall.load_program(ProgramType.PERF_EVENT, name, code, _LICENSE)
    if name == SWITCHED and name not in tracepoints:
        return bpf_syscall.load_program(ProgramType.KPROBE, name, code, _LICENSE)
    if name in tracepoints:
        btf_id, kind = facts.tracepoints[tracepoints[name]].btf_id, AttachType.TRACE_RAW_TP
    else:
        btf_id, kind = facts.task_iterator or 0, AttachType.TRACE_ITER
    return bpf_syscall.load_program(ProgramType.TRACING, name, code, _LICENSE, btf_id, kind)


def refusal(error: VerifierError) -> CapabilityError | RecordingError:
    """Why the kernel did not take a program, as far as the user can change it."""
    try:
        locked = "[confidentiality]" in _LOCKDOWN.read_text()
    except OSError:
        locked = False
    if locked:
        return CapabilityError(
            "kernel lockdown (confidentiality) keeps BPF programs from reading kernel memory",
            "boot with lockdown=integrity or without",
        )
    last_words = "\n".join(error.log.splitlines()[-12:])
    return RecordingError(f"the kernel refuses BPF program {error.name} ({error.strerror}):\n{last_words}")
