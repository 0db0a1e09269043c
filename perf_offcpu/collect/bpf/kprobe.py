# SPDX-License-Identifier: Apache-2.0
"""Run a BPF program at the beginning of a kernel function, through perf's PMU of kprobes (Linux 4.17).

Kernels before 6.16 have no tracepoint after a switch, where the thread that comes is `current` already. All of them
have finish_task_switch(), which that thread runs first. The kernel's BTF does not have it, so only a kprobe can be
attached there, as in bcc's own offcputime.

Source: perf_kprobe_init() in kernel/trace/trace_event_perf.c; `kprobe_func` and `probe_offset` in
include/uapi/linux/perf_event.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from pathlib import Path

from perf_offcpu.abi.attr import Attr
from perf_offcpu.collect.events import perf_event
from perf_offcpu.collect.system.cpus import online_cpus

TYPE = Path("/sys/bus/event_source/devices/kprobe/type")
_SWITCH_END = re.compile(rb" [tT] (finish_task_switch(?:\.isra\.\d+)?)\n")


class Kprobe:
    """A kprobe to which a program can be attached. `function`: its name in kallsyms. Raises OSError: the kernel has no
    kprobes, or does not allow one there."""

    def __init__(self, function: str) -> None:
        name = ctypes.create_string_buffer(function.encode())
        try:
            kind = int(TYPE.read_text())
        except (FileNotFoundError, ValueError):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP)) from None
        # One event is enough: the program runs on every CPU, whatever the CPU of the event.
        attr = Attr(type=kind, config1=ctypes.addressof(name), sample_period=1)
        self._fd = perf_event.open_event(attr, online_cpus()[0])
        self._has_program = False

    def attach(self, program_fd: int) -> None:
        """Run a program of type KPROBE there until `detach`, or go on after it with the same program. Raises OSError:
        the kernel refuses."""
        if not self._has_program:
            perf_event.set_filter(self._fd, program_fd)
            self._has_program = True
        perf_event.enable(self._fd)

    def detach(self) -> None:
        """Stop running the program, until `attach`."""
        if self._fd >= 0 and self._has_program:
            perf_event.disable(self._fd)

    def close(self) -> None:
        """Detach the program for good. Closing twice is allowed."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def switch_end(kallsyms: bytes) -> str:
    """Return the function that a task runs first when it comes to a CPU; "" if there is not exactly one."""
    names = _SWITCH_END.findall(kallsyms)
    return names[0].decode() if len(names) == 1 else ""
