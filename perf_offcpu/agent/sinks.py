# SPDX-License-Identifier: Apache-2.0
"""Deliver segments to the dataset, and as messages to servers.

A message stays in the spool until its server accepts it. Each server has its own thread, so that a slow one
delays no other.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from perf_offcpu.agent.ledger import BUDGET, Missing, Origin
from perf_offcpu.agent.metrics import Metrics
from perf_offcpu.agent.spool import Spool, message_name
from perf_offcpu.errors import PerfOffcpuError, UsageError
from perf_offcpu.text import printable

if TYPE_CHECKING:
    from perf_offcpu.dataset.rows import Gap, Host
    from perf_offcpu.model.profile import Profile
    from perf_offcpu.push.sender import Sender
    from perf_offcpu.push.targets import Target

FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 300.0
LATEST_S: Final = 3600.0
"""Time after which a message is given up if the server keeps answering that it may be sent later."""
OVERDUE: Final = "overdue"

Say = Callable[[str], None]


class Backoff:
    """Pauses between attempts: twice as long after each failure, up to a limit."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._pause_s, self._until = clock, FIRST_RETRY_S, 0.0
        self.failures = 0

    def failed(self, after_s: float | None = None) -> float:
        """Note a failure; return the seconds until the next attempt.

        Args:
            after_s: pause that the server asked for.
        """
        pause_s = min(max(self._pause_s, after_s or 0.0), LAST_RETRY_S)
        self._pause_s = min(2 * self._pause_s, LAST_RETRY_S)
        self._until, self.failures = self._clock() + pause_s, self.failures + 1
        return pause_s

    def worked(self) -> None:
        """Note a success."""
        self._pause_s, self._until, self.failures = FIRST_RETRY_S, 0.0, 0

    @property
    def left_s(self) -> float:
        """Return the seconds until the next attempt; 0 or less: now."""
        return self._until - self._clock()


class DatasetSink:
    """The dataset.

    Args:
        labels: of recordings with unknown labels.

    Raises:
        UsageError: a package is missing, or the dataset cannot be made.
    """

    def __init__(self, url: str, labels: dict[str, str]) -> None:
        from perf_offcpu.dataset.dataset import open_dataset

        self._url, self._dataset = url, open_dataset(url, make=True)
        self._labels = labels

    def write(self, profile: Profile, origin: Origin, missing: Missing | None = None) -> int:
        """Write a segment, which replaces a segment of the same time; return its size in bytes.

        Args:
            origin: the boot in which it was recorded, and the labels at that time.
            missing: the gap before it; None for none.

        Raises:
            PerfOffcpuError: it cannot be written.
        """
        from perf_offcpu.dataset.segment import write_segment

        gaps = _gaps(profile, missing)
        labels = self._labels if origin.labels is None else origin.labels
        try:
            return write_segment(self._dataset, profile, _host(profile, origin.boot_id, labels), gaps).bytes
        except OSError as problem:
            self._open_again()
            raise _named(self._dataset.url, problem) from problem

    def _open_again(self) -> None:
        """Look for the dataset under its name: it may have been removed, or something mounted there."""
        from perf_offcpu.dataset.dataset import open_dataset

        with contextlib.suppress(OSError, PerfOffcpuError):
            self._dataset = open_dataset(self._url, make=True)


def _named(place: str, problem: OSError) -> PerfOffcpuError:
    """Return an error that names the place where something could not be written."""
    return PerfOffcpuError(f"{place}: {problem.strerror or problem}")


def _gaps(profile: Profile, missing: Missing | None) -> list[Gap]:
    """Return the gap before a segment, and its pauses."""
    from perf_offcpu.dataset.rows import Gap, span_of

    span = span_of(profile)
    before = [Gap(span.begin_ns - missing.ns, span.begin_ns, missing.cause)] if missing else []
    return before + [Gap(begin[1], end[0], BUDGET) for begin, end in pairwise(span.parts)]


def _host(profile: Profile, boot_id: str, labels: dict[str, str]) -> Host:
    from perf_offcpu.agent.host import machine_id
    from perf_offcpu.dataset.rows import Host

    meta = profile.meta
    return Host(
        host_id=machine_id() or meta.hostname,
        boot_id=boot_id,
        hostname=printable(meta.hostname),
        kernel=printable(meta.os_release),
        cpus=meta.nr_cpus,
        arch=printable(meta.arch),
        labels=labels,
    )


class PushSink:
    """A server, with the messages for it in the spool and a thread that sends them.

    Args:
        target: the server.
        sender: its sender (`push.opening.open_targets`).
        labels: of recordings with unknown labels.

    Raises:
        UsageError: servers refuse the name of a label.
    """

    def __init__(
        self, target: Target, sender: Sender, labels: dict[str, str], spool: Spool, metrics: Metrics, say: Say
    ) -> None:
        from perf_offcpu.push.labels import check_labels

        self._target, self._labels = target, labels
        check_labels(labels)
        self.key = hashlib.sha256(str(self._target).encode()).hexdigest()[:8]
        self.name = self._target.server.word
        self._sender = sender
        self._spool, self._metrics, self._say = spool, metrics, say
        self._backoff = Backoff()
        self._put_off: tuple[str, float] | None = None  # a message, and when it was put off first
        self._wake, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def keep(self, recording: str, profile: Profile, labels: dict[str, str] | None = None) -> int:
        """Write the messages of a segment into the spool; return their bytes.

        Args:
            labels: of the host when it was recorded; None unknown.

        Raises:
            PerfOffcpuError: they cannot be written.
        """
        size = 0
        for number, body in enumerate(self._messages(profile, labels)):
            try:
                self._spool.write(message_name(recording, self.key, number), body)
            except OSError as problem:
                raise _named(self._spool.path, problem) from problem
            size += len(body)
        self._wake.set()
        return size

    def _messages(self, profile: Profile, labels: dict[str, str] | None) -> Iterator[bytes]:
        from perf_offcpu.push.labels import check_labels
        from perf_offcpu.push.messages import messages

        try:
            check_labels(labels := self._labels if labels is None else labels)
        except UsageError:  # this server was not in the configuration of then
            labels = self._labels
        return (message.body for message in messages(self._target.form, profile, labels))

    def close(self, patience_s: float) -> None:
        """Send messages for some time; the others stay in the spool."""
        until = time.monotonic() + patience_s
        while self._spool.messages(self.key) and not self._backoff.failures and time.monotonic() < until:
            time.sleep(0.05)
        self._closing = True
        self._wake.set()
        self._thread.join(max(1.0, until - time.monotonic()))
        if not self._thread.is_alive():
            self._sender.close()

    def _run(self) -> None:
        while not self._closing:
            names = self._spool.messages(self.key)
            if self._backoff.left_s > 0 or not names:
                self._wake.wait(min(max(self._backoff.left_s, 0.0) or LAST_RETRY_S, 5.0))
                self._wake.clear()
                continue
            try:
                self._send(names[0])
            except Exception as problem:  # of a library: the agent goes on, and tries again
                self._later(f"{type(problem).__name__}: {problem}", None)

    def _send(self, name: str) -> None:
        from perf_offcpu.push.sender import Refused, RetryLater, ServerRefused

        try:
            body = self._spool.read(name)
        except FileNotFoundError:  # the spool was full
            return
        try:
            answer = self._sender.send(body)
        except RetryLater as problem:
            if not (problem.was_answered and self._is_overdue(name)):
                self._later(str(problem), problem.after_s)
                return
            self._metrics.add("push_lost_total", 1, OVERDUE)
            self._say(f"not pushed, after attempts for {LATEST_S / 60:.0f} minutes: {problem}")
        except ServerRefused as problem:  # wrong credentials may be mended there
            self._later(str(problem), None)
            return
        except Refused as problem:
            self._metrics.add("push_lost_total", 1, "refused")
            self._say(f"not pushed: {problem}")
        else:
            self._metrics.add("pushed_total", 1, self.name)
            self._metrics.add("pushed_bytes_total", len(body), self.name)
            if answer.rejected:
                self._metrics.add("push_lost_total", answer.rejected, "rejected")
                self._say(f"not all pushed: {self._target}: {answer.text}")
            if self._backoff.failures:
                self._say(f"{self.name}: takes messages again")
            self._backoff.worked()
        self._spool.remove(name)

    def _is_overdue(self, name: str) -> bool:
        """Note that a server postponed a message; return whether it has done so for too long.

        The server may accept other messages, which must not wait for this one without end.
        """
        now = time.monotonic()
        if self._put_off is None or self._put_off[0] != name:
            self._put_off = name, now
        return now - self._put_off[1] >= LATEST_S

    def _later(self, text: str, after_s: float | None) -> None:
        self._metrics.add("push_retries_total", 1, self.name)
        pause_s = self._backoff.failed(after_s)
        if self._backoff.failures in (1, 2, 5) or self._backoff.failures % 50 == 0:
            self._say(f"{text}; again in {pause_s:.0f} s ({self._backoff.failures} attempts)")
