# SPDX-License-Identifier: Apache-2.0
"""CPUs that go offline and come online while a recording goes on.

The kernel takes perf events off a CPU that goes offline and does not put them back when it returns, so they
are opened again there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from perf_offcpu.collect.collector import Collector
from perf_offcpu.collect.rings.rings import Sink
from perf_offcpu.collect.system.cpus import online_cpus


def changed_cpus(
    before: Iterable[int], now: Iterable[int], without_ring: Iterable[int] = ()
) -> tuple[list[int], list[int]]:
    """Return the CPUs that went offline and those that came online, ascending.

    Args:
        without_ring: CPUs that have lost their events; one that runs was offline in between.
    """
    known = set(before) - set(without_ring)
    return sorted(known - set(now)), sorted(set(now) - known)


class Hotplug:
    """Record on CPUs that come online.

    Args:
        to_pipe: the output is a pipe. Its head, with the ids of events, has been read by then.
        say: is called with a sentence for each CPU that goes or comes.
    """

    def __init__(self, collector: Collector, to_pipe: bool, say: Callable[[str], None]) -> None:
        self._collector, self._to_pipe, self._say = collector, to_pipe, say
        self._cpus = tuple(collector.rings.owner.fds)

    @property
    def has_changed(self) -> bool:
        """Return whether a CPU went or came since the last `follow`."""
        return online_cpus() != self._cpus

    def follow(self, sink: Sink) -> list[int]:
        """Open events on CPUs that came online; return descriptors that become readable when rings fill."""
        before, self._cpus = self._cpus, online_cpus()
        offline, online = changed_cpus(before, self._cpus, self._collector.cpus_without_ring())
        for cpu in offline:
            self._say(f"CPU {cpu} went offline")
        return [fd for cpu in online for fd in self._open(cpu, sink)]

    def _open(self, cpu: int, sink: Sink) -> list[int]:
        if self._to_pipe:
            self._say(f"CPU {cpu} came online: in a pipe, only waits are recorded there, as sums")
            return []
        try:
            fds = self._collector.open_cpu(cpu, sink)
        except OSError as problem:
            self._say(f"CPU {cpu} came online and cannot be recorded in full: {problem.strerror}")
            return []
        self._say(f"CPU {cpu} came online, and is recorded from here on")
        return fds
