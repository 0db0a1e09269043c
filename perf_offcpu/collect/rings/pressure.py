# SPDX-License-Identifier: Apache-2.0
"""Why rings were full: what the recorder did meanwhile, and what helps.

A ring that is found full filled up since the recorder began to empty it the time before. That time is added
up here, and what it was spent on: waiting for the file to take bytes (a disk), work (a CPU), or neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from perf_offcpu.losses import FEWER_SAMPLES, LARGER_RINGS

FULL = 0.9
"""How full a ring is found that loses, or nearly does: what does not fit may be a large record."""

_MUCH = 0.3
"""The part of the time from which on something is to blame."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of a time: all of it, in writing, of that on a CPU, and all on a CPU."""

    elapsed_s: float = 0.0
    write_s: float = 0.0
    write_cpu_s: float = 0.0
    cpu_s: float = 0.0

    def plus(self, sign: int, other: Spent) -> Spent:
        """The sum, or with sign -1 the difference."""
        return Spent(
            self.elapsed_s + sign * other.elapsed_s,
            self.write_s + sign * other.write_s,
            self.write_cpu_s + sign * other.write_cpu_s,
            self.cpu_s + sign * other.cpu_s,
        )


class Pressure:
    """Watches how the recorder spends the time in which rings fill up.

    Args:
        wall, cpu: clocks of elapsed and of CPU seconds.
    """

    def __init__(
        self, wall: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.thread_time
    ) -> None:
        self._wall, self._cpu = wall, cpu
        self._write_s = self._write_cpu_s = 0.0
        self._looked = self._now()
        self.full = Spent()
        """The time in which rings became full."""

    def begin(self) -> None:
        """From here on rings fill up."""
        self._looked = self._now()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Around each write."""
        wall, cpu = self._wall(), self._cpu()
        try:
            yield
        finally:
            self._write_s += self._wall() - wall
            self._write_cpu_s += self._cpu() - cpu

    @contextmanager
    def looking(self, fill: Callable[[], float]) -> Iterator[None]:
        """Around each emptying of the rings.

        Args:
            fill: tells how full the fullest ring was that has just been emptied, 0 to 1.
        """
        now = self._now()
        try:
            yield
        finally:
            if fill() >= FULL:
                self.full = self.full.plus(1, now.plus(-1, self._looked))
            self._looked = now

    def _now(self) -> Spent:
        return Spent(self._wall(), self._write_s, self._write_cpu_s, self._cpu())


def remedy(full: Spent, copies: bool, compressed: bool) -> str:
    """What to do about records and samples that found a ring full, in one line.

    Args:
        full: what the recorder did while rings became full.
        copies: whether samples hold copies of stacks.
        compressed: whether the recorder compresses.
    """
    smaller = "smaller copies (--call-graph cfi,2048) or none (--call-graph fp), " if copies else ""
    waited_s = full.write_s - full.write_cpu_s
    if waited_s > _MUCH * full.elapsed_s and waited_s > full.cpu_s:
        memory = (
            "write to memory (-o /dev/shm/perf.data), "
            if compressed
            else ("write to memory (-o /dev/shm/perf.data), compress (-z), ")
        )
        return (
            f"the file took no bytes for {waited_s:.2f} of the {full.elapsed_s:.2f} s in which rings filled: "
            f"{memory}take {LARGER_RINGS}, {smaller}{FEWER_SAMPLES}"
        )
    if full.cpu_s > _MUCH * full.elapsed_s:
        without = "no -z, " if compressed else ""
        return (
            f"the recorder was busy for {full.cpu_s:.2f} of the {full.elapsed_s:.2f} s in which rings filled:"
            f" {without}{smaller}{FEWER_SAMPLES}"
        )
    return (
        f"rings filled before the recorder came to a CPU or looked: {LARGER_RINGS}, -r 1, "
        f"{smaller}{FEWER_SAMPLES}"
    )
