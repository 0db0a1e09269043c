# SPDX-License-Identifier: Apache-2.0
"""Declare the connection to a target, over HTTP or gRPC, and its options."""

import random
import ssl
import time
from collections.abc import Callable
from typing import Protocol

from perf_offcpu.errors import PerfOffcpuError, UsageError
from perf_offcpu.push.answers import Answer
from perf_offcpu.structs import frozen


def tls_context(ca: str) -> ssl.SSLContext:
    """Return a context that trusts authorities in `ca` (PEM, "" for the system's); raise UsageError if invalid."""
    try:
        return ssl.create_default_context(cadata=ca or None)
    except (ssl.SSLError, TypeError, ValueError) as problem:
        raise UsageError(f"--push-ca: no certificates in PEM: {problem}") from None


def authorities(ca: str) -> bytes:
    """Return the certificates of authorities as PEM: those in `ca` (PEM), or for "" the system's, which gRPC does not
    use by itself. Raise UsageError if there are none."""
    certificates = tls_context(ca).get_ca_certs(binary_form=True)
    if not certificates:
        raise UsageError("grpcs: the system has no certificates of authorities: name some with --push-ca")
    return "".join(map(ssl.DER_cert_to_PEM_cert, certificates)).encode()


class PushError(PerfOffcpuError):
    """A message was not accepted; the text names the server and the reason."""


class RetryLater(PushError):
    """The server cannot be reached, is busy or failed: it may accept the same message later. `after_s`: pause in
    seconds that it asked for, None if it did not; `was_answered`: the server answered."""

    def __init__(self, text: str, after_s: float | None = None, *, was_answered: bool = False) -> None:
        self.after_s, self.was_answered = after_s, was_answered
        super().__init__(text)


class Refused(PushError):
    """The server will never accept this message, but it may accept others."""


class ServerRefused(Refused):
    """The server accepts no message at all: wrong address, credentials or certificate."""


@frozen
class SendOptions:
    """Options of the connection to any target."""

    headers: tuple[tuple[str, str], ...] = ()  # (name, value), of each request: credentials, tenants
    ca: str = ""  # authorities that sign the server's certificate, as PEM; "" for the system's
    timeout_s: float = 30.0  # limit of a whole request


class Sender(Protocol):
    """Connection to a target, opened by the first message, and by the first one after a failure."""

    def send(self, body: bytes) -> Answer:
        """Send a message (`Message.body`) and return the server's answer. Raise RetryLater if the server may accept it
        later, Refused if never, ServerRefused if it accepts none."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0


def send_until(sender: Sender, body: bytes, deadline_s: float, waiting: Callable[[RetryLater, float], None]) -> Answer:
    """Send a message, again while the server may accept it later, until `deadline_s` (monotonic); return the answer. A
    pause is as long as the server asks for; else it is random, so that many machines do not try again at the same
    moment, and doubles with each attempt. `waiting`: is called before each pause with the failure and the seconds.
    Raise RetryLater if the next attempt is after the deadline, Refused if the server never accepts the message."""
    longest_s = FIRST_PAUSE_S
    while True:
        try:
            return sender.send(body)
        except RetryLater as problem:
            pause_s = longest_s * random.uniform(0.5, 1.0) if problem.after_s is None else problem.after_s
            if time.monotonic() + pause_s > deadline_s:
                raise
            waiting(problem, pause_s)
            time.sleep(pause_s)
            longest_s = min(2 * longest_s, LONGEST_PAUSE_S)
