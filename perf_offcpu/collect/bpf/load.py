# SPDX-License-Identifier: Apache-2.0
"""Load compiled programs into the kernel, and explain its refusals."""

from __future__ import annotations

from collections.abc import Mapping

from perf_offcpu.collect.bpf import syscall as bpf_syscall
from perf_offcpu.collect.bpf.attr import AttachType, ProgramType
from perf_offcpu.collect.bpf.config import OffCpuConfig
from perf_offcpu.collect.bpf.defines import SWITCHED
from perf_offcpu.collect.bpf.kernel_facts import KernelFacts
from perf_offcpu.collect.bpf.kprobe import Kprobe
from perf_offcpu.collect.bpf.syscall import VerifierError
from perf_offcpu.collect.system.privileges import lockdown
from perf_offcpu.errors import CapabilityError, RecordingError

FILTER = "offcpu_filter"
_LICENSE = "Dual BSD/GPL"


def probe_of(config: OffCpuConfig, facts: KernelFacts) -> Kprobe | None:
    """Return a kprobe where one has to replace sched_exit_tp; None where none is needed, or none works."""
    if not config.in_sleeper or config.in_switch or not facts.switch_end:
        return None
    try:
        return Kprobe(facts.switch_end)
    except OSError:
        return None


def load_program(name: str, code: bytes, tracepoints: Mapping[str, str], facts: KernelFacts) -> int:
    """Load a program; return its descriptor.

    Args:
        tracepoints: tracepoint of each program that has one.

    Raises:
        OSError: the kernel refuses it (VerifierError).
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
    """Return the error for a program that the kernel refuses, with a remedy if the user can apply one."""
    if lockdown() == "confidentiality":
        return CapabilityError(
            "kernel lockdown (confidentiality) keeps BPF programs from reading kernel memory",
            "boot with lockdown=integrity or without",
        )
    end_of_log = "\n".join(error.log.splitlines()[-12:])
    return RecordingError(f"the kernel refuses BPF program {error.name} ({error.strerror}):\n{end_of_log}")
