# SPDX-License-Identifier: Apache-2.0
"""Deliver segments to the dataset, and as messages to servers. `Worker` is the base of threads that deliver. A message
stays in the spool until its server accepts it. Each server has its own thread, so that a slow one delays no other."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from perf_offcpu.agent.journal import Problem, Say
from perf_offcpu.agent.ledger import BUDGET, Missing, Origin, boot_id
from perf_offcpu.agent.metrics import Metrics
from perf_offcpu.agent.spool import Spool, message_name
from perf_offcpu.collect.system.privileges import CAP_DAC_OVERRIDE, READING, keep_rights
from perf_offcpu.errors import PerfOffcpuError, UsageError
from perf_offcpu.files import read_regular

if TYPE_CHECKING:
    from perf_offcpu.dataset.rows import ContainerNames, Gap
    from perf_offcpu.dataset.store import Store
    from perf_offcpu.model.profile import Profile
    from perf_offcpu.push.sender import Sender
    from perf_offcpu.push.targets import Target

    Containers = Callable[[], Mapping[str, ContainerNames]]

FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 300.0
LATEST_S: Final = 3600.0
"""Time after which a message is given up if the server keeps answering that it may be sent later."""
OVERDUE: Final = "overdue"
DELIVERING: Final = READING | 1 << CAP_DAC_OVERRIDE
"""Capabilities to read programs of others, and to write into a dataset whose directory is another user's."""
_IDLE_S: Final = 5.0
_PATIENCE_S: Final = 10.0  # time that the first answer about a lease may take; the agent records without it then


class Backoff:
    """Pauses between attempts, doubled after each failure, up to LAST_RETRY_S; `failures`: number since a success."""

    def __init__(self) -> None:
        self._pause_s, self._until, self.failures = FIRST_RETRY_S, 0.0, 0

    def failed(self, after_s: float | None = None) -> float:
        """Count a failure; return the seconds to wait: at least `after_s` (of the server), at most LAST_RETRY_S."""
        pause_s = min(max(self._pause_s, after_s or 0.0), LAST_RETRY_S)
        self._pause_s = min(2 * self._pause_s, LAST_RETRY_S)
        self._until, self.failures = time.monotonic() + pause_s, self.failures + 1
        return pause_s

    def worked(self) -> None:
        """Forget all failures."""
        self._pause_s, self._until, self.failures = FIRST_RETRY_S, 0.0, 0

    @property
    def left_s(self) -> float:
        """Return the seconds until the next attempt; 0 or less if it is due."""
        return self._until - time.monotonic()


class Worker(ABC):
    """Thread that does pieces of work, which have names; pauses after failures, looks for work every `idle_s`."""

    rights = 0  # capabilities that the thread keeps, as bits

    def __init__(self, say: Say, idle_s: float) -> None:
        self._say, self._idle_s = say, idle_s
        self.backoff = Backoff()
        self._wake, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    def pending(self) -> Sequence[str]:
        """Return the names of the pieces of work left to do, the next one first."""

    @abstractmethod
    def do(self, name: str) -> None:
        """Do the piece of work `name`, after which it is not pending any more, or plan another attempt (`retry`)."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Make the thread look for work at once."""
        self._wake.set()

    @property
    def is_running(self) -> bool:
        """Return False if the thread has ended, True before its start, too."""
        return self._thread.ident is None or self._thread.is_alive()

    def close(self, patience_s: float) -> None:
        """End the thread, after at most `patience_s` more of work that succeeds; other work stays in the spool."""
        until = time.monotonic() + patience_s
        self.wake()
        while self.pending() and not self.backoff.failures and time.monotonic() < until:
            time.sleep(0.05)
        self._closing = True
        self.wake()
        self._thread.join(max(1.0, until - time.monotonic()))

    def retry(self, text: str, after_s: float | None = None) -> None:
        """Plan another attempt, after `after_s` at the earliest; say `text` at the first and at some later failures."""
        pause_s = self.backoff.failed(after_s)
        if self.backoff.failures in (1, 2, 5) or self.backoff.failures % 50 == 0:
            self._say(Problem(f"{text}; again in {pause_s:.0f} s ({self.backoff.failures} attempts)"))

    def worked(self, text: str) -> None:
        """Note a success; say `text` if there were failures before."""
        if self.backoff.failures:
            self._say(text)
        self.backoff.worked()

    def _run(self) -> None:
        keep_rights(self.rights)
        while not self._closing:
            names = self.pending()
            if names and self.backoff.left_s <= 0:
                self.do(names[0])
            else:
                self._wake.wait(min(max(self.backoff.left_s, 0.0) or self._idle_s, self._idle_s))
                self._wake.clear()


class LeaseKeeper(Worker):
    """Thread that takes and renews the lease of a dataset (`dataset.lease`) for the agent of a spool. The constructor
    raises LeaseTakenError if another agent has it; `lost` is called with a sentence if another agent takes it later."""

    rights = DELIVERING

    def __init__(self, store: Store, spool: Spool, say: Say, lost: Callable[[str], None], *, take_over: bool) -> None:
        from perf_offcpu.dataset import lease

        super().__init__(say, lease.RENEWED_EACH_S)
        host_id, boot = machine_id() or os.uname().nodename, boot_id()
        self._lease = lease.Lease(store, host_id, boot, spool.identity, spool.path)
        self.url, self._lost, self._take_over = store.url, lost, take_over
        self._due_s = 0.0  # monotonic time of the next renewal
        self._refusal: UsageError | None = None
        self._answered, self._is_started, self._lock = threading.Event(), False, threading.Lock()
        self.start()
        if refusal := self._first_answer():
            self.close(0)
            raise refusal

    def _first_answer(self) -> UsageError | None:
        """Wait up to _PATIENCE_S for the first try to take the lease; return the error if another agent has it."""
        self._answered.wait(_PATIENCE_S)
        with self._lock:
            self._is_started = self._refusal is None
            return self._refusal

    def pending(self) -> Sequence[str]:
        """Return ["lease"], the only work of this thread, if it is time to renew the lease, else []."""
        return ["lease"] if time.monotonic() >= self._due_s else []

    def do(self, name: str) -> None:
        """Take or renew the lease of the dataset (`name` is unused); plan a retry, but none if another agent has it."""
        from perf_offcpu.dataset.lease import RENEWED_EACH_S, LeaseTakenError

        try:
            self._lease.renew(take_over=self._take_over)
        except LeaseTakenError as refusal:
            self._due_s = float("inf")
            with self._lock:
                self._refusal = refusal
                if self._is_started:
                    self._lost(str(refusal))
        except Exception as problem:  # of a store: recording goes on
            self.retry(f"the lease of the dataset cannot be renewed: {problem}")
        else:
            self._due_s, self._take_over = time.monotonic() + RENEWED_EACH_S, False
            self.worked("the lease of the dataset is renewed again")
        self._answered.set()

    def close(self, patience_s: float) -> None:
        """End the thread and release the lease; not if the last renewal failed, as the store may not answer."""
        self._closing = True
        self.wake()
        self._thread.join(max(1.0, patience_s))
        if not self._thread.is_alive() and not self.backoff.failures and self._refusal is None:
            with contextlib.suppress(OSError, PerfOffcpuError):
                self._lease.release()


class DatasetSink:
    """Writer of segments to the dataset at `url`. `labels`: labels of the host for segments whose own are not known;
    `containers`: returns container id → names."""

    def __init__(self, url: str, labels: dict[str, str], containers: Containers | None = None) -> None:
        from perf_offcpu.dataset.dataset import open_dataset

        self._url, self.dataset = url, open_dataset(url, make=True)
        self._labels, self._containers = labels, containers or dict

    def write(self, profile: Profile, origin: Origin, missing: Sequence[Missing] = ()) -> int:
        """Write a segment, and the `missing` times before it as gaps; return the bytes written. A segment of the same
        time is replaced. Raise PerfOffcpuError if that fails."""
        from perf_offcpu.dataset.dataset import open_dataset
        from perf_offcpu.dataset.rows import host_of
        from perf_offcpu.dataset.segment import write_segment

        labels = self._labels if origin.labels is None else origin.labels
        host = host_of(profile, labels, machine_id(), origin.boot_id, self._containers())
        try:
            return write_segment(self.dataset, profile, host, _gaps(profile, missing)).bytes
        except OSError as problem:
            with contextlib.suppress(OSError, PerfOffcpuError):  # it may have been removed, or something mounted there
                self.dataset = open_dataset(self._url, make=True)
            raise _named(self.dataset.url, problem) from problem


def _named(path: str, problem: OSError) -> PerfOffcpuError:
    return PerfOffcpuError(f"{path}: {problem.strerror or problem}")


def _gaps(profile: Profile, missing: Sequence[Missing]) -> list[Gap]:
    """Return the gaps before a segment (`missing`, which follow each other up to its begin) and within it (pauses)."""
    from perf_offcpu.dataset.rows import Gap, span_of

    span = span_of(profile)
    ends = [span.begin_ns - sum(gap.ns for gap in missing[number:]) for number in range(1, len(missing) + 1)]
    before = [Gap(end - gap.ns, end, gap.cause) for gap, end in zip(missing, ends, strict=True)]
    return before + [Gap(begin[1], end[0], BUDGET) for begin, end in pairwise(span.parts)]


@functools.cache
def machine_id() -> str:
    """Return the id in /etc/machine-id; "" if there is none."""
    try:
        text = read_regular("/etc/machine-id", 4096).decode("ascii", "replace").strip()
    except OSError:
        return ""
    return text if re.fullmatch("[0-9a-f]{32}", text) else ""


class PushSink(Worker):
    """Thread that sends messages to a server; until it accepts them, they stay in the spool. `labels`: labels of the
    host for recordings whose own are not known."""

    def __init__(
        self, target: Target, sender: Sender, labels: dict[str, str], spool: Spool, metrics: Metrics, say: Say
    ) -> None:
        from perf_offcpu.push.labels import check_labels

        super().__init__(say, _IDLE_S)
        check_labels(labels)
        self._target, self._sender, self._labels = target, sender, labels
        self.key = hashlib.sha256(str(target).encode()).hexdigest()[:8]
        self.name = target.server.word
        self._spool, self._metrics = spool, metrics
        self._put_off: tuple[str, float] | None = None  # name of a message, and when the server first postponed it
        self.start()

    def keep(self, recording: str, profile: Profile, labels: dict[str, str] | None = None) -> int:
        """Write the messages of a recording to the spool; return the bytes written. `labels`: of the host, if known."""
        from perf_offcpu.push.labels import check_labels
        from perf_offcpu.push.messages import messages

        try:
            check_labels(labels := self._labels if labels is None else labels)
        except UsageError:  # this server was not in the configuration of then
            labels = self._labels
        size = 0
        for number, message in enumerate(messages(self._target.form, profile, labels)):
            try:
                self._spool.write(message_name(recording, self.key, number), message.body)
            except OSError as problem:
                raise _named(self._spool.path, problem) from problem
            size += len(message.body)
        self.wake()
        return size

    def close(self, patience_s: float) -> None:
        """End the thread, after at most `patience_s` more of sending; messages not sent stay in the spool."""
        super().close(patience_s)
        if not self._thread.is_alive():
            self._sender.close()

    def pending(self) -> Sequence[str]:
        """Return the names of the messages for this server, oldest first."""
        return self._spool.messages(self.key)

    def do(self, name: str) -> None:
        """Send the message `name`; plan another attempt if that fails."""
        try:
            self._send(name)
        except Exception as problem:  # of a library: the agent goes on, and tries again
            self._later(f"{type(problem).__name__}: {problem}")

    def _send(self, name: str) -> None:
        """Send a message and remove it from the spool if it was accepted or can never be."""
        from perf_offcpu.push.sender import Refused, RetryLater, ServerRefused

        try:
            body = self._spool.read(name)
        except FileNotFoundError:  # the spool was full
            return None
        try:
            answer = self._sender.send(body)
        except RetryLater as problem:
            if not (problem.was_answered and self._is_overdue(name)):
                return self._later(str(problem), problem.after_s)
            self._metrics.add("push_lost_total", 1, OVERDUE)
            self._say(Problem(f"not pushed, after attempts for {LATEST_S / 60:.0f} minutes: {problem}"))
        except ServerRefused as problem:  # wrong credentials may be mended there
            return self._later(str(problem))
        except Refused as problem:
            self._metrics.add("push_lost_total", 1, "refused")
            self._say(Problem(f"not pushed: {problem}"))
        else:
            self._metrics.add("pushed_total", 1, self.name)
            self._metrics.add("pushed_bytes_total", len(body), self.name)
            if answer.rejected:
                self._metrics.add("push_lost_total", answer.rejected, "rejected")
                self._say(Problem(f"not all pushed: {self._target}: {answer.text}"))
            self.worked(f"{self.name}: takes messages again")
        return self._spool.remove(name)

    def _is_overdue(self, name: str) -> bool:
        """Note that the server postponed a message; return True if it has done so for LATEST_S. The next messages,
        which the server may accept, must not wait for this one for ever."""
        now = time.monotonic()
        if self._put_off is None or self._put_off[0] != name:
            self._put_off = name, now
        return now - self._put_off[1] >= LATEST_S

    def _later(self, text: str, after_s: float | None = None) -> None:
        self._metrics.add("push_retries_total", 1, self.name)
        self.retry(text, after_s)
