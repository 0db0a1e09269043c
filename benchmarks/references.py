# SPDX-License-Identifier: Apache-2.0
"""Attach reference programs (reference.bpf.c): plain off-CPU profiling, and empty programs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from other_tools import Stats

from perf_offcpu.collect.bpf import syscall as bpf_syscall
from perf_offcpu.collect.bpf.attr import AttachType, ProgramInfo, ProgramType
from perf_offcpu.collect.bpf.compile import compiled
from perf_offcpu.collect.bpf.kernel.facts import explore
from perf_offcpu.collect.system.btf import Btf
from perf_offcpu.resources import bpf_dir

SOURCE = Path(__file__).with_name("reference.bpf.c")
SWITCH = {"reference_switch": "sched_switch"}
PLACES = {"switch": "sched_switch", "waking": "sched_waking", "switched": "sched_exit_tp"}
"""Hooks of the recorder's programs (bpf/off_cpu.bpf.c)."""


@contextmanager
def walking(walks: int) -> Iterator[Stats]:
    """Walk the user stack once or twice at switch-out and sum waits by it."""
    with _attached(SWITCH, walks) as stats:
        yield stats


@contextmanager
def doing_nothing() -> Iterator[Stats]:
    """Attach a program that returns at once to each hook: the cost of being called."""
    with _attached({f"nothing_{name}": place for name, place in PLACES.items()}, 0) as stats:
        yield stats


@contextmanager
def _attached(programs: Mapping[str, str], walks: int) -> Iterator[Stats]:
    """Attach programs of the file to tracepoints, without those that this kernel lacks."""
    facts = explore(Btf.load())
    defines = {**facts.defines, "REFERENCE_WALKS": walks, "OFFCPU_SUMS": 16384, "OFFCPU_STACKS": 16384}
    there = {name: facts.tracepoints[place] for name, place in programs.items() if place in facts.tracepoints}
    with ExitStack() as stack:
        sources = list(there) if walks else ["nothing"]
        with patch.dict(os.environ, BCC_KERNEL_SOURCE=str(bpf_dir())):
            functions, _ = stack.enter_context(compiled(SOURCE, defines, sources, []))
        fds = {}
        for name, tracepoint in there.items():
            fd = bpf_syscall.load_program(
                ProgramType.TRACING, name, functions[name if walks else "nothing"], "Dual BSD/GPL", tracepoint.btf_id,
                AttachType.TRACE_RAW_TP,
            )  # fmt: skip
            stack.callback(os.close, fd)
            fds[name] = fd
            stack.callback(os.close, bpf_syscall.open_raw_tracepoint(fd))

        def stats() -> dict[str, tuple[int, int]]:
            infos = {name: bpf_syscall.read_info(fd, ProgramInfo()) for name, fd in fds.items()}
            return {name: (info.run_cnt, info.run_time_ns) for name, info in infos.items()}

        yield stats


def wait_pair(directory: Path) -> str:
    """Compile the program whose two tasks wait for each other; return its path."""
    program = directory / "wait_pair"
    source = Path(__file__).with_name("wait_pair.c")
    subprocess.run(["gcc", "-O2", "-pthread", "-fno-omit-frame-pointer", "-o", program, source], check=True)
    return str(program)
