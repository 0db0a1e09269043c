# SPDX-License-Identifier: Apache-2.0
"""Re-type raw `offcpu-time` samples to off-cpu samples, as perf >= 6.16 does, without its mistakes.

Two producers write such samples. The magic of the extension marks this project's. Upstream's need care
(checked against perf 7.2): samples sent directly hold tid and pid in the other order (`repair_ids` exchanges
them when all tasks are known); sums carry a dummy time; a 33rd frame is the stale cgroup id of an
earlier record; and the raw size includes padding, so only `nr` gives the number of frames."""

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi import offcpu as abi
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.binary.columnar import Columns, Rows, gather_rows, gather_u64, native, read_columns
from perf_offcpu.binary.layout import Layout, Order
from perf_offcpu.decode.batch import Batch
from perf_offcpu.losses import BAD_SAMPLE, OTHER_PAYLOAD, Losses
from perf_offcpu.model.callchains import MIX, Ragged
from perf_offcpu.model.columns import I32, I64, U8, U64, Bool, distinct, is_among
from perf_offcpu.model.recording import SampleFlag, Samples, Tasks

_FIXED_WORDS = 4  # pid and tid, time, nr, cgroup: a payload without frames
_HEAD = Layout(abi.PAYLOAD.name, *abi.PAYLOAD.fields[:4], source=abi.PAYLOAD.source)  # the words before the callchain

_TAIL = Layout(abi.EXTENSION.name, abi.PAYLOAD.fields[-1], *abi.fixed_part(8).fields)
"""The words after the callchain up to the extension's size: cgroup, magic, version, size."""

_UPSTREAM_MAX_CHAIN = 33  # upstream keeps 32 frames and one marker

COLUMNS = tuple(name for name in Samples.columns if name in abi.BLANK_EXTENSION and name != "flags")
"""Fields of the extension that are columns of samples under the same name."""

FLAGS_OF_KIND = (
    (abi.Kind.SUM, SampleFlag.AGGREGATED),
    (abi.Kind.STILL_BLOCKED, SampleFlag.STILL_BLOCKED),
    (abi.Kind.BEGAN_BEFORE, SampleFlag.BEGAN_BEFORE),
    (abi.Kind.ON_CPU, SampleFlag.ON_CPU_NAMES),
)
FLAGS_OF_WAIT = tuple((flag, SampleFlag[name]) for name, flag in abi.WaitFlag.__members__.items())
FLAGS_OF_LOST = (
    (abi.Lost.USER_STACK, SampleFlag.NO_USER_STACK),
    (abi.Lost.KERNEL_STACK, SampleFlag.NO_KERNEL_STACK),
    (abi.Lost.USER_STACK_CUT, SampleFlag.TRUNCATED),
    (abi.Lost.KERNEL_STACK_CUT, SampleFlag.TRUNCATED),
)


def retype(data: U8, columns: Columns, samples: Samples, order: Order, counters: Losses) -> tuple[Batch, Bool]:
    """Re-type n raw samples of one evsel. `columns`: their fields. `samples`: the same n samples, of which time, evsel,
    cpu and flags are taken. Returns (batch, sound): the off-cpu samples, and bool[n], False where the payload is
    malformed or of a version that this module does not read. Such samples are counted if they are `ok` in `columns`."""
    payload = Payload(data, columns, order)
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
        _fill_in_cookies(chains, Ragged(*gather_rows(data, columns.arrays["callchain"], order)))
    result.ip, result.cpumode = _leaf(chains)
    if payload.ours.any():
        _apply_extension(result, payload.extension)
        payload.read_tcp(result)
    for part, name in (("waker", "waker_callchain"), ("python", "python")):
        words = payload.words_of(part)
        rows = np.flatnonzero(words.lengths)
        if len(rows):
            column = getattr(result, name).copy()
            column[rows] = np.arange(len(rows)) + len(chains)
            setattr(result, name, column)
            chains = Ragged.concat([chains, words.take(rows)])
    for version, count in Counter(payload.version[payload.is_other_version].tolist()).items():
        counters.add(OTHER_PAYLOAD.about(f"payload of version {version}, not {abi.EXTENSION_VERSION}"), count)
    sound = payload.sound & (result.period >= 0) & ~payload.is_other_version
    counters.add(BAD_SAMPLE, int((columns.ok & ~payload.is_other_version & ~sound).sum()))
    return Batch(result, chains, ~payload.ours), sound


class Payload:
    """Reads the fields of n raw `offcpu-time` payloads, each only where it lies inside its sample."""

    def __init__(self, data: U8, columns: Columns, order: Order) -> None:
        raw = columns.arrays["raw"]
        self.data, self.order, self.at = data, order, raw.starts
        self.words, self.end = raw.counts // 8, raw.starts + raw.counts
        self.sound = columns.ok & (self.words >= _FIXED_WORDS)
        self.head = read_columns(_HEAD, data, self.at, self.at + 8 * self.words, order).scalars
        nr: I64 = np.minimum(self.head["nr"], np.uint64(2**31)).astype(np.int64)
        self.tail = self._tail(nr)
        room = np.maximum(self.words - _FIXED_WORDS, 0)
        # Upstream's nr may be wrong; ours is only believed if the extension stands where it says.
        limit = np.where(self.ours, room, np.minimum(room, _UPSTREAM_MAX_CHAIN))
        self.chain_words = np.where(self.sound, np.clip(nr, 0, limit), 0)
        self.extension = self._extension(self.tail["size"])

    def _tail(self, nr: I64) -> dict[str, NDArray[Any]]:
        """Read the words after callchains of `nr` words (int64[n]) by field of _TAIL; set `ours`: of this project."""
        after = nr + _FIXED_WORDS
        inside = self.words > after
        self.extension_at = np.where(inside, self.at + 8 * after, self.at)
        begin = np.where(inside, self.extension_at - 8, self.at)
        tail = read_columns(_TAIL, self.data, begin, np.where(inside, self.end, begin), self.order).scalars
        self.ours = inside & (tail["magic"] == np.uint32(abi.EXTENSION_MAGIC))
        self.version = np.where(self.sound & self.ours, tail["version"], np.uint16(abi.EXTENSION_VERSION))
        self.is_other_version = self.version != np.uint16(abi.EXTENSION_VERSION)
        return tail

    def _extension(self, size: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return field name → column of the extensions, whose fixed parts have `size` bytes. `Field.unknown` fills
        fields that a payload lacks, and all fields where the version differs or the fixed part does not fit."""
        readable = self.ours & ~self.is_other_version & (self.extension_at + size <= self.end)
        size_read = np.where(readable, np.minimum(size, np.uint16(abi.EXTENSION_SIZE)), np.uint16(0))
        fields: dict[str, NDArray[Any]] = {
            field.name: np.broadcast_to(np.array(field.unknown, native(field.type)), len(size))
            for field in abi.EXTENSION.fields
        }
        for bytes_read in distinct(size_read).tolist():
            rows = np.flatnonzero(size_read == bytes_read)
            begin = self.extension_at[rows]
            layout = abi.fixed_part(bytes_read)
            scalars = read_columns(layout, self.data, begin, begin + bytes_read, self.order).scalars
            if len(rows) == len(size):
                return fields | scalars
            for name, values in scalars.items():
                if not fields[name].flags.writeable:
                    fields[name] = fields[name].copy()
                fields[name][rows] = values
        return fields

    def cgroup(self) -> U64:
        """Return the cgroup id after each callchain, uint64[n], 0 if it is absent."""
        if bool((self.ours & self.sound).all()):
            return self.tail["cgroup"]
        place = self.chain_words + 3
        inside = self.words > place
        values = gather_u64(self.data, np.where(inside, self.at + 8 * place, 0), self.order)
        return np.where(inside, values, np.uint64(0))

    def read_tcp(self, samples: Samples) -> None:
        """Set the columns `tcp_…` of n samples; they stay 0 where the facts are absent, are shorter than this version
        knows them, or would not lie inside their sample."""
        counts = self.extension["tcp_nr"].astype(np.int64)
        if not counts.any():
            return
        begin, size = self.extension_at + self.extension["tcp_offset"], abi.TCP.size()
        rows = np.flatnonzero((4 * counts >= size) & (begin + 4 * counts <= self.end))
        facts = read_columns(abi.TCP, self.data, begin[rows], begin[rows] + size, self.order).scalars
        for name, values in facts.items():
            column = np.zeros(len(counts), np.uint32)
            column[rows] = values
            setattr(samples, f"tcp_{name}", column)

    def words_of(self, part: str) -> Ragged:
        """Return n rows of raw words, the waker's callchain ("waker") or Python frames ("python"); empty if absent, or
        if they would not lie inside their sample."""
        counts = self.extension[f"{part}_nr"].astype(np.int64)
        begin = self.extension_at + self.extension[f"{part}_offset"]
        counts = np.where(begin + 8 * counts <= self.end, counts, 0)
        return Ragged(*gather_rows(self.data, Rows(begin, counts, 8), self.order))


def _fill_in_cookies(chains: Ragged, own: Ragged) -> None:
    """Set the cookie of callchains that end in USER_DEFERRED and 0, in place, to that in `own`, the perf core's
    callchain of the same sample. The BPF program defers the user part, but cannot know the cookie of the perf core."""
    marker = np.uint64(CallchainContext.USER_DEFERRED)
    last, own_last = chains.offsets[1:] - 1, own.offsets[1:] - 1
    open_ends = np.flatnonzero((chains.lengths >= 2) & (own.lengths >= 2))
    open_ends = open_ends[
        (chains.values[last[open_ends] - 1] == marker)
        & (chains.values[last[open_ends]] == 0)
        & (own.values[own_last[open_ends] - 1] == marker)
    ]
    chains.values[last[open_ends]] = own.values[own_last[open_ends]]


def _leaf(chains: Ragged) -> tuple[U64, U8]:
    """Return (uint64[n], uint8[n]): the first address of each callchain, and the cpumode of the marker before it."""
    starts, lengths = chains.offsets[:-1], chains.lengths
    marker, ip = np.zeros((2, len(chains)), np.uint64)
    marker[lengths > 0] = chains.values[starts[lengths > 0]]
    ip[lengths > 1] = chains.values[starts[lengths > 1] + 1]
    kernel = marker == np.uint64(CallchainContext.KERNEL)
    return ip, np.where(kernel, np.uint8(CpuMode.KERNEL), np.uint8(CpuMode.USER))


def _apply_extension(samples: Samples, fields: dict[str, NDArray[Any]]) -> None:
    """Set columns and flags of n samples from the fields (name → array[n]) of this project's extension of their
    payloads; estimate `count` where a sample stands for several waits (SAMPLED)."""
    for name in COLUMNS:
        dtype = getattr(samples, name).dtype
        unknown = np.array(abi.BLANK_EXTENSION[name], fields[name].dtype).astype(dtype)
        # "Unknown" is the lowest value of each column: larger numbers than it can hold become that, too.
        setattr(samples, name, np.maximum(fields[name].astype(dtype), unknown))
    for number, flag in FLAGS_OF_KIND:
        samples.flags |= np.where(fields["kind"] == np.uint32(number), np.uint32(flag), np.uint32(0))
    for name, table in (("flags", FLAGS_OF_WAIT), ("lost", FLAGS_OF_LOST)):
        bits = fields[name]
        for bit, flag in table if bits.any() else ():
            samples.flags |= np.where(bits & np.uint32(bit), np.uint32(flag), np.uint32(0))
    samples.time_ns[samples.has(SampleFlag.UNTIMED)] = -1
    _estimate(samples)


def _estimate(samples: Samples) -> None:
    """Estimate for SAMPLED waits the number that each stands for (`count`), and scale `runq_ns` to its weight. A wait
    of the length L is drawn with the probability min(1, L / period), so it stands for max(1, period / L) waits (Horvitz
    and Thompson, 1952). The fraction is rounded up or down by a hash of its time, so that the sum of many is right."""
    rows = np.flatnonzero(samples.has(SampleFlag.SAMPLED) & (samples.longest_ns > 0))
    if not len(rows):
        return
    weight, length = samples.period[rows], samples.longest_ns[rows]
    period = weight // np.maximum(samples.count[rows], 1)
    chance = ((samples.time_ns[rows].astype(np.uint64) * MIX) >> np.uint64(40)).astype(np.float64) / 2**24
    samples.count = np.array(samples.count)
    samples.count[rows] = np.floor(np.maximum(period / length, 1.0) + chance).astype(np.int64)
    samples.runq_ns = np.array(samples.runq_ns)
    delay = samples.runq_ns[rows]
    scaled = np.rint(delay * (weight / length)).astype(np.int64)
    samples.runq_ns[rows] = np.where(delay >= 0, np.minimum(scaled, weight), delay)


def count_foreign_ids(samples: Samples, tasks: Tasks) -> int:
    """Count the off-cpu samples with thread ids that no other record has, so that names are missing: BPF programs write
    ids of the first pid namespace, COMM, FORK and other records have ids of the recorder's namespace."""
    if not len(tasks):
        return 0
    waits = samples.tid[samples.has(SampleFlag.OFFCPU)]
    return int((~is_among(waits, distinct(tasks.tid)) & (waits > 0)).sum())


def repair_ids(samples: Samples, from_upstream: Bool, tasks: Tasks) -> Samples:
    """Return the samples with pid = tgid; samples of upstream perf whose ids are exchanged here are flagged
    REPAIRED_IDS. `tasks` names the process of each thread that has a COMM, FORK or EXIT record (whatever the time). If
    it does not decide, ids are exchanged, but for samples with a dummy time: these are sums, which perf writes right.
    Where `from_upstream` (bool[n]), `pid` holds the low half of the payload's first word, `tid` its high half."""
    if not from_upstream.any():
        return samples
    low, high = samples.pid, samples.tid
    tgid_of_low, tgid_of_high = _tgid(tasks, low), _tgid(tasks, high)
    is_right = (tgid_of_high == low) & ((tgid_of_low == low) | (tgid_of_low < 0))
    is_swapped = (tgid_of_low == high) & ((tgid_of_high == high) | (tgid_of_high < 0))
    is_sum = samples.has(SampleFlag.UNTIMED)
    swap = from_upstream & (low != high) & np.where(is_right | is_swapped, is_swapped, ~is_sum)
    return samples.with_columns(
        pid=np.where(swap, high, low),
        tid=np.where(swap, low, high),
        flags=samples.flags | np.where(swap, np.uint32(SampleFlag.REPAIRED_IDS), np.uint32(0)),
    )


def _tgid(tasks: Tasks, tids: I32) -> I32:
    """Return int32[n]: the tgid of each thread in `tids`, -1 unknown."""
    slot, none = np.searchsorted(tasks.tid, tids), np.int32(-1)
    return np.where(np.append(tasks.tid, none)[slot] == tids, np.append(tasks.pid, none)[slot], none)
