# SPDX-License-Identifier: Apache-2.0
"""Smallest BPF programs, loaded to learn what this kernel and this process can do."""

import os
import sys
from collections.abc import Mapping

from perf_offcpu.collect.bpf.attr import ProgramType
from perf_offcpu.collect.bpf.syscall import VerifierError, load_program, run_program
from perf_offcpu.collect.system.privileges import privilege_remedy
from perf_offcpu.errors import CapabilityError
from perf_offcpu.files import descriptor

_RETURN_0 = bytes.fromhex("b700000000000000 9500000000000000")  # r0 = 0; exit
_MAY_GOTO = (
    bytes.fromhex("7a0a00fe00000000 b700000000000000")  # *(u64 *)(r10 - 512) = 0; r0 = 0
    + bytes.fromhex("e500010000000000 b700000000000000")  # may_goto +1; r0 = 0
    + bytes.fromhex("9500000000000000")  # exit
)


def check_privileges() -> None:
    """Load the smallest BPF program and close it. Raises CapabilityError: this process may not load BPF programs."""
    try:
        os.close(load_program(ProgramType.PERF_EVENT, "offcpu_probe", _RETURN_0, "GPL"))
    except VerifierError as error:
        what = f"BPF programs cannot be loaded ({error.strerror})"
        raise CapabilityError(what, privilege_remedy()) from error


def has_may_goto() -> bool:
    """Return whether programs may have the instruction may_goto (011832b97b31, Linux 6.9; bpf/loops.h). It takes up to
    16 bytes of stack beyond the program's own, which the interpreter may lack for a program of 512 bytes, such as this
    one."""
    if sys.byteorder != "little":  # bpf/loops.h has the bytes in this order
        return False
    try:
        os.close(load_program(ProgramType.PERF_EVENT, "offcpu_may_goto", _MAY_GOTO, "GPL"))
    except VerifierError:
        return False
    return True


def pid_namespace_level(defines: Mapping[str, int | str]) -> int:
    """Return the number of pid namespaces above that of this process, read by a BPF program that runs in its context.
    `defines`: offsets from `members.task_members`. Raises CapabilityError: the kernel refuses the program."""
    task_pid, level = (int(defines[name]) for name in ("TASK_THREAD_PID", "PID_LEVEL"))
    code = (
        bytes.fromhex("85000000 9e000000")  # r0 = bpf_get_current_task_btf()
        + bytes.fromhex("7900") + task_pid.to_bytes(2, sys.byteorder) + bytes(4)  # r0 = r0->thread_pid
        + bytes.fromhex("6100") + level.to_bytes(2, sys.byteorder) + bytes(4)  # r0 = r0->level
        + bytes.fromhex("9500000000000000")  # exit
    )  # fmt: skip
    try:
        with descriptor(load_program(ProgramType.RAW_TRACEPOINT, "offcpu_level", code, "GPL")) as fd:
            return run_program(fd)
    except OSError as error:
        raise CapabilityError(
            f"the kernel does not tell which pid namespace this is ({error.strerror})",
            "record from outside of the container",
        ) from error
