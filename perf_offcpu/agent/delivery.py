# SPDX-License-Identifier: Apache-2.0
"""Deliver recordings from the spool: decode, symbolize, write, account, remove.

    recording ──> Profile ──> dataset ──> messages in the spool ──> account ──> recording removed

The account is written after segment and messages, and the recording is removed after that. If the agent is
killed in between, the next one delivers the recording again: segment and messages get the same names and
replace the first ones. A recording that is already in the account is only removed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from perf_offcpu.agent.budget.cpu import Bucket
from perf_offcpu.agent.ledger import Ledger, Parts
from perf_offcpu.agent.segment import read_segment
from perf_offcpu.agent.sinks import Backoff, DatasetSink, PushSink, Say
from perf_offcpu.agent.spool import Spool
from perf_offcpu.errors import FormatError, PerfOffcpuError, UsageError
from perf_offcpu.model.profile import Profile

DAMAGED: Final = "damaged"
EMPTY: Final = "empty"
FAILED: Final = "failed"
BYTES: Final = "max-bytes"
_ATTEMPTS: Final = 3
_IDLE_S: Final = 1.0


class Delivery:
    """A thread that delivers finished recordings, oldest first.

    Args:
        finished: returns the names of the recordings that may be delivered.
        delivered: is called with (samples, seconds) of each delivered segment.

    Attributes:
        period_ns: sampling period of the configuration.
        lock: held while the account and the spool change together.
        current: the recording that is being delivered; "" none.
        busy_since: time.monotonic() at which the current segment was begun; 0 none.
    """

    def __init__(
        self,
        spool: Spool,
        ledger: Ledger,
        say: Say,
        finished: Callable[[], Sequence[str]],
        delivered: Callable[[int, float], None],
    ) -> None:
        self._spool, self._ledger, self._metrics = spool, ledger, ledger.metrics
        self._say, self._finished, self._delivered = say, finished, delivered
        self.dataset: DatasetSink | None = None
        self.push: list[PushSink] = []
        self.bytes: Bucket | None = None
        self.period_ns = 0
        self.lock = threading.Lock()
        self.busy_since = 0.0
        self.current = ""
        self._backoff, self._attempts = Backoff(), 0
        self._head: tuple[str, Profile] | None = None
        self._wake, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Look at once for finished recordings."""
        self._wake.set()

    def close(self, patience_s: float) -> None:
        """Deliver finished recordings for some time; the others stay in the spool."""
        until = time.monotonic() + patience_s
        self._wake.set()
        while self._finished() and not self._backoff.failures and time.monotonic() < until:
            time.sleep(0.05)
        self._closing = True
        self._wake.set()
        self._thread.join(max(1.0, until - time.monotonic()))

    @property
    def is_running(self) -> bool:
        """Return True until the thread of deliveries has ended."""
        return self._thread.ident is None or self._thread.is_alive()

    @property
    def failures(self) -> int:
        """Return the number of attempts that failed since the last delivery."""
        return self._backoff.failures

    def _run(self) -> None:
        while not self._closing:
            names = self._finished()
            if self._backoff.left_s > 0 or not names:
                self._wake.wait(min(max(self._backoff.left_s, 0.0) or _IDLE_S, _IDLE_S))
                self._wake.clear()
                continue
            with self.lock:  # the segment that is delivered must not be removed from a full spool
                self.current = names[0] if self._spool.has(names[0]) else ""
            if self.current:
                self.busy_since = time.monotonic()
                self._deliver(self.current)
                self.busy_since, self.current = 0.0, ""

    def _deliver(self, name: str) -> None:
        """Deliver a recording; count it as lost if it can never be delivered."""
        if name <= self._ledger.done:  # killed after the account was written
            self._spool.remove(name)
            return
        try:
            profile = self._decoded(name)
            parts = _parts(profile)
            self._write(name, profile, parts[0][0])
        except (FormatError, UsageError) as problem:
            self._lose(name, DAMAGED, str(problem))
        except _Empty:
            self._lose(name, EMPTY, "it has no time")
        except _TooMuch:
            self._lose(name, BYTES, "the bytes of --max-bytes are spent")
        except (OSError, PerfOffcpuError) as problem:
            self._retry(problem)
        except Exception as problem:  # the next segment may work
            self._failed(name, problem)
        else:
            self._account(name, profile, parts)

    def _decoded(self, name: str) -> Profile:
        """Return the profile of a recording; the last one is kept for further attempts."""
        if self._head is None or self._head[0] != name:
            ledger = self._ledger
            profile = read_segment(
                self._spool.path_of(name),
                of_this_boot=ledger.is_of_this_boot(name),
                after_ns=ledger.end_before(name),
                period_ns=self.period_ns,
                clock=lambda now: ledger.clock_of(name, now),
            )
            self._head = name, profile
        return self._head[1]

    def _write(self, name: str, profile: Profile, begin_ns: int) -> None:
        if self.bytes is not None and self.bytes.level < 0:
            self.bytes.spend(0, time.monotonic())
        if self.bytes is not None and self.bytes.level < 0:
            raise _TooMuch
        size, origin = 0, self._ledger.origin(name)
        if self.dataset is not None:
            size = self.dataset.write(profile, origin, self._ledger.missing(name, begin_ns, _utc(profile)))
            self._metrics.add("dataset_bytes_total", size)
        size += sum(sink.keep(name, profile, origin.labels) for sink in self.push)
        if self.bytes is not None:
            self.bytes.spend(size, time.monotonic())

    def _account(self, name: str, profile: Profile, parts: Parts) -> None:
        with self.lock:
            self._ledger.deliver(name, parts, _utc(profile))
            self._metrics.add("samples_total", len(profile.samples))
            for cause, count in profile.losses.items():
                if cause.is_loss:
                    self._metrics.add("losses_total", count, cause.name)
            self._save()
            self._spool.remove(name)
        self._head, self._attempts = None, 0
        if self._backoff.failures:
            self._say("segments are delivered again")
        self._backoff.worked()
        self._delivered(len(profile.samples), sum(end - begin for begin, end in parts) / 1e9)

    def _lose(self, name: str, cause: str, why: str) -> None:
        """Count a recording as lost."""
        with self.lock:
            self._ledger.drop(name, cause)
            self._save()
            self._spool.remove(name)
        self._head, self._attempts = None, 0
        self._say(f"a segment is lost: {why}")

    def _failed(self, name: str, problem: Exception) -> None:
        """Plan another attempt, but not without end: the segment itself may be the cause."""
        self._attempts += 1
        if self._attempts >= _ATTEMPTS:
            self._lose(name, FAILED, f"{type(problem).__name__}: {problem}")
        else:
            self._retry(problem)

    def _retry(self, problem: Exception) -> None:
        self._metrics.add("dataset_failures_total")
        pause_s = self._backoff.failed()
        if self._backoff.failures in (1, 2, 5) or self._backoff.failures % 50 == 0:
            self._say(f"not delivered: {problem}; again in {pause_s:.0f} s ({self._backoff.failures} attempts)")

    def _save(self) -> None:
        try:
            self._ledger.save()
        except OSError as problem:
            self._say(f"the account cannot be written: {problem.strerror}")


class _Empty(Exception):
    """A recording has no record with a time."""


class _TooMuch(Exception):
    """The bytes of this day are spent."""


def _utc(profile: Profile) -> int:
    """Return UTC minus CLOCK_MONOTONIC; 0 unknown."""
    return profile.meta.wall_clock_ns - profile.meta.wall_clock_at_ns


def _parts(profile: Profile) -> Parts:
    """Return (begin, end) of each recorded time, CLOCK_MONOTONIC; raise _Empty if nothing was recorded."""
    parts = profile.meta.recorded
    if parts[0][0] <= 0 or parts[-1][1] < parts[0][0]:
        raise _Empty
    return parts
