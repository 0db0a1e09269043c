# SPDX-License-Identifier: Apache-2.0
"""Which CPUs there are. Perf events, rings and BPF output are all per CPU.

The kernel takes perf events off a CPU that goes offline and does not put them back when it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class CpuNews:
    """CPUs that went offline and that came online, ascending."""

    gone: tuple[int, ...]
    come: tuple[int, ...]


class CpuWatch:
    """Tells which CPUs go and come while a recording goes on.

    Args:
        cpus: those that have events.
        look: gives the CPUs that run now.
    """

    def __init__(self, cpus: Iterable[int], look: Callable[[], Iterable[int]] = online_cpus) -> None:
        self._look, self._there = look, set(cpus)

    def forget(self, cpu: int) -> None:
        """This one has lost its events: if it runs, it has come back since."""
        self._there.discard(cpu)

    def news(self) -> CpuNews:
        """What has changed since the last call."""
        now = set(self._look())
        news = CpuNews(tuple(sorted(self._there - now)), tuple(sorted(now - self._there)))
        self._there = now
        return news
