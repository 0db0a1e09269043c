# SPDX-License-Identifier: Apache-2.0
"""Samples of one recording on their way into a merged one: ids in front, numbers moved (`merge_plan`).

Every sample gets its event's id as IDENTIFIER, its first word, so that events of recordings that carried ids
elsewhere, or none, stand in one file. What else changes are numbers at their places: ids, pid, tid, time,
CPU, cgroup and kernel addresses, in the fields of the sample and in the raw payload of off-cpu samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi import budget as budget_abi
from perf_offcpu.abi import counters as counters_abi
from perf_offcpu.abi import offcpu
from perf_offcpu.abi.attr import SampleType
from perf_offcpu.abi.sample import BRANCH_ENTRY, READ_ENTRY, SAMPLE, CallchainContext, SampleShape
from perf_offcpu.binary.columnar import Columns, read_columns
from perf_offcpu.binary.gather import Rows, gather_u64
from perf_offcpu.binary.layout import Order
from perf_offcpu.decode.account import is_counters
from perf_offcpu.decode.samples import is_offcpu
from perf_offcpu.inject.samples import sound_columns
from perf_offcpu.merge.merge_plan import KernelShift, Shift
from perf_offcpu.model.columns import I64, U64
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.losses import Losses
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk
from perf_offcpu.perfdata.trailers import NO_TIME
from perf_offcpu.perfdata.write.patch import Change, Patcher, adding
from perf_offcpu.perfdata.write.splice import Cut, Placed, chunk_of, ranges, records_of, with_words

NONE_32 = 2**32 - 1
_DEFERRED = np.uint64(CallchainContext.USER_DEFERRED)


class SampleShifter:
    """Moves samples of one evsel.

    Args:
        old: the evsel as it was; new: as it is in the merged recording, with `ids` of this one only.
        shift: by how much.
    """

    def __init__(self, old: EventSpec, new: EventSpec, shift: Shift, order: Order) -> None:
        self.old, self.new, self.shift, self.order = old, new, shift, order
        self.shape = SampleShape.of(new.attr)

    def moved(self, chunk: Chunk, rows: I64, counters: Losses) -> Placed:
        """The samples at these rows of a chunk; those that are damaged are left out, and counted."""
        columns = sound_columns(chunk, rows, self.old, self.order, counters)
        rows = rows[columns.ok]
        ids = new_ids(columns, self.old, self.new, self.shift)[columns.ok]
        if self.old.attr.sample_type & SampleType.IDENTIFIER:
            records = records_of(chunk.take(rows))
        else:
            begin = chunk.starts[rows] + HEADER_SIZE
            cut = Cut(begin, begin, chunk.starts[rows] + chunk.sizes[rows])
            words = (np.arange(len(rows) + 1), ids)
            records, fits = with_words(chunk, rows, cut, words, self.order)
            rows, ids = rows[fits], ids[fits]
        part = chunk_of(records, self.order)
        _Mover(part, self, ids).move()
        records.words = part.data[: len(records.words) * 8].view(np.uint64)
        return rows, records


def new_ids(columns: Columns, old: EventSpec, new: EventSpec, shift: Shift) -> U64:
    """uint64[n]: the new ids of n samples or trailers; the event's first where they have none, or 0.

    Args:
        columns: their fields.
        old, new: their evsel, as it was and as it is.
    """
    names = {"identifier": SampleType.IDENTIFIER, "id": SampleType.ID}
    for name, flag in names.items():
        if name in columns.scalars and old.attr.sample_type & flag:
            found = columns.scalars[name]
            listed = np.isin(found, np.array(old.ids, np.uint64))
            return np.where(listed, found + np.uint64(shift.ids), np.uint64(new.ids[0]))
    return np.full(len(columns.ok), np.uint64(new.ids[0]))


class _Mover:
    """Changes the numbers of the samples of one chunk, in place."""

    def __init__(self, part: Chunk, owner: SampleShifter, ids: U64) -> None:
        self.part, self.spec, self.shape, self.shift = part, owner.new, owner.shape, owner.shift
        self.ids, self.order = ids, owner.order
        self.starts = part.starts + HEADER_SIZE
        self.patcher = Patcher(part.data, owner.order)
        ends = part.starts + part.sizes
        self.columns = read_columns(SAMPLE, part.data, self.starts, ends, owner.order, self.shape)

    def move(self) -> None:
        shift, kernel = self.shift, self.shift.kernel
        self._field("identifier", lambda _: self.ids)
        self._field("id", lambda _: self.ids)
        self._field("stream_id", adding(shift.ids, 0))
        self._read_ids()
        for name in ("pid", "tid"):
            self._field(name, adding(shift.pid, NONE_32))
        self._field("cpu", adding(shift.cpu, NONE_32))
        self._field("time", later(shift.time_ns))
        self._cgroup()
        if kernel:
            self._field("ip", kernel.apply)
            self._field("addr", kernel.apply)
            self._chains(kernel)
        self._raw()

    def _field(self, name: str, change: Any) -> None:
        """Change a field that stands in front of the first one of variable size."""
        if name in self.columns.scalars:
            self.patcher.change_field(SAMPLE, name, self.starts, change, self.shape)

    def _read_ids(self) -> None:
        """Counters that were read along name the events of their group."""
        change = adding(self.shift.ids, 0)
        self._field("read_id", change)
        group = self.columns.arrays.get("read_group")
        if group is not None and "id" in (field.name for field in READ_ENTRY.active(self.shape)):
            entries = _items(group)
            self.patcher.change_field(READ_ENTRY, "id", entries, change, self.shape)

    def _cgroup(self) -> None:
        """CGROUP stands behind what is variable: its place follows from the record's end."""
        kind = self.shape.flags
        if kind & SampleType.CGROUP and not kind & SampleType.AUX:
            behind = (kind & (SampleType.DATA_PAGE_SIZE | SampleType.CODE_PAGE_SIZE)).bit_count()
            self.patcher.change(self.columns.ends - 8 * (1 + behind), 8, adding(self.shift.cgroup, 0))

    def _chains(self, kernel: KernelShift) -> None:
        if "callchain" in self.columns.arrays:
            at = _items(self.columns.arrays["callchain"])
            words = gather_u64(self.part.data, at, self.order)
            # The word behind a deferred marker is a cookie, whatever it looks like.
            is_cookie = np.append(False, words[:-1] == _DEFERRED) if len(words) else words == 0
            self.patcher.change(at[~is_cookie], 8, kernel.apply)
        if "branch_stack" in self.columns.arrays:
            at = _items(self.columns.arrays["branch_stack"])
            for name in ("from", "to"):
                self.patcher.change_field(BRANCH_ENTRY, name, at, kernel.apply)

    def _raw(self) -> None:
        raw = self.columns.arrays.get("raw")
        if raw is None:
            return
        if is_offcpu(self.spec):
            self._offcpu(raw)
        elif is_counters(self.spec):
            sound = raw.starts[raw.counts >= counters_abi.COUNTERS.offset("counters")]
            is_budget = self._magic(sound) == np.uint32(budget_abi.MAGIC)
            for name in ("begin_ns", "end_ns"):
                change = later(self.shift.time_ns)
                self.patcher.change_field(counters_abi.COUNTERS, name, sound[~is_budget], change)
            self._budgets(raw)

    def _magic(self, at: I64) -> NDArray[np.uint32]:
        """uint32[n]: the first word of payloads."""
        words = gather_u64(self.part.data, at, self.order)
        return (words if self.order == "<" else words >> np.uint64(32)).astype(np.uint32)

    def _budgets(self, raw: Rows) -> None:
        """Budgets of threads: ids and times of each."""
        head, row = budget_abi.BUDGETS.offset("budgets"), budget_abi.BUDGET.size()
        starts, counts = raw.starts[raw.counts >= head], raw.counts[raw.counts >= head]
        mine = self._magic(starts) == np.uint32(budget_abi.MAGIC)
        items = _items(Rows(starts[mine] + head, (counts[mine] - head) // row, row))
        for name in ("pid", "tid"):
            self.patcher.change_field(budget_abi.BUDGET, name, items, adding(self.shift.pid, NONE_32))
        for name in ("begin_ns", "end_ns"):
            self.patcher.change_field(budget_abi.BUDGET, name, items, later(self.shift.time_ns))

    def _offcpu(self, raw: Rows) -> None:
        """Both halves of the pid pair move alike, so that it does not matter which is which."""
        shift, data, patcher = self.shift, self.part.data, self.patcher
        columns = read_columns(offcpu.PAYLOAD, data, raw.starts, raw.starts + raw.counts, self.order)
        starts = raw.starts[columns.ok]
        for name in ("pid", "tid"):
            patcher.change_field(offcpu.PAYLOAD, name, starts, adding(shift.pid, NONE_32))
        patcher.change(columns.ends[columns.ok] - 8, 8, adding(shift.cgroup, 0))
        if shift.kernel:
            chain = columns.arrays["callchain"]
            patcher.change(_items(Rows(chain.starts, chain.counts, 8)), 8, shift.kernel.apply)
        limit = np.where(columns.ok, raw.starts + raw.counts, columns.ends)
        extension = read_columns(offcpu.EXTENSION, data, columns.ends, limit, self.order)
        ours = extension.ok & (extension.scalars["magic"] == np.uint32(offcpu.EXTENSION_MAGIC))
        starts = columns.ends[ours]
        for name in ("waker_pid", "waker_tid"):
            patcher.change_field(offcpu.EXTENSION, name, starts, adding(shift.pid, 0, NONE_32))
        for name in ("wakeup_ns", "switch_out_ns"):
            patcher.change_field(offcpu.EXTENSION, name, starts, later(shift.time_ns))
        if shift.kernel:
            counts = np.minimum(extension.scalars["waker_nr"], np.uint64(2**31)).astype(np.int64)
            inside = ours & (columns.ends + 8 * (offcpu.EXTENSION_WORDS + counts) <= limit)
            chains = Rows(columns.ends + 8 * offcpu.EXTENSION_WORDS, np.where(inside, counts, 0), 8)
            patcher.change(_items(chains), 8, shift.kernel.apply)


def _items(rows: Rows) -> I64:
    """int64[n]: where each item of array fields lies."""
    within = ranges(np.zeros(len(rows.counts), np.int64), rows.counts)
    return np.repeat(rows.starts, rows.counts) + within * rows.width


def later(time_ns: int) -> Change:
    """The change that moves times; 0 and dummies (2^63 and more) are none."""

    def change(values: U64) -> U64:
        with np.errstate(over="ignore"):
            moved = values + np.uint64(time_ns % 2**64)
        return np.where((values == 0) | (values >= NO_TIME), values, moved)

    return change
