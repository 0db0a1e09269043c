# SPDX-License-Identifier: Apache-2.0
"""CPUs that go offline and come online while a recording goes on.

The kernel takes perf events off a CPU that goes offline and does not put them back when it returns, so they
are opened again there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from perf_offcpu.collect.collector import Collector
from perf_offcpu.collect.rings.rings import Sink
from perf_offcpu.collect.system.cpus import online_since


def changed_cpus(
    before: Mapping[int, int], now: Mapping[int, int], without_ring: Iterable[int] = ()
) -> tuple[list[int], list[int]]:
    """Return the CPUs that went offline and those that came online, ascending.

    Args:
        before, now: CPUs as of `online_since`.
        without_ring: CPUs that have lost their events; one that runs was offline in between.
    """
    known = before.keys() - set(without_ring)
    online = [cpu for cpu, since in now.items() if cpu not in known or before[cpu] != since]
    return sorted(known - now.keys()), sorted(online)


class Hotplug:
    """Record on CPUs that come online.

    Args:
        to_pipe: the output is a pipe. Its head, with the ids of events, has been read by then.
        say: is called with a sentence for each CPU that goes or comes.
    """

    def __init__(self, collector: Collector, to_pipe: bool, say: Callable[[str], None]) -> None:
        self._collector, self._to_pipe, self._say = collector, to_pipe, say
        now = online_since()
        self._cpus = {cpu: now[cpu] for cpu in collector.rings.owner.fds if cpu in now}

    def follow(self, sink: Sink) -> list[int]:
        """Open events on CPUs that came online; return descriptors that become readable when rings fill."""
        before, self._cpus = self._cpus, online_since()
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
