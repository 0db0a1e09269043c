# SPDX-License-Identifier: Apache-2.0
"""Are two Recordings the same? Row numbers may differ where the things that they lead to are equal."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np

from perf_offcpu.model.recording import Recording, SampleFlag


def sample_rows(recording: Recording) -> list[tuple[Any, ...]]:
    """Return samples as tuples, in order: all columns, then comm, callchain and maps, spelt out."""
    samples, strings = recording.samples, recording.strings
    skipped = {"comm", "space", "callchain", "waker_callchain", "snapshot"}
    columns: list[Iterable[Any]] = [getattr(samples, name).tolist() for name in samples.columns if name not in skipped]
    columns.append(strings[row] for row in samples.comm.tolist())
    chains = [tuple(recording.callchains.row(row).tolist()) for row in range(len(recording.callchains))]
    for rows in (samples.callchain, samples.waker_callchain):
        columns.append(chains[row] if row >= 0 else None for row in rows.tolist())
    maps = _maps_of_spaces(recording)
    columns.append(maps.get(row, ()) for row in samples.space.tolist())
    return list(zip(*columns, strict=True))


def _maps_of_spaces(recording: Recording) -> dict[int, tuple[Any, ...]]:
    maps, dsos, strings = recording.maps, recording.dsos, recording.strings
    found: dict[int, list[Any]] = {}
    for space, start, end, pgoff, dso in zip(
        *(getattr(maps, name).tolist() for name in ("space", "start", "end", "pgoff", "dso")), strict=True
    ):
        text = (strings[int(dsos.path[dso])], strings[int(dsos.build_id[dso])], int(dsos.cpumode[dso]))
        found.setdefault(space, []).append((start, end, pgoff, *text))
    return {space: tuple(rows) for space, rows in found.items()}


def table_rows(table: Any, recording: Recording, texts: Iterable[str] = ()) -> list[tuple[Any, ...]]:
    """A table as sorted tuples, texts spelt out."""
    columns = []
    for name in table.columns:
        values = getattr(table, name).tolist()
        columns.append([recording.strings[row] for row in values] if name in texts else values)
    return sorted(zip(*columns, strict=True))


def assert_same_surroundings(before: Recording, after: Recording) -> None:
    """Everything but the samples and tasks: comms, maps, symbols, cgroups, machine, event names."""
    for name, texts in (("comms", ["comm"]), ("kernel_symbols", ["name"])):
        rows = [table_rows(getattr(one, name), one, texts) for one in (before, after)]
        assert rows[0] == rows[1], name
    assert _maps_of_spaces(before).get(-1) == _maps_of_spaces(after).get(-1)
    assert Counter(_maps_of_spaces(before).values()) == Counter(_maps_of_spaces(after).values())
    assert before.cgroups == after.cgroups
    assert [(evsel.name, evsel.unit) for evsel in before.evsels] == [(evsel.name, evsel.unit) for evsel in after.evsels]
    for field in fields(before.meta):
        if field.name not in ("source", "first_ns", "last_ns"):
            assert getattr(before.meta, field.name) == getattr(after.meta, field.name), field.name


def assert_same(before: Recording, after: Recording) -> None:
    """Equal in all that a Recording says, samples in the same order."""
    assert sample_rows(before) == sample_rows(after)
    assert table_rows(before.tasks, before) == table_rows(after.tasks, after)
    assert_same_surroundings(before, after)


def assert_same_but_retyped(before: Recording, after: Recording) -> None:
    """Equal but for flags that say how things were recorded; sums without a time may stand in another order. A thread
    ends after its last wait. Address spaces are not compared: a deferred callchain may be of after an exec."""
    timed = [one.samples.time_ns >= 0 for one in (before, after)]
    assert _rows(before, timed[0]) == _rows(after, timed[1])
    assert Counter(_rows(before, ~timed[0])) == Counter(_rows(after, ~timed[1]))
    tasks = [table_rows(one.tasks, one) for one in (before, after)]
    assert [row[:3] for row in tasks[0]] == [row[:3] for row in tasks[1]]
    assert all(new[3] >= old[3] and (new[3] < 0) == (old[3] < 0) for old, new in zip(*tasks, strict=True))
    assert_same_surroundings(before, after)


HOW_RECORDED = SampleFlag.REPAIRED_IDS | SampleFlag.UNMERGED | SampleFlag.NO_USER_STACK
"""Flags that inject has no use for: ids are right now, deferred callchains no longer expected."""


def _rows(recording: Recording, chosen: Any) -> list[tuple[Any, ...]]:
    samples = recording.samples.take(chosen)
    flags = samples.flags & ~np.uint32(HOW_RECORDED)
    blind = np.full(len(samples), -1, np.int32)
    return sample_rows(recording.replaced(samples=samples.with_columns(flags=flags, space=blind)))
