# SPDX-License-Identifier: Apache-2.0
"""Send a message repeatedly, with growing pauses, until a server accepts it or the time is over."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from perf_offcpu.push.answers import Answer
from perf_offcpu.push.errors import RetryLater
from perf_offcpu.push.sender import Sender

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0


def pause_s(attempt: int, after_s: float | None) -> float:
    """Return the pause after a failed attempt.

    Args:
        attempt: number of the attempt, from 0.
        after_s: the pause that the server asked for; None: a random one that doubles with each attempt, so
            that many machines do not try again at the same moment.
    """
    if after_s is not None:
        return after_s
    longest: float = min(FIRST_PAUSE_S * 2.0 ** min(attempt, 16), LONGEST_PAUSE_S)
    return longest * random.uniform(0.5, 1.0)


def send_until(
    sender: Sender,
    body: bytes,
    deadline_s: float,
    waiting: Callable[[RetryLater, float], None],
) -> Answer:
    """Send a message; if the server may accept it later, try again until a moment of time.monotonic().

    Args:
        waiting: is called before each pause with the failure and the length of the pause.

    Raises:
        RetryLater: the next attempt would be after the deadline.
        Refused: the server will never accept the message.
    """
    attempt = 0
    while True:
        try:
            return sender.send(body)
        except RetryLater as problem:
            pause = pause_s(attempt, problem.after_s)
            if time.monotonic() + pause > deadline_s:
                raise
            waiting(problem, pause)
            time.sleep(pause)
        attempt += 1
