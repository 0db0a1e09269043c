# SPDX-License-Identifier: Apache-2.0
"""The Profile: what people read. Named frames, a stack tree, and one row a sample.

`symbolize.symbolize` makes it from a Recording; converters and reports take nothing else, so none of them
can be handed unsymbolized data by mistake. A sample's weight is its `period`: an integer until printed.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Self

import numpy as np

from perf_offcpu.losses import LossCause
from perf_offcpu.model.columns import I32, I64, U8, U32, U64, Bool, Table, check_tables, column
from perf_offcpu.model.recording import Budget, Comms, Evsel, Meta, SampleColumns, SampleFlag, Tasks
from perf_offcpu.model.strings import Strings
from perf_offcpu.structs import mutable

_KERNEL_DSOS = ("[kernel.kallsyms]", "[kernel]", "[guest.kernel.kallsyms]")


@mutable
class Frames(Table):
    """Named code locations. Row order is not meaningful."""

    symbol: U32 = column("u4", domain="strings", doc='string: function name, demangled; "" unknown')
    dso: U32 = column("u4", domain="strings", doc='string: path or pseudo name; "" unknown')
    address: U64 = column("u8", doc="dso-relative virtual address (kernel: absolute); 0 unknown")
    offset: U64 = column("u8", unit="bytes", doc="from the symbol's start; 0 if no symbol")
    file: U32 = column("u4", domain="strings", doc='string: source file; "" unknown')
    line: I32 = column("i4", sentinel=0, doc="source line; 0 unknown")
    inline_depth: I32 = column("i4", sentinel=0, doc="0 the function itself, 1 inlined into it, …")
    cpumode: U8 = column("u1", doc="abi.records.CpuMode of the code")
    ip: U64 = column("u8", doc="address as recorded, in its process; 0 unless asked for (keep_ips)")


@mutable
class Stacks(Table):
    """The stack tree (`model.stacks`): `parent[s] < s`."""

    parent: I32 = column("i4", sentinel=-1, domain="stacks", doc="row in stacks; -1 a root")
    frame: I32 = column("i4", domain="frames", doc="row in frames")


@mutable
class ProfileSamples(SampleColumns):
    """One row a sample, sorted as in the Recording."""

    stack: I32 = column("i4", sentinel=-1, domain="stacks", doc="row in stacks: the leaf; -1 no stack")
    waker_stack: I32 = column(
        "i4", sentinel=-1, domain="stacks", doc="row in stacks: where the waker was; -1 none"
    )


@mutable
class Profile:
    """Everything that a converter or report may use."""

    samples: ProfileSamples = field(default_factory=ProfileSamples)
    stacks: Stacks = field(default_factory=Stacks)
    frames: Frames = field(default_factory=Frames)
    strings: Strings = field(default_factory=Strings)
    evsels: list[Evsel] = field(default_factory=list)
    comms: Comms = field(default_factory=Comms)
    tasks: Tasks = field(default_factory=Tasks)
    budget: Budget = field(default_factory=Budget)
    cgroups: dict[int, str] = field(default_factory=dict)
    build_ids: dict[int, str] = field(default_factory=dict)
    """Row in strings of a dso → its build-id in hex, where it is known and the same all the time."""
    losses: dict[LossCause, int] = field(default_factory=dict)
    meta: Meta = field(default_factory=Meta)

    def build_id(self, dso: int) -> str:
        """Return the build-id in hex of a dso, a row in strings; "" if unknown."""
        known = self.build_ids.get(dso, "")
        return known or (self.meta.kernel_build_id if self.strings[dso] in _KERNEL_DSOS else "")

    def is_offcpu(self) -> Bool:
        """bool[samples]: which samples are off-cpu time."""
        offcpu: Bool = (self.samples.flags & np.uint32(SampleFlag.OFFCPU)) != 0
        return offcpu

    def select(self, rows: Bool | I64) -> Self:
        """The same profile with only these samples."""
        return replace(self, samples=self.samples.take(rows))

    def check(self) -> None:
        """Raise AssertionError unless every table is well-formed and every row id leads somewhere."""
        check_tables(self)
        assert bool((self.stacks.parent < np.arange(len(self.stacks))).all()), (
            "a parent comes after its child"
        )
