# SPDX-License-Identifier: Apache-2.0
"""Note what side-band records say of tasks, in file order; `decode.tasks.replay` sorts and applies the notes.

There may be a million of them. Mappings, which are most of them, are kept as columns; others as flat tuples
(time, number, type, content…). The number is the place among all records, which decides between equal times.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.records import KSYMBOL_UNREGISTER, PROT_EXEC, CpuMode, Misc, RecordType
from perf_offcpu.decode.tasks.address_spaces import KERNEL_SPACE
from perf_offcpu.decode.tasks.columns import SideRecord, TaskRecords
from perf_offcpu.decode.tasks.map_runs import MapEvents
from perf_offcpu.model.columns import I64
from perf_offcpu.model.growing import GrowingTable
from perf_offcpu.model.recording import Dsos
from perf_offcpu.model.strings import Strings

Note = tuple[Any, ...]
_ANY_PID = -1

# Plain numbers: the operators of enum.IntFlag take longer than all else that is done for a record.
_CPUMODE_MASK, _KERNEL, _USER = int(Misc.CPUMODE_MASK), int(CpuMode.KERNEL), int(CpuMode.USER)
_MMAP_DATA, _COMM_EXEC, _FORK_EXEC = int(Misc.MMAP_DATA), int(Misc.COMM_EXEC), int(Misc.FORK_EXEC)
_MAPS = (RecordType.MMAP, RecordType.MMAP2)


def _signed(value: int) -> int:
    """Convert a u32 id to the int32 of the model: 2^32 - 1 is -1."""
    return value - 2**32 if value >= 2**31 else value


def _is_kernel(misc: int) -> bool:
    return misc & _CPUMODE_MASK == _KERNEL


class TaskNotes:
    """Collects the notes of side-band records of `SIDE_TYPES`.

    Args:
        strings: gets names.
    """

    def __init__(self, strings: Strings) -> None:
        self.strings = strings
        self._noted = 0
        self._events: list[Note] = []
        self._maps = GrowingTable(MapEvents)
        self._single_maps: list[Note] = []
        self._dsos: dict[tuple[int, int, int], int] = {}
        self._dso_of: dict[tuple[bytes, bytes, int], int] = {}

    def take(self, record: SideRecord) -> None:
        """Note one record."""
        number, self._noted = self._noted, self._noted + 1
        content = _CONTENTS[record.type](self, record.misc, record.values)
        if content is None:
            return
        if record.type in _MAPS:
            self._single_maps.append((record.time_ns, number, *content))
        else:
            self._events.append((record.time_ns, number, record.type, *content))

    def take_all(self, groups: list[TaskRecords]) -> None:
        """Note the records of a chunk."""
        if not groups:
            return
        contents = self._contents(groups)
        rows = np.concatenate([group.rows for group in groups])
        numbers = np.empty(len(rows), np.int64)
        numbers[np.argsort(rows)] = np.arange(self._noted, self._noted + len(rows))
        self._noted += len(rows)
        ends = np.cumsum([len(group.rows) for group in groups]).tolist()
        for group, content, end in zip(groups, contents, ends, strict=True):
            mine = numbers[end - len(group.rows) : end]
            if group.kind in _MAPS:
                self._maps.append(_map_events(group, content, mine))
            else:
                self._events += _events(group, content, mine)

    def _contents(self, groups: list[TaskRecords]) -> list[list[Note | None]]:
        """Return the contents of the examples of each group."""
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
        """Return the notes since the last call: the mappings in any order, all others in that of time."""
        self._maps.append(MapEvents.from_rows(self._single_maps))
        events = sorted(self._events)
        self._events, self._single_maps = [], []
        return events, self._maps.release()

    def dsos(self) -> Dsos:
        """Return all mapped objects; a map's `dso` is a row here."""
        return Dsos.from_rows(list(self._dsos))

    # Contents of records, by type; None if they are of no use.

    def comm(self, misc: int, values: dict[str, Any]) -> Note:
        """Return (pid, tid, name, whether it is an exec)."""
        comm = self.strings.intern(values["comm"])
        return _signed(values["pid"]), _signed(values["tid"]), comm, misc & _COMM_EXEC

    def task(self, misc: int, values: dict[str, Any]) -> Note:
        """Return (pid, tid, ppid, ptid, whether it only says that the thread was there)."""
        ids = (_signed(values[name]) for name in ("pid", "tid", "ppid", "ptid"))
        return (*ids, misc & _FORK_EXEC)

    def mmap(self, misc: int, values: dict[str, Any]) -> Note | None:
        """Return (pid, start, size, offset in the file, row in dsos)."""
        data = misc & _MMAP_DATA or ("prot" in values and not values["prot"] & PROT_EXEC)
        kernel = _is_kernel(misc)
        if data and not kernel:
            return None
        build_id = values.get("build_id", b"")[: values.get("build_id_size", 0)]
        dso = self._dso(values["filename"], build_id, _KERNEL if kernel else _USER)
        pid = _signed(values["pid"])
        owner = KERNEL_SPACE if kernel or pid == _ANY_PID else pid
        return owner, values["addr"], values["len"], values["pgoff"], dso

    def ksymbol(self, _: int, values: dict[str, Any]) -> Note | None:
        """Return (first address, address after the last, name)."""
        if values["flags"] & KSYMBOL_UNREGISTER:  # names of unloaded programs stay known
            return None
        return values["addr"], values["addr"] + values["len"], self.strings.intern(values["name"])

    def cgroup(self, _: int, values: dict[str, Any]) -> Note:
        """Return (id, path)."""
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
    """Yield (time, number, type, content…) of each record that has content.

    Args:
        contents: of the examples.
    """
    names = _OWN.get(records.kind, ())
    own = [_signed_ids(records.own[name]).tolist() for name in names]
    rest = [None if content is None else content[len(names) :] for content in contents]
    which = records.example.tolist()
    heads = zip(records.time_ns.tolist(), numbers.tolist(), itertools.repeat(records.kind), *own)
    for head, example in zip(heads, which, strict=True):
        shared = rest[example]
        if shared is not None:
            yield head + shared


def _map_events(records: TaskRecords, contents: list[Note | None], numbers: I64) -> MapEvents:
    """Return the mappings among n records.

    Args:
        contents: of the examples.
    """
    kept = np.flatnonzero(np.array([one is not None for one in contents], np.bool_)[records.example])
    example, own = records.example[kept], records.own
    kernel = np.array([_is_kernel(record.misc) for record in records.examples], np.bool_)
    dso = np.array([-1 if one is None else one[-1] for one in contents], np.int32)
    return MapEvents.filled(
        len(kept),
        time_ns=records.time_ns[kept],
        number=numbers[kept],
        pid=np.where(kernel[example], np.int32(KERNEL_SPACE), _signed_ids(own["pid"][kept])),
        start=own["addr"][kept],
        size=own["len"][kept],
        pgoff=own["pgoff"][kept],
        dso=dso[example],
    )


def _signed_ids(values: NDArray[Any]) -> NDArray[Any]:
    """Convert u32 ids to the model's; addresses are returned unchanged."""
    return values.view(np.int32) if values.dtype == np.uint32 else values


_CONTENTS: dict[int, Callable[[TaskNotes, int, dict[str, Any]], Note | None]] = {
    RecordType.COMM: TaskNotes.comm,
    RecordType.FORK: TaskNotes.task,
    RecordType.EXIT: TaskNotes.task,
    RecordType.MMAP: TaskNotes.mmap,
    RecordType.MMAP2: TaskNotes.mmap,
    RecordType.KSYMBOL: TaskNotes.ksymbol,
    RecordType.CGROUP: TaskNotes.cgroup,
}
SIDE_TYPES = frozenset(_CONTENTS)
"""The types of records about tasks."""
