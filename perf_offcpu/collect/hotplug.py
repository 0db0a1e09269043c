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


class CpuWatch:
    """Compare the CPUs that run now with those that ran before.

    Args:
        cpus: CPUs that have events.
        look: returns the CPUs that run now.
    """

    def __init__(self, cpus: Iterable[int], look: Callable[[], Iterable[int]] = online_cpus) -> None:
        self._look, self._known = look, set(cpus)

    def changes(self, without_ring: Iterable[int] = ()) -> tuple[list[int], list[int]]:
        """Return the CPUs that went offline and those that came online since the last call, ascending.

        Args:
            without_ring: CPUs that have lost their events; one that runs was offline in between.
        """
        now, known = set(self._look()), self._known - set(without_ring)
        self._known = now
        return sorted(known - now), sorted(now - known)


class Hotplug:
    """Record on CPUs that come online.

    Args:
        to_pipe: the output is a pipe. Its head, with the ids of events, has been read by then.
        say: is called with a sentence for each CPU that goes or comes.
    """

    def __init__(self, collector: Collector, to_pipe: bool, say: Callable[[str], None]) -> None:
        self._collector, self._to_pipe, self._say = collector, to_pipe, say
        self._watch = CpuWatch(collector.rings.owner.fds)

    def follow(self, sink: Sink) -> list[int]:
        """Open events on CPUs that came online; return descriptors that become readable when rings fill."""
        offline, online = self._watch.changes(self._collector.cpus_without_ring())
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
