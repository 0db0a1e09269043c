# SPDX-License-Identifier: Apache-2.0
"""The perf events through which BPF sends samples of waits with other copies of the user stack than usual.

The perf core copies as much of the stack as the event asks for. So there is an event for each size, and all
write into one ring. Their samples have the same layout, because a sample states the size of its copy; in the
file they are one event with more ids. bpf/copies.h chooses the size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from perf_offcpu.abi.offcpu import LARGEST_COPY, REFERENCE_BYTES
from perf_offcpu.collect.events import perf_event
from perf_offcpu.collect.events.evsels import CpuEvent

SetOutput = Callable[[int, int, str], None]


def copy_sizes(stack_bytes: int) -> dict[str, int]:
    """Return the size of copies for each further map of outputs, when the usual size is `stack_bytes`."""
    return {
        "events_bare": REFERENCE_BYTES,
        "events_quarter": max(REFERENCE_BYTES, stack_bytes // 32 * 8),
        "events_double": min(2 * stack_bytes, LARGEST_COPY),
        "events_fourfold": min(4 * stack_bytes, LARGEST_COPY),
    }


class CopyEvents:
    """The events next to the one that owns the rings, none if its samples have no copies.

    Args:
        owner: the event of the rings.
        set_output: is called with CPU, descriptor and map of each event.
    """

    def __init__(self, owner: CpuEvent, set_output: SetOutput) -> None:
        self._owner, self._set_output = owner, set_output
        self.events: dict[str, CpuEvent] = {}
        usual = owner.attr.sample_stack_user
        try:
            for name, size in copy_sizes(usual).items() if usual else ():
                attr = owner.attr._replace(sample_stack_user=size)
                self.events[name] = CpuEvent(owner.name, attr, owner.fds)
                for cpu, fd in self.events[name].fds.items():
                    self._wire(name, cpu, fd)
        except BaseException:
            self.close()
            raise

    def _wire(self, name: str, cpu: int, fd: int) -> None:
        perf_event.redirect(fd, self._owner.fds[cpu])
        self._set_output(cpu, fd, name)

    def __iter__(self) -> Iterator[CpuEvent]:
        return iter(self.events.values())

    def reopen(self, cpu: int) -> None:
        """Open the events on a CPU that came online.

        Raises:
            OSError: the kernel refuses one.
        """
        for name, event in self.events.items():
            fd = event.reopen(cpu)
            self._wire(name, cpu, fd)
            perf_event.enable(fd)

    def close(self) -> None:
        """Give the events back to the kernel."""
        for event in self:
            event.close()
