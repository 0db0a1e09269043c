# SPDX-License-Identifier: Apache-2.0
"""Run other off-CPU profilers and read the cost of their BPF programs, for benchmarks/bpf_cost.py.

    bpftrace        offcputime.bt next to this file: start and user stack at switch-out, a sum at switch-in
    offcputime      of libbpf-tools: kernel and user stack at every switch-out (Debian: libbpf-tools)

The kernel lists the programs that a process holds (prog_id in /proc/PID/fdinfo), so programs of other
processes are not counted.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from perf_offcpu.collect.bpf import syscall as bpf_syscall
from perf_offcpu.collect.bpf.attr import Command, ObjectId, ProgramInfo

Stats = Callable[[], dict[str, tuple[int, int]]]
"""Runs and ns of each program since it was loaded."""

TOOLS: Mapping[str, list[str]] = {
    "bpftrace: user stacks": ["bpftrace", str(Path(__file__).with_name("offcputime.bt"))],
    "libbpf-tools offcputime -u": ["offcputime", "-u", "--perf-max-stack-depth", "127"],
}

_START_S = 30.0
_SETTLE_S = 1.0


def installed() -> tuple[dict[str, list[str]], list[str]]:
    """Return the installed tools, and a sentence for each missing one."""
    found = {name: command for name, command in TOOLS.items() if shutil.which(command[0])}
    missing = [
        f"{command[0]} is not installed: not measured (Debian: apt install bpftrace libbpf-tools)"
        for name, command in TOOLS.items()
        if name not in found
    ]
    return found, missing


@contextmanager
def at_work(command: list[str]) -> Iterator[Stats]:
    """Run a tool during the block; its output is discarded.

    Raises:
        RuntimeError: it loads no BPF program.
    """
    environment = os.environ | {"BPFTRACE_MAP_KEYS_MAX": "65536"}
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment)
        try:
            fds = _programs(process, said.fileno())
            try:
                yield lambda: dict(_stats(fd) for fd in fds)
            finally:
                for fd in fds:
                    os.close(fd)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _programs(process: subprocess.Popen[bytes], said: int) -> list[int]:
    """Return descriptors of the programs that the process holds, as soon as one has run, or after a second: the kernel
    counts runs only while statistics are on."""
    end = time.monotonic() + _START_S
    settled = float("inf")
    while time.monotonic() < end and process.poll() is None:
        fds = [
            bpf_syscall.call(Command.PROG_GET_FD_BY_ID, ObjectId(start_id=number))
            for number in _program_ids(process.pid)
        ]
        settled = min(settled, time.monotonic() + _SETTLE_S) if fds else float("inf")
        if any(_stats(fd)[1][0] for fd in fds) or time.monotonic() >= settled:
            return fds
        for fd in fds:
            os.close(fd)
        time.sleep(0.2)
    words = os.pread(said, 2000, 0).decode(errors="replace")
    raise RuntimeError(f"{process.args!r} runs no BPF program: {words}")


def _program_ids(pid: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            found += re.findall(r"^prog_id:\s+(\d+)", path.read_text(), re.MULTILINE)
        except OSError:  # closed meanwhile
            continue
    return sorted({int(number) for number in found})


def _stats(fd: int) -> tuple[str, tuple[int, int]]:
    info = bpf_syscall.read_info(fd, ProgramInfo())
    return info.name.decode(errors="replace") or str(info.id), (info.run_cnt, info.run_time_ns)
