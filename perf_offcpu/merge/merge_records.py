# SPDX-License-Identifier: Apache-2.0
"""Records of one recording on their way into a merged one (`merge_plan` says what moves, and how far).

Samples are `merge_samples`' affair. Of the others, the kernel's are kept, each with a trailer that names its
event by a new id; perf's own, which describe the file and not the machine, stay behind. Few records change
in length: names that get a prefix, and maps whose file's build-id stood in the header and now travels with
them, so that the same path on two hosts may be two files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perf_offcpu.abi.records import RECORD_LAYOUTS, CpuMode, Misc, RecordType
from perf_offcpu.abi.sample import TRAILER
from perf_offcpu.binary.columnar import Columns, read_columns
from perf_offcpu.binary.gather import gather_u64
from perf_offcpu.binary.layout import Order
from perf_offcpu.inject.rewrite import NOT_COPIED
from perf_offcpu.merge.merge_facts import Facts
from perf_offcpu.merge.merge_plan import Shift
from perf_offcpu.merge.merge_samples import NONE_32, SampleShifter, later, new_ids
from perf_offcpu.model.columns import I64, U64
from perf_offcpu.perfdata import losses
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.leaked_flag import with_written_miscs
from perf_offcpu.perfdata.losses import Losses
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk
from perf_offcpu.perfdata.trailers import NO_TIME, read_trailers
from perf_offcpu.perfdata.write.patch import Change, Patcher, adding
from perf_offcpu.perfdata.write.sound import sound_records
from perf_offcpu.perfdata.write.splice import (
    Cut,
    Placed,
    Records,
    aligned,
    chunk_of,
    records_of,
    with_words,
    woven,
)
from perf_offcpu.perfdata.write.writer import frame_record, pack_record

R = RecordType
_PIDS: dict[int, tuple[str, ...]] = {
    R.MMAP: ("pid", "tid"),
    R.COMM: ("pid", "tid"),
    R.EXIT: ("pid", "ppid", "tid", "ptid"),
    R.FORK: ("pid", "ppid", "tid", "ptid"),
    R.MMAP2: ("pid", "tid"),
    R.SWITCH_CPU_WIDE: ("next_prev_pid", "next_prev_tid"),
    R.NAMESPACES: ("pid", "tid"),
}
_TIMES = (R.EXIT, R.FORK, R.THROTTLE, R.UNTHROTTLE)
_IDS: dict[int, tuple[str, ...]] = {
    R.LOST: ("id",),
    R.THROTTLE: ("id", "stream_id"),
    R.UNTHROTTLE: ("id", "stream_id"),
}
_ADDRESSES = (R.MMAP, R.MMAP2, R.KSYMBOL, R.TEXT_POKE)

_KEPT = np.array(
    sorted(
        {*range(R.MMAP, R.CALLCHAIN_DEFERRED + 1)}
        - {R.READ, R.AUX, R.ITRACE_START, R.AUX_OUTPUT_HW_ID}  # counters and traces of one recording
    ),
    np.uint32,
)
_OF_THE_FILE = np.arange(R.HEADER_ATTR, R.COMPRESSED2 + 1)
"""Types that are left out without a word."""


@dataclass(slots=True)
class Mover:
    """Moves the records of one recording.

    Args:
        facts: what it is.
        events: its evsels in the merged recording, with the ids that are its own.
        shift: by how much.
        counters: where records that are left out are counted.
        with_build_ids: maps get the build-ids that the header has.
        build_ids: those: file → build-id.
    """

    facts: Facts
    events: list[EventSpec]
    shift: Shift
    counters: Losses
    with_build_ids: bool
    build_ids: dict[bytes, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.with_build_ids:
            self.build_ids = self.facts.build_ids()

    @property
    def order(self) -> Order:
        """Its byte order."""
        return self.facts.order

    def beginning(self) -> bytes:
        """Records in front of all others: the idle task's name, where perf would not know it by itself."""
        if not self.shift.pid and not self.shift.prefix:
            return b""
        payload = {"pid": self.shift.pid, "tid": self.shift.pid, "comm": self.shift.prefix + b"swapper"}
        first = self.events[0]
        told: dict[str, int] = {field.name: 0 for field in TRAILER.fields}
        told |= {"id": first.ids[0], "identifier": first.ids[0]}
        return pack_record(
            R.COMM, 0, payload, TRAILER.pack(told, self.order, first.attr.sample_type), self.order
        )

    def moved(self, chunk: Chunk) -> tuple[Records, I64]:
        """(records, rows): what becomes of a chunk, and the rows of the chunk that they come from."""
        known = np.isin(chunk.types, _KEPT)
        foreign = ~known & ~np.isin(chunk.types, _OF_THE_FILE)
        self.counters.add(NOT_COPIED, int(foreign.sum()))
        rows = np.flatnonzero(known)
        part = with_written_miscs(aligned(chunk.take(rows)), self.order)
        sound = np.flatnonzero(sound_records(part, self.facts.events, self.counters))
        part, rows = part.take(sound), rows[sound]
        nothing = np.zeros(len(part), np.bool_)
        records, places = woven(part, nothing, [*self._samples(part), *self._others(part)])
        return records, rows[places]

    def _samples(self, part: Chunk) -> Iterator[Placed]:
        old = self.facts.events
        rows = np.flatnonzero(part.types == R.SAMPLE)
        evsel = old.of_samples(part, rows)
        self.counters.add(losses.UNKNOWN_ID, int((evsel < 0).sum()))
        for number in np.unique(evsel[evsel >= 0]).tolist():
            shifter = SampleShifter(old.specs[number], self.events[number], self.shift, self.order)
            yield shifter.moved(part, rows[evsel == number], self.counters)

    def _others(self, part: Chunk) -> Iterator[Placed]:
        rows = np.flatnonzero(part.types != R.SAMPLE)
        evsel = read_trailers(part, rows, self.facts.events, unknown=0).evsel
        for number in np.unique(evsel).tolist():
            mover = _SideMover(self, max(number, 0))
            mine, records = mover.with_trailers(part, rows[evsel == number])
            yield from mover.moved(mine, chunk_of(records, self.order))


class _SideMover:
    """Moves records other than samples, those of one evsel."""

    def __init__(self, owner: Mover, number: int) -> None:
        self.owner, self.order, self.shift = owner, owner.order, owner.shift
        self.old, self.new = owner.facts.events.specs[number], owner.events[number]
        self.had_trailers = owner.facts.events.sample_id_all
        self.kind = self.new.attr.sample_type
        self.trailer_size = TRAILER.size(self.kind)

    def with_trailers(self, part: Chunk, rows: I64) -> Placed:
        """The records with trailers as the new events have them; what they say comes later."""
        missing = self.trailer_size
        missing -= TRAILER.size(self.old.attr.sample_type) if self.had_trailers else 0
        ends = part.starts[rows] + part.sizes[rows]
        none = np.zeros(len(rows) + 1, np.int64), np.empty(0, np.uint64)
        cut = Cut(ends, ends, ends)
        records, fits = with_words(part, rows, cut, none, self.order, more_words=missing // 8)
        return rows[fits], records

    def moved(self, rows: I64, part: Chunk) -> Iterator[Placed]:
        """The records, which come from these rows, with all numbers moved."""
        times = self._own_times(part)
        self._move_trailers(part, times)
        for kind in np.unique(part.types).tolist():
            self._move_fields(part, kind, part.starts[part.types == kind] + HEADER_SIZE)
        candidates = {row: self._renamed(part, row) for row in self._to_rename(part)}
        renamed = {row: data for row, data in candidates.items() if data is not None}
        same = np.setdiff1d(np.arange(len(part)), np.array(list(renamed), np.int64))
        yield rows[same], records_of(part.take(same))
        yield rows[np.array(list(renamed), np.int64)], _records(list(renamed.values()))

    def _own_times(self, part: Chunk) -> U64:
        """uint64[n]: when each record was, on its own clock; 0 if it does not say."""
        times = self._trailers(part).scalars.get("time", np.zeros(len(part), np.uint64))
        own = np.isin(part.types, _TIMES) & (times == 0)
        # FORK, EXIT and the two of throttling hold a time themselves; with trailers, it is the same.
        for kind in np.unique(part.types[own]).tolist():
            rows = np.flatnonzero(own & (part.types == kind))
            at = part.starts[rows] + HEADER_SIZE + RECORD_LAYOUTS[kind].offset("time")
            times[rows] = gather_u64(part.data, at, self.order)
        return times

    def _trailers(self, part: Chunk) -> Columns:
        ends = part.starts + part.sizes
        return read_columns(TRAILER, part.data, ends - self.trailer_size, ends, self.order, self.kind)

    def _move_trailers(self, part: Chunk, times: U64) -> None:
        patcher, shift = Patcher(part.data, self.order), self.shift
        starts = part.starts + part.sizes - self.trailer_size
        ids = new_ids(self._trailers(part), self.old, self.new, shift)
        real = (times > 0) & (times < NO_TIME)
        placed: list[tuple[str, I64, Change]] = [
            ("identifier", starts, lambda _: ids),
            ("id", starts, lambda _: ids),
            ("stream_id", starts, adding(shift.ids, 0)),
            ("time", starts, lambda _: self._new_times(part, times)),
            ("cpu", starts[real], adding(shift.cpu, NONE_32)),
            ("pid", starts[real], adding(shift.pid, NONE_32)),
            ("tid", starts[real], adding(shift.pid, NONE_32)),
        ]
        present = {field.name for field in TRAILER.active(self.kind)}
        for name, places, change in placed:
            if name in present:
                patcher.change_field(TRAILER, name, places, change, self.kind)

    def _new_times(self, part: Chunk, times: U64) -> U64:
        """What describes the machine as it was at the begin is true from then on, not since ever.

        But for the kernel's maps: perf wants them before anything else.
        """
        kernel = (part.miscs & np.uint16(Misc.CPUMODE_MASK)) == CpuMode.KERNEL
        start = np.where(kernel & np.isin(part.types, (R.MMAP, R.MMAP2)), 0, self.shift.start_ns)
        return np.where(times == 0, start.astype(np.uint64), later(self.shift.time_ns)(times))

    def _move_fields(self, part: Chunk, kind: int, starts: I64) -> None:
        patcher, shift, layout = Patcher(part.data, self.order), self.shift, RECORD_LAYOUTS[kind]
        for name in _PIDS.get(kind, ()):
            patcher.change_field(layout, name, starts, adding(shift.pid, NONE_32))
        for name in _IDS.get(kind, ()):
            patcher.change_field(layout, name, starts, adding(shift.ids, 0))
        if kind in _TIMES:
            moved = later(shift.time_ns)
            start = np.uint64(shift.start_ns)
            patcher.change_field(
                layout, "time", starts, lambda times: np.where(times == 0, start, moved(times))
            )
        if kind in _ADDRESSES and shift.kernel:
            patcher.change_field(layout, "addr", starts, shift.kernel.apply)
        if kind == R.CGROUP:
            patcher.change_field(layout, "id", starts, adding(shift.cgroup, 0))

    def _to_rename(self, part: Chunk) -> list[int]:
        """Rows that may get another name."""
        kinds: list[int] = [R.MMAP, R.MMAP2] if self.shift.kernel or self.owner.with_build_ids else []
        kinds += [R.COMM, R.CGROUP] if self.shift.prefix else []
        return np.flatnonzero(np.isin(part.types, np.array(kinds, np.uint32))).tolist()

    def _renamed(self, part: Chunk, row: int) -> bytes | None:
        """A record with another name or build-id; b"" if it is left out, None if it stays as it is."""
        record, kind, misc = bytes(part.record(row)), int(part.types[row]), int(part.miscs[row])
        end = len(record) - self.trailer_size
        values = RECORD_LAYOUTS[kind].unpack(record, self.order, misc, HEADER_SIZE, end)
        changed = self._new_name(kind, misc, values)
        if changed is None:
            return None
        misc, values = changed
        if not values:
            return b""
        payload = RECORD_LAYOUTS[kind].pack(values, self.order, misc)
        return frame_record(kind, misc, payload + record[end:], self.order)

    def _new_name(self, kind: int, misc: int, values: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
        if kind == R.COMM:
            return misc, values | {"comm": self.shift.prefix + values["comm"]}
        if kind == R.CGROUP:
            return misc, values | {"path": b"/" + self.shift.prefix.rstrip(b":") + values["path"]}
        if int(misc & Misc.CPUMODE_MASK) == CpuMode.KERNEL:
            name = self.shift.kernel.names.get(values["filename"]) if self.shift.kernel else None
            if name is None:
                return None
            return misc, values | {"filename": name} if name else {}
        build_id = self.owner.build_ids.get(values["filename"], "")
        if kind != R.MMAP2 or misc & Misc.MMAP_BUILD_ID or not build_id:
            return None
        data = bytes.fromhex(build_id)
        held = {"build_id_size": len(data), "reserved_1": 0, "reserved_2": 0, "build_id": data}
        return misc | Misc.MMAP_BUILD_ID, values | held


def _records(pieces: list[bytes]) -> Records:
    data = b"".join(pieces)
    return Records(np.frombuffer(data, np.uint64), np.cumsum([0, *(len(one) // 8 for one in pieces)]))
