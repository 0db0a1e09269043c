# SPDX-License-Identifier: Apache-2.0
"""Requests to a running recorder: commands, as of `perf record --control fd:CTL,ACK`, and SIGUSR2 for a new file.
`Waiter` waits for them, for rings, and for events that end a recording.

A command is a line; a NUL or the end of the input ends it, too, as in perf. Each command is answered by "ack" and a
newline, if there is a descriptor for answers. A command that cannot be carried out is reported on standard error, too.

Source: tools/perf/util/evlist.h (EVLIST_CTL_CMD_*_TAG), evlist.c; `account` and `period` are ours."""

import contextlib
import os
import re
import select
import signal
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Self

from perf_offcpu.collect.targets import TargetWatch
from perf_offcpu.errors import UsageError
from perf_offcpu.text import Say, printable
from perf_offcpu.units import parse_time

LEAST_PERIOD = "1us"  # shortest period of samples of waits
COMMANDS = ("enable", "disable", "snapshot", "account", "period", "stop", "ping")
_NEED_NEW_FILE = ("period", "snapshot")
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ACK = b"ack\n"
_LONGEST = 256  # largest size of a line that comes in pieces, bytes; a longer one is no command


@dataclass(frozen=True, slots=True)
class ControlFds:
    """Descriptors of --control: commands are read from `commands`, answers are written to `acks` (-1: no answers)."""

    commands: int
    acks: int = -1


def parse_control(text: str) -> ControlFds:
    """Parse `fd:CTL` or `fd:CTL,ACK`. Raises UsageError: the text is neither, or a descriptor is not open."""
    numbers = re.fullmatch(r"fd:(\d{1,6})(?:,(\d{1,6}))?", text, re.ASCII)
    if not numbers:
        raise UsageError(f"--control {text}: not fd:CTL or fd:CTL,ACK, numbers of open descriptors")
    fds = ControlFds(int(numbers[1]), int(numbers[2] or -1))
    for fd in (fds.commands, fds.acks):
        try:
            _ = fd < 0 or os.fstat(fd)
        except OSError:
            raise UsageError(f"--control {text}: descriptor {fd} is not open") from None
    return fds


class Control:
    """Read commands from the descriptors of --control and queue them; if `fds` is None, no command ever comes."""

    def __init__(self, fds: ControlFds | None) -> None:
        self._fds, self._rest = fds, b""
        self._commands: deque[tuple[str, str]] = deque()
        if fds is not None:
            os.set_blocking(fds.commands, False)
            if fds.acks >= 0:
                os.set_blocking(fds.acks, False)

    @property
    def fd(self) -> int:
        """Descriptor that becomes readable when a command comes; -1 for none."""
        return -1 if self._fds is None else self._fds.commands

    def read(self) -> bool:
        """Read from `fd` without blocking and queue the commands; return False at the end of the input."""
        assert self._fds is not None
        try:
            data = os.read(self._fds.commands, 4096)
        except BlockingIOError:
            return True
        except OSError:
            return False
        *lines, self._rest = (self._rest + data).replace(b"\0", b"\n").split(b"\n")
        self._rest = self._rest[:_LONGEST]
        if not data:
            lines, self._rest = [self._rest], b""
        for line in lines:
            name, _, argument = line.decode(errors="replace").strip(" \r").partition(" ")
            if name in COMMANDS:
                self._commands.append((name, argument.strip()))
        return bool(data)

    def next(self) -> tuple[str, str] | None:
        """Remove and return the oldest queued command: (name in COMMANDS, argument or ""); None if none is queued."""
        return self._commands.popleft() if self._commands else None

    def acknowledge(self) -> None:
        """Answer one command with "ack"; the answer is dropped if its reader is gone or slow."""
        if self._fds is not None and self._fds.acks >= 0:
            with contextlib.suppress(OSError):
                os.write(self._fds.acks, _ACK)


class RecordingSignals:
    """Context manager; within it, SIGINT, SIGTERM, SIGHUP and, if `rotating`, SIGUSR2 are noted instead of ending the
    process. A signal that was ignored on entry (SIGHUP under nohup) stays ignored. SIGINT is noted in any case, because
    shells ignore it for commands in the background, and scripts end recordings by `kill -INT`. `received`: the first
    signal that ends the recording, None before it. `rotate`: True if SIGUSR2 has come; set to False by the caller that
    begins the new file. `fd`: becomes readable when a signal has come."""

    def __init__(self, rotating: bool = False) -> None:
        self._signals = [*_ENDING_SIGNALS, *([signal.SIGUSR2] if rotating else [])]
        self.received: int | None = None
        self.rotate = False
        self.fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGUSR2:
            self.rotate = True
        elif self.received is None:
            self.received = signum

    def is_ending(self) -> bool:
        """Empty `fd`, so that it is not readable until the next signal; return True if the recording shall end."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 512)
        return self.received is not None

    def __enter__(self) -> Self:
        self._wakeup = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        self._handlers = {signum: signal.getsignal(signum) for signum in self._signals}
        for signum, before in self._handlers.items():
            if before is not signal.SIG_IGN or signum == signal.SIGINT:
                signal.signal(signum, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for signum, before in self._handlers.items():
            signal.signal(signum, before)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self.fd)
        os.close(self._write_fd)


class Requests:
    """Carry out the requests to one recording, from --control and SIGUSR2.

    `enable` and `disable` are left to the session, which pauses and goes on; the other commands are carried out here,
    or noted in attributes for the session.

    Args:
        fds: descriptors of --control; None without.
        period_ns: sampling period of waits (`--off-cpu-period`); 0: waits are not sampled by length.
        has_files: True if new files may begin (`--switch-output`).
        signals: hold the request for a new file (`rotate`).
        say: is called with a sentence on a command that cannot be carried out.

    Attributes:
        control: reads and queues the commands.
        period_ns: sampling period for the next file.
        stopping: True if the recording shall end.
        account_due: True if an account up to now was asked for; set to False by the caller that writes it.
    """

    def __init__(
        self, fds: ControlFds | None, period_ns: int, has_files: bool, signals: RecordingSignals, say: Say
    ) -> None:
        self.control = Control(fds)
        self.period_ns, self.stopping, self.account_due = period_ns, False, False
        self._has_files, self._signals, self._say = has_files, signals, say

    def obey(self, expected: str) -> bool:
        """Carry out and acknowledge the queued commands up to the first `expected` one ("enable" or "disable"), which
        is left to the caller; return True if it has come."""
        while not self.stopping and (command := self.control.next()) is not None:
            if command[0] == expected:
                return True
            self._carry_out(*command)
            self.control.acknowledge()
        return False

    def take_rotate(self) -> bool:
        """Return True if a new file was asked for (SIGUSR2, `snapshot`, `period`) since the last call."""
        is_requested, self._signals.rotate = self._signals.rotate, False
        return is_requested

    def _carry_out(self, name: str, argument: str) -> None:
        if name in _NEED_NEW_FILE and not self._has_files:
            self._say(f"--control: {name}: needs a new file, and there is no --switch-output")
        elif name == "period":
            self._change_period(argument)
        elif name == "snapshot":
            self._signals.rotate = True
        elif name == "account":
            self.account_due = True
        elif name == "stop":
            self.stopping = True

    def _change_period(self, text: str) -> None:
        """Set `period_ns` and ask for a new file, from which on waits are sampled with it; report a bad argument."""
        if not self.period_ns:
            self._say("--control: period: waits are not sampled by length (--off-cpu-period)")
            return
        try:
            self.period_ns = parse_time("--control: period", text, "ms", LEAST_PERIOD)
            self._signals.rotate = True
        except UsageError as problem:
            self._say(printable(str(problem)))


FLUSH_S = 0.2  # longest time between two reads of the rings: a killed recorder loses at most this time
STEADY_FLUSH_S = 1.0  # longest time between two reads in recordings that run for days (`RecordOptions.is_steady`)


class Waiter:
    """Wait until rings must be drained (when one holds `wakeup_bytes`, else after a fixed time), or until a signal, the
    clock, the end of the command or of the last target ends the recording.

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
        """Wait until a descriptor is readable, or for `most_s`; read commands; return True if the recording is over."""
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
