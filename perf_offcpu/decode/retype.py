# SPDX-License-Identifier: Apache-2.0
"""Re-type raw `offcpu-time` samples to off-cpu samples, as perf >= 6.16 does, without its mistakes.

Two producers write such samples. The magic of the extension marks this project's. Upstream's need care
(checked against perf 7.2): samples sent directly hold tid and pid in the other order (`decode.swapped_ids`
repairs them when all tasks are known); sums carry a dummy time; a 33rd frame is the stale cgroup id of an
earlier record; and the raw size includes padding, so only `nr` gives the number of frames.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi import offcpu as abi
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.binary.columnar import Columns, read_columns
from perf_offcpu.binary.gather import Rows, gather_rows, gather_u64
from perf_offcpu.binary.layout import Layout, Order
from perf_offcpu.decode.batch import Batch
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I64, U32, U64, Bool
from perf_offcpu.model.recording import SampleFlag, Samples

_FIXED_WORDS = 4
"""pid and tid, time, nr, cgroup: a payload without frames."""

_HEAD = Layout(abi.PAYLOAD.name, abi.PAYLOAD.fields[:4], abi.PAYLOAD.source)
"""What stands in front of the callchain."""

_TAIL = Layout(abi.EXTENSION.name, (abi.PAYLOAD.fields[-1], *abi.EXTENSION.fields), abi.EXTENSION.source)
"""What stands behind it, if there is an extension: the cgroup, too, so that both are read at once."""

_UPSTREAM_MAX_CHAIN = 33
"""Upstream keeps 32 frames and one marker."""

_FLAG_OF_KIND = np.zeros(max(abi.Kind) + 1, np.uint32)
_FLAG_OF_KIND[abi.Kind.SUM] = SampleFlag.AGGREGATED
_FLAG_OF_KIND[abi.Kind.STILL_BLOCKED] = SampleFlag.STILL_BLOCKED
_FLAG_OF_KIND[abi.Kind.BEGAN_BEFORE] = SampleFlag.BEGAN_BEFORE

_FLAG_OF_WAIT = (
    (abi.WaitFlag.PREEMPTED, SampleFlag.PREEMPTED),
    (abi.WaitFlag.WAKER_INTERRUPT, SampleFlag.WAKER_INTERRUPT),
    (abi.WaitFlag.YIELDED, SampleFlag.YIELDED),
    (abi.WaitFlag.BEGAN_BEFORE, SampleFlag.BEGAN_BEFORE),
    (abi.WaitFlag.UNTIMED, SampleFlag.UNTIMED),
)

_FLAG_OF_LOST = (
    (abi.Lost.USER_STACK, SampleFlag.NO_USER_STACK),
    (abi.Lost.KERNEL_STACK, SampleFlag.NO_KERNEL_STACK),
    (abi.Lost.USER_STACK_CUT | abi.Lost.KERNEL_STACK_CUT, SampleFlag.TRUNCATED),
)


def retype(data: NDArray[np.uint8], columns: Columns, samples: Samples, order: Order) -> tuple[Batch, Bool]:
    """Re-type n raw samples of one evsel.

    Args:
        data: the buffer that `columns` point into.
        columns: the samples' fields, RAW among them.
        samples: their model rows so far: time, cpu and flags are kept.

    Returns:
        (batch, sound): the off-cpu samples, and bool[n], False where the payload is malformed.
    """
    payload = _Payload(data, columns, order)
    result = Samples.sparse(
        len(payload.words),
        time_ns=samples.time_ns,
        evsel=samples.evsel,
        cpu=samples.cpu,
        flags=samples.flags | np.uint32(SampleFlag.OFFCPU),
        pid=payload.head["pid"].view(np.int32),
        tid=payload.head["tid"].view(np.int32),
        period=payload.head["offcpu_ns"].view(np.int64),
        cgroup=payload.cgroup(),
        callchain=np.arange(len(payload.words), dtype=np.int32),
    )
    chains = Ragged(*gather_rows(data, Rows(payload.at + 24, payload.chain_words, 8), order))
    if "callchain" in columns.arrays:
        own = columns.arrays["callchain"]
        _fill_in_cookies(chains, Ragged(*gather_rows(data, own, order)))
    result.ip, result.cpumode = _leaf(chains)
    _apply_extension(result, payload.extension)
    wakers = payload.waker_chains()
    if len(wakers.values):
        woken = np.flatnonzero(wakers.lengths)
        result.waker_callchain = result.waker_callchain.copy()
        result.waker_callchain[woken] = np.arange(len(woken)) + len(chains)
        chains = Ragged.concat([chains, wakers.take(woken)])
    sound = columns.ok & payload.sound & (result.period >= 0)
    return Batch(result, chains, ~payload.extension.ok), sound


def callers_of(data: NDArray[np.uint8], columns: Columns, order: Order) -> U64:
    """uint64[n]: who called, of sums that say it; 0 of other samples. Arguments as of `retype`."""
    return _Payload(data, columns, order).callers()


class _Payload:
    """The words of n raw payloads, each read only where it lies inside its sample."""

    def __init__(self, data: NDArray[np.uint8], columns: Columns, order: Order) -> None:
        raw = columns.arrays["raw"]
        self.data, self.order, self.at = data, order, raw.starts
        self.words = raw.counts // 8
        self.sound = columns.ok & (self.words >= _FIXED_WORDS)
        self.head = read_columns(_HEAD, data, self.at, self.at + 8 * self.words, order).scalars
        nr: I64 = np.minimum(self.head["nr"], np.uint64(2**31)).astype(np.int64)
        self.extension = self._extension(nr)
        room = np.maximum(self.words - _FIXED_WORDS, 0)
        # Upstream's nr may lie; ours is only believed if the extension stands where it says.
        limit = np.where(self.ours, room, np.minimum(room, _UPSTREAM_MAX_CHAIN))
        self.chain_words = np.where(self.sound, np.clip(nr, 0, limit), 0)

    def _extension(self, nr: I64) -> Columns:
        """The extension's fields; `ok` is False where there is none, or none that is whole."""
        behind = nr + _FIXED_WORDS
        inside = self.words > behind
        begin = np.where(inside, self.at + 8 * (behind - 1), self.at)
        end = np.where(inside, self.at + 8 * self.words, begin)
        columns = read_columns(_TAIL, self.data, begin, end, self.order)
        self.ours = inside & (columns.scalars["magic"] == np.uint32(abi.EXTENSION_MAGIC))
        columns.ok &= self.ours
        columns.ok &= columns.scalars["nwords"] >= abi.EXTENSION_WORDS
        columns.ok &= columns.scalars["version"] >= abi.EXTENSION_VERSION
        return columns

    def cgroup(self) -> U64:
        """uint64[n]: the cgroup id behind the chain, 0 where there is none."""
        if bool((self.ours & self.sound).all()):
            return self.extension.scalars["cgroup"]
        place = self.chain_words + 3
        inside = self.words > place
        values = gather_u64(self.data, np.where(inside, self.at + 8 * place, 0), self.order)
        return np.where(inside, values, np.uint64(0))

    def callers(self) -> U64:
        """uint64[n]: the word behind the waker's callchain, of sums that have one; else 0."""
        extension = self.extension
        wakers = np.minimum(extension.scalars["waker_nr"], np.uint64(2**31)).astype(np.int64)
        place = abi.EXTENSION_WORDS + wakers
        at = self.chain_words + _FIXED_WORDS + place
        there = extension.ok & (extension.scalars["nwords"] > place) & (self.words > at)
        there &= extension.scalars["kind"] == abi.Kind.SUM
        values = gather_u64(self.data, np.where(there, self.at + 8 * at, 0), self.order)
        return np.where(there, values, np.uint64(0))

    def waker_chains(self) -> Ragged:
        """The callchains of who woke, behind the extension's words; none where it is not whole."""
        extension = self.extension
        begin = self.at + 8 * (self.chain_words + _FIXED_WORDS + abi.EXTENSION_WORDS)
        room = np.minimum(
            extension.scalars["nwords"].astype(np.int64) - abi.EXTENSION_WORDS,
            (self.at + 8 * self.words - begin) // 8,
        )
        wanted = np.minimum(extension.scalars["waker_nr"], np.uint64(2**31)).astype(np.int64)
        counts = np.where(extension.ok & (wanted <= room), wanted, 0)
        return Ragged(*gather_rows(self.data, Rows(begin, counts, 8), self.order))


def _fill_in_cookies(chains: Ragged, own: Ragged) -> None:
    """Complete callchains that end in a deferral without cookie by that of the sample's own callchain.

    The BPF program says that the user part is deferred; what the perf core calls it, it cannot know.
    """
    marker = np.uint64(CallchainContext.USER_DEFERRED)
    last, own_last = chains.offsets[1:] - 1, own.offsets[1:] - 1
    open_ends = np.flatnonzero((chains.lengths >= 2) & (own.lengths >= 2))
    open_ends = open_ends[
        (chains.values[last[open_ends] - 1] == marker)
        & (chains.values[last[open_ends]] == 0)
        & (own.values[own_last[open_ends] - 1] == marker)
    ]
    chains.values[last[open_ends]] = own.values[own_last[open_ends]]


def _leaf(chains: Ragged) -> tuple[U64, NDArray[np.uint8]]:
    """(ip, cpumode): the first address of each chain, and whose code the marker before it says it is."""
    starts, lengths = chains.offsets[:-1], chains.lengths
    if len(chains) and int(lengths.min()) > 1:
        marker, ip = chains.values[starts], chains.values[starts + 1]
        return ip, _modes(marker)
    ip = np.zeros(len(chains), np.uint64)
    marker = np.zeros(len(chains), np.uint64)
    marker[lengths > 0] = chains.values[starts[lengths > 0]]
    ip[lengths > 1] = chains.values[starts[lengths > 1] + 1]
    return ip, _modes(marker)


def _modes(markers: U64) -> NDArray[np.uint8]:
    kernel = markers == np.uint64(CallchainContext.KERNEL)
    return np.where(kernel, np.uint8(CpuMode.KERNEL), np.uint8(CpuMode.USER))


def _apply_extension(samples: Samples, extension: Columns) -> None:
    """Take over what our own collector knows beyond upstream's words."""
    fields: dict[str, NDArray[Any]] = extension.scalars
    ok = extension.ok

    def known(name: str, sentinel: int, dtype: type[np.generic], unknown: int | None = None) -> NDArray[Any]:
        values = fields[name]
        valid = ok if unknown is None else ok & (values != np.array(unknown, values.dtype))
        if bool(valid.all()):
            return values.astype(dtype)
        return np.where(valid, values.astype(dtype), np.array(sentinel, dtype))

    samples.state = known("prev_state", -1, np.int32)
    samples.syscall = known("syscall", abi.SYSCALL_UNKNOWN, np.int32)
    samples.wakeup_ns = known("wakeup_ns", -1, np.int64, unknown=0)
    samples.runq_ns = known("runq_ns", -1, np.int64, unknown=abi.RUNQ_UNKNOWN)
    samples.switch_out_ns = known("switch_out_ns", -1, np.int64, unknown=0)
    samples.longest_ns = known("longest_ns", -1, np.int64)
    by_interrupt = ok & (fields["flags"] & np.uint16(abi.WaitFlag.WAKER_INTERRUPT) != 0)
    for name in ("waker_pid", "waker_tid"):
        # Thread 0 wakes nobody, but it may be what an interrupt that woke has interrupted.
        waker = known(name, -1, np.int32, unknown=0)
        setattr(samples, name, np.where(by_interrupt, fields[name].astype(np.int32), waker))
    samples.count = np.maximum(known("count", 1, np.int64), 1)
    samples.flags |= np.where(ok, _extension_flags(fields), np.uint32(0))
    samples.time_ns[(samples.flags & np.uint32(SampleFlag.UNTIMED)) != 0] = -1


def _extension_flags(fields: dict[str, NDArray[Any]]) -> U32:
    kind = np.where(fields["kind"] < len(_FLAG_OF_KIND), fields["kind"], 0)  # newer ones: nothing is known
    flags: U32 = _FLAG_OF_KIND[kind]
    for name, table in (("flags", _FLAG_OF_WAIT), ("lost", _FLAG_OF_LOST)):
        values = fields[name]
        for bits, flag in table if values.any() else ():
            flags = flags | np.where(values & values.dtype.type(bits) != 0, np.uint32(flag), np.uint32(0))
    return flags
