# SPDX-License-Identifier: Apache-2.0
"""What samples hold beyond the columns of `Samples`: addresses, weights, registers, branches, counters, …

Few recordings have such fields, few readers want them, and each event has its own: so they are kept only if
asked for, event by event, under the names of perf's sample layout (`abi.sample.SAMPLE`). Column `field_row`
of `Samples` leads from a sample to its row in the table of its event.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.model.columns import I32, I64, Bool


@dataclass(slots=True)
class Items:
    """n rows of items of one type: registers and the like are uint64 words, raw data and stacks uint8.

    Args:
        offsets: int64[n + 1]; row i is `values[offsets[i]:offsets[i + 1]]`.
        values: uint64[] or uint8[].
    """

    offsets: I64
    values: NDArray[Any]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, index: int) -> NDArray[Any]:
        """The items of one row."""
        return self.values[self.offsets[index] : self.offsets[index + 1]]


@dataclass(slots=True)
class EventFields:
    """The fields of one event's samples.

    Args:
        scalars: name → array[n].
        arrays: name → n rows; a branch or a member of a group is as many words as it has fields.
    """

    scalars: dict[str, NDArray[Any]] = field(default_factory=dict)
    arrays: dict[str, Items] = field(default_factory=dict)


@dataclass(slots=True)
class SampleFields:
    """The fields that were asked for, by evsel."""

    events: dict[int, EventFields] = field(default_factory=dict)

    def names(self) -> set[str]:
        """All fields that any event has."""
        return {name for event in self.events.values() for name in (*event.scalars, *event.arrays)}

    def scalar(self, name: str, evsel: I32, field_row: I32) -> tuple[NDArray[Any], Bool]:
        """A field of n samples.

        Args:
            evsel, field_row: int32[n], as in `Samples`.

        Returns:
            (values, known): array[n], 0 where the event does not have the field, and bool[n].
        """
        tables = {number: one.scalars[name] for number, one in self.events.items() if name in one.scalars}
        dtype = next(iter(tables.values())).dtype if tables else np.dtype(np.uint64)
        values, known = np.zeros(len(evsel), dtype), np.zeros(len(evsel), np.bool_)
        for number, table in tables.items():
            rows = np.flatnonzero((evsel == number) & (field_row >= 0))
            values[rows], known[rows] = table[field_row[rows]], True
        return values, known

    def array(self, name: str, evsel: int, field_row: int) -> NDArray[Any] | None:
        """The items of one sample; None if its event does not have the field."""
        event = self.events.get(evsel)
        items = event.arrays.get(name) if event is not None else None
        return None if items is None or field_row < 0 else items.row(field_row)

    def check(self) -> None:
        """Raise AssertionError unless all fields of an event have as many rows."""
        for event in self.events.values():
            lengths = {len(column) for column in event.scalars.values()}
            assert len(lengths | {len(items) for items in event.arrays.values()}) <= 1
            for items in event.arrays.values():
                assert items.offsets[0] == 0 and items.offsets[-1] == len(items.values)
