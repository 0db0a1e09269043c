# SPDX-License-Identifier: Apache-2.0
"""Recordings of callchains, for tests of what symbolization makes of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from perf_offcpu.abi.attr import Attr, SampleType
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import Strings
from perf_offcpu.model.recording import Dsos, Evsel, Maps, Recording, Samples, Spaces

Mapped = tuple[int, int, int, int, str]
"""Address space (-1: the kernel's), start, end, offset in the file, and path."""


def recording_of_chains(
    chains: Sequence[Sequence[int]], *mapped: Mapped, columns: dict[str, Any] | None = None, **tables: Any
) -> Recording:
    """Return a recording with a CPU sample for each callchain, of a thread in address space 0 of process 1. `columns`
    are other columns of its samples, `tables` other members of Recording; its `strings` need not hold the paths."""
    given = {"callchain": np.arange(len(chains)), **(columns or {})}
    rows = len(given["callchain"])
    defaults = {"time_ns": np.arange(rows), "evsel": np.zeros(rows), "space": np.zeros(rows)}
    strings = tables.pop("strings", None) or Strings()
    paths = list(dict.fromkeys(path for *_, path in mapped))
    modes = {path: CpuMode.KERNEL if space < 0 else CpuMode.USER for space, *_, path in mapped}
    usual = {
        "spaces": Spaces.filled(1, pid=[1]),
        "maps": Maps.from_rows([(*place, paths.index(path)) for *place, path in mapped]),
        "dsos": Dsos.from_rows([(strings.intern(path), 0, modes[path]) for path in paths]),
    }
    return Recording(
        samples=Samples.filled(rows, **{**defaults, **given}),
        callchains=Ragged.from_lists([list(map(int, chain)) for chain in chains]),
        evsels=[Evsel("cpu-clock", Attr(sample_type=SampleType.CALLCHAIN), "ns")], strings=strings, **(usual | tables),
    )  # fmt: skip


def chains_of(recording: Recording) -> list[list[int]]:
    return [recording.callchains.row(row).tolist() for row in recording.samples.callchain.tolist()]
