# SPDX-License-Identifier: Apache-2.0
"""Surgery on records, many at once: take a part out of samples, put another in, and join all in order.

Records and all that they consist of are multiples of 8 bytes long, so everything here moves u64 words: a
list of (where from, how many) for all pieces of all records becomes one gather. No field is decoded that does
not change, and what this project does not know stays as it was.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.records import RECORD_HEADER
from perf_offcpu.abi.sample import SAMPLE, SampleShape
from perf_offcpu.binary.gather import ragged_offsets
from perf_offcpu.binary.layout import Field, Int, Order
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk
from perf_offcpu.perfdata.write.writer import RECORD_SIZE_MAX
from perf_offcpu.structs import mutable

Bool = NDArray[np.bool_]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
U64 = NDArray[np.uint64]

_WORD = 8
_HALF_OF = {name: RECORD_HEADER.offset(name) // 2 for name in ("misc", "size")}


@mutable
class Records:
    """n whole records, back to back.

    Args:
        words: uint64[], their bytes, in the byte order of the file.
        offsets: int64[n + 1]; record i is `words[offsets[i]:offsets[i + 1]]`.
    """

    words: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    offsets: I64 = field(default_factory=lambda: np.zeros(1, np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: I64 | Bool | slice) -> Records:
        """Some of the records, in the given order."""
        starts, sizes = self.offsets[:-1][rows], np.diff(self.offsets)[rows]
        return Records(self.words[ranges(starts, sizes)], ragged_offsets(sizes))

    def tobytes(self) -> bytes:
        """Their bytes."""
        return self.words.tobytes()

    def set_header(self, name: str, values: NDArray[Any], order: Order) -> None:
        """Write `misc` or `size` of all headers."""
        self.words.view(f"{order}u2")[self.offsets[:-1] * 4 + _HALF_OF[name]] = values

    def set_field(self, shape: SampleShape, name: str, values: NDArray[Any], order: Order) -> None:
        """Write one field of all records, which are samples; the shape must have it in front of READ."""
        width = _width(_field(name))
        at = (HEADER_SIZE + SAMPLE.offset(name, shape)) // width
        place = self.offsets[:-1] * (_WORD // width) + at
        self.words.view(f"{order}u{width}")[place] = values.view(f"u{width}")

    @classmethod
    def concat(cls, parts: list[Records]) -> Records:
        """The records of all parts, in order."""
        if not parts:
            return cls()
        sizes = np.concatenate([np.diff(part.offsets) for part in parts])
        return cls(np.concatenate([part.words for part in parts]), ragged_offsets(sizes))


def ranges(starts: I64, counts: I64) -> I64:
    """int64[sum(counts)]: start, start + 1, … of each range in turn."""
    offsets = ragged_offsets(counts)
    return np.repeat(starts - offsets[:-1], counts) + np.arange(offsets[-1])


@mutable
class Cut:
    """What of n samples makes room for a callchain; all int64[n], multiples of 8 in `chunk.data`.

    Args:
        begin, end: the part, inside its record and behind the header.
        until: where the record's last field ends; what follows is dropped.
    """

    begin: I64
    end: I64
    until: I64

    def take(self, rows: Bool) -> Cut:
        """The cuts of some of the samples."""
        return Cut(self.begin[rows], self.end[rows], self.until[rows])


def with_callchains(
    chunk: Chunk, rows: I64, cut: Cut, chains: tuple[I64, U64], order: Order, more_words: int = 0
) -> tuple[Records, Bool]:
    """Samples with a callchain (its length and its words) in place of a part of them.

    Args:
        rows: which records of the chunk.
        chains: (offsets int64[n + 1], words): those behind the length.
        more_words: words of 0 that are added at the end of each.

    Returns:
        (records, fits): fits is bool[n], False for samples that would be larger than a record can be.
        They are not among the records.
    """
    lengths = np.diff(chains[0])
    offsets = ragged_offsets(lengths + 1)
    words = np.empty(int(offsets[-1]), np.uint64)
    words[offsets[:-1]] = lengths
    words[ranges(offsets[:-1] + 1, lengths)] = chains[1]
    return with_words(chunk, rows, cut, (offsets, words), order, more_words)


def with_words(
    chunk: Chunk, rows: I64, cut: Cut, words: tuple[I64, U64], order: Order, more_words: int = 0
) -> tuple[Records, Bool]:
    """Records with other words in place of a part of them; arguments as of `with_callchains`."""
    lengths = np.diff(words[0])
    first, begin, end, until = (
        place // _WORD for place in (chunk.starts[rows], cut.begin, cut.end, cut.until)
    )
    sizes = (begin - first) + lengths + (until - end) + more_words
    fits = sizes * _WORD <= RECORD_SIZE_MAX
    if not fits.all():
        rest = ranges(words[0][:-1][fits], lengths[fits])
        fewer = (ragged_offsets(lengths[fits]), words[1][rest])
        return with_words(chunk, rows[fits], cut.take(fits), fewer, order, more_words)[0], fits
    out = Records(np.zeros(int(sizes.sum()), np.uint64), ragged_offsets(sizes))
    source, at = _words(chunk), out.offsets[:-1]
    out.words[ranges(at, begin - first)] = source[ranges(first, begin - first)]
    at = at + (begin - first)
    out.words.view(f"{order}u8")[ranges(at, lengths)] = words[1]
    out.words[ranges(at + lengths, until - end)] = source[ranges(end, until - end)]
    out.set_header("size", sizes * _WORD, order)
    return out, fits


def records_of(chunk: Chunk) -> Records:
    """The records of a chunk, unchanged."""
    sizes = chunk.sizes // _WORD
    return Records(_words(chunk)[ranges(chunk.starts // _WORD, sizes)], ragged_offsets(sizes))


def chunk_of(records: Records, order: Order) -> Chunk:
    """Records as a chunk of their own, to be read by whatever reads chunks."""
    data = np.append(records.words, np.uint64(0)).view(np.uint8)  # a chunk is never without bytes
    halves, at = data.view(f"{order}u2"), records.offsets[:-1] * 4
    return Chunk(
        data,
        records.offsets[:-1] * _WORD,
        data.view(f"{order}u4")[records.offsets[:-1] * 2].astype(np.uint32),
        halves[at + _HALF_OF["misc"]].astype(np.uint16),
        np.diff(records.offsets) * _WORD,
        file_offset=0,
    )


Placed = tuple[I64, Records]
"""Records, and the rows of a chunk at whose places they stand."""


def interleave(chunk: Chunk, kept: Bool, others: list[Placed]) -> memoryview:
    """Records of a chunk and others between them, in order, as bytes; arguments as of `woven`."""
    if kept.all() and not any(len(records) for _, records in others) and _is_whole(chunk):
        return chunk.data.data[int(chunk.starts[0]) : int(chunk.starts[-1] + chunk.sizes[-1])]
    return woven(chunk, kept, others)[0].words.view(np.uint8).data


def woven(chunk: Chunk, kept: Bool, others: list[Placed]) -> tuple[Records, I64]:
    """Records of a chunk and others between them, in order.

    Args:
        kept: bool[len(chunk)], the chunk's own records that stay.
        others: (places, records): record i stands at the place of row `places[i]` of the chunk, in front of
            that row if it is kept itself.

    Returns:
        (records, rows): all of them, and int64[n], the rows of the chunk at whose places they stand.
    """
    own = np.flatnonzero(kept)
    sources = [(2 * own + 1, _words(chunk), chunk.starts[own] // _WORD, chunk.sizes[own] // _WORD)]
    for places, records in others:
        sources.append((2 * places, records.words, records.offsets[:-1], np.diff(records.offsets)))
    places = np.concatenate([source[0] for source in sources])
    order = np.argsort(places, kind="stable")
    sizes = np.concatenate([source[3] for source in sources])
    offsets = ragged_offsets(sizes[order])
    targets = np.empty(len(order), np.int64)
    targets[order] = offsets[:-1]
    out = np.empty(int(sizes.sum()), np.uint64)
    for _, words, starts, lengths in sources:
        out[ranges(targets[: len(starts)], lengths)] = words[ranges(starts, lengths)]
        targets = targets[len(starts) :]
    return Records(out, offsets), places[order] // 2


def aligned(chunk: Chunk) -> Chunk:
    """The same records, all on places that are multiples of 8, as the other functions here need them.

    Only headers of pipes and compressed records have odd sizes; what follows them lies at any place. All
    records of the chunk itself must have even ones (multiples of 8).
    """
    phases = chunk.starts & (_WORD - 1)
    if not phases.any():
        return chunk
    sizes = chunk.sizes // _WORD
    offsets = ragged_offsets(sizes)
    words = np.zeros(int(offsets[-1]) + 1, np.uint64)
    for phase in np.unique(phases).tolist():
        mine = np.flatnonzero(phases == phase)
        end = phase + (len(chunk.data) - phase) // _WORD * _WORD
        source = chunk.data[phase:end].view(np.uint64)
        words[ranges(offsets[:-1][mine], sizes[mine])] = source[
            ranges(chunk.starts[mine] // _WORD, sizes[mine])
        ]
    return replace(chunk, data=words.view(np.uint8), starts=offsets[:-1] * _WORD)


def _is_whole(chunk: Chunk) -> bool:
    """Whether the chunk's records lie back to back."""
    return bool((chunk.starts[1:] == chunk.starts[:-1] + chunk.sizes[:-1]).all())


def _words(chunk: Chunk) -> U64:
    return chunk.data[: len(chunk.data) & -_WORD].view(np.uint64)


def _field(name: str) -> Field:
    return next(field for field in SAMPLE.fields if field.name == name)


def _width(one: Field) -> int:
    assert isinstance(one.type, Int)
    return one.type.size
