# SPDX-License-Identifier: Apache-2.0
"""Where addresses in the fields of samples lie: the ends of branches, the data that was accessed, and kernel
functions that tracepoints name."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from perf_offcpu.abi.attr import Attr, PerfType, SoftwareConfig
from perf_offcpu.model.columns import I32, U64
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Recording
from perf_offcpu.script.addresses import Addresses, symbolize_with
from perf_offcpu.script.tracepoints.text import kernel_addresses, reader_of
from perf_offcpu.symbolize.symbolizer import SymbolizeOptions

BRANCH_WORDS = 3
"""from, to, flags: `abi.sample.BRANCH_ENTRY`."""

_PAGE_FAULTS = (SoftwareConfig.PAGE_FAULTS, 5, 6)
"""And those of them that are minor and major."""


@dataclass(slots=True)
class FieldPlaces:
    """Rows in `Profile.frames` by event, -1 for none: of each row's address; of each branch's two ends.

    Args:
        functions: address in the kernel → row.
    """

    addr: dict[int, I32] = field(default_factory=dict)
    branches: dict[int, I32] = field(default_factory=dict)
    functions: dict[int, int] = field(default_factory=dict)


def says_where(attr: Attr | None) -> bool:
    """Whether what lies at an event's `addr` can be named: sample_addr_correlates_sym() of perf's evsel.c."""
    return attr is not None and attr.type == PerfType.SOFTWARE and attr.config in _PAGE_FAULTS


def symbolize_fields(recording: Recording, options: SymbolizeOptions) -> tuple[Profile, FieldPlaces]:
    """As `symbolize`, with the addresses in all fields that the recording was loaded with."""
    parts = [*_of_addr(recording), *_of_branches(recording), *_of_functions(recording)]
    every = [one for _, _, one in parts]
    wanted = Addresses(
        np.concatenate([np.empty(0, np.int32), *(one.space for one in every)]),
        np.concatenate([np.empty(0, np.uint64), *(one.ip for one in every)]),
    ).unique()
    profile, frames = symbolize_with(recording, options, wanted)
    frames = np.append(frames, np.int32(-1))
    places = FieldPlaces()
    for kind, number, one in parts:
        found = frames[wanted.rows_of(one.space, one.ip)]
        if kind == "functions":
            places.functions |= dict(zip(one.ip.tolist(), found.tolist(), strict=True))
        else:
            getattr(places, kind)[number] = found
    return profile, places


_Part = tuple[str, int, Addresses]
"""(attribute of FieldPlaces, event, addresses)."""


def _of_addr(recording: Recording) -> list[_Part]:
    return [
        ("addr", number, Addresses(_spaces(recording, number, len(one.scalars["addr"])), one.scalars["addr"]))
        for number, one in recording.fields.events.items()
        if "addr" in one.scalars and says_where(recording.evsels[number].attr)
    ]


def _of_branches(recording: Recording) -> list[_Part]:
    parts: list[_Part] = []
    for number, one in recording.fields.events.items():
        items = one.arrays.get("branch_stack")
        if items is not None:
            ends: U64 = items.values.reshape(-1, BRANCH_WORDS)[:, :2].reshape(-1)
            counts = np.diff(items.offsets) // BRANCH_WORDS * 2
            space = np.repeat(_spaces(recording, number, len(items)), counts)
            parts.append(("branches", number, Addresses(space, ends)))
    return parts


def _of_functions(recording: Recording) -> list[_Part]:
    """The kernel's functions that tracepoints print the names of."""
    if recording.tracing is None:
        return []
    found: set[int] = set()
    for number, one in recording.fields.events.items():
        attr = recording.evsels[number].attr
        event = recording.tracing.formats.get(attr.config) if attr.type == PerfType.TRACEPOINT else None
        numbers = kernel_addresses(reader_of(recording.tracing, event)) if event is not None else []
        if numbers and "raw" in one.arrays:
            items = one.arrays["raw"]
            rows = (items.row(row).tobytes() for row in range(len(items)))
            found.update(make(data) for data in rows for make in numbers)
    ip = np.array(sorted(found), np.uint64)
    ip = ip[ip >= np.uint64(1 << 63)]
    return [("functions", -1, Addresses(np.full(len(ip), -1, np.int32), ip))]


def _spaces(recording: Recording, number: int, rows: int) -> I32:
    """The address space of each row of an event's fields."""
    samples = recording.samples
    mine = np.flatnonzero((samples.evsel == number) & (samples.field_row >= 0))
    spaces = np.full(rows, -1, np.int32)
    spaces[samples.field_row[mine]] = samples.space[mine]
    return spaces
