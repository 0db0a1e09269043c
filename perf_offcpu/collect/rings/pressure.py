# SPDX-License-Identifier: Apache-2.0
"""Find out why rings were full: what the recorder did meanwhile, and what helps.

A ring that is found full filled up since the recorder began to drain it the time before. That time is added
up here, and what it was spent on: waiting for the file to take bytes (a disk), work (a CPU), or neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from perf_offcpu.losses import FEWER_SAMPLES, LARGER_RINGS

FULL = 0.9
"""Fill of a ring that loses records or nearly does: the one that does not fit may be large."""

_MUCH = 0.3
"""Part of the time from which on something is the cause."""


class TimeSpent(NamedTuple):
    """Seconds: in all, in writes, in writes on a CPU, and on a CPU in all."""

    elapsed_s: float = 0.0
    write_s: float = 0.0
    write_cpu_s: float = 0.0
    cpu_s: float = 0.0


class Pressure:
    """Measure how the recorder spends the time in which rings fill up.

    Args:
        wall, cpu: clocks of elapsed and of CPU seconds.

    Attributes:
        full: the time in which rings became full.
    """

    def __init__(
        self, wall: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.thread_time
    ) -> None:
        self._wall, self._cpu = wall, cpu
        self._write_s = self._write_cpu_s = 0.0
        self._drained = self._now()
        self.full = TimeSpent()

    def begin(self) -> None:
        """Note that rings begin to fill up."""
        self._drained = self._now()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Measure a write."""
        wall, cpu = self._wall(), self._cpu()
        try:
            yield
        finally:
            self._write_s += self._wall() - wall
            self._write_cpu_s += self._cpu() - cpu

    @contextmanager
    def draining(self, fill: Callable[[], float]) -> Iterator[None]:
        """Measure the time since the rings were drained before.

        Args:
            fill: returns the fill of the fullest ring that has just been drained, 0 to 1.
        """
        now = self._now()
        try:
            yield
        finally:
            if fill() >= FULL:
                times = zip(self.full, now, self._drained, strict=True)
                self.full = TimeSpent(*(full + end - begin for full, end, begin in times))
            self._drained = now

    def _now(self) -> TimeSpent:
        return TimeSpent(self._wall(), self._write_s, self._write_cpu_s, self._cpu())


def remedy(full: TimeSpent, copies: bool, compressed: bool) -> str:
    """Return one line on what to do about records and samples that found a ring full.

    Args:
        full: what the recorder did while rings became full.
        copies: samples hold copies of stacks.
        compressed: the recorder compresses.
    """
    smaller = "smaller copies (--call-graph cfi,2048) or none (--call-graph fp), " if copies else ""
    waited_s = full.write_s - full.write_cpu_s
    if waited_s > _MUCH * full.elapsed_s and waited_s > full.cpu_s:
        compress = "" if compressed else "compress (-z), "
        return (
            f"the file took no bytes for {waited_s:.2f} of the {full.elapsed_s:.2f} s in which rings filled: "
            f"write to memory (-o /dev/shm/perf.data), {compress}take {LARGER_RINGS}, "
            f"{smaller}{FEWER_SAMPLES}"
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
