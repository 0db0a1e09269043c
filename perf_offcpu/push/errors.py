# SPDX-License-Identifier: Apache-2.0
"""The ways in which a server does not take a message."""

from __future__ import annotations

from perf_offcpu.errors import PerfOffcpuError


class PushError(PerfOffcpuError):
    """A message was not taken; the text names the server and the reason."""


class RetryLater(PushError):
    """The server cannot be reached, is busy or failed: the same message may be taken later.

    Args:
        text: the message.
        after_s: seconds that the server asked to wait; None if it did not.
        was_answered: the server got the message and answered.
    """

    def __init__(self, text: str, after_s: float | None = None, *, was_answered: bool = False) -> None:
        self.after_s, self.was_answered = after_s, was_answered
        super().__init__(text)


class Refused(PushError):
    """The server will never take this message; others it may."""


class ServerRefused(Refused):
    """The server takes no message from here: wrong address, credentials or certificate."""
