# SPDX-License-Identifier: Apache-2.0
"""Copies of user stacks on their way from one file to another: unwound, and left out.

Stack bytes can hold secrets, and a recording is rewritten to be passed on. So by default a sample's registers
and stack are cut out, and what was unwound from them becomes the user's part of its callchain. Whoever keeps
them does so for perf's own unwinder, which adds what it finds to the callchain: there the user's part is cut.

Unwinding itself is `symbolize`'s; it is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.attr import SampleType
from perf_offcpu.abi.cfi import ABI_64
from perf_offcpu.binary.columnar import Columns
from perf_offcpu.binary.gather import Rows, gather_rows
from perf_offcpu.binary.layout import Order
from perf_offcpu.decode.stacks.callers import CallerRows, sum_callers
from perf_offcpu.decode.stacks.gather import SnapshotStore
from perf_offcpu.decode.stacks.user_parts import join_parts, kernel_parts
from perf_offcpu.decode.tasks.replay import TaskReplay
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged, offsets_of, spread
from perf_offcpu.model.columns import I8, I32, I64, U64, Bool
from perf_offcpu.model.recording import Meta, Recording, Samples
from perf_offcpu.model.snapshots import Snapshots
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.scan import Chunk
from perf_offcpu.perfdata.write.splice import Cut, Records, chunk_of, records_of, with_callchains, with_words
from perf_offcpu.structs import mutable


@mutable
class UserChains:
    """n user callchains, leaf first, and bool[n], which of them end before their root."""

    chains: Ragged = field(default_factory=Ragged)
    cut: Bool = field(default_factory=lambda: np.empty(0, np.bool_))

    def __len__(self) -> int:
        return len(self.cut)

    def take(self, rows: I64) -> UserChains:
        """Some of them, in the given order."""
        return UserChains(self.chains.take(rows), self.cut[rows])

    @classmethod
    def concat(cls, parts: Sequence[UserChains]) -> UserChains:
        """Those of all parts, in order."""
        chains = Ragged.concat([part.chains for part in parts])
        return cls(chains, np.concatenate([np.empty(0, np.bool_), *(part.cut for part in parts)]))


UnwindSome = Callable[[Snapshots, I32, Losses], UserChains]
"""(snapshots, address space of each, where cuts are counted) → user callchains."""
MakeUnwinder = Callable[[Recording], UnwindSome | None]
"""From a recording's maps and files to its unwinder; None if its machine is not known."""

_STACK = SampleType.REGS_USER | SampleType.STACK_USER
Read = Callable[[Chunk, I64, EventSpec], Columns]


def has_stacks(spec: EventSpec) -> bool:
    """Whether an evsel's samples have copies of user stacks."""
    return spec.attr.sample_type & _STACK == _STACK


def without_stacks(spec: EventSpec) -> EventSpec:
    """The evsel of samples whose stacks were cut out."""
    if not has_stacks(spec):
        return spec
    attr = replace(
        spec.attr,
        sample_type=spec.attr.sample_type & ~_STACK,
        sample_regs_user=0,
        sample_stack_user=0,
    )
    return replace(spec, attr=attr)


@mutable
class StackCutter:
    """Rewrites samples with copies of user stacks.

    Args:
        tasks: the whole recording's tasks and maps, replayed.
        unwinder: see MakeUnwinder; None leaves the user's part of callchains as it is.
        keep: leave the copies in, and the user's part of callchains out.
        order: the recording's byte order.
        counters: where stacks that could not be followed to their root are counted.
    """

    tasks: TaskReplay
    unwinder: UnwindSome | None
    keep: bool
    order: Order
    counters: Losses
    unwound: int = field(default=0)
    """Samples that were unwound so far."""
    _callers: CallerRows = field(default_factory=CallerRows)
    _of_callers: UserChains = field(default_factory=UserChains)
    """User callchains of callers of sums, by `_callers`."""

    def rewrite(self, chunk: Chunk, rows: I64, spec: EventSpec, read: Read) -> tuple[Records, I8]:
        """What stands for samples of one evsel.

        Args:
            rows: sound samples of the chunk.
            read: gives their fields.

        Returns:
            (records, cut): cut is int8[n], 0 whose stack was unwound to its root, 1 not so far, -1 neither.
        """
        columns = read(chunk, rows, spec)
        callchains, cut = self._callchains(chunk, columns, spec)
        if self.keep:
            return self._with_callchains(chunk, rows, columns, callchains), cut
        begins = columns.arrays["regs_user"].starts - 8
        stack = columns.arrays["stack_user"]
        ends = stack.starts + stack.counts + np.where(stack.counts > 0, 8, 0)
        sizes = chunk.starts[rows] + chunk.sizes[rows]
        nothing = (np.zeros(len(rows) + 1, np.int64), np.empty(0, np.uint64))
        records, _ = with_words(chunk, rows, Cut(begins, ends, sizes), nothing, self.order)
        smaller, every = chunk_of(records, self.order), np.arange(len(rows))
        columns = read(smaller, every, without_stacks(spec))
        return self._with_callchains(smaller, every, columns, callchains), cut

    def _with_callchains(
        self, chunk: Chunk, rows: I64, columns: Columns, callchains: Ragged | None
    ) -> Records:
        if callchains is None:
            return records_of(chunk.take(rows))
        old = columns.arrays["callchain"]
        cut = Cut(old.starts - 8, old.starts + 8 * old.counts, chunk.starts[rows] + chunk.sizes[rows])
        records, fits = with_callchains(chunk, rows, cut, (callchains.offsets, callchains.values), self.order)
        assert fits.all(), "a callchain of at most 1024 frames fits where a stack was"
        return records

    def _callchains(self, chunk: Chunk, columns: Columns, spec: EventSpec) -> tuple[Ragged | None, I8]:
        """(the new callchains, which are cut); None if they stay as they are."""
        cut = np.full(len(columns.ok), -1, np.int8)
        if "callchain" not in columns.arrays:
            return None, cut
        old = columns.arrays["callchain"]
        chains = Ragged(*gather_rows(chunk.data, Rows(old.starts, old.counts, 8), self.order))
        store = SnapshotStore(self.counters)
        mask = spec.attr.sample_regs_user
        callers = sum_callers(chunk.data, columns, self.order)
        wanted = columns.ok & (callers != 0) if self.keep else columns.ok
        copied = columns.ok & (columns.scalars["regs_user_abi"] == ABI_64)
        copied &= columns.scalars["stack_user_dyn_size"] >= 8
        found = np.flatnonzero(store.add(chunk, columns, mask, wanted, self.order) >= 0)
        front = kernel_parts(chains)
        kept = _cut(chains, np.where(copied, front, chains.lengths)) if self.keep else chains
        if self.unwinder is None or not (len(found) or callers.any()):
            return kept if self.keep else None, cut
        user = self.unwinder(store.release(), self._spaces(columns)[found], self.counters)
        borrowed, of_callers = self._borrowed(callers, found, user)
        if not self.keep:
            self.unwound += len(found)
            borrowed = np.concatenate([found, borrowed])
            of_callers = UserChains.concat([user, of_callers])
        whole = join_parts(chains, front, borrowed.astype(np.int32), of_callers.chains)
        cut[borrowed] = of_callers.cut
        row = np.arange(len(chains))
        row[borrowed] = len(chains) + np.arange(len(borrowed))
        return Ragged.concat([kept, whole]).take(row), cut

    def _borrowed(self, callers: U64, found: I64, user: UserChains) -> tuple[I64, UserChains]:
        """Sums whose stacks are known from another of their callers, and these stacks.

        Args:
            callers: uint64[n], of all samples.
            found: int64[m], those that were unwound; `user`: their callchains.
        """
        new = np.flatnonzero(callers[found])
        self._callers.note(callers[found[new]], len(self._of_callers) + np.arange(len(new)))
        self._of_callers = UserChains.concat([self._of_callers, user.take(new)])
        others = callers != 0
        others[found] = False
        borrowed = np.flatnonzero(others)
        known = self._callers.find(callers[borrowed])
        self.counters.add(losses.CALLERS_NOT_COPIED, int((known < 0).sum()))
        return borrowed[known >= 0], self._of_callers.take(known[known >= 0])

    def _spaces(self, columns: Columns) -> I32:
        scalars = columns.scalars
        samples = Samples.filled(
            len(columns.ok),
            pid=scalars["pid"].view(np.int32) if "pid" in scalars else None,
            tid=scalars["tid"].view(np.int32) if "tid" in scalars else None,
            time_ns=scalars["time"].view(np.int64) if "time" in scalars else None,
        )
        return self.tasks.attribute(samples).space


def _cut(chains: Ragged, lengths: I64) -> Ragged:
    """The first words of each row."""
    offsets = offsets_of(lengths)
    return Ragged(offsets, chains.values[spread(chains.offsets[:-1], lengths, offsets)])


def frames_of(tasks: TaskReplay, arch: str, path: str) -> Recording:
    """What unwinding takes of a recording: its maps and files."""
    spaces, maps = tasks.spaces.tables()
    return Recording(
        strings=tasks.strings, spaces=spaces, maps=maps, dsos=tasks.dsos(), meta=Meta(arch=arch, source=path)
    )
