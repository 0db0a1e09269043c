# SPDX-License-Identifier: Apache-2.0
"""Signals that end a recording, or begin a new file of it, as a descriptor to poll()."""

import contextlib
import os
import signal
from types import FrameType
from typing import Self

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class RecordingSignals:
    """A context in which SIGINT, SIGTERM, SIGHUP and SIGUSR2 are noted instead of ending the process.

    A signal that was ignored on entry (SIGHUP under nohup) stays ignored. SIGINT is noted in any case, because shells
    ignore it for commands in the background, and `kill -INT` is how scripts end a recording. `rotating`: take SIGUSR2,
    too.

    Attributes:
        received: the first signal that ends the recording; None: none has come.
        rotate: SIGUSR2 has come; set to False by the caller that begins the new file.
        fd: readable once a signal has come.
    """

    def __init__(self, rotating: bool = False) -> None:
        self._signals = [*_ENDING, *([signal.SIGUSR2] if rotating else [])]
        self.received: int | None = None
        self.rotate = False
        self.fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGUSR2:
            self.rotate = True
        elif self.received is None:
            self.received = signum

    def is_ending(self) -> bool:
        """Return whether the recording shall end; `fd` is not readable until the next signal comes."""
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
