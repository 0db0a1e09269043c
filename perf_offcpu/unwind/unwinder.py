# SPDX-License-Identifier: Apache-2.0
"""Turn copies of user stacks into callchains. Recording to Recording, before symbolization.

The kernel cannot walk the stacks of programs built without frame pointers, as most distributions ship them. But their
files hold for every address the rules to find the caller's frame (.eh_frame). So a recording with registers and the top
of the stack, by `perf record --call-graph dwarf` or this project's `cfi`, is unwound here. The kernel part of the
recorded callchain stays; the user part, the kernel's walk along frame pointers, is replaced."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Final

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.elf import Machine
from perf_offcpu.abi.machine import MACHINES, Registers
from perf_offcpu.abi.offcpu import LARGEST_COPY
from perf_offcpu.binary.columnar import rows_of
from perf_offcpu.decode.deferred import join_parts, without_user_parts
from perf_offcpu.decode.trim_stacks import cut_wrong_callers
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged, Snapshots
from perf_offcpu.model.chain_table import ChainTable
from perf_offcpu.model.columns import I32, I64, U8, U64, Bool, distinct, is_one_of
from perf_offcpu.model.recording import Recording, SampleFlag, Samples
from perf_offcpu.objects.perf_map import PerfMaps
from perf_offcpu.objects.search import Search
from perf_offcpu.structs import mutable
from perf_offcpu.unwind.lookup import CfiLookup, Rules, Trampolines
from perf_offcpu.unwind.state import End, Threads
from perf_offcpu.unwind.step import MAX_GENERAL, MORE_GENERAL, walk_up
from perf_offcpu.unwind.tables import FrameTables

BATCH: Final = 1 << 14  # stacks that are unwound together, at most
BATCH_WORDS: Final = 1 << 23  # words of these stacks together, at most

_FLAG_OF_END: Final = {
    End.EXHAUSTED: SampleFlag.STACK_EXHAUSTED | SampleFlag.TRUNCATED,
    End.NO_CFI: SampleFlag.NO_CFI | SampleFlag.TRUNCATED,
    End.OUTSIDE: SampleFlag.OUTSIDE_MAPS | SampleFlag.TRUNCATED,
}
_SETTLED: Final = SampleFlag.TRUNCATED | SampleFlag.NO_USER_STACK


@mutable
class Unwound:
    """Hold the user callchains of n snapshots, addresses leaf first, and the `End` of each walk (uint8[n])."""

    chains: Ragged = field(default_factory=Ragged)
    ends: U8 = field(default_factory=lambda: np.empty(0, np.uint8))

    def __len__(self) -> int:
        return len(self.ends)

    def take(self, rows: I64 | I32) -> "Unwound":
        """Return the callchains of these rows, in the given order."""
        return Unwound(self.chains.take(rows), self.ends[rows])

    def is_cut(self) -> Bool:
        """Return bool[n]: True where the callchain ends before its root."""
        return np.isin(self.ends, list(_FLAG_OF_END))

    @classmethod
    def concat(cls, parts: "Sequence[Unwound]") -> "Unwound":
        """Return the callchains of all parts, in order."""
        ends = [np.empty(0, np.uint8), *(part.ends for part in parts)]
        return cls(Ragged.concat([part.chains for part in parts]), np.concatenate(ends))


class KnownStacks:
    """Keep the unwound callchains of a recording that is read part by part: a snapshot may have samples in many parts,
    and is unwound once. Address spaces may get mappings later, so callchains that end too early are not kept."""

    def __init__(self) -> None:
        self._pairs, self._unwound = np.empty(0, np.int64), Unwound()

    def unwind(self, pairs: I64, walk: Callable[[I64], Unwound]) -> Unwound:
        """Return the callchains of n distinct pairs (snapshot << 32 | address space); `walk` unwinds unknown ones."""
        row = np.searchsorted(self._pairs, pairs)
        is_known = np.append(self._pairs, -1)[row] == pairs
        new = pairs[~is_known]
        if not len(new):
            return self._unwound.take(row)
        count, walked = len(self._pairs), walk(new)
        both = Unwound.concat([self._unwound, walked])
        row[~is_known] = np.arange(count, count + len(new))
        settled = np.flatnonzero(~walked.is_cut())
        every = np.concatenate([self._pairs, new[settled]])
        order = np.argsort(every)
        self._pairs, self._unwound = every[order], both.take(np.append(np.arange(count), count + settled)[order])
        return both.take(row)


class Unwinder:
    """Unwind snapshots (registers and stack copies) of one recording, by its maps and dsos. `own`: int64[k], snapshots
    in which frames of interpreted Java methods are named: samples that share one have equal methods."""

    own: I64 = np.empty(0, np.int64)

    def __init__(self, recording: Recording, search: Search) -> None:
        row = MACHINES[recording.meta.arch]
        self.registers = row.registers
        tables, is_x86 = FrameTables(recording, row.machine, search), row.machine == Machine.X86_64
        self._maps = PerfMaps(recording, search.symfs)
        trampolines = Trampolines(recording, self._maps) if is_x86 else None
        rules, calls = Rules.kept(self.registers, search.cache), tables.calls if is_x86 else None
        self._lookup = CfiLookup(recording, rules, tables.of_dso, trampolines, calls)
        self._budget = [MAX_GENERAL]
        of_jvms = np.flatnonzero(is_one_of(recording.spaces.pid, np.array([*recording.perf_maps], np.int64))).tolist()
        self._unsure_spaces = np.array([space for space in of_jvms if len(self._maps.unsure_of(space))], np.int32)

    def unwind(self, snapshots: Snapshots, rows: I64 | I32, spaces: I32) -> Unwound:
        """Unwind the snapshots `rows` together; return callchains in this order. `spaces`: int32[n], address spaces."""
        self._budget[0] += MORE_GENERAL
        values, is_known = _registers(snapshots, rows, self.registers)
        threads = Threads(spaces, values, is_known, snapshots.read_stacks(rows), np.isin(rows, self.own))
        return self._without_unsure(spaces, Unwound(*walk_up(self._lookup, threads, self._budget)))

    def _without_unsure(self, spaces: I32, unwound: Unwound) -> Unwound:
        """Return the callchains, those that end before their root only up to code that may have been other code at that
        time: then its frame was most likely another one. A callchain that reaches its root is right."""
        cut = np.flatnonzero(unwound.is_cut() & is_one_of(spaces, self._unsure_spaces))
        if not len(cut):
            return unwound
        lengths = unwound.chains.lengths.copy()
        for row in cut.tolist():
            is_unsure = self._maps.unsure_of(int(spaces[row])).lookup(unwound.chains.row(row)) >= 0
            lengths[row] = int(np.argmax(is_unsure)) if is_unsure.any() else lengths[row]
        return Unwound(unwound.chains.cut(lengths), unwound.ends)

    def unwind_all(self, snapshots: Snapshots, spaces: I32, stack_bytes: int, counters: Losses) -> Unwound:
        """Unwind all snapshots in batches; count callchains that end too early in `counters`. `spaces`:
        int32[snapshots]. `stack_bytes`: attr.sample_stack_user."""
        every = np.arange(len(snapshots))
        batches = [every[first : first + BATCH] for first in range(0, len(snapshots), BATCH)]
        unwound = Unwound.concat([self.unwind(snapshots, rows, spaces[rows]) for rows in batches])
        _count(unwound, snapshots.stack.lengths, np.int64(stack_bytes), counters)
        return unwound


def _count(unwound: Unwound, words: I64, stack_bytes: I64 | np.int64, counters: Losses) -> None:
    """Count callchains that end too early, by cause. `words`: int64[n], words of each copy. A larger copy would help
    where one has the full size, `stack_bytes` or four times that, but less than LARGEST_COPY."""
    is_exhausted, size = unwound.ends == End.EXHAUSTED, 8 * words
    more_would_help = ((size == stack_bytes) | (size == 4 * stack_bytes)) & (size < LARGEST_COPY)
    counters.add(losses.COPY_EXHAUSTED, int((is_exhausted & more_would_help).sum()))
    counters.add(losses.STACK_TOO_DEEP, int((is_exhausted & ~more_would_help).sum()))
    counters.add(losses.NO_CFI, int((unwound.ends == End.NO_CFI).sum()))
    counters.add(losses.OUTSIDE_MAPS, int((unwound.ends == End.OUTSIDE).sum()))


def _own_snapshots(recording: Recording, rows: I64) -> I64:
    """Return the snapshots of samples `rows` that samples with other interpreted Java methods never share."""
    samples, maps = recording.samples, PerfMaps(recording, "")
    flags, snapshot, pid = samples.flags[rows], samples.snapshot[rows], samples.pid[rows]
    since_ns = np.full(len(rows), np.iinfo(np.int64).max)
    for jvm in recording.perf_maps:
        if time_ns := maps.apart_ns(jvm):
            since_ns[pid == jvm] = time_ns
    is_own = (flags & SampleFlag.STILL_BLOCKED != 0) | (flags & SampleFlag.OFFCPU == 0)
    is_own |= (samples.time_ns[rows] >= since_ns) & (flags & SampleFlag.AGGREGATED == 0)
    return np.setdiff1d(snapshot[is_own], snapshot[~is_own]).astype(np.int64)


def unwind(recording: Recording, search: Search | None = None, known: KnownStacks | None = None) -> Recording:
    """Return the recording with its snapshots unwound and dropped. A sample whose stack could not be followed to its
    root keeps the frames that were found, gets the flags TRUNCATED and that of the cause, and is counted in `losses`.
    `search`: where files are looked up, and the cache of their tables; None: the recorded paths, no cache. `known`:
    callchains of earlier parts of the recording."""
    samples, counters = recording.samples, Losses(recording.losses)
    rows = np.flatnonzero(samples.snapshot >= 0)
    if not len(rows):
        return recording.replaced(snapshots=Snapshots())
    if recording.meta.arch not in MACHINES:
        counters.add(losses.UNKNOWN_MACHINE, len(rows))
        return cut_wrong_callers(_finished(recording, samples, recording.callchains, counters))
    unwinder = Unwinder(recording, search or Search())
    unwinder.own = _own_snapshots(recording, rows)

    def walk(pairs: I64) -> Unwound:
        return unwinder.unwind(recording.snapshots, pairs >> 32, pairs.astype(np.int32))

    chains = ChainTable()
    chains.add(recording.callchains)  # distinct, so they keep their numbers
    kernel = without_user_parts(recording.callchains)
    stack_bytes = np.array([*(evsel.attr.sample_stack_user for evsel in recording.evsels), 0], np.int64)
    callchain, flags = samples.callchain.copy(), samples.flags.copy()
    # Snapshots are in the order of the file, which samples need not be. Sums share those of their callers.
    pairs = samples.snapshot[rows].astype(np.int64) << 32 | samples.space[rows] & np.int64(2**32 - 1)
    order = np.argsort(pairs, kind="stable")
    rows, pairs = rows[order], pairs[order]
    new = np.append(True, pairs[1:] != pairs[:-1])
    words = recording.snapshots.stack.lengths[pairs >> 32]
    for part in _batches(words):
        is_new = np.append(True, new[part][1:])
        unique = pairs[part][is_new]
        unwound = walk(unique) if known is None else known.unwind(unique, walk)
        if not is_new.all():
            unwound = unwound.take(np.cumsum(is_new) - 1)
        some = rows[part]
        callchain[some] = chains.add(join_parts(kernel.take(samples.callchain[some]), unwound.chains))
        flags[some] &= ~np.uint32(_SETTLED)
        for end, flag in _FLAG_OF_END.items():
            flags[some[unwound.ends == end]] |= np.uint32(flag)
        _count(unwound, words[part], stack_bytes[samples.evsel[some]], counters)
    samples = samples.with_columns(callchain=callchain, flags=flags)
    return _finished(recording, samples, chains.release(), counters)


def _batches(words: I64) -> Iterator[slice]:
    """Yield slices of n stacks, of words[i] words each, to unwind together: at most BATCH stacks and BATCH_WORDS words,
    but at least one stack."""
    total, first = np.append(0, np.cumsum(words)), 0
    while first < len(words):
        fit = int(np.searchsorted(total, total[first] + BATCH_WORDS, side="right")) - 1
        stop = max(first + 1, min(first + BATCH, fit))
        yield slice(first, stop)
        first = stop


def _finished(recording: Recording, samples: Samples, chains: Ragged, counters: Losses) -> Recording:
    """Return the recording with these samples, chains and losses, without snapshots and unused callchains."""
    waker, deferred = samples.waker_callchain, recording.deferred.callchain
    used = distinct(np.concatenate([samples.callchain, waker, deferred]))
    used = used[used >= 0]
    number = np.full(len(chains) + 1, -1, np.int32)
    number[used] = np.arange(len(used), dtype=np.int32)
    none = np.full(len(samples), -1, np.int32)
    samples = samples.with_columns(callchain=number[samples.callchain], waker_callchain=number[waker], snapshot=none)
    return recording.replaced(
        samples=samples,
        callchains=chains.take(used),
        deferred=recording.deferred.with_columns(callchain=number[deferred]),
        snapshots=Snapshots(),
        losses=dict(counters),
    )


def _registers(snapshots: Snapshots, rows: I64 | I32, registers: Registers) -> tuple[U64, U64]:
    """Return (values uint64[registers, n] by DWARF number, known uint64[n]: bit r is set if register r is known)."""
    values = np.zeros((registers.count, len(rows)), np.uint64)
    known_bits = np.zeros(len(rows), np.uint64)
    masks, begins = snapshots.mask[rows], snapshots.registers.offsets[rows]
    for mask in sorted(set(masks.tolist())):
        alike = np.flatnonzero(masks == mask)
        lane: slice | I64 = slice(None) if len(alike) == len(rows) else alike
        words = rows_of(snapshots.registers.values, begins[alike], mask.bit_count())
        bits = [bit for bit in range(64) if mask >> bit & 1]
        for place, bit in enumerate(bits):
            number = registers.of_sample[bit] if bit < len(registers.of_sample) else -1
            if number >= 0:
                values[number, lane] = words[:, place]
                known_bits[lane] |= np.uint64(1 << number)
    return values, known_bits
