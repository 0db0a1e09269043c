# SPDX-License-Identifier: Apache-2.0
"""Which CPUs there are. Perf events, rings and BPF output are all per CPU.

The kernel takes perf events off a CPU that goes offline and does not put them back when it returns; new ones
would have ids that the file, whose header is written by then, does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_SYSFS = Path("/sys/devices/system/cpu")


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """CPU numbers of a kernel list such as `0-3,8,10-11`, ascending."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


def online_cpus() -> tuple[int, ...]:
    """CPUs that run now, ascending."""
    return parse_cpu_list((_SYSFS / "online").read_text())


def present_cpus() -> tuple[int, ...]:
    """CPUs that are plugged in, running or not, ascending."""
    return parse_cpu_list((_SYSFS / "present").read_text())


class CpuWatch:
    """Tells, once each, which CPUs a recording loses or never had.

    Args:
        cpus: those that have events.
        look: gives the CPUs that run now.
    """

    def __init__(self, cpus: Iterable[int], look: Callable[[], Iterable[int]] = online_cpus) -> None:
        self._look, self._known, self._there = look, set(cpus), set(cpus)

    def news(self) -> Iterator[str]:
        """A sentence for each CPU that went or came since the last call."""
        now = set(self._look())
        for cpu in sorted(self._there - now):
            yield f"CPU {cpu} went offline: when it comes back, only waits are recorded there, as sums"
        for cpu in sorted(now - self._known):
            yield f"CPU {cpu} came online after the recording began: only waits are recorded there, as sums"
        self._there &= now
        self._known |= now
