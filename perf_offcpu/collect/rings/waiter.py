# SPDX-License-Identifier: Apache-2.0
"""Wait until rings have to be emptied (when filled to some degree, else after a fixed time), or a signal, the clock,
the end of the command or of the last target ends the recording."""

import select
import time
from collections.abc import Iterable

from perf_offcpu.collect.control import Control, RecordingSignals
from perf_offcpu.collect.targets import TargetWatch

FLUSH_S = 0.2  # longest time between two reads of the rings: a killed recorder loses at most this time

STEADY_FLUSH_S = 1.0  # longest time between two reads in recordings that run for days (`RecordOptions.is_steady`)


class Waiter:
    """Wait for rings, commands and the end of the recording.

    Args:
        rings: descriptors that become readable when a ring has filled.
        endings: descriptors that end the recording when one of them becomes readable.
        signals: signals of the recording, some of which end it.
        watch: the targets; the end of the last one ends the recording.
        duration_s: time from now after which the recording ends; None for no limit.
        control: commands of `--control`; one that comes ends a wait, not the recording.
    """

    def __init__(
        self,
        rings: Iterable[int],
        endings: Iterable[int],
        signals: RecordingSignals,
        watch: TargetWatch,
        duration_s: float | None,
        control: Control,
    ) -> None:
        self._endings, self._watch, self._signals = set(endings), watch, signals
        self._control = control
        self._deadline = None if duration_s is None else time.monotonic() + duration_s
        self._poll = select.poll()
        commands = [control.fd] if control.fd >= 0 else []
        for fd in (*rings, *self._endings, signals.fd, *watch.fds, *commands):
            self._poll.register(fd, select.POLLIN)

    def add_rings(self, rings: Iterable[int]) -> None:
        """Add descriptors of further rings to wait for."""
        for fd in rings:
            self._poll.register(fd, select.POLLIN)

    def wait(self, most_s: float = FLUSH_S) -> bool:
        """Wait until a descriptor is readable, or for `most_s`; read commands; return whether the recording is over."""
        left_s = most_s if self._deadline is None else min(most_s, self._deadline - time.monotonic())
        ready = self._poll.poll(max(0.0, left_s) * 1000)
        over = [self._is_over(fd, flags) for fd, flags in ready]
        return any(over) or (self._deadline is not None and time.monotonic() >= self._deadline)

    def _is_over(self, fd: int, flags: int) -> bool:
        if fd in self._endings:
            return True
        if fd == self._signals.fd:
            return self._signals.is_ending()
        if fd == self._control.fd:
            if not self._control.read():
                self._poll.unregister(fd)
            return False
        if fd in self._watch.fds:
            self._poll.unregister(fd)
            return self._watch.ended(fd)
        if flags & ~select.POLLIN:  # the event of a CPU that went offline: there is nothing to wait for
            self._poll.unregister(fd)
        return False
