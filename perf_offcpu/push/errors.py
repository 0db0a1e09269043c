# SPDX-License-Identifier: Apache-2.0
"""Errors of a message that a server did not accept."""

from __future__ import annotations

from perf_offcpu.errors import PerfOffcpuError


class PushError(PerfOffcpuError):
    """A message was not accepted; the text names the server and the reason."""


class RetryLater(PushError):
    """The server cannot be reached, is busy or failed: it may accept the same message later.

    Args:
        text: the message.
        after_s: seconds that the server asked to wait; None if it did not.
        was_answered: the server got the message and answered.
    """

    def __init__(self, text: str, after_s: float | None = None, *, was_answered: bool = False) -> None:
        self.after_s, self.was_answered = after_s, was_answered
        super().__init__(text)


class Refused(PushError):
    """The server will never accept this message, but it may accept others."""


class ServerRefused(Refused):
    """The server accepts no message at all: wrong address, credentials or certificate."""
