# SPDX-License-Identifier: Apache-2.0
"""Commands to a recorder that runs, through a descriptor, as of `perf record --control fd:CTL,ACK`.

A command is a line; a NUL or the end of the input ends it, too, as in perf. Each is answered with "ack" and a
newline, if there is a descriptor for answers; also one that cannot be carried out, of which a sentence on
standard error tells.

Source: tools/perf/util/evlist.h (EVLIST_CTL_CMD_*_TAG), evlist.c: evlist__ctlfd_process(); `period` is ours.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from dataclasses import dataclass

from perf_offcpu.errors import UsageError

LEAST_PERIOD = "1us"
"""Shortest period of samples of waits."""
COMMANDS = ("enable", "disable", "snapshot", "period", "stop", "ping")
_ACK = b"ack\n"
_LONGEST = 256
"""Largest size of a line that comes in pieces, bytes; a longer one is no command."""


@dataclass(frozen=True, slots=True)
class ControlFds:
    """Descriptors of --control: commands come from `commands`; `acks` gets answers, -1 for none."""

    commands: int
    acks: int = -1


def parse_control(text: str) -> ControlFds:
    """Parse `fd:CTL` or `fd:CTL,ACK`.

    Raises:
        UsageError: it is neither, or a descriptor is not open.
    """
    found = re.fullmatch(r"fd:(\d{1,6})(?:,(\d{1,6}))?", text, re.ASCII)
    if not found:
        raise UsageError(f"--control {text}: not fd:CTL or fd:CTL,ACK, numbers of open descriptors")
    fds = ControlFds(int(found[1]), int(found[2] or -1))
    for fd in (fds.commands, fds.acks):
        try:
            _ = fd < 0 or os.fstat(fd)
        except OSError:
            raise UsageError(f"--control {text}: descriptor {fd} is not open") from None
    return fds


@dataclass(frozen=True, slots=True)
class Command:
    """A command of `COMMANDS` and its argument, "" for none."""

    name: str
    argument: str = ""


class Control:
    """The commands that have come and are not carried out yet.

    Args:
        fds: None for no descriptors: no command ever comes.
    """

    def __init__(self, fds: ControlFds | None) -> None:
        self._fds, self._rest = fds, b""
        self._commands: deque[Command] = deque()
        if fds is not None:
            os.set_blocking(fds.commands, False)
            if fds.acks >= 0:
                os.set_blocking(fds.acks, False)

    @property
    def fd(self) -> int:
        """Return the descriptor that is readable when a command comes; -1 for none."""
        return -1 if self._fds is None else self._fds.commands

    def read(self) -> bool:
        """Read the commands that have come; return False at the end of the input."""
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
                self._commands.append(Command(name, argument.strip()))
        return bool(data)

    def next(self) -> Command | None:
        """Remove and return the next command; None before one comes."""
        return self._commands.popleft() if self._commands else None

    def acknowledge(self) -> None:
        """Answer a command; a reader that is gone or slow is left out."""
        if self._fds is not None and self._fds.acks >= 0:
            with contextlib.suppress(OSError):
                os.write(self._fds.acks, _ACK)
