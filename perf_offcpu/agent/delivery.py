# SPDX-License-Identifier: Apache-2.0
"""Deliver recordings from the spool: decode, symbolize, write, account, remove.

    recording ──> Profile ──> dataset ──> messages in the spool ──> account ──> recording removed

The account is written after segment and messages, and the recording is removed after that. If the agent is
killed in between, the next one delivers the recording again: segment and messages get the same names and
replace the first ones. A recording that is already in the account is only removed."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from perf_offcpu.agent.cost.budget import Bucket
from perf_offcpu.agent.journal import Problem, Say
from perf_offcpu.agent.ledger import Ledger
from perf_offcpu.agent.sinks import DELIVERING, DatasetSink, PushSink, Worker, machine_id
from perf_offcpu.agent.spool import Spool
from perf_offcpu.build_ids import kernel_build_id
from perf_offcpu.cache import DiskCache, KeptCache
from perf_offcpu.collect.system.clock import wall_clock_pair
from perf_offcpu.decode.continued import at_pauses
from perf_offcpu.decode.deferred import deferred_as_samples
from perf_offcpu.decode.load import load_recording
from perf_offcpu.errors import FormatError, PerfOffcpuError, UsageError
from perf_offcpu.model.coverage import Sampling
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Recording, SampleFlag, Spans
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize
from perf_offcpu.text import printable
from perf_offcpu.unwind.unwinder import unwind

if TYPE_CHECKING:
    from perf_offcpu.dataset.compact import Upkeep

DAMAGED, EMPTY, FAILED, BYTES = "damaged", "empty", "failed", "max-bytes"
_ATTEMPTS: Final = 3
_IDLE_S: Final = 10.0  # complete recordings wake the thread


class Delivery(Worker):
    """Thread that delivers recordings, oldest first. `finished`: returns the names of complete recordings; `delivered`:
    is called with (number of samples, recorded seconds) of each delivered one."""

    rights = DELIVERING

    def __init__(
        self,
        spool: Spool,
        ledger: Ledger,
        say: Say,
        finished: Callable[[], Sequence[str]],
        delivered: Callable[[int, float], None],
    ) -> None:
        super().__init__(say, _IDLE_S)
        self._spool, self._ledger, self._metrics = spool, ledger, ledger.metrics
        self._finished, self._delivered = finished, delivered
        self.dataset: DatasetSink | None = None
        self.upkeep: Upkeep | None = None  # of the dataset
        self._is_neglected = False  # the last upkeep failed
        self.push: list[PushSink] = []
        self.bytes: Bucket | None = None  # budget of bytes written and pushed; None: no limit
        self.period_ns = 0  # sampling period of the configuration
        self.lock = threading.Lock()  # held while the account and the spool change together
        self.current = ""  # the recording that is being delivered; "" none
        self.busy_since = 0.0  # time.monotonic() at which its delivery began; 0 none
        self._attempts = 0  # failed ones, of the current recording
        self._head: tuple[str, Profile] | None = None  # name and profile of the recording that was read last
        self._cache = KeptCache.usual()

    def pending(self) -> Sequence[str]:
        """Return the names of the complete recordings, oldest first."""
        return self._finished()

    def do(self, name: str) -> None:
        """Deliver the recording `name`, unless it was removed from the spool."""
        with self.lock:  # the segment that is delivered must not be removed from a full spool
            self.current = name if self._spool.has(name) else ""
        if self.current:
            self.busy_since = time.monotonic()
            self._deliver(name)
            self.busy_since, self.current = 0.0, ""

    def _deliver(self, name: str) -> None:
        """Deliver a recording; count it as lost if that is impossible, plan another attempt after other errors."""
        if name <= self._ledger.done:  # killed after the account was written
            self._spool.remove(name)
            return
        try:
            profile = self._decoded(name)
            parts = _parts(profile)
            self._write(name, profile, parts[0][0])
        except (FormatError, UsageError) as problem:
            self._lose(name, DAMAGED, str(problem))
        except _Lost as lost:
            self._lose(name, *lost.args)
        except (OSError, PerfOffcpuError) as problem:
            self._retry(problem)
        except Exception as problem:  # after many attempts the segment is given up: the next one may work
            self._attempts += 1
            if self._attempts >= _ATTEMPTS:
                self._lose(name, FAILED, f"{type(problem).__name__}: {problem}")
            else:
                self._retry(problem)
        else:
            self._account(name, profile, parts)

    def _decoded(self, name: str) -> Profile:
        """Read and symbolize a recording; the result is kept for further attempts."""
        if self._head is None or self._head[0] != name:
            ledger = self._ledger
            profile = read_segment(
                self._spool.path_of(name),
                of_this_boot=ledger.is_of_this_boot(name),
                after_ns=ledger.end_before(name),
                period_ns=self.period_ns,
                cache=self._cache,
                clock=lambda now: ledger.clock_of(name, now),
            )
            self._head = name, profile
        return self._head[1]

    def _write(self, name: str, profile: Profile, begin_ns: int) -> None:
        """Write a segment to the dataset and its messages to the spool; raise _Lost if --max-bytes is spent."""
        if self.bytes is not None:
            self.bytes.spend(0, time.monotonic())
            if self.bytes.level < 0:
                raise _Lost(BYTES, "the bytes of --max-bytes are spent")
        size, origin = 0, self._ledger.origin(name)
        if self.dataset is not None:
            size = self.dataset.write(profile, origin, self._ledger.missing(name, begin_ns, _utc(profile)))
            self._metrics.add("dataset_bytes_total", size)
        size += sum(sink.keep(name, profile, origin.labels) for sink in self.push)
        if self.bytes is not None:
            self.bytes.spend(size, time.monotonic())

    def _account(self, name: str, profile: Profile, parts: Spans) -> None:
        """Count a delivered recording, remove it from the spool; merge and expire files of the dataset if due."""
        origin = self._ledger.origin(name)
        with self.lock:
            self._ledger.deliver(name, parts, _utc(profile))
            self._metrics.add("samples_total", len(profile.samples))
            for cause, count in profile.losses.items():
                if cause.is_loss:
                    self._metrics.add("losses_total", count, cause.name)
            self._ledger.save()
            self._spool.remove(name)
        self._head, self._attempts = None, 0
        self.worked("segments are delivered again")
        self._delivered(len(profile.samples), sum(end - begin for begin, end in parts) / 1e9)
        self._keep_up((machine_id() or printable(profile.meta.hostname), origin.boot_id), parts[0][0] + _utc(profile))

    def _keep_up(self, host: tuple[str, str], begin_ns: int) -> None:
        """Merge and remove files of the dataset if that is due, after a segment of `host` (host_id, boot_id) that
        begins at `begin_ns` (UTC). After a failure, the next segment tries again."""
        if self.dataset is None or self.upkeep is None:
            return
        try:
            done = self.upkeep.after(self.dataset.dataset, host, begin_ns, time.time_ns())
        except (OSError, PerfOffcpuError) as problem:
            self._metrics.add("upkeep_failures_total")
            if not self._is_neglected:
                self._say(Problem(f"files of the dataset are not merged or removed: {problem}"))
            self._is_neglected = True
        else:
            if done is not None:
                self._metrics.add("compacted_files_total", done[0].files)
                self._metrics.add("expired_hours_total", done[1].hours)
                self._is_neglected = False

    def _lose(self, name: str, cause: str, why: str) -> None:
        with self.lock:
            self._ledger.drop(name, cause)
            self._ledger.save()
            self._spool.remove(name)
        self._head, self._attempts = None, 0
        self._say(Problem(f"a segment is lost: {why}"))

    def _retry(self, problem: Exception) -> None:
        self._metrics.add("dataset_failures_total")
        self.retry(f"not delivered: {problem}")


class _Lost(Exception):
    """Raised for a recording that cannot be delivered, with (cause of the loss, reason in words)."""


def _utc(profile: Profile) -> int:
    """Return UTC minus CLOCK_MONOTONIC, ns; 0 if not known."""
    return profile.meta.wall_clock_ns - profile.meta.wall_clock_at_ns


def _parts(profile: Profile) -> Spans:
    """Return (begin, end) of each recorded time, CLOCK_MONOTONIC ns; raise _Lost if the recording has no times."""
    parts = profile.meta.recorded
    if parts[0][0] <= 0 or parts[-1][1] < parts[0][0]:
        raise _Lost(EMPTY, "it has no time")
    return parts


ClockPair = tuple[int, int]  # the same moment in UTC and in CLOCK_MONOTONIC, ns, as of `wall_clock_pair`


def read_segment(
    path: str,
    *,
    of_this_boot: bool,
    after_ns: int,
    period_ns: int = 0,
    cache: DiskCache | None = None,
    clock: Callable[[ClockPair], ClockPair] = lambda pair: pair,
) -> Profile:
    """Read, unwind and symbolize a recording.

    A killed recorder leaves a file without its end, which describes machine and clocks. If it was made in this boot,
    the present values are used; only the wall clock may have been set since. A file of an earlier boot has no clocks.

    `after_ns`: end of the recorder's previous file, CLOCK_MONOTONIC ns, 0 if not known; `period_ns`: sampling period to
    assume if the end is missing and no sample has a weight; `cache`: of symbols and frame rules; `clock`: is called
    with the present clocks if the recording has none, and returns the clocks to use. Raise FormatError if it is no
    recording, OSError if it cannot be read."""
    symbols = SymbolizeOptions(cache=cache)
    recording = load_recording(path, snapshots=True)
    if of_this_boot and not recording.meta.wall_clock_ns:
        recording = completed(recording, after_ns, clock(wall_clock_pair()), period_ns)
    return symbolize(deferred_as_samples(unwind(recording, symbols.search())), symbols)


def completed(recording: Recording, after_ns: int, clock: ClockPair, period_ns: int) -> Recording:
    """Add the facts about machine, clocks and recorded times that the missing end of a file of this boot would have.
    `clock`: the clocks to use; other arguments as of `read_segment`. The recording may have waits before `after_ns`,
    which the recorder drained late."""
    machine, meta, samples = os.uname(), recording.meta, recording.samples
    weights = samples.period[samples.has(SampleFlag.SAMPLED)]
    end_ns = max(meta.end_ns, meta.last_ns, after_ns, 0)
    joined_meta = replace(
        meta,
        hostname=meta.hostname or machine.nodename,
        os_release=meta.os_release or machine.release,
        arch=meta.arch or machine.machine,
        nr_cpus=meta.nr_cpus or os.cpu_count() or 0,
        kernel_build_id=meta.kernel_build_id or kernel_build_id().hex(),
        wall_clock_ns=clock[0],
        wall_clock_at_ns=clock[1],
        begin_ns=meta.begin_ns or after_ns or max(meta.first_ns, 0),
        end_ns=end_ns,
        parts=_completed_parts(recording, end_ns),
        # The weight of a sample is a multiple of the period, mostly the period itself.
        sampling=meta.sampling or Sampling(period_ns=int(weights.min()) if len(weights) else period_ns),
    )
    return replace(recording, samples=at_pauses(samples, joined_meta.parts), meta=joined_meta)


def _completed_parts(recording: Recording, end_ns: int) -> Spans:
    """Return recorded times (begin, end), ns: those in the recording, and from the first later sample to `end_ns`."""
    meta, times = recording.meta, recording.samples.time_ns
    if not meta.end_ns or end_ns <= meta.end_ns:
        return meta.parts
    after = times[times > meta.end_ns]
    spans = meta.parts or ((meta.begin_ns, meta.end_ns),)
    return (*spans, (int(after[0]) if len(after) else end_ns, end_ns))
