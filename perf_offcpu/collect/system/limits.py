# SPDX-License-Identifier: Apache-2.0
"""What the recorder's own process is allowed: descriptors for its events, and the CPU when it needs it."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

from perf_offcpu.errors import CapabilityError

HIGHEST_PRIORITY = -20

# include/uapi/linux/capability.h; since Linux 5.8 CAP_SYS_ADMIN is no longer needed for either
_NEEDED = {"CAP_PERFMON": 38, "CAP_BPF": 39}
_SYS_ADMIN = 21
_EVERY_ID = 2**32 - 1


def privilege_remedy(
    status: Path = Path("/proc/self/status"), uid_map: Path = Path("/proc/self/uid_map")
) -> str:
    """What this process lacks for recording, as the smallest change that gives it."""
    try:
        effective = int(re.search(r"^CapEff:\s+(\w+)", status.read_text(), re.MULTILINE)[1], 16)  # type: ignore[index]
        ids = uid_map.read_text().split()
    except (OSError, TypeError, ValueError):
        return "run as root, or with CAP_BPF and CAP_PERFMON"
    if ids and int(ids[2]) < _EVERY_ID:
        return (
            "this is a user namespace, whose capabilities do not count for that: record from outside, "
            "as root or with CAP_BPF and CAP_PERFMON"
        )
    missing = [name for name, bit in _NEEDED.items() if not effective >> bit & 1]
    if effective >> _SYS_ADMIN & 1 or not missing:
        return _policy_remedy(status)
    words = " and ".join(missing)
    options = " ".join(f"--cap-add {name.removeprefix('CAP_')}" for name in missing)
    return f"run as root, or with {words} (in a container: {options})"


def _policy_remedy(status: Path) -> str:
    """What to do where capabilities are not what is missing."""
    lockdown = Path("/sys/kernel/security/lockdown")
    if lockdown.exists() and "[confidentiality]" in lockdown.read_text():
        return "the kernel is locked down (confidentiality): boot it without lockdown"
    if re.search(r"^Seccomp:\s+2", status.read_text(), re.MULTILINE):
        return "leave perf_event_open(2) and bpf(2) in the container's seccomp profile"
    return "a security policy of this machine forbids it (SELinux, BPF LSM, …): ask whoever set it"


def too_many_files() -> CapabilityError:
    """The sentence for EMFILE: events, rings and BPF need some descriptors for each CPU."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CapabilityError(f"too many open files (the limit is {limit})", "raise it with ulimit -n")


def raise_descriptor_limit() -> None:
    """Events take a descriptor per CPU each; the soft limit is no reason to fail."""
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
        CapabilityError: the real-time priority is not to be had.
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
