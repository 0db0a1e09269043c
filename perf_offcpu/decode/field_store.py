# SPDX-License-Identifier: Apache-2.0
"""Gathers the fields of samples that someone asked for, chunk by chunk (`model.sample_fields`)."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.attr import PerfType
from perf_offcpu.abi.sample import SAMPLE
from perf_offcpu.binary.columnar import Columns
from perf_offcpu.binary.gather import Rows, gather_bytes, gather_rows
from perf_offcpu.binary.layout import Order
from perf_offcpu.decode.counter_reads import READ_FIELDS, has_reads
from perf_offcpu.model.columns import I32, Bool
from perf_offcpu.model.growing import GrowingArray
from perf_offcpu.model.sample_fields import EventFields, Items, SampleFields
from perf_offcpu.perfdata.events import EventSpec

_BYTES = ("raw", "stack_user", "aux")
_WORDS = ("read_group", "branch_stack", "branch_counters", "regs_user", "regs_intr")
_HALVES = {"var1_dw": (0, 0xFFFFFFFF), "var2_w": (32, 0xFFFF), "var3_w": (48, 0xFFFF)}
"""Parts of `weight` with WEIGHT_STRUCT: (shift, mask) in the u64."""

_ELSEWHERE = ("callchain_nr", "callchain")
TRACE = "trace"
"""Stands for `raw` of tracepoints alone: where they are recorded beside off-cpu time, that is much less."""
ALL_FIELDS = (*(one.name for one in SAMPLE.fields if one.name not in _ELSEWHERE), *_HALVES, TRACE)
"""Every name that may be asked for. Where several events are recorded, each has its own."""


class FieldStore:
    """Fields of samples, as they come.

    Args:
        names: which of `ALL_FIELDS`. Counters that samples bring along are kept for `counter_reads`, too.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._asked = self._names = frozenset(names)
        self._columns: dict[tuple[int, str], GrowingArray] = {}
        self._offsets: dict[tuple[int, str], GrowingArray] = {}
        self._rows: dict[int, int] = {}

    def wants(self, spec: EventSpec) -> bool:
        """Whether samples of an event have anything to keep; asked before each `add`."""
        self._names = self._asked - {TRACE} | frozenset(READ_FIELDS if has_reads(spec) else ())
        if TRACE in self._asked and spec.attr.type == PerfType.TRACEPOINT:
            self._names |= {"raw"}
        return bool(self._names)

    def add(self, data: NDArray[np.uint8], columns: Columns, ok: Bool, evsel: int, order: Order) -> I32:
        """Take up the samples of one event in a chunk.

        Args:
            columns: their fields; ok: bool[n], which samples are sound: the others are left out.

        Returns:
            int32[n]: their rows, -1 of those that are left out.
        """
        chosen = np.flatnonzero(ok)
        first = self._rows.get(evsel, 0)
        rows = np.full(len(ok), -1, np.int32)
        rows[chosen] = np.arange(first, first + len(chosen))
        self._rows[evsel] = first + len(chosen)
        for name, values in columns.scalars.items():
            self._add_scalar(evsel, name, values[chosen])
        for name, items in columns.arrays.items():
            if name in self._names:
                self._add_array(evsel, name, data, items, chosen, order)
        return rows

    def _add_scalar(self, evsel: int, name: str, values: NDArray[np.uint64]) -> None:
        parts = {name: values}
        if name == "weight":
            parts |= {
                part: values >> np.uint64(shift) & np.uint64(mask) for part, (shift, mask) in _HALVES.items()
            }
        for part, column in parts.items():
            if part in self._names:
                self._columns.setdefault((evsel, part), GrowingArray(column.dtype)).append(column)

    def _add_array(
        self,
        evsel: int,
        name: str,
        data: NDArray[np.uint8],
        items: Rows,
        chosen: NDArray[np.int64],
        order: Order,
    ) -> None:
        if name not in (*_BYTES, *_WORDS):
            return
        mine = Rows(items.starts[chosen], items.counts[chosen], items.width)
        offsets, values = gather_bytes(data, mine) if name in _BYTES else gather_rows(data, mine, order)
        column = self._columns.setdefault((evsel, name), GrowingArray(values.dtype))
        ends = self._offsets.setdefault((evsel, name), GrowingArray("i8"))
        ends.append(offsets[1:] + len(column))
        column.append(values)

    def asked(self, found: SampleFields) -> SampleFields:
        """What of it someone asked for."""
        asked = self._asked | ({"raw"} if TRACE in self._asked else set())
        return SampleFields(
            {
                number: EventFields(
                    {name: values for name, values in one.scalars.items() if name in asked},
                    {name: items for name, items in one.arrays.items() if name in asked},
                )
                for number, one in found.events.items()
                if self._asked
            }
        )

    def release(self) -> SampleFields:
        """All that was gathered; the store is used up."""
        found = SampleFields()
        for (evsel, name), column in self._columns.items():
            event = found.events.setdefault(evsel, EventFields())
            ends = self._offsets.get((evsel, name))
            if ends is None:
                event.scalars[name] = column.release()
            else:
                event.arrays[name] = Items(np.append(np.int64(0), ends.release()), column.release())
        return found
