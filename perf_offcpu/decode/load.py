# SPDX-License-Identifier: Apache-2.0
"""Decode a perf.data file to a Recording, in one pass over the file. Samples become columns chunk by chunk, side-band
records are collected, and replayed in time order at the end: every sample gets its thread's comm and address space."""

import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.attr import AttrFlag, PerfType, SoftwareConfig
from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.machine import arch_of_registers
from perf_offcpu.abi.records import RECORD_LAYOUTS, CpuMode, RecordType
from perf_offcpu.decode.account import CollectorAccount, object_table
from perf_offcpu.decode.batch import Batch, BatchCollector
from perf_offcpu.decode.continued import at_pauses, joined_budget, without_continued
from perf_offcpu.decode.deferred import decode_deferred, merge_deferred
from perf_offcpu.decode.python_lines import with_functions_on_cpu, with_places
from perf_offcpu.decode.retype import count_foreign_ids, repair_ids
from perf_offcpu.decode.samples import SampleDecoder, is_offcpu, read_account
from perf_offcpu.decode.snapshot_store import SnapshotStore
from perf_offcpu.decode.switches.events import SWITCH_RECORDS, SwitchDecoder
from perf_offcpu.decode.switches.waits import has_switches, with_waits
from perf_offcpu.decode.tasks.columns import task_records
from perf_offcpu.decode.tasks.replay import SIDE_TYPES, TaskReplay
from perf_offcpu.decode.trim_stacks import cut_wrong_callers
from perf_offcpu.losses import Losses
from perf_offcpu.model.columns import Strings, unambiguous
from perf_offcpu.model.coverage import Sampling
from perf_offcpu.model.recording import SUM_FLAGS, Dsos, Evsel, Meta, Recording, SampleFlag, Samples
from perf_offcpu.perfdata.events import Events, EventSpec
from perf_offcpu.perfdata.features import BuildId, Features, decoded
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.scan import Chunk
from perf_offcpu.structs import mutable

_LOSS_CAUSES = {int(RecordType.LOST): losses.LOST_RECORDS, int(RecordType.LOST_SAMPLES): losses.LOST_SAMPLES}

_OTHERS = RECORD_LAYOUTS.keys() - SIDE_TYPES - SWITCH_RECORDS - {RecordType.CALLCHAIN_DEFERRED}
"""Types of records that are read for losses, and because damage in any record is counted."""

_KNOWN_TYPES = np.array([*RecordType], np.uint32)
_LARGEST_BLOCK = (32 << 20) - (64 << 10)  # bytes, with malloc's header just below glibc's DEFAULT_MMAP_THRESHOLD_MAX
_CLOCKS = [(PerfType.SOFTWARE, config) for config in (SoftwareConfig.CPU_CLOCK, SoftwareConfig.TASK_CLOCK)]


@mutable
class Head:
    """Holds the parts of a recording other than its records, as a `PerfDataReader` does."""

    events: Events
    features: Features
    counters: Losses
    path: str


def load_recording(
    path: str | os.PathLike[str], *, merge: bool = True, switches: bool = True, snapshots: bool = False
) -> Recording:
    """Read a recording: a file, a directory of `perf record --threads`, or "-" for standard input. `merge`: complete
    samples whose user callchain was deferred. `switches`: if the recording has context switches (sched_switch
    tracepoints or SWITCH records) and no off-cpu event, add a sample for each wait between two switches
    (`decode.switches.intervals`). `snapshots`: keep copies of user stacks, for `unwind.unwinder`. Raises FormatError:
    it cannot be opened, or is no perf.data. Damage inside is counted in `losses`."""
    with PerfDataReader.open(path) as reader:
        recording = read_recording(reader, switches=switches, snapshots=snapshots)
        return cut_wrong_callers(merge_deferred(recording) if merge else recording)


def read_recording(reader: PerfDataReader, *, switches: bool = True, snapshots: bool = False) -> Recording:
    """Read a recording from an open reader, as `load_recording`; deferred callchains are not merged."""
    # Let glibc keep the memory that a chunk frees for the next one. It returns memory to the kernel, to be
    # cleared and faulted in again, when twice as much is free as the largest block that the program has ever
    # freed (malloc.c: the dynamic mmap threshold): here, one that is never written to.
    np.empty(_LARGEST_BLOCK, np.uint8)
    collector, tasks, account = BatchCollector(), TaskReplay(Strings()), CollectorAccount()
    store = SnapshotStore(reader.counters, reopen=reader.reopen)
    switch_decoder = SwitchDecoder(reader.features, reader.counters) if switches else None
    stacks = store if snapshots else None
    decoder = SampleDecoder(reader.counters, account, collector.chains, switch_decoder, stacks)
    batch = _collected(reader.chunks(), reader, decoder, collector, tasks)
    batch.samples.snapshot = store.callers.settled(batch.samples.snapshot, reader.counters)
    return assemble(reader, batch, tasks, account).replaced(snapshots=store.release())


def _collected(
    chunks: Iterable[Chunk], reader: PerfDataReader, decoder: SampleDecoder, batches: BatchCollector, tasks: TaskReplay
) -> Batch:
    """Decode `chunks` into `batches` (samples) and `tasks` (side-band records); return all that `batches` has."""
    for chunk in chunks:
        rows, parts = decoder.decode(chunk, reader.events)
        batches.add_interleaved(parts, rows)
        batches.add(decode_deferred(chunk, reader.events, reader.counters))
        note_tasks(chunk, reader, tasks)
    return batches.release()


def read_tasks(reader: PerfDataReader) -> tuple[TaskReplay, CollectorAccount]:
    """Read, for `assemble`, side-band records, `offcpu-counters` and `offcpu-task` samples, but no other samples."""
    tasks, account = TaskReplay(Strings()), CollectorAccount()
    for chunk in reader.chunks():
        read_account(chunk, reader.events, account)
        note_tasks(chunk, reader, tasks)
    return tasks, account


def note_tasks(chunk: Chunk, reader: PerfDataReader, tasks: TaskReplay) -> None:
    """Note the side-band records of a chunk in `tasks`, and add the chunk's losses to `reader.counters`."""
    tasks.notes.take(task_records(chunk, SIDE_TYPES, reader.events, reader.counters))
    reader.counters.add(losses.UNKNOWN_RECORD, int((~np.isin(chunk.types, _KNOWN_TYPES)).sum()))
    for group in task_records(chunk, _OTHERS, reader.events, reader.counters):
        if cause := _LOSS_CAUSES.get(group.kind):
            records = (group.examples[example] for example in group.example.tolist())
            reader.counters.add(cause, sum(record.values["lost"] for record in records))


def assemble(head: Head | PerfDataReader, batch: Batch, tasks: TaskReplay, account: CollectorAccount) -> Recording:
    """Build the Recording from decoded samples (`batch`), side-band records (noted in `tasks`) and the recorder's
    account. Pids and tids are repaired, waits between switches become samples, and each sample gets its comm, address
    space and Python functions. Losses are added to `head.counters`."""
    counters = head.counters
    if losses.RECORDS_UNWRITTEN in account.counted:  # where compressed, the file ends within one of them
        counters.pop(losses.FILE_CUT, None)
    for cause, count in account.counted.items():
        counters.add(cause, count)
    tasks.replay()
    tasks.split_spaces(account.perf_maps)
    counters.add(losses.MAPS_FORGOTTEN, tasks.spaces.forgotten)
    evsels = [
        Evsel(spec.name, spec.attr, "ns" if is_offcpu(spec) or (spec.attr.type, spec.attr.config) in _CLOCKS else "")
        for spec in head.events.specs
    ]
    samples = repair_ids(batch.samples, batch.from_upstream, tasks.tasks)
    samples = with_functions_on_cpu(samples)
    counters.add(losses.FOREIGN_IDS, count_foreign_ids(samples, tasks.tasks))
    if has_switches(batch.switches):
        samples = with_waits(samples, batch.switches, tasks.tasks, evsels, counters, account)
    # Stable: samples of one time stay in the order of the file; those without time come first.
    samples.reorder(np.argsort(samples.time_ns, kind="stable"))
    samples = tasks.attribute(samples)
    samples, places = with_places(samples, batch.callchains, account.codes, account.python, tasks.strings, counters)
    spaces, maps = tasks.spaces.tables()
    deferred = batch.deferred.take(np.argsort(batch.deferred.time_ns, kind="stable"))
    ids = {name: getattr(deferred, name) for name in ("time_ns", "pid", "tid")}
    walked = tasks.attribute(Samples.filled(len(deferred), **ids))
    files = head.features.build_ids()
    meta = _read_meta(head.events, head.features, files, head.path, samples, account)  # counts damaged features
    budget, borders = joined_budget(account.budgets)
    if len(account.spans) > 1:
        samples = without_continued(samples, borders, account.end_ns)
    return Recording(
        samples=at_pauses(samples, meta.parts),
        callchains=batch.callchains,
        evsels=evsels,
        strings=tasks.strings,
        spaces=spaces,
        maps=maps,
        dsos=_with_build_ids(tasks.notes.dsos(), tasks.strings, files),
        comms=tasks.comms,
        tasks=tasks.tasks,
        budget=budget,
        loops=account.event_loops(),
        places=places,
        perf_maps=account.perf_maps,
        objects=object_table(account.objects, tasks.strings),
        kernel_symbols=tasks.kernel_symbols(),
        deferred=deferred.with_columns(comm=walked.comm, space=walked.space),
        cgroups=tasks.cgroups,
        paths=_paths(files),
        losses=dict(counters),
        meta=meta,
    )


def _with_build_ids(dsos: Dsos, strings: Strings, files: Sequence[BuildId]) -> Dsos:
    """Return `dsos`; a dso without build-id gets the one that the header (`files`) has for its path, if just one."""
    ids = unambiguous((strings.find(decoded(entry.filename)), entry.build_id) for entry in files)
    id_of_path = {path: strings.intern(build_id) for path, build_id in ids.items()}
    pairs = zip(dsos.path.tolist(), dsos.build_id.tolist(), strict=True)
    return dsos.with_columns(build_id=np.array([own or id_of_path.get(path, 0) for path, own in pairs], np.uint32))


def _paths(files: Sequence[BuildId]) -> dict[str, list[str]]:
    paths: dict[str, list[str]] = {}
    for entry in files:
        if entry.cpumode == CpuMode.USER:
            paths.setdefault(entry.build_id, []).append(decoded(entry.filename))
    return paths


def _read_meta(
    events: Events, features: Features, files: Sequence[BuildId], path: str, samples: Samples, account: CollectorAccount
) -> Meta:
    """Return facts about machine and run, to be called after the last chunk; damaged features are counted."""
    clockids = (spec.attr.clockid for spec in events.specs if spec.attr.flags & AttrFlag.USE_CLOCKID)
    clock = features.values(Feature.CLOCK_DATA) or {}
    timed = samples.time_ns[samples.time_ns >= 0]
    images = (entry for entry in files if entry.cpumode == CpuMode.KERNEL)
    kernel = (entry.build_id for entry in images if entry.filename.startswith(b"[kernel.kallsyms]"))
    return Meta(
        hostname=features.text(Feature.HOSTNAME),
        os_release=features.text(Feature.OSRELEASE),
        arch=recorded_arch(features, events.specs),
        version=features.text(Feature.VERSION),
        cmdline=features.cmdline(),
        cpu_desc=features.text(Feature.CPUDESC),
        nr_cpus=(features.values(Feature.NRCPUS) or {}).get("available", 0),
        clockid=next(clockids, -1),
        wall_clock_ns=clock.get("wall_clock", 0),
        wall_clock_at_ns=clock.get("clockid_time", 0),
        begin_ns=account.begin_ns,
        end_ns=account.end_ns,
        parts=account.parts(),
        sampling=_sampling(account, samples),
        threshold_ns=account.threshold_ns if account.end_ns else -1,
        first_ns=int(timed[0]) if len(timed) else -1,
        last_ns=int(timed[-1]) if len(timed) else -1,
        kernel_build_id=next(kernel, ""),
        source=path,
        unprivileged=losses.UNPRIVILEGED.name in account.notes,
    )


def _sampling(account: CollectorAccount, samples: Samples) -> Sampling:
    """Return periods, number and sums of waits sampled by length; if none were, all 0 but the period of stacks."""
    causes = losses.SAMPLING_PERIOD, losses.STACK_PERIOD
    period_ns, stack_period_ns = (account.notes.get(cause.name, (0, 0))[1] for cause in causes)
    if not period_ns:
        return Sampling(stack_period_ns=stack_period_ns)
    # Waits whose sample could not be sent were summed, or are counted as lost.
    ended = (account.notes.get(cause.name, (0, 0)) for cause in (losses.SAMPLES, losses.UNSAMPLED))
    number, ns = map(sum, zip(*ended, strict=True))
    is_single = samples.has(SampleFlag.SAMPLED | SampleFlag.BEGAN_BEFORE) & ~samples.has(SampleFlag.STILL_BLOCKED)
    count, weight = (int(column[is_single].sum()) for column in (samples.count, samples.period))
    # A weight of more than twice the length of its wait is one period, longer where a limit of the rate chose it.
    # The account has the longest one of all files of the recording, at most.
    is_limited = account.notes.get(losses.THRESHOLD_RAISED.name, (0, 0))[1] > period_ns
    is_one_period = samples.has(SampleFlag.SAMPLED) & (samples.period > 2 * samples.longest_ns)
    longest_ns = int(samples.period[is_one_period & (samples.longest_ns >= 0)].max(initial=0))
    is_longer = is_limited and longest_ns > period_ns
    return Sampling(period_ns, number, ns, count, weight, longest_ns if is_longer else 0)


def recorded_arch(features: Features, specs: Sequence[EventSpec]) -> str:
    """Return `uname -m` of the recorded machine; "" if it is not known. A killed recorder leaves no features. The
    registers of its samples tell the machine."""
    masks = [spec.attr.sample_regs_user for spec in specs]
    return features.text(Feature.ARCH) or next(filter(None, map(arch_of_registers, masks)), "")


class GrowingFile:
    """Decodes a recording while it is being written, part by part: from one account of the recorder (command `account`
    of `record --control`) to the next. Each part is a Recording of its own. Tasks, mappings, wait objects, code objects
    and copies of stacks are in the file once, and are known in all later parts. `features`: bit → body of each header
    feature, which the file has only at its end."""

    def __init__(self, path: str, features: Mapping[int, bytes]) -> None:
        self._path, self._reader = path, (reader := PerfDataReader.open(path))
        reader.features.bodies.update(features)
        self._place = reader.head.data_offset
        self._tasks, self._store = TaskReplay(Strings()), SnapshotStore(reader.counters, reopen=reader.reopen)
        self._account = CollectorAccount()  # of the parts before
        self._rest = Batch()  # waits that ended after the last account

    def close(self) -> None:
        """Close the file."""
        self._reader.close()

    def read(self, end: int | None) -> Recording | None:
        """Return the records from the recorder's previous account (`offcpu-counters`) to its last one before byte
        `end`; None without a new account. `end` None: the file is complete, read it to its end."""
        if end is None:
            with PerfDataReader.open(self._path) as complete:
                end = complete.head.data_end or self._place
        reader, collector, before = self._reader, BatchCollector(), self._account
        account = CollectorAccount(objects=before.objects, codes=before.codes, perf_maps=before.perf_maps)
        reader.counters = self._store.counters = counters = Losses()
        decoder = SampleDecoder(counters, account, collector.chains, snapshots=self._store)
        collector.add(self._rest)
        batch = _collected(reader.chunks_between(self._place, end), reader, decoder, collector, self._tasks)
        self._place, self._account = end, account
        if not account.end_ns:
            self._rest = batch
            return None
        samples = batch.samples
        is_later = (samples.time_ns > account.end_ns) & ~samples.has(SUM_FLAGS)
        later, ended = np.flatnonzero(is_later), np.flatnonzero(~is_later)
        self._rest = Batch(samples.take(later), batch.callchains, batch.from_upstream[later])
        batch.samples, batch.from_upstream = samples.take(ended), batch.from_upstream[ended]
        batch.samples.snapshot = self._store.callers.settled(batch.samples.snapshot, counters)
        return assemble(reader, batch, self._tasks, account).replaced(snapshots=self._store.view())
