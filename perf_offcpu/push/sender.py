# SPDX-License-Identifier: Apache-2.0
"""Declare the connection to a target, over HTTP or gRPC, and its options."""

from __future__ import annotations

from typing import Protocol

from perf_offcpu.push.answers import Answer
from perf_offcpu.structs import frozen

TIMEOUT_S = 30.0


@frozen
class SendOptions:
    """Options of connections to targets."""

    headers: tuple[tuple[str, str], ...] = ()  # of each request: credentials, tenants
    ca: str = ""  # PEM of the certificates that sign the server's; "" for the system's
    timeout_s: float = TIMEOUT_S  # of a whole request


class Sender(Protocol):
    """A connection to a target; it is opened by the first message, and again after a failure."""

    def send(self, body: bytes) -> Answer:
        """Send a message (`Message.body`) and return the server's answer.

        Raises:
            RetryLater: the server may accept the message later.
            Refused: the server will never accept it. ServerRefused: the server accepts no message at all.
        """
        ...

    def close(self) -> None:
        """Close the connection."""
        ...
