# SPDX-License-Identifier: Apache-2.0
"""Write the payloads of off-cpu samples that are re-typed in the file. What a sample's ordinary fields cannot say
(state, waker, number of waits of a sum, …) stays in its raw data: the payload of Documentation/payload-format.md with
pid and tid in the right order. Sums that upstream perf wrote without a time, and waits that follow from context
switches, get an extension, too."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi import offcpu as abi
from perf_offcpu.binary.fields import U64, Field, Order
from perf_offcpu.binary.gather import Rows, gather_rows
from perf_offcpu.binary.layout import Layout
from perf_offcpu.decode.retype import COLUMNS, FLAGS_OF_KIND, FLAGS_OF_LOST, FLAGS_OF_WAIT
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I64, U8, Bool
from perf_offcpu.model.recording import Samples
from perf_offcpu.perfdata.write.columns import Column, pack_columns

_FIXED = abi.PAYLOAD.offset("callchain") // 8

_PAYLOAD = Layout(abi.PAYLOAD.name, *abi.PAYLOAD.fields, Field("extension", U64, count="words"))
_EXTENSION = Layout(abi.EXTENSION.name, *abi.WHOLE_EXTENSION, Field("waker_chain", U64, count="waker_nr"))


def payloads(samples: Samples, chains: Ragged, extensions: Ragged, order: Order) -> tuple[I64, U8]:
    """Return (offsets int64[n + 1], bytes) of the payloads of n samples, their callchains and extensions."""
    columns: dict[str, Column] = {
        "pid": samples.pid.view(np.uint32),
        "tid": samples.tid.view(np.uint32),
        "offcpu_ns": samples.period,
        "callchain": (chains.offsets, chains.values),
        "cgroup": samples.cgroup,
        "extension": (extensions.offsets, extensions.values),
    }
    return pack_columns(_PAYLOAD, columns, len(samples), order)


def with_walk_ends(extensions: Ragged, rows: I64, is_cut: Bool, order: Order) -> Ragged:
    """Return the extensions; those in `rows` (int64[m], unwound stacks) say USER_STACK_CUT where `is_cut` (bool[m])."""
    noted = extensions.lengths[rows] > _LOST_WORD
    words_at = extensions.offsets[rows[noted]] + _LOST_WORD
    words = extensions.values.copy()
    words[words_at] &= ~(np.uint64(abi.Lost.USER_STACK | abi.Lost.USER_STACK_CUT) << _LOST_SHIFT[order])
    words[words_at[is_cut[noted]]] |= np.uint64(abi.Lost.USER_STACK_CUT) << _LOST_SHIFT[order]
    return Ragged(extensions.offsets, words)


_LOST_WORD, _LOST_BYTE = divmod(abi.EXTENSION.offset("lost"), 8)
_LOST_SHIFT = {"<": np.uint64(8 * _LOST_BYTE), ">": np.uint64(32 - 8 * _LOST_BYTE)}


def recorded_extensions(data: NDArray[np.uint8], raw: Rows, nr: I64, order: Order) -> Ragged:
    """Return the words of n payloads after callchain (`nr` words, int64[n]) and cgroup; no words where nr is -1."""
    begin = 8 * (_FIXED + nr + 1)
    counts = np.where(nr >= 0, np.maximum(raw.counts - begin, 0) // 8, 0)
    return Ragged(*gather_rows(data, Rows(raw.starts + np.where(nr >= 0, begin, 0), counts, 8), order))


def made_extensions(samples: Samples, wakers: Ragged, order: Order) -> Ragged:
    """Return the payload extensions of n samples, with their wakers, in the form that `decode.retype` reads."""
    kinds = [samples.has(flag) for _, flag in FLAGS_OF_KIND]
    columns: dict[str, Column] = {
        **abi.BLANK_EXTENSION,
        **{name: getattr(samples, name) for name in COLUMNS},
        "kind": np.select(kinds, [kind for kind, _ in FLAGS_OF_KIND], abi.Kind.WAIT),
        "waker_offset": np.where(wakers.lengths > 0, 8 * abi.EXTENSION_WORDS, 0),
        "flags": _bits(samples, FLAGS_OF_WAIT),
        "lost": _bits(samples, _LOST),
        "padding": 0,
        "waker_nr": wakers.lengths,
        "waker_chain": (wakers.offsets, wakers.values),
    }
    offsets, data = pack_columns(_EXTENSION, columns, len(samples), order)
    return Ragged(offsets // 8, data.view(f"{order}u8").astype(np.uint64))


_LOST = [(lost, flag) for lost, flag in FLAGS_OF_LOST if lost is not abi.Lost.KERNEL_STACK_CUT]
"""(bit of the payload, SampleFlag): TRUNCATED means that the user part is cut, unless more is known."""


def _bits(samples: Samples, pairs: Iterable[tuple[int, int]]) -> NDArray[np.uint32]:
    """Return uint32[n]: for each sample, the payload bits of its flags; `pairs` are (bit, SampleFlag)."""
    bits = np.zeros(len(samples), np.uint32)
    for bit, flag in pairs:
        bits |= np.where(samples.flags & np.uint32(flag), np.uint32(bit), np.uint32(0))
    return bits
