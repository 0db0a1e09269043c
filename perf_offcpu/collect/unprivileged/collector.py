# SPDX-License-Identifier: Apache-2.0
"""The collector of an ordinary user: perf events of own threads instead of BPF programs, and a reader that looks at
threads while they sleep. It records every wait with its exact times; of longer waits also the user stack, the system
call and the object. It records neither wakers nor the run-queue delay of single waits, and kernel stacks only if
kernel.perf_event_paranoid is 1 or lower."""

import contextlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi.offcpu import UNKNOWN_U64
from perf_offcpu.collect.counters import Counter, Span, account_sample, counters_event
from perf_offcpu.collect.existing.inventory import KnownTasks
from perf_offcpu.collect.existing.kernel_maps import KernelMaps
from perf_offcpu.collect.existing.maps import MappedBuildIds
from perf_offcpu.collect.jvms import Jvms, jit_payloads
from perf_offcpu.collect.kernel_totals.user_stacks import Unread
from perf_offcpu.collect.kernel_totals.waits import sum_samples, united
from perf_offcpu.collect.options import RecordOptions
from perf_offcpu.collect.python.event_loops import read_loops, task_payloads
from perf_offcpu.collect.python.functions import functions_payload
from perf_offcpu.collect.python.loop_tasks import Task
from perf_offcpu.collect.python.processes import PythonProcesses
from perf_offcpu.collect.rings.pressure import Pressure
from perf_offcpu.collect.rings.rings import Sink
from perf_offcpu.collect.rings.side_band import SideBand
from perf_offcpu.collect.system.background import in_background, stepping_until
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.targets import process_of
from perf_offcpu.collect.unprivileged import records
from perf_offcpu.collect.unprivileged.events import TaskEvents
from perf_offcpu.collect.unprivileged.looks import Look, Reader, Sleeper
from perf_offcpu.collect.unprivileged.objects import CallObjects, WaitObject
from perf_offcpu.collect.unprivileged.switches import BEFORE, IN, KernelChains, SwitchLog
from perf_offcpu.collect.wait_objects.describe import Described, describe_java_lock, object_payloads
from perf_offcpu.collect.wait_objects.owners import AwaitedLocks, outer_locks
from perf_offcpu.losses import LossCause, Losses
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.structs import Closing
from perf_offcpu.text import Say

_SETTLE_NS: Final = 1_000_000  # time after which the kernel has written a record with this time into a ring


class UserCollector(Closing):
    """Record waits of the user's threads. Raises CapabilityError, RecordingError: the kernel refuses the events.
    `command_pid`: the process that will exec the target command, else 0. Attributes: as `collector.Collector`."""

    def __init__(self, options: RecordOptions, command_pid: int, say: Say) -> None:
        self.options, self.threshold_ns = options, options.threshold_ns
        self.draws_stacks = False  # stacks of short waits are not known
        self.span = Span(0, 0, options.threshold_ns)
        target, self._on_exec = options.target, command_pid > 0
        tasks = {tid: pid for pid in target.processes for tid in records.threads_of(pid)}
        tasks |= {tid: process_of(tid) or 0 for tid in target.threads}
        self._events = TaskEvents(options, [command_pid] if command_pid else list(tasks), self._on_exec, say)
        waits = self._events.waits
        mask = records.register_mask() if options.stack_bytes else 0
        self.waits = EventSpec(waits.attr._replace(sample_regs_user=mask), waits.name, waits.ids)
        self.rings, self.pressure = self._events.rings, Pressure()
        self.build_ids, self.unread = MappedBuildIds(), Unread()
        self.known_tasks, self.known_kernel = KnownTasks(), KernelMaps()
        self.counters_event = counters_event(self._events.support)
        self._lost, self._samples, self._unseen = Losses(), 0, Counter(0)
        self._pythons = PythonProcesses(self._lost)
        self.jvms = Jvms(say, self._lost, self._recorded, None, asks=options.asks_jvms, says_ended=True, apart_ns=1)
        self._locks: AwaitedLocks = {}  # of JVMs
        self._loops = dict[int, list[Task]]()  # tid of a thread that runs an event loop → tasks of the loop
        self._read_ns = 0  # time when locks and loops were read: facts about waits that began before it
        followers = self._pythons, self.jvms
        self._side_band = SideBand(self.build_ids, self.known_kernel, self.unread.lost, followers)
        self._tasks, self._budgets = tasks, records.Budgets(tasks)
        self._chains = KernelChains(self._events.switch_ids, self._events.switch_shape)
        self._switches = SwitchLog(tasks, 0, self._lost, self._chains)
        self._objects = CallObjects(options.objects)
        self._reader = Reader(options.stack_bytes, self._objects, self._pythons.offsets, self._lost)
        self._sums, self.sums = np.zeros(0, records.SUM), 0
        self._keeps_preempted = "R" in options.states

    @property
    def events(self) -> list[EventSpec]:
        """All events as the file describes them: on-CPU events, offcpu-time, side band (tracker), counters."""
        *sampling, tracker = self._events.specs
        return [*sampling, self.waits, tracker, self.counters_event]

    def begin(self) -> None:
        """Enable the events of existing threads; the events of a command enable themselves at its exec."""
        begin_ns = now_ns()
        if not self._on_exec:
            self._events.enable()
        self.span = Span(begin_ns, 0, self.options.threshold_ns)
        self._switches = SwitchLog(self._tasks, begin_ns, self._lost, self._chains)

    def end(self) -> None:
        """Stop all events."""
        if not self.span.end_ns:
            self.span = Span(self.span.begin_ns, now_ns(), self.span.threshold_ns)
        self._events.disable()

    def drain(self) -> None:
        """Empty the rings; keep their content for `write`."""
        with self.pressure.draining(lambda: self.rings.last_fill):
            self.rings.drain(self._switches)

    def look(self) -> None:
        """Empty the rings, then read stacks and objects of sleeping threads, as far as the CPU budget allows."""
        self.drain()
        self._reader.follow(self._sleepers())

    def _write_others(self, sink: Sink) -> None:
        """Write side-band records and on-CPU samples; `look` at threads while build-ids are read from files."""
        others, self._switches.others = self._switches.others, []
        self._side_band.sink, self._side_band.meanwhile = sink, self.look
        if others:
            self._side_band.append(*others)
        self._pythons.count_unread()

    def write(self, sink: Sink) -> None:
        """Empty the rings; write their side-band records and on-CPU samples, and the waits that have ended."""
        before_ns = now_ns() - _SETTLE_NS
        self.drain()
        self._write_others(sink)
        self._write_intervals(self._switches.take(before_ns), sink)

    def _recorded(self) -> set[int]:
        return {*self._switches.last["pid"].tolist()}

    def read_waiting(self) -> None:
        """Read the locks for which threads of JVMs wait, and the tasks of event loops, for `finish`; `look` at sleeping
        threads meanwhile. Call before `end`."""
        sleepers = self._switches.off_cpu()
        rows = np.flatnonzero(np.isin(sleepers["pid"], [*self._pythons.pids])).tolist()
        self._read_ns = now_ns()
        if self.options.objects:
            locks = in_background(lambda: self.jvms.awaited_locks({*sleepers["pid"].tolist()}))
            self._locks = stepping_until(locks, self.look)
        loops = stepping_until(in_background(lambda: read_loops(sleepers, rows, self.unread)), self.look)
        self._loops = {int(sleepers["tid"][row]): tasks for row, (_, tasks) in loops.items()}

    def _loop_payloads(self, last: NDArray[Any]) -> list[bytes]:
        """Return payloads with the tasks of event loops of waiting threads. `last`: unfinished waits (INTERVAL)."""
        payloads, waits = list[bytes](), {int(wait["tid"]): wait for wait in last}
        for tid, tasks in self._loops.items():
            if (wait := waits.get(tid)) is not None:
                begin_ns = int(wait["begin"]) if wait["begin"] < self._read_ns else 0
                payloads += task_payloads((int(wait["pid"]), tid), (begin_ns, self.span.end_ns, 0), tasks)
        return payloads

    def _with_java_locks(self, last: NDArray[Any], looks: list[Look | None]) -> list[bytes]:
        """Replace the objects in `looks` at threads that wait for a lock of a JVM; return payloads that describe the
        locks. `last`: unfinished waits (INTERVAL); those that began after the locks were read are left unchanged. At a
        monitor, which HotSpot checks again after up to 1 s, the timeout becomes unknown."""
        locks = {tid: (pid, lock) for pid in self._locks for tid, lock in outer_locks(pid, self._locks[pid]).items()}
        objects = dict[int, Described]()
        for row in np.flatnonzero(np.isin(last["tid"], list(locks)) & (last["begin"] < self._read_ns)).tolist():
            pid, lock = locks[int(last["tid"][row])]
            if look := looks[row]:
                described = describe_java_lock(pid, lock, named=self.options.object_names)
                asked_ns = UNKNOWN_U64 if lock.is_monitor else look.found.asked_ns
                looks[row] = look._replace(found=WaitObject(described["id"], asked_ns, lock.owner))
                objects[described["id"]] = described
        return object_payloads([*objects.values()])

    def finish(self, sink: Sink) -> None:
        """Write the rest after `end`: the last waits, unfinished waits, sums and budgets."""
        end_ns = self.span.end_ns
        self._reader.follow(self._sleepers(), hurry=True)
        self.drain()
        self._write_others(sink)
        self._write_intervals(self._switches.take(1 << 62), sink)
        last = self._switches.unfinished(end_ns)
        looks = [self._reader.take(wait) for wait in last]
        payloads = self._with_java_locks(last, looks) + self._loop_payloads(last)
        payloads += [payload for pid, text in self.jvms.maps.items() for payload in jit_payloads(pid, text)]
        for payload in payloads:
            sink.append(account_sample(self.counters_event, payload, end_ns))
        self._budgets.add(last, dict(enumerate(looks)))
        self._budgets.read_delays()
        # If a thread has not switched, only a look shows that it sleeps.
        waits = [row for row, look in enumerate(looks) if look or last["kind"][row] not in (IN, BEFORE)]
        waits = [row for row in waits if last["end"][row] > last["begin"][row] and not last["preempted"][row]]
        self.still_blocked = len(waits)
        for low in range(0, len(waits), records.AT_ONCE):
            rows = waits[low : low + records.AT_ONCE]
            self._write_waits(last[rows], [looks[row] for row in rows], sink, over=False)
        self.sums = len(self._sums)
        for _, samples in sum_samples(self.waits, self._sums, Ragged(np.zeros(self.sums + 1, np.int64))):
            sink.append(samples)
        for record in self._budgets.records(self.counters_event, end_ns) if self.options.budget else ():
            sink.append(record)

    def read_delays(self) -> None:
        """Read the run-queue delays of threads, which cannot be read once they have ended."""
        self._budgets.read_delays()

    def _sleepers(self) -> list[Sleeper]:
        rows = self._switches.off_cpu()
        rows = rows[rows["preempted"] == 0]
        return [Sleeper(*row) for row in zip(*(rows[name].tolist() for name in ("pid", "tid", "time")), strict=True)]

    def _write_intervals(self, intervals: NDArray[Any], sink: Sink) -> None:
        is_wait = (intervals["kind"] != IN) & ((intervals["preempted"] == 0) | self._keeps_preempted)
        length = intervals["end"] - intervals["begin"]
        is_long = is_wait & (length >= self.options.threshold_ns)
        rows = np.flatnonzero(is_long)
        looks = [self._reader.take(intervals[row]) for row in rows]
        if len(intervals):
            self._budgets.add(intervals, dict(zip(rows.tolist(), looks, strict=True)))
        short = intervals[is_wait & ~is_long & (length >= self.options.min_block_ns)]
        if len(short):
            self._sums = united(np.concatenate([self._sums, records.short_sums(short)]))
        unseen = [row for row, look in zip(rows.tolist(), looks, strict=True) if look is None]
        self._unseen = Counter(self._unseen.events + len(unseen), self._unseen.ns + int(length[unseen].sum()))
        self._samples += len(rows)
        for low in range(0, len(rows), records.AT_ONCE):
            part = slice(low, low + records.AT_ONCE)
            self._write_waits(intervals[rows[part]], looks[part], sink)
        self._chains.forget(self._switches.last)

    def counters(self) -> dict[LossCause, Counter]:
        """Return the counters of waits and losses; UNPRIVILEGED marks the recording as an ordinary user's."""
        counted = {cause: Counter(count) for cause, count in (self._lost + self.unread.lost).items()}
        own = {losses.SAMPLES: Counter(self._samples), losses.UNPRIVILEGED: Counter(1)}
        seen = {losses.WAITS_UNSEEN: self._unseen, losses.LOOKS_DISTURBED: Counter(self._reader.disturbed)}
        return own | {cause: count for cause, count in (seen | counted).items() if count.events}

    def lost_by_id(self) -> dict[int, int]:
        """Return event id → number of records that found a full ring."""
        return self._events.lost()

    def oncpu_samples(self) -> int:
        """Return the number of on-CPU samples that went into the rings."""
        return self._switches.samples

    def note_existing(self, mappings: bytes) -> None:
        """Let the followers of CPython and JVMs see records of mappings that existed before the recording."""
        self._pythons.see(mappings)
        self.jvms.see(mappings)

    def _write_waits(self, waits: NDArray[Any], looks: list[Look | None], sink: Sink, *, over: bool = True) -> None:
        """Write a sample of each wait, and one with its Python functions if a look at the sleeping thread found any.
        `looks`: the look of each wait, None if there was none. `over`: False for waits that have not ended."""
        sink.append(records.wait_records(self.waits, waits, looks, self._chains.of_waits(waits), over=over))
        for wait, look in zip(waits, looks, strict=True):
            if look and look.functions:
                ids = int(wait["pid"]), int(wait["tid"]), int(wait["begin"])
                payload = functions_payload(ids, look.functions)
                sink.append(account_sample(self.counters_event, payload, look.end_ns))

    def take_objects(self) -> NDArray[Any]:
        """Return the wait objects that were new since the last call, as rows of `struct offcpu_object`."""
        return self._objects.take_objects()

    def run_stats(self) -> dict[str, tuple[int, int]]:
        """Return {}: there are no BPF programs."""
        return {}

    def close(self) -> None:
        """Close all events and rings."""
        self._events.close()
        with contextlib.suppress(BufferError):
            self.rings.close()
        self._side_band.close()
        self._pythons.close()
