# SPDX-License-Identifier: Apache-2.0
"""Run a function in a process that may read files of other users, and has few other rights of root.

`record --buildid-cache` parses files of other users. The parsing process cannot load BPF programs or modules,
mount, change owners or users, nor regain such rights by execve. It is no sandbox: files below /proc/PID/root
require CAP_SYS_PTRACE, and the process still owns the files of root.

Source: capabilities(7), capset(2), prctl(2).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Final

from perf_offcpu.errors import PerfOffcpuError
from perf_offcpu.files import read_kernel

_DAC_READ_SEARCH: Final = 2
_SYS_PTRACE: Final = 19
_SYSLOG: Final = 34
READING: Final = 1 << _DAC_READ_SEARCH | 1 << _SYS_PTRACE | 1 << _SYSLOG
"""Capabilities to read programs of others, files below /proc/PID/root, and addresses in /proc/kallsyms."""
_MOST_IDLE_S: Final = 10.0
_NAP_S: Final = 0.02
_VERSION_3: Final = 0x20080522
_PR_SET_NO_NEW_PRIVS: Final = 38


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
    """Wait for a child and return whether it succeeded; one that hangs is left behind.

    A file system that does not answer (FUSE, NFS) lets it wait for ever, and may let no signal end it.
    """
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
            print(
                "perf-offcpu record: a file system does not answer: not all symbols are kept", file=sys.stderr
            )
            return False
        time.sleep(_NAP_S)


def keep_capabilities(kept: int) -> None:
    """Drop all capabilities of this process except some, permanently.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    words = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: low words, then high words
    if libc.capget(header, words):
        raise OSError(ctypes.get_errno(), "capabilities cannot be read")
    for row, shift in ((0, 0), (3, 32)):
        permitted = words[row + 1] & kept >> shift & 0xFFFFFFFF
        words[row], words[row + 1], words[row + 2] = permitted, permitted, 0
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.capset(header, words):
        raise OSError(ctypes.get_errno(), "capabilities cannot be given up")
