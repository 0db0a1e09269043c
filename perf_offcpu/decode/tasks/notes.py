# SPDX-License-Identifier: Apache-2.0
"""Note the content of side-band records of tasks, in file order; `decode.tasks.replay` applies the notes.

There may be a million of them. Mappings, which are most of them, are kept as columns; others as flat tuples
(time, number, type, content…). The number is the place among all records, which decides between equal times.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from perf_offcpu.abi.records import KSYMBOL_UNREGISTER, PROT_EXEC, CpuMode, Misc, RecordType
from perf_offcpu.decode.tasks.columns import MapEvents, TaskRecords
from perf_offcpu.model.columns import I64, Strings
from perf_offcpu.model.growing import GrowingTable
from perf_offcpu.model.lookup import KERNEL_SPACE
from perf_offcpu.model.recording import Dsos

Note = tuple[Any, ...]

# Plain numbers: the operators of enum.IntFlag take longer than all else that is done for a record.
_CPUMODE_MASK, _KERNEL, _USER = int(Misc.CPUMODE_MASK), int(CpuMode.KERNEL), int(CpuMode.USER)
_MMAP_DATA, _COMM_EXEC, _FORK_EXEC = int(Misc.MMAP_DATA), int(Misc.COMM_EXEC), int(Misc.FORK_EXEC)
_MAPS = (RecordType.MMAP, RecordType.MMAP2)


def _is_kernel(misc: int) -> bool:
    return misc & _CPUMODE_MASK == _KERNEL


class TaskNotes:
    """Collects the notes of side-band records of `SIDE_TYPES`."""

    def __init__(self, strings: Strings) -> None:
        self.strings = strings
        self._noted = 0
        self._events: list[Note] = []
        self._maps = GrowingTable(MapEvents)
        self._dsos: dict[tuple[int, int, int], int] = {}
        self._dso_of: dict[tuple[bytes, bytes, int], int] = {}

    def take(self, groups: list[TaskRecords]) -> None:
        """Note the records of a chunk."""
        if not groups:
            return
        contents = self._contents(groups)
        rows = np.concatenate([group.rows for group in groups])
        numbers = np.empty(len(rows), np.int64)
        numbers[np.argsort(rows)] = np.arange(self._noted, self._noted + len(rows))
        self._noted += len(rows)
        parts = np.split(numbers, np.cumsum([len(group.rows) for group in groups])[:-1])
        for group, content, part in zip(groups, contents, parts, strict=True):
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

    # Contents of records beyond the fields of `_OWN`, by type; None if they are of no use.

    def comm(self, misc: int, values: dict[str, Any]) -> Note:
        """Return (name, whether it is an exec)."""
        return self.strings.intern(values["comm"]), misc & _COMM_EXEC

    def task(self, misc: int, _: dict[str, Any]) -> Note:
        """Return (whether it only says that the thread was there,)."""
        return (misc & _FORK_EXEC,)

    def mmap(self, misc: int, values: dict[str, Any]) -> Note | None:
        """Return (row in dsos,); None for data of processes."""
        data = misc & _MMAP_DATA or ("prot" in values and not values["prot"] & PROT_EXEC)
        kernel = _is_kernel(misc)
        if data and not kernel:
            return None
        build_id = values.get("build_id", b"")[: values.get("build_id_size", 0)]
        return (self._dso(values["filename"], build_id, _KERNEL if kernel else _USER),)

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
    """Yield (time, number, type, content…) of each record that has content (`contents`: of the examples)."""
    own = [records.own[name].view(np.int32).tolist() for name in _OWN.get(records.kind, ())]
    heads = zip(records.time_ns.tolist(), numbers.tolist(), itertools.repeat(records.kind), *own)
    for head, example in zip(heads, records.example.tolist(), strict=True):
        shared = contents[example]
        if shared is not None:
            yield head + shared


def _map_events(records: TaskRecords, contents: list[Note | None], numbers: I64) -> MapEvents:
    """Return the mappings among n records (`contents`: of the examples)."""
    kept = np.flatnonzero(np.array([content is not None for content in contents], np.bool_)[records.example])
    example, own = records.example[kept], records.own
    kernel = np.array([_is_kernel(record.misc) for record in records.examples], np.bool_)
    dso = np.array([-1 if content is None else content[0] for content in contents], np.int32)
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
