# SPDX-License-Identifier: Apache-2.0
"""Store snapshots of user stacks of samples with REGS_USER and STACK_USER.

Stacks are the bulk of a recording that has them. They stay in the file, from which they are read when they are unwound.
If it cannot be read again, because it came through a pipe or compressed, all bytes after the first `MEMORY` go to an
unnamed temporary file (in TMPDIR), so that memory stays bounded. Files are read with pread, not mapped: stacks of a
file that is cut short meanwhile are shorter, and there is no SIGBUS.

The BPF program copies a stack once: samples and sums with the same number (`caller` in the payload) share
the copy in one of them. A sample may come before the one with its copy, from another ring."""

import contextlib
import os
from collections.abc import Callable
from typing import BinaryIO, Final

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.machine import ABI_64
from perf_offcpu.abi.offcpu import REFERENCE_BYTES
from perf_offcpu.binary.columnar import Columns, Rows, gather_rows, offsets_of
from perf_offcpu.binary.layout import Order
from perf_offcpu.decode.retype import Payload
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged, Snapshots, StackWords
from perf_offcpu.model.columns import I32, I64, U8, U64, Bool
from perf_offcpu.model.growing import GrowingArray
from perf_offcpu.perfdata.scan import Chunk

MEMORY: Final = 1 << 28
_GAP: Final = 1 << 14  # most bytes between two stacks that are read with them: another call would cost more
_WORD: Final = 8


def has_snapshot(columns: Columns) -> Bool:
    """Return bool[n]: True if a sample of one evsel has a copy of the user stack that can be unwound."""
    if "regs_user" not in columns.arrays or "stack_user" not in columns.arrays:
        return np.zeros(len(columns.ok), np.bool_)
    has_bytes = _stack_words(columns) > REFERENCE_BYTES // 8
    has_copy: Bool = (columns.scalars["regs_user_abi"] == ABI_64) & has_bytes
    return has_copy


def _stack_words(columns: Columns) -> I64:
    """Return int64[n]: the number of words in each copy of a user stack."""
    recorded = columns.arrays["stack_user"].counts.astype(np.uint64)
    used = np.minimum(columns.scalars["stack_user_dyn_size"], recorded)
    words: I64 = used.astype(np.int64) // 8
    return words


class OpenFile:
    """Owns a file descriptor, which is closed when the last reference to the object goes."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)

    def read_into(self, room: U8, offset: int) -> int:
        """Fill `room` with the file's bytes from `offset` on; return the number read: fewer at its end or on errors."""
        done = 0
        with contextlib.suppress(OSError):
            while done < len(room) and (size := os.preadv(self.descriptor, [room[done:].data], offset + done)):
                done += size
        return done


class StackPositions:
    """Keeps where n stacks lie, in files or in memory, and reads them; rows are added file by file."""

    def __init__(self) -> None:
        self._starts, self._words = GrowingArray("i8"), GrowingArray("i8")
        self._sources: list[OpenFile | U64 | None] = []
        self._first: list[int] = []  # the first row of each source
        self._room = np.empty(0, np.uint8)

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, source: OpenFile | None, starts: I64, words: I64) -> None:
        """Add n stacks of words[i] words at byte offset starts[i] of `source`; None: `settle` will set the source."""
        if not self._sources or self._sources[-1] is not source:
            self._sources.append(source)
            self._first.append(len(self))
        self._starts.append(starts)
        self._words.append(words)

    def settle(self, source: OpenFile | U64) -> None:
        """Set the source, a file or words in memory, of the stacks that were added with source None."""
        self._sources = [source if known_source is None else known_source for known_source in self._sources]

    @property
    def lengths(self) -> I64:
        """Return int64[n]: the number of words of each stack."""
        return self._words.view()

    def read_stacks(self, rows: I64) -> StackWords:
        """Return the stacks in `rows`, in this order, valid until the next call; an unreadable one has no words."""
        starts, words = self._starts.view()[rows], self._words.view()[rows]
        source_of_row = np.searchsorted(np.array(self._first), rows, side="right") - 1
        sources = sorted(set(source_of_row.tolist()))
        if not sources:
            return StackWords(np.zeros(1, np.uint64), starts, words)
        if len(sources) == 1:
            return self._of_source(self._sources[sources[0]], starts, words)
        texts, begins, lengths = list[U64](), np.empty_like(starts), np.empty_like(words)
        words_before = 0
        for source in sources:
            chosen = np.flatnonzero(source_of_row == source)
            part = self._of_source(self._sources[source], starts[chosen], words[chosen])
            begins[chosen], lengths[chosen] = part.begins + words_before, part.lengths
            texts.append(part.words.copy())
            words_before += len(part.words)
        return StackWords(np.concatenate(texts), begins, lengths)

    def _of_source(self, source: OpenFile | U64 | None, starts: I64, words: I64) -> StackWords:
        assert source is not None, "settled before they are looked at"
        if not isinstance(source, OpenFile):
            return StackWords(source, starts // _WORD, words)
        # Parts of the file that hold stacks are read into one buffer, where each begins at a multiple of 8 bytes.
        order = np.argsort(starts, kind="stable")
        start, end = starts[order], np.maximum.accumulate((starts + _WORD * words)[order])
        is_new = np.append(True, start[1:] > end[:-1] + _GAP)
        first = np.flatnonzero(is_new)
        begins = start[first]
        sizes = end[np.append(first[1:], len(start)) - 1] - begins
        offsets = offsets_of(-(-sizes // _WORD) * _WORD)
        part = np.empty(len(starts), np.int64)
        part[order] = np.cumsum(is_new) - 1
        place, room = starts - begins[part] + offsets[part], max(_WORD, int(offsets[-1]))
        if len(self._room) < room:
            # A quarter larger: the next stacks are about as many. GrowingArray uses huge pages.
            self._room = GrowingArray("u1").extend((room + room // 4) // _WORD * _WORD)
        parts = zip(begins.tolist(), sizes.tolist(), offsets.tolist(), strict=False)
        ends = [offset + source.read_into(self._room[offset : offset + size], begin) for begin, size, offset in parts]
        words = np.minimum(words, np.maximum(0, np.array(ends, np.int64)[part] - place) // _WORD)
        if not (place % _WORD).any():
            return StackWords(self._room[:room].view(np.uint64), place // _WORD, words)
        offsets, gathered = gather_rows(self._room, Rows(place, words, _WORD))
        return StackWords(np.append(gathered, np.uint64(0)), offsets[:-1], words)


class SnapshotStore:
    """Collects the snapshots of batch after batch of samples; `memory` bytes of stacks are kept in memory. `reopen`:
    `Chunk.origin` → new descriptor of that file, None if it cannot be read again."""

    def __init__(
        self, counters: Losses, memory: int = MEMORY, reopen: Callable[[str], int | None] = lambda _: None
    ) -> None:
        self.counters, self._reopen = counters, reopen
        self._files: dict[str, OpenFile | None] = {}
        self.callers = CallerRows()  # the snapshot of each `caller` so far whose copy has come
        self._held, self._places = _Words(memory), StackPositions()
        self._registers, self._register_ends = GrowingArray("u8"), GrowingArray("i8")
        self._mask = GrowingArray("u8")

    def __len__(self) -> int:
        return len(self._mask)

    def add(self, chunk: Chunk, columns: Columns, mask: int, ok: Bool, order: Order) -> I32:
        """Add the snapshots of n samples of one evsel; return int32[n], the snapshot of each, -1 none. `mask`: the
        evsel's sample_regs_user. `ok`: bool[n], the valid samples."""
        number = np.full(len(ok), -1, np.int32)
        wanted = np.flatnonzero(ok & has_snapshot(columns))
        if not len(wanted):
            return number
        registers, stack = columns.arrays["regs_user"], columns.arrays["stack_user"]
        words = _stack_words(columns)
        if not self._place(chunk, stack.starts[wanted], words[wanted], order):
            self.counters.add(losses.NO_ROOM_FOR_STACKS, len(wanted))
            return number
        number[wanted] = np.arange(len(self), len(self) + len(wanted))
        own = gather_rows(chunk.data, Rows(registers.starts[wanted], registers.counts[wanted], 8), order)
        self._register_ends.append(own[0][1:] + len(self._registers))
        self._registers.append(own[1])
        self._mask.append(np.full(len(wanted), mask, np.uint64))
        return number

    def _place(self, chunk: Chunk, starts: I64, words: I64, order: Order) -> bool:
        """Note where n stacks, words[i] words at byte starts[i] of the chunk, lie in the file, or copy them if it
        cannot be read again; return False if the disk is full."""
        if chunk.origin not in self._files:
            descriptor = self._reopen(chunk.origin)
            self._files[chunk.origin] = None if descriptor is None else OpenFile(descriptor)
        file = self._files[chunk.origin]
        if file is not None and order == "<":  # words of the other order must be swapped
            self._places.add(file, starts + chunk.file_offset, words)
            return True
        offsets, values = gather_rows(chunk.data, Rows(starts, words, 8), order)
        before = len(self._held)
        if not self._held.append(values):
            return False
        self._places.add(None, 8 * (offsets[:-1] + before), words)
        return True

    def release(self) -> Snapshots:
        """Return all snapshots in order of their numbers; nothing can be added to the store afterwards."""
        self._places.settle(self._held.release())
        ends = np.append(np.int64(0), self._register_ends.release())
        return Snapshots(self._mask.release(), Ragged(ends, self._registers.release()), self._places)

    def view(self) -> Snapshots:
        """Return the snapshots so far, in order of their numbers, and keep them; for recordings in one growing file."""
        ends = np.append(np.int64(0), self._register_ends.view())
        return Snapshots(self._mask.view().copy(), Ragged(ends, self._registers.view().copy()), self._places)


class _Words:
    """Holds uint64 words, in an unnamed file if over `memory` bytes; `append` returns False if the disk is full."""

    def __init__(self, memory: int) -> None:
        self._memory, self._held = memory, GrowingArray("u8")
        self._file: BinaryIO | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, words: U64) -> bool:
        if self._file is None and 8 * (len(self._held) + len(words)) > self._memory:
            import tempfile

            file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the store
            if not _write(file, self._held.view(), 0):
                file.close()
                return False
            self._file = file
            self._held.release()
        if self._file is None:
            self._held.append(words)
        elif not _write(self._file, words, self._count):
            return False
        self._count += len(words)
        return True

    def release(self) -> OpenFile | U64:
        if self._file is None:
            return self._held.release()
        with self._file as file:
            return OpenFile(os.dup(file.fileno()))


def _write(file: BinaryIO, words: U64, place: int) -> bool:
    """Write words to a file of words from index `place` on; return False if the disk is full: a part may be written."""
    data = words.tobytes()
    try:
        while data:
            written = os.pwrite(file.fileno(), data, 8 * place + 8 * len(words) - len(data))
            data = data[written:]
    except OSError:
        return False
    return True


class CallerRows:
    """Maps callers, the numbers by which samples share the copy of a user stack, to rows of snapshots or callchains."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self.awaited: dict[int, int] = {}  # the number, from 0, of each caller that `find` has not found

    def note(self, callers: U64, rows: I64 | I32) -> None:
        """Note the row of each caller (number by which samples share a stack copy); one that has a row keeps it."""
        unique, first = np.unique(callers, return_index=True)
        for caller, row in zip(unique.tolist(), rows[first].tolist(), strict=True):
            self._rows.setdefault(caller, row)

    def find(self, callers: U64) -> I64:
        """Return int64[n]: the row of each caller (number by which samples share a stack copy); -2 - `awaited[caller]`
        if its copy has not come yet: then it is added to `awaited`."""
        unique, place = np.unique(callers, return_inverse=True)
        rows = [
            self._rows[caller] if caller in self._rows else -2 - self.awaited.setdefault(caller, len(self.awaited))
            for caller in unique.tolist()
        ]
        return np.array(rows, np.int64)[place]

    def settled(self, rows: I32, counters: Losses) -> I32:
        """Return `rows` with each value below -1, which `find` gave for a caller without a copy, replaced by the row
        that this caller has got since; by -1, counted, if its copy never came. To be called after the last sample."""
        waiting = np.flatnonzero(rows < -1)
        if not len(waiting):
            return rows
        row = np.array([self._rows.get(caller, -1) for caller in self.awaited], np.int32)
        result = rows.copy()
        result[waiting] = row[-2 - rows[waiting]]
        counters.add(losses.CALLERS_NOT_COPIED, int((result[waiting] < 0).sum()))
        return result


def callers_of(data: U8, columns: Columns, order: Order) -> U64:
    """Return uint64[n]: the number by which off-cpu samples of one evsel share a copy of the user stack; 0 for none."""
    if "raw" not in columns.arrays or "stack_user" not in columns.arrays:
        return np.zeros(len(columns.ok), np.uint64)
    return Payload(data, columns, order).extension["caller"]


def with_callers(snapshot: I32, callers: U64, caller_rows: CallerRows) -> I32:
    """Return int32[n], each sample's snapshot, or that of a sample with the same number in `callers` (0 none), or -1;
    less than -1 if it may still come (see `caller_rows.settled`). Adds the numbers to `caller_rows`."""
    if not callers.any():
        return snapshot
    own, others = (np.flatnonzero((callers != 0) & chosen) for chosen in (snapshot >= 0, snapshot < 0))
    caller_rows.note(callers[own], snapshot[own])
    result = snapshot.copy()
    result[others] = caller_rows.find(callers[others])
    return result
