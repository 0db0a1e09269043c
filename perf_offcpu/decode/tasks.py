# SPDX-License-Identifier: Apache-2.0
"""Tasks over time: side-band records replayed in order.

COMM, FORK, EXIT, MMAP and their kin tell which threads there were, what they were called, which process
they belong to and what it had mapped. The replay keeps all of it with its times, dead tasks included, so
that any sample can be given the comm and the address space of its moment. Rules as in perf's
tools/perf/util/{machine,thread}.c where they are right.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.records import KSYMBOL_UNREGISTER, PROT_EXEC, CpuMode, Misc, RecordType
from perf_offcpu.decode.address_spaces import KERNEL_SPACE, AddressSpaces, Mapping
from perf_offcpu.decode.task_columns import TaskRecords
from perf_offcpu.decode.timeline import rows_at
from perf_offcpu.model.columns import I32, U32
from perf_offcpu.model.recording import Comms, Dsos, KernelSymbols, Samples, Tasks
from perf_offcpu.model.strings import Strings
from perf_offcpu.perfdata.side_records import SideRecord

Kind = TypeVar("Kind")
_ANY_PID = -1

# Plain numbers: the operators of enum.IntFlag take longer than all else that is done for a record.
_CPUMODE_MASK, _KERNEL, _USER = int(Misc.CPUMODE_MASK), int(CpuMode.KERNEL), int(CpuMode.USER)
_MMAP_DATA, _COMM_EXEC, _FORK_EXEC = int(Misc.MMAP_DATA), int(Misc.COMM_EXEC), int(Misc.FORK_EXEC)


def _signed(value: int) -> int:
    """A u32 id as the int32 of the model: 2^32 - 1 is -1."""
    return value - 2**32 if value >= 2**31 else value


class TaskReplay:
    """Takes side-band records; once they are replayed in time order, its tables and lookups are complete.

    What a record says is noted as a flat tuple as soon as it comes (there may be a million of them), and
    acted upon in the replay: each record type has a method for the one and one for the other.
    """

    def __init__(self, strings: Strings) -> None:
        self.strings = strings
        self.spaces = AddressSpaces()
        self.cgroups: dict[int, str] = {}
        self._events: list[tuple[Any, ...]] = []
        self._dsos: dict[tuple[int, int, int], int] = {}
        self._dso_of: dict[tuple[bytes, bytes, int], int] = {}
        self._comms: list[tuple[int, int, int, int]] = [(0, 0, 0, strings.intern("swapper"))]
        self._comm_of: dict[int, int] = {0: strings.intern("swapper")}
        self._tasks: list[list[int]] = []
        self._task_of: dict[int, int] = {}
        self._kernel_symbols: dict[int, tuple[int, int]] = {}
        self._tables: dict[str, Any] = {}
        """Those that have been made since the last replay."""

    def note(self, record: SideRecord) -> None:
        """Take up what one record of `SIDE_TYPES` says."""
        what = _NOTES[record.type](self, record.misc, record.values)
        if what is not None:
            own = len(_OWN.get(record.type, ()))
            self._events.append((record.time_ns, record.type, *what[:own], what[own:]))

    def note_all(self, groups: list[TaskRecords]) -> None:
        """Take up what the records of a chunk say."""
        # Names are numbered as they come in the file, whatever the types of records that hold them.
        examples = [
            (record.file_offset, number, index)
            for number, group in enumerate(groups)
            for index, record in enumerate(group.examples)
        ]
        said: list[list[tuple[Any, ...] | None]] = [[None] * len(group.examples) for group in groups]
        for _, number, index in sorted(examples):
            record = groups[number].examples[index]
            said[number][index] = _NOTES[record.type](self, record.misc, record.values)
        rows = [group.rows for group in groups]
        events = [event for group, what in zip(groups, said, strict=True) for event in _events(group, what)]
        if len(groups) > 1:
            events = [events[place] for place in np.argsort(np.concatenate(rows)).tolist()]
        self._events += [event for event in events if event[-1] is not None]

    def replay(self, records: Iterable[SideRecord] = ()) -> None:
        """Act on all that was noted, and these records: in time order, time 0 first, ties in file order."""
        for record in records:
            self.note(record)
        self._events.sort(key=itemgetter(0))
        for event in self._events:
            _ACTS[event[1]](self, event[0], *event[2:-1], *event[-1])
        self._events.clear()
        self._tables.clear()

    # Two methods a record type: what it says, and what that means at its time.

    def _note_comm(self, misc: int, values: dict[str, Any]) -> tuple[Any, ...]:
        comm = self.strings.intern(values["comm"])
        return _signed(values["pid"]), _signed(values["tid"]), comm, misc & _COMM_EXEC

    def _comm(self, time_ns: int, pid: int, tid: int, comm: int, is_exec: int) -> None:
        self._name(tid, pid, time_ns, comm)
        self._live(tid, pid, time_ns, born=False)
        if is_exec:
            self.spaces.exec(pid, time_ns)

    def _note_task(self, misc: int, values: dict[str, Any]) -> tuple[Any, ...]:
        return (
            *(_signed(values[name]) for name in ("pid", "tid", "ppid", "ptid")),
            misc & _FORK_EXEC,
        )

    def _fork(self, time_ns: int, pid: int, tid: int, parent: int, creator: int, is_bare: int) -> None:
        # A bare one says that there was such a thread when a recording began: in a merged one, a later one.
        self._live(tid, pid, time_ns, born=time_ns > 0 and not (is_bare and tid in self._task_of))
        if creator in self._comm_of and time_ns > 0 and not is_bare:
            self._name(tid, pid, time_ns, self._comm_of[creator])
        if pid != parent and not is_bare:
            self.spaces.fork(pid, parent, time_ns)
        elif is_bare and pid == tid and time_ns > 0:
            self.spaces.exec(pid, time_ns)

    def _exit(self, time_ns: int, pid: int, tid: int, *_: int) -> None:
        self._live(tid, pid, 0, born=False)
        self._tasks[self._task_of.pop(tid)][3] = time_ns

    def _note_mmap(self, misc: int, values: dict[str, Any]) -> tuple[Any, ...] | None:
        data = misc & _MMAP_DATA or ("prot" in values and not values["prot"] & PROT_EXEC)
        kernel = misc & _CPUMODE_MASK == _KERNEL
        if data and not kernel:
            return None
        build_id = values.get("build_id", b"")[: values.get("build_id_size", 0)]
        dso = self._dso(values["filename"], build_id, _KERNEL if kernel else _USER)
        return _signed(values["pid"]), values["addr"], values["len"], values["pgoff"], dso, kernel

    def _mmap(
        self, time_ns: int, pid: int, start: int, size: int, pgoff: int, dso: int, is_kernel: bool
    ) -> None:
        owner = KERNEL_SPACE if is_kernel or pid == _ANY_PID else pid
        self.spaces.map(owner, Mapping(start, start + size, pgoff, dso), time_ns)

    def _note_ksymbol(self, _: int, values: dict[str, Any]) -> tuple[Any, ...] | None:
        if values["flags"] & KSYMBOL_UNREGISTER:  # names of unloaded programs stay known
            return None
        return values["addr"], values["addr"] + values["len"], self.strings.intern(values["name"])

    def _ksymbol(self, _: int, start: int, end: int, name: int) -> None:
        self._kernel_symbols[start] = (end, name)

    def _note_cgroup(self, _: int, values: dict[str, Any]) -> tuple[Any, ...]:
        return values["id"], values["path"].decode("utf-8", "surrogateescape")

    def _cgroup(self, _: int, cgroup: int, path: str) -> None:
        self.cgroups[cgroup] = path

    def _name(self, tid: int, pid: int, time_ns: int, comm: int) -> None:
        self._comm_of[tid] = comm
        self._comms.append((tid, pid, time_ns, comm))

    def _live(self, tid: int, pid: int, time_ns: int, born: bool) -> None:
        """Note that a thread lives; a birth begins a new life even if no exit was seen."""
        if tid in self._task_of and not born:
            return
        self._task_of[tid] = len(self._tasks)
        self._tasks.append([tid, pid, time_ns if born else 0, -1])

    def _dso(self, path: bytes, build_id: bytes, cpumode: int) -> int:
        # By what the record says, for there are many more records than objects.
        row = self._dso_of.get((path, build_id, cpumode))
        if row is None:
            key = (self.strings.intern(path), self.strings.intern(build_id.hex()), cpumode)
            row = self._dso_of[path, build_id, cpumode] = self._dsos.setdefault(key, len(self._dsos))
        return row

    # Tables.

    def dsos(self) -> Dsos:
        """All mapped objects; a map's `dso` is a row here."""
        return Dsos.from_rows(list(self._dsos))

    def comms(self) -> Comms:
        """All names, sorted by (tid, begin)."""
        return self._once("comms", lambda: Comms.from_rows(sorted(self._comms, key=itemgetter(0, 2))))

    def tasks(self) -> Tasks:
        """All lives, sorted by (tid, begin)."""
        return self._once("tasks", lambda: Tasks.from_rows(sorted(self._tasks, key=itemgetter(0, 2))))

    def _once(self, name: str, make: Callable[[], Kind]) -> Kind:
        if name not in self._tables:
            self._tables[name] = make()
        table: Kind = self._tables[name]
        return table

    def kernel_symbols(self) -> KernelSymbols:
        """What KSYMBOL records named, sorted by address."""
        rows = [(start, end, name) for start, (end, name) in sorted(self._kernel_symbols.items())]
        return KernelSymbols.from_rows([row for row in rows if row[1] < 2**64])

    def attribute(self, samples: Samples) -> Samples:
        """The samples with `comm` and `space` of their thread and process at their time."""
        comms = self.comms()
        named = rows_at(comms.tid, comms.begin_ns, samples.tid, samples.time_ns)
        comm = comms.comm[named]
        comm[named < 0] = self._unnamed(samples.tid[named < 0])
        pids, begins, spaces = self._once("timeline", self.spaces.timeline)
        mapped = rows_at(pids, begins, samples.pid, samples.time_ns)
        space = np.where(mapped >= 0, spaces[mapped], -1) if len(spaces) else mapped
        return samples.with_columns(comm=comm.astype(np.uint32), space=space.astype(np.int32))

    def _unnamed(self, tids: I32) -> U32:
        """`:TID`, as perf names a thread of which it knows nothing else."""
        unnamed, which = np.unique(tids, return_inverse=True)
        return self.strings.intern_all(f":{tid}" for tid in unnamed.tolist())[which]


_OWN: dict[int, tuple[str, ...]] = {
    RecordType.COMM: ("pid", "tid"),
    RecordType.FORK: ("pid", "tid", "ppid", "ptid"),
    RecordType.EXIT: ("pid", "tid", "ppid", "ptid"),
    RecordType.MMAP: ("pid", "addr", "len", "pgoff"),
    RecordType.MMAP2: ("pid", "addr", "len", "pgoff"),
}
"""By type: what a note begins with, and each record has of its own."""


def _events(records: TaskRecords, said: list[tuple[Any, ...] | None]) -> Iterator[tuple[Any, ...]]:
    """(time, type, what is the record's own…, the rest of its note; None if it says nothing) of each record.

    Args:
        said: the notes of the examples.
    """
    names = _OWN.get(records.kind, ())
    own = [_signed_ids(records.own[name]).tolist() for name in names]
    rest = [None if what is None else what[len(names) :] for what in said]
    shared = [rest[which] for which in records.example.tolist()]
    return zip(records.time_ns.tolist(), itertools.repeat(records.kind), *own, shared)


def _signed_ids(values: NDArray[Any]) -> NDArray[Any]:
    """u32 ids as in the model; addresses as they are."""
    return values.view(np.int32) if values.dtype == np.uint32 else values


_NOTES: dict[int, Callable[[TaskReplay, int, dict[str, Any]], tuple[Any, ...] | None]] = {
    RecordType.COMM: TaskReplay._note_comm,
    RecordType.FORK: TaskReplay._note_task,
    RecordType.EXIT: TaskReplay._note_task,
    RecordType.MMAP: TaskReplay._note_mmap,
    RecordType.MMAP2: TaskReplay._note_mmap,
    RecordType.KSYMBOL: TaskReplay._note_ksymbol,
    RecordType.CGROUP: TaskReplay._note_cgroup,
}
_ACTS: dict[int, Callable[..., None]] = {
    RecordType.COMM: TaskReplay._comm,
    RecordType.FORK: TaskReplay._fork,
    RecordType.EXIT: TaskReplay._exit,
    RecordType.MMAP: TaskReplay._mmap,
    RecordType.MMAP2: TaskReplay._mmap,
    RecordType.KSYMBOL: TaskReplay._ksymbol,
    RecordType.CGROUP: TaskReplay._cgroup,
}
SIDE_TYPES = frozenset(_NOTES)
"""The record types that the replay takes."""
