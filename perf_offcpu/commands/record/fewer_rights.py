# SPDX-License-Identifier: Apache-2.0
"""Run a function in a process that may read files of other users, and has few other rights of root. `record
--buildid-cache` parses files of other users. The parsing process cannot load BPF programs or modules, mount, change
owners or users, nor regain such rights by execve. It is no sandbox: files below /proc/PID/root require CAP_SYS_PTRACE,
and the process still owns the files of root."""

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Final

from perf_offcpu.collect.system.privileges import READING, keep_capabilities
from perf_offcpu.errors import PerfOffcpuError
from perf_offcpu.files import read_kernel

_MOST_IDLE_S: Final = 10.0
_NAP_S: Final = 0.02


def run_with_fewer_rights(work: Callable[[], None]) -> bool:
    """Run a function in a forked process with the capabilities of READING; return whether it succeeded."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings(action="ignore"):  # Python 3.12, where other threads exist
        pid = os.fork()
    if pid:
        return _has_succeeded(pid)
    status = 1
    try:
        keep_capabilities(READING)
        work()
        status = 0
    except (PerfOffcpuError, OSError) as problem:
        print(f"perf-offcpu record: {problem}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _has_succeeded(pid: int) -> bool:
    """Wait for a child and return whether it succeeded; stop waiting for a child that hangs. A file system that does
    not answer (FUSE, NFS) lets it wait for ever, and may let no signal end it."""
    before, seen_s = b"", time.monotonic()
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status == 0
        now = read_kernel(f"/proc/{pid}/stat")  # times, faults, states: it changes while a process works
        if now != before:
            before, seen_s = now, time.monotonic()
        elif time.monotonic() > seen_s + _MOST_IDLE_S:
            os.kill(pid, signal.SIGKILL)
            print("perf-offcpu record: a file system does not answer: not all symbols are kept", file=sys.stderr)
            return False
        time.sleep(_NAP_S)
