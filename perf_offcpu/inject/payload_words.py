# SPDX-License-Identifier: Apache-2.0
"""Payloads of off-cpu samples put together anew, for samples that are re-typed in the file.

What a sample's ordinary fields cannot say (state, waker, number of waits of a sum, …) stays in its raw data:
the payload of Documentation/payload-format.md with pid and tid in the right order. Sums that upstream perf
wrote without a time, and waits that follow from context switches, get an extension, too.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi import offcpu as abi
from perf_offcpu.binary.gather import Rows, gather_rows
from perf_offcpu.binary.layout import Order
from perf_offcpu.model.callchains import Ragged, offsets_of, spread
from perf_offcpu.model.columns import I8, I64, U64, Bool
from perf_offcpu.model.recording import SampleFlag, Samples

_FIXED = abi.PAYLOAD.offset("callchain") // 8
_HALF = np.uint64(32)


def payloads(samples: Samples, chains: Ragged, extensions: Ragged, order: Order) -> Ragged:
    """The payloads of n samples, as words.

    Args:
        chains: their callchains; extensions: the words of their extensions; n rows each.
    """
    nr, more = chains.lengths, extensions.lengths
    offsets = offsets_of(_FIXED + nr + 1 + more)
    words, at = np.zeros(int(offsets[-1]), np.uint64), offsets[:-1]
    words[at] = _pairs(samples, order)
    words[at + 1], words[at + 2] = samples.period.astype(np.uint64), nr.astype(np.uint64)
    words[spread(at + _FIXED, nr, chains.offsets)] = chains.values
    words[at + _FIXED + nr] = samples.cgroup
    words[spread(at + _FIXED + nr + 1, more, extensions.offsets)] = extensions.values
    return Ragged(offsets, words)


def with_other_chains(old: Ragged, chains: Ragged, cut: I8, order: Order) -> Ragged:
    """n payloads, as words, with other callchains.

    Args:
        old: the payloads; all have the words in front of the callchain.
        chains: the callchains; n rows.
        cut: int8[n], what is noted of their user parts where there is an extension: 1 they end before their
            root, 0 they do not, -1 nothing new.
    """
    begin = old.offsets[:-1]
    behind = begin + _FIXED + old.values[begin + _FIXED - 1].astype(np.int64)
    rest = old.offsets[1:] - behind
    offsets = offsets_of(_FIXED + chains.lengths + rest)
    words, at = np.empty(int(offsets[-1]), np.uint64), offsets[:-1]
    for place in range(_FIXED - 1):
        words[at + place] = old.values[begin + place]
    words[at + _FIXED - 1] = chains.lengths
    words[spread(at + _FIXED, chains.lengths, chains.offsets)] = chains.values
    kept = offsets_of(rest)
    words[spread(at + _FIXED + chains.lengths, rest, kept)] = old.values[spread(behind, rest, kept)]
    noted = np.flatnonzero((cut >= 0) & (rest > abi.EXTENSION_WORDS))
    lost = (at + _FIXED + chains.lengths + 1 + _LOST_WORD)[noted]
    words[lost] &= ~(np.uint64(abi.Lost.USER_STACK | abi.Lost.USER_STACK_CUT) << _LOST_SHIFT[order])
    words[lost[cut[noted] > 0]] |= np.uint64(abi.Lost.USER_STACK_CUT) << _LOST_SHIFT[order]
    return Ragged(offsets, words)


_LOST_WORD, _LOST_BYTE = divmod(abi.EXTENSION.offset("lost"), 8)
_LOST_SHIFT = {"<": np.uint64(8 * _LOST_BYTE), ">": np.uint64(32 - 8 * _LOST_BYTE)}


def _pairs(samples: Samples, order: Order) -> U64:
    pid, tid = (ids.astype(np.uint32).astype(np.uint64) for ids in (samples.pid, samples.tid))
    return pid | tid << _HALF if order == "<" else pid << _HALF | tid


def recorded_extensions(data: NDArray[np.uint8], raw: Rows, nr: I64, order: Order) -> Ragged:
    """The words behind the callchain and cgroup of n payloads.

    Args:
        data: the buffer that `raw` points into.
        nr: int64[n], words of each callchain; -1 where there is no extension.
    """
    begin = 8 * (_FIXED + nr + 1)
    counts = np.where(nr >= 0, np.maximum(raw.counts - begin, 0) // 8, 0)
    return Ragged(*gather_rows(data, Rows(raw.starts + np.where(nr >= 0, begin, 0), counts, 8), order))


def made_extensions(samples: Samples, wanted: Bool, order: Order, wakers: Ragged | None = None) -> Ragged:
    """Extensions that say what is known of samples: the inverse of how `decode.retype` reads them.

    Args:
        wanted: bool[n], which samples get one; the others' rows are empty.
        wakers: the callchains of those who woke, n rows. Default: none is known.
    """
    rows = samples.take(wanted)
    chains = (Ragged(np.zeros(len(samples) + 1, np.int64)) if wakers is None else wakers).take(
        np.flatnonzero(wanted)
    )
    table = np.zeros(len(rows), abi.EXTENSION.dtype(order))
    columns = {
        "magic": abi.EXTENSION_MAGIC,
        "version": abi.EXTENSION_VERSION,
        "nwords": abi.EXTENSION_WORDS + chains.lengths,
        "kind": _kinds(rows),
        "flags": _marks(rows, _WAIT_FLAGS),
        "lost": _marks(rows, _LOST),
        "prev_state": rows.state.view(np.uint32),
        "syscall": rows.syscall,
        "wakeup_ns": np.maximum(rows.wakeup_ns, 0),
        "waker_pid": np.maximum(rows.waker_pid, 0),
        "waker_tid": np.maximum(rows.waker_tid, 0),
        "count": rows.count,
        "switch_out_ns": np.maximum(rows.switch_out_ns, 0),
        "longest_ns": rows.longest_ns.view(np.uint64),
        "runq_ns": rows.runq_ns.view(np.uint64),
        "waker_nr": chains.lengths,
    }
    for name, values in columns.items():
        table[name] = values
    words = np.frombuffer(table.tobytes(), f"{order}u8").astype(np.uint64)
    fixed = Ragged(np.arange(len(rows) + 1, dtype=np.int64) * abi.EXTENSION_WORDS, words)
    joined = one_after_the_other(fixed, chains)
    lengths = np.zeros(len(samples), np.int64)
    lengths[wanted] = joined.lengths
    return Ragged(offsets_of(lengths), joined.values)


_KINDS = (
    (SampleFlag.AGGREGATED, abi.Kind.SUM),
    (SampleFlag.STILL_BLOCKED, abi.Kind.STILL_BLOCKED),
    (SampleFlag.BEGAN_BEFORE, abi.Kind.BEGAN_BEFORE),
)
_WAIT_FLAGS = [
    (SampleFlag[name], flag)
    for name, flag in abi.WaitFlag.__members__.items()
    if name in SampleFlag.__members__
]
_LOST = (
    (SampleFlag.NO_USER_STACK, abi.Lost.USER_STACK),
    (SampleFlag.NO_KERNEL_STACK, abi.Lost.KERNEL_STACK),
    (SampleFlag.TRUNCATED, abi.Lost.USER_STACK_CUT),
)


def _kinds(samples: Samples) -> NDArray[np.uint16]:
    kinds = np.full(len(samples), abi.Kind.WAIT, np.uint16)
    for flag, kind in _KINDS:
        kinds[(samples.flags & np.uint32(flag)) != 0] = kind
    return kinds


def _marks(samples: Samples, flags: Iterable[tuple[int, int]]) -> NDArray[np.uint16]:
    marks = np.zeros(len(samples), np.uint16)
    for flag, mark in flags:
        marks |= np.where(samples.flags & np.uint32(flag), np.uint16(mark), np.uint16(0))
    return marks


def as_raw_field(rows: Ragged, order: Order) -> Ragged:
    """The words of RAW fields that hold rows of words: u32 size, data, 4 bytes of padding.

    The data lies at 4 modulo 8 bytes, so that each word is made of halves of two.
    """
    lengths = rows.lengths
    offsets = offsets_of(lengths + 1)
    at = offsets[:-1]
    words = np.zeros(int(offsets[-1]), np.uint64)
    inside: I64 = spread(at, lengths, rows.offsets)
    sizes = (8 * lengths + 4).astype(np.uint64)
    if order == "<":  # what comes first is the lower half of a number
        words[inside] |= rows.values << _HALF
        words[inside + 1] |= rows.values >> _HALF
        words[at] |= sizes
    else:
        words[inside] |= rows.values >> _HALF
        words[inside + 1] |= rows.values << _HALF
        words[at] |= sizes << _HALF
    return Ragged(offsets, words)


def raw_bytes(rows: Ragged, order: Order) -> tuple[I64, NDArray[np.uint8]]:
    """(offsets, bytes) of raw data that holds rows of words, 4 bytes of padding behind each."""
    fields = as_raw_field(rows, order)
    data = fields.values.astype(f"{order}u8").view(np.uint8)
    is_data = np.ones(len(data), np.bool_)
    is_data[(8 * fields.offsets[:-1, None] + np.arange(4)).ravel()] = False  # the sizes
    return offsets_of(8 * fields.lengths - 4), data[is_data]


def one_after_the_other(first: Ragged, second: Ragged) -> Ragged:
    """Row i of the one, then row i of the other."""
    offsets = offsets_of(first.lengths + second.lengths)
    words = np.empty(int(offsets[-1]), np.uint64)
    words[spread(offsets[:-1], first.lengths, first.offsets)] = first.values
    words[spread(offsets[:-1] + first.lengths, second.lengths, second.offsets)] = second.values
    return Ragged(offsets, words)
