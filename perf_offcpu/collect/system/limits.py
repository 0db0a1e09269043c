# SPDX-License-Identifier: Apache-2.0
"""Limits and priority of the recorder's own process."""

from __future__ import annotations

import os
import resource

from perf_offcpu.errors import CapabilityError

HIGHEST_PRIORITY = -20


def too_many_files() -> CapabilityError:
    """Return the error for EMFILE: events, rings and BPF need some descriptors for each CPU."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CapabilityError(f"too many open files (the limit is {limit})", "raise it with ulimit -n")


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors: each event takes one per CPU."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def raise_priority(realtime: int) -> None:
    """Let the recorder run when it has to: a ring that is not emptied in time loses records.

    Nice -20 gets it onto a CPU soon among hundreds of runnable tasks (with small rings, it halves what waits
    in them), yet unlike SCHED_FIFO cannot starve them when there is much to copy. Without the privilege it
    goes on as it is, unless a real-time priority was asked for.

    Args:
        realtime: priority for SCHED_FIFO, 0 for none.

    Raises:
        CapabilityError: the kernel refuses the real-time priority.
    """
    try:
        if realtime:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(realtime))
        else:
            os.setpriority(os.PRIO_PROCESS, 0, HIGHEST_PRIORITY)
    except OSError as problem:
        if realtime:
            raise CapabilityError(
                f"real-time priority {realtime} is not to be had ({problem.strerror})",
                "run as root, with a priority from 1 to 99",
            ) from None
