# SPDX-License-Identifier: Apache-2.0
"""Replay side-band records in order of time: tasks and their address spaces over time. COMM, FORK, EXIT, MMAP and
related records describe threads, their names, their processes and the mappings of these. The replay keeps all of it
with its times, exited tasks included, so that any sample gets the comm and the address space of its moment. The rules
are those of perf's tools/perf/util/{machine,thread}.c where they are right."""

import heapq
import itertools
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import numpy as np

from perf_offcpu.abi.jit_map import borders_of
from perf_offcpu.abi.records import KSYMBOL_UNREGISTER, PROT_EXEC, CpuMode, Misc, RecordType
from perf_offcpu.decode.tasks.address_spaces import AddressSpaces, Mapping
from perf_offcpu.decode.tasks.columns import MapEvents, MapRuns, TaskRecords, map_runs
from perf_offcpu.model.columns import I64, Strings
from perf_offcpu.model.growing import GrowingTable
from perf_offcpu.model.lookup import KERNEL_SPACE, rows_at
from perf_offcpu.model.recording import Comms, Dsos, KernelSymbols, Samples, Tasks

Note = tuple[Any, ...]

# Plain numbers: the operators of enum.IntFlag take longer than all else that is done for a record.
_CPUMODE_MASK, _KERNEL, _USER = int(Misc.CPUMODE_MASK), int(CpuMode.KERNEL), int(CpuMode.USER)
_MMAP_DATA, _COMM_EXEC, _FORK_EXEC = int(Misc.MMAP_DATA), int(Misc.COMM_EXEC), int(Misc.FORK_EXEC)
_MAPS = (RecordType.MMAP, RecordType.MMAP2)


def _is_kernel(misc: int) -> bool:
    return misc & _CPUMODE_MASK == _KERNEL


class TaskNotes:
    """Collects the notes of side-band records of `SIDE_TYPES`, in file order. There may be a million of them. Mappings,
    which are most of them, are kept as columns; others as flat tuples (time, number, type, content…). The number is the
    place among all records, which decides between equal times."""

    def __init__(self, strings: Strings) -> None:
        self.strings, self._noted = strings, 0
        self._events, self._maps = list[Note](), GrowingTable(MapEvents)
        self._dsos, self._dso_of = dict[tuple[int, int, int], int](), dict[tuple[bytes, bytes, int], int]()

    def take(self, groups: list[TaskRecords]) -> None:
        """Note the records of a chunk (`groups`: one for each type), numbered in file order."""
        if not groups:
            return
        contents = self._contents(groups)
        rows = np.concatenate([group.rows for group in groups])
        numbers = np.empty(len(rows), np.int64)
        numbers[np.argsort(rows)] = np.arange(self._noted, self._noted + len(rows))
        self._noted += len(rows)
        numbers_of_groups = np.split(numbers, np.cumsum([len(group.rows) for group in groups])[:-1])
        for group, content, part in zip(groups, contents, numbers_of_groups, strict=True):
            if group.kind in _MAPS:
                self._maps.append(_map_events(group, content, part))
            else:
                self._events += _events(group, content, part)

    def _contents(self, groups: list[TaskRecords]) -> list[list[Note | None]]:
        # Names are numbered in the order of the file, whatever the types of records that hold them.
        examples = [
            (record.file_offset, number, index)
            for number, group in enumerate(groups)
            for index, record in enumerate(group.examples)
        ]
        contents: list[list[Note | None]] = [[None] * len(group.examples) for group in groups]
        for _, number, index in sorted(examples):
            record = groups[number].examples[index]
            contents[number][index] = _CONTENTS[record.type](self, record.misc, record.values)
        return contents

    def release(self) -> tuple[list[Note], MapEvents]:
        """Return the notes since the last call: mappings in any order, other notes in order of time."""
        events, self._events = sorted(self._events), []
        return events, self._maps.release()

    def dsos(self) -> Dsos:
        """Return all mapped objects; a map's `dso` is a row here."""
        return Dsos.from_rows(list(self._dsos))

    # Return the content of a record beyond the fields of `_OWN`, by type; None if it is of no use.

    def _comm(self, misc: int, values: dict[str, Any]) -> Note:
        """Return the content of a COMM: (string of the comm, nonzero if an exec set it)."""
        return self.strings.intern(values["comm"]), misc & _COMM_EXEC

    def _task(self, misc: int, _: dict[str, Any]) -> Note:
        """Return the content of a FORK or EXIT: (nonzero if the FORK describes a thread older than the recording,)."""
        return (misc & _FORK_EXEC,)

    def _mmap(self, misc: int, values: dict[str, Any]) -> Note | None:
        """Return the content of a mapping: (row in dsos,); None for a user mapping that is not executable."""
        data = misc & _MMAP_DATA or ("prot" in values and not values["prot"] & PROT_EXEC)
        kernel = _is_kernel(misc)
        if data and not kernel:
            return None
        build_id = values.get("build_id", b"")[: values.get("build_id_size", 0)]
        return (self._dso(values["filename"], build_id, _KERNEL if kernel else _USER),)

    def _ksymbol(self, _: int, values: dict[str, Any]) -> Note | None:
        """Return the content of a KSYMBOL: (first address, address after the last, string); None for a symbol's end."""
        if values["flags"] & KSYMBOL_UNREGISTER:  # names of unloaded programs stay known
            return None
        return values["addr"], values["addr"] + values["len"], self.strings.intern(values["name"])

    def _cgroup(self, _: int, values: dict[str, Any]) -> Note:
        """Return the content of a CGROUP: (cgroup id, path)."""
        return values["id"], values["path"].decode("utf-8", "surrogateescape")

    def _dso(self, path: bytes, build_id: bytes, cpumode: int) -> int:
        # Looked up by the bytes of the record, for there are many more records than objects.
        row = self._dso_of.get((path, build_id, cpumode))
        if row is None:
            key = (self.strings.intern(path), self.strings.intern(build_id.hex()), cpumode)
            row = self._dso_of[path, build_id, cpumode] = self._dsos.setdefault(key, len(self._dsos))
        return row


_OWN: dict[int, tuple[str, ...]] = {
    RecordType.COMM: ("pid", "tid"),
    RecordType.FORK: ("pid", "tid", "ppid", "ptid"),
    RecordType.EXIT: ("pid", "tid", "ppid", "ptid"),
}
"""By type: the fields at the begin of a note, which each record has of its own."""


def _events(records: TaskRecords, contents: list[Note | None], numbers: I64) -> Iterator[Note]:
    """Yield the notes of n records: (time ns, number, type, own fields…, content…). `contents`: of each of
    `records.examples`; None: records like it are left out. `numbers`: int64[n], places among all records."""
    own = [records.own[name].view(np.int32).tolist() for name in _OWN.get(records.kind, ())]
    heads = zip(records.time_ns.tolist(), numbers.tolist(), itertools.repeat(records.kind), *own)
    for head, example in zip(heads, records.example.tolist(), strict=True):
        if (content := contents[example]) is not None:
            yield head + content


def _map_events(records: TaskRecords, contents: list[Note | None], numbers: I64) -> MapEvents:
    """Return the mappings of n records. `contents`: (row in dsos,) of each of `records.examples`, None: records like it
    are left out; `numbers`: int64[n], places among all records."""
    dso = np.array([-1 if content is None else content[0] for content in contents], np.int32)
    kernel = np.array([_is_kernel(record.misc) for record in records.examples], np.bool_)
    kept = np.flatnonzero(dso[records.example] >= 0)
    example, own = records.example[kept], records.own
    return MapEvents.filled(
        len(kept),
        time_ns=records.time_ns[kept],
        number=numbers[kept],
        pid=np.where(kernel[example], np.int32(KERNEL_SPACE), own["pid"][kept].view(np.int32)),
        start=own["addr"][kept],
        size=own["len"][kept],
        pgoff=own["pgoff"][kept],
        dso=dso[example],
    )


_CONTENTS: dict[int, Callable[[TaskNotes, int, dict[str, Any]], Note | None]] = {
    RecordType.COMM: TaskNotes._comm,
    RecordType.FORK: TaskNotes._task,
    RecordType.EXIT: TaskNotes._task,
    RecordType.MMAP: TaskNotes._mmap,
    RecordType.MMAP2: TaskNotes._mmap,
    RecordType.KSYMBOL: TaskNotes._ksymbol,
    RecordType.CGROUP: TaskNotes._cgroup,
}
SIDE_TYPES = frozenset(_CONTENTS)  # the types of records about tasks


_RUN = -1  # type of the events that the replay adds itself: a run of mappings of a process


class TaskReplay:
    """Collects side-band records as `notes` and replays them. `replay` sets `comms` and `tasks`, both sorted by (tid,
    begin_ns), with exited threads, and completes `spaces` and `cgroups` (id → path)."""

    def __init__(self, strings: Strings) -> None:
        self.strings, self.spaces, self.notes = strings, AddressSpaces(), TaskNotes(strings)
        self.cgroups: dict[int, str] = {}
        self._comms: list[tuple[int, int, int, int]] = [(0, 0, 0, strings.intern("swapper"))]
        self._comm_of: dict[int, int] = {0: strings.intern("swapper")}
        self._tasks, self._task_of = list[list[int]](), dict[int, int]()
        self._kernel_symbols: dict[int, tuple[int, int]] = {}
        self.comms, self.tasks, self._timeline = Comms(), Tasks(), self.spaces.timeline()

    def replay(self) -> None:
        """Apply all notes in time order, time 0 first, equal times in file order."""
        events, maps = self.notes.release()
        runs = _runs(maps, events)
        single: list[Note] = []  # a heap of mappings that must be applied one by one
        times, numbers = (getattr(runs.maps, name)[runs.first].tolist() for name in ("time_ns", "number"))
        run_events = sorted(zip(times, numbers, itertools.repeat(_RUN), range(len(times)), strict=False))
        for event in heapq.merge(events, run_events):
            while single and single[0] < event:
                self._map(runs.maps, heapq.heappop(single))
            if event[2] == _RUN:
                self._map_run(runs, event[3], single)
            else:
                _ACTS[event[2]](self, event[0], *event[3:])
        for event in sorted(single):
            self._map(runs.maps, event)
        self.comms = Comms.from_rows(sorted(self._comms, key=itemgetter(0, 2)))
        self.tasks = Tasks.from_rows(sorted(self._tasks, key=itemgetter(0, 2)))
        self._timeline = self.spaces.timeline()

    def _map_run(self, runs: MapRuns, run: int, single: list[Note]) -> None:
        """Apply a run of mappings at once; if that is not possible, push (time, number, row) of each to `single`."""
        if runs.sound[run] and self.spaces.map_run(runs, run):
            return
        for row in range(int(runs.cuts[run]), int(runs.cuts[run + 1])):
            heapq.heappush(single, (int(runs.maps.time_ns[row]), int(runs.maps.number[row]), row))

    def _map(self, maps: MapEvents, event: Note) -> None:
        row, start = event[2], int(maps.start[event[2]])
        mapping = Mapping(start, start + int(maps.size[row]), int(maps.pgoff[row]), int(maps.dso[row]))
        self.spaces.map(int(maps.pid[row]), mapping, event[0])

    # Apply a note, by type.

    def _comm(self, time_ns: int, pid: int, tid: int, comm: int, is_exec: int) -> None:
        self._name(tid, pid, time_ns, comm)
        self._live(tid, pid, time_ns, born=False)
        if is_exec:
            self.spaces.exec(pid, time_ns)

    def _fork(self, time_ns: int, pid: int, tid: int, parent: int, creator: int, is_bare: int) -> None:
        # A bare FORK says that there was such a thread when a recording, or a later file of it, began.
        self._live(tid, pid, time_ns, born=time_ns > 0 and not (is_bare and tid in self._task_of))
        if creator in self._comm_of and time_ns > 0 and not is_bare:
            self._name(tid, pid, time_ns, self._comm_of[creator])
        if pid != parent and not is_bare:
            self._tasks[self._task_of[tid]][4] = parent
            self.spaces.fork(pid, parent, time_ns)
        elif is_bare and pid == tid and time_ns > 0:
            self.spaces.exec(pid, time_ns)

    def _exit(self, time_ns: int, pid: int, tid: int, parent: int, *_: int) -> None:
        self._live(tid, pid, 0, born=False)
        life = self._tasks[self._task_of.pop(tid)]
        life[3] = time_ns
        if life[4] < 0 and parent != pid:
            life[4] = parent

    def _ksymbol(self, _: int, start: int, end: int, name: int) -> None:
        self._kernel_symbols[start] = (end, name)

    def _cgroup(self, _: int, cgroup: int, path: str) -> None:
        self.cgroups[cgroup] = path

    def _name(self, tid: int, pid: int, time_ns: int, comm: int) -> None:
        self._comm_of[tid] = comm
        self._comms.append((tid, pid, time_ns, comm))

    def _live(self, tid: int, pid: int, time_ns: int, born: bool) -> None:
        """Begin a life of a thread: if `born`, at `time_ns`; else at 0, and only if it has no life without an end."""
        if tid in self._task_of and not born:
            return
        self._task_of[tid] = len(self._tasks)
        self._tasks.append([tid, pid, time_ns if born else 0, -1, -1])

    def kernel_symbols(self) -> KernelSymbols:
        """Return the names in KSYMBOL records, sorted by address."""
        rows = [(start, end, name) for start, (end, name) in sorted(self._kernel_symbols.items())]
        return KernelSymbols.from_rows([row for row in rows if row[1] < 2**64])

    def split_spaces(self, perf_maps: dict[int, bytes]) -> None:
        """Begin new versions of address spaces where JVMs used memory of code again; call after `replay`. `perf_maps`:
        pid → map of a JVM (`abi.jit_map`)."""
        for pid, text in perf_maps.items():
            self.spaces.split(pid, borders_of(text))
        self._timeline = self.spaces.timeline()

    def attribute(self, samples: Samples) -> Samples:
        """Return the samples with `comm` (":TID" if unknown, as in perf) and `space` (-1 unknown) of their time."""
        named = rows_at(self.comms.tid, self.comms.begin_ns, samples.tid, samples.time_ns)
        comm = self.comms.comm[named]
        unnamed, tid_row = np.unique(samples.tid[named < 0], return_inverse=True)
        comm[named < 0] = self.strings.intern_all(f":{tid}" for tid in unnamed.tolist())[tid_row]  # as perf
        pids, begins, spaces = self._timeline
        mapped = rows_at(pids, begins, samples.pid, samples.time_ns)
        space = np.append(spaces, -1)[mapped]
        return samples.with_columns(comm=comm.astype(np.uint32), space=space.astype(np.int32))


def _runs(maps: MapEvents, events: list[Note]) -> MapRuns:
    """Return the mappings in runs, cut where a note in `events` (FORK, exec) may change a process's address space."""
    touching = [
        (pid, event[0], event[1])
        for event in events
        if (event[2] == RecordType.FORK and (event[3] != event[5] or event[7]))
        or (event[2] == RecordType.COMM and event[6])
        for pid in {event[3], event[5] if event[2] == RecordType.FORK else event[3]}
    ]
    pids, times, numbers = zip(*touching, strict=True) if touching else ((), (), ())
    return map_runs(maps, np.array(pids, np.int32), np.array(times, np.int64), np.array(numbers, np.int64))


_ACTS: dict[int, Callable[..., None]] = {
    RecordType.COMM: TaskReplay._comm,
    RecordType.FORK: TaskReplay._fork,
    RecordType.EXIT: TaskReplay._exit,
    RecordType.KSYMBOL: TaskReplay._ksymbol,
    RecordType.CGROUP: TaskReplay._cgroup,
}
