# SPDX-License-Identifier: Apache-2.0
"""Signals that end a recording, or begin a new file of it, as something to poll() for."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType, TracebackType
from typing import Self

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndingSignals:
    """Within its context SIGINT, SIGTERM and SIGHUP are noted instead of ending the process, and SIGUSR2.

    A signal that was ignored on entry (SIGHUP under nohup) stays ignored; SIGINT is taken in any case,
    because shells ignore it for commands in the background, and `kill -INT` is how scripts end a recording.
    """

    def __init__(self, rotating: bool = False) -> None:
        self._also = (signal.SIGUSR2,) if rotating else ()
        self.received: int | None = None
        """The first signal that came."""
        self.rotate = False
        """Whether SIGUSR2 came, which begins a new file; whoever does that sets it to False again."""
        self.fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        """Readable once a signal has come."""

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGUSR2:
            self.rotate = True
        elif self.received is None:
            self.received = signum

    def ending(self) -> bool:
        """Whether the recording shall end; `fd` is not readable any more until the next signal comes."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 512)
        return self.received is not None

    def __enter__(self) -> Self:
        self._wakeup = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        self._handlers = {signum: signal.getsignal(signum) for signum in (*_ENDING, *self._also)}
        for signum, before in self._handlers.items():
            if before is not signal.SIG_IGN or signum == signal.SIGINT:
                signal.signal(signum, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for signum, before in self._handlers.items():
            signal.signal(signum, before)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self.fd)
        os.close(self._write_fd)
