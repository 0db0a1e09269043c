# SPDX-License-Identifier: Apache-2.0
"""What a recording opens with: names of its events, and all that was there before it began.

Everything here is records without a time, in the order in which perf wants to meet them: the kernel's own
code, control groups, tasks with their maps, and the mark that this was all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from perf_offcpu.abi.records import EVENT_UPDATE_NAME, CpuMode, RecordType
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.existing.cgroups import cgroup_records
from perf_offcpu.collect.existing.kernel_maps import KernelMaps
from perf_offcpu.collect.existing.proc import ProcScan
from perf_offcpu.collect.targets import Target, process_of
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.features import BuildId
from perf_offcpu.perfdata.pieces import joined
from perf_offcpu.perfdata.write.features import HOST_PID, encoded
from perf_offcpu.perfdata.write.writer import frame_record, pack_record

PIECE = 1 << 18
"""Bytes of records that are handed over at once: worth a system call, and done in some 20 ms."""


def event_names(events: Iterable[EventSpec]) -> bytes:
    """Names of events as records. They stand in a feature, too, but that a killed recorder never writes."""
    updates = [
        {"kind": EVENT_UPDATE_NAME, "id": event.ids[0], "data": encoded(event.name) + b"\0"}
        for event in events
    ]
    return b"".join(pack_record(RecordType.EVENT_UPDATE, 0, update, order=NATIVE) for update in updates)


class Inventory:
    """One look at kernel and tasks.

    Args:
        target: whose maps are wanted: everybody's, or those of the processes that are recorded. Threads
            and their names are told of all tasks, because they may be parents and wakers.
        data_maps: tell of files mapped for reading, too.
    """

    def __init__(self, target: Target, data_maps: bool = False) -> None:
        self._kernel = KernelMaps()
        self._tasks = ProcScan(_Mapped(target), data_maps)

    def records(self) -> Iterator[bytes]:
        """All records, some at a time. Side-band records must flow by now: see `proc`."""
        for records in (self._kernel.records(), cgroup_records(), self._tasks.records()):
            yield from joined(records, PIECE)
        yield frame_record(RecordType.FINISHED_INIT, 0, b"", NATIVE)

    def build_ids(self) -> list[BuildId]:
        """Of the kernel, its modules and every mapped file that has one, once `records` is through."""
        return [
            BuildId(HOST_PID, mode, build_id.hex(), name)
            for mode, files in ((CpuMode.KERNEL, self._kernel.files), (CpuMode.USER, self._tasks.files))
            for name, build_id in sorted(files.items())
        ]


class _Mapped:
    """Of which processes maps are wanted."""

    def __init__(self, target: Target) -> None:
        self._everybody = target.is_system
        self._pids = {process_of(one) for one in target.ids}

    def __contains__(self, pid: object) -> bool:
        return self._everybody or pid in self._pids
