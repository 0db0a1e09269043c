# SPDX-License-Identifier: Apache-2.0
"""Look up the CPUs of this machine: perf events, rings and BPF output are all per CPU."""

import contextlib
import functools
from pathlib import Path

_SYSFS = Path("/sys/devices/system/cpu")


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Parse a kernel list such as `0-3,8,10-11`; return CPU numbers in its order."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


def online_cpus() -> tuple[int, ...]:
    """Return the online CPUs, ascending."""
    return parse_cpu_list((_SYSFS / "online").read_text())


def online_since() -> dict[int, int]:
    """Return online CPU → number that changes each time the CPU was offline: the inode of its directory `topology`,
    which the kernel makes when the CPU comes online (6.18: drivers/base/topology.c); 0 for none."""
    since = dict.fromkeys(online_cpus(), 0)
    for cpu in since:
        with contextlib.suppress(FileNotFoundError):
            since[cpu] = (_SYSFS / f"cpu{cpu}/topology").stat().st_ino  # direct: a directory of the kernel
    return since


@functools.cache
def possible_cpus() -> tuple[int, ...]:
    """Return the CPUs that may ever be plugged in until the next boot, ascending."""
    return parse_cpu_list((_SYSFS / "possible").read_text())


def present_cpus() -> tuple[int, ...]:
    """Return the CPUs that are plugged in, online or not, ascending."""
    return parse_cpu_list((_SYSFS / "present").read_text())
