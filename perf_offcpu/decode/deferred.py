# SPDX-License-Identifier: Apache-2.0
"""Match deferred callchains, the user parts that come in records of their own, with their samples.

With attr.defer_callchain the kernel ends a sample's callchain with a marker and a cookie, and walks the
user stack once, when the thread returns to user space: a CALLCHAIN_DEFERRED record with that cookie
completes all samples that the thread had since it entered the kernel. Two forms exist, distinguished by content:

              sample ends with            record
    final     … USER_DEFERRED, cookie     cookie, nr, ips[nr]
    v12       … USER_DEFERRED             nr, ips[nr], and ips[0] is the USER marker

Records without a sample are normal (other perf sessions cause them), and so are samples whose record was
lost. A sample may even come after its record: cookies are matched in both directions, where perf 7.2 looks
only forward. (The v12 form, posted in July 2025, never was in a released kernel.)"""

from typing import NamedTuple

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.records import CpuMode, RecordType
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.binary.columnar import Rows, gather_rows, gather_u64, offsets_of
from perf_offcpu.decode.batch import Batch
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged, unique_rows
from perf_offcpu.model.columns import I32, I64, U64, Bool, group
from perf_offcpu.model.recording import DeferredChains, Recording, SampleFlag, Samples
from perf_offcpu.perfdata.events import Events, read_trailers
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk

_USER, _MARKER = np.uint64(CallchainContext.USER), np.uint64(CallchainContext.USER_DEFERRED)
MARKER_WORDS = 2  # words at the end of a callchain that show whether it waits for a user part, and for which


def without_user_parts(chains: Ragged, chosen: Bool | bool = True) -> Ragged:
    """Return n callchains, where the `chosen` ones (bool[n]; default: all) have no user part any more."""
    return chains.cut(np.where(chosen, _kernel_lengths(chains), chains.lengths))


def join_parts(kernel: Ragged, user: Ragged) -> Ragged:
    """Return n callchains: kernel[i], then the marker USER and user[i] unless user[i] is empty."""
    offsets = offsets_of((user.lengths > 0).astype(np.int64))
    return Ragged.hstack([kernel, Ragged(offsets, np.full(int(offsets[-1]), _USER)), user])


def _kernel_lengths(chains: Ragged) -> I64:
    """Return int64[n]: the words of each callchain before its user part."""
    words = chains.values
    is_user = (words == _USER) | (words == _MARKER)
    starts = chains.offsets[:-1]
    place = np.append(np.where(is_user, np.arange(len(words)), len(words)), len(words))
    next_user = np.minimum.accumulate(place[::-1])[::-1]
    kept: I64 = np.minimum(next_user[starts], chains.offsets[1:]) - starts
    filled = np.flatnonzero(chains.lengths > 0)
    unmarked = filled[words[starts[filled]] < np.uint64(CallchainContext.MAX)]
    kept[unmarked] = 0  # without any marker the words are the user's
    return kept


def decode_deferred(chunk: Chunk, events: Events, counters: Losses) -> Batch:
    """Return the CALLCHAIN_DEFERRED records of a chunk, in file order, as a batch without samples."""
    rows = np.flatnonzero(chunk.types == RecordType.CALLCHAIN_DEFERRED)
    if not len(rows):
        return Batch()
    trailers = read_trailers(chunk, rows, events, unknown=0)
    starts = chunk.starts[rows] + HEADER_SIZE
    ends = chunk.starts[rows] + chunk.sizes[rows] - trailers.size
    words = (ends - starts) // 8
    places = (np.where(words >= 1, starts, 0), np.where(words >= 2, starts + 8, 0))
    first, second = (gather_u64(chunk.data, place, events.order) for place in places)
    final = (words >= 2) & (second == (words - 2).astype(np.uint64))
    v12 = ~final & (words >= 1) & (first == (words - 1).astype(np.uint64))
    counters.add(losses.BAD_RECORD, int((~final & ~v12).sum()))
    sound = final | v12
    # The v12 form repeats the marker that ends the sample's own chain: it is not taken twice.
    skipped = np.minimum(words, 2)[sound]
    addresses = Rows(starts[sound] + 8 * skipped, words[sound] - skipped, 8)
    table = DeferredChains.filled(
        int(sound.sum()),
        time_ns=trailers.time[sound].view(np.int64),
        pid=trailers.pid[sound],
        tid=trailers.tid[sound],
        cookie=np.where(final, first, np.uint64(0))[sound],
        callchain=np.arange(int(sound.sum())),
    )
    return Batch(callchains=Ragged(*gather_rows(chunk.data, addresses, events.order)), deferred=table)


class PendingChains(NamedTuple):
    """Tells which of n callchains end in USER_DEFERRED, so that their user part is in a later record."""

    is_pending: Bool  # bool[n]
    kept: I64  # int64[n], words that stay; all words of a callchain that is not pending
    cookie: U64  # uint64[n], 0 for a callchain without cookie


def pending_chains(chains: Ragged) -> PendingChains:
    """Return, for each callchain, whether it ends in USER_DEFERRED, the words before the marker, and the cookie."""
    lengths, ends = chains.lengths, chains.offsets[1:]
    words = chains.values if len(chains.values) > 1 else np.append(chains.values, np.zeros(2, np.uint64))
    # Rows that are too short read words of others, or of the end, and do not use them.
    last = np.where(lengths >= 1, words[ends - 1], np.uint64(0))
    before = np.where(lengths >= 2, words[ends - 2], np.uint64(0))
    final, v12 = before == _MARKER, last == _MARKER
    kept = lengths - np.where(final, 2, np.where(v12, 1, 0))
    return PendingChains(final | v12, kept, np.where(final, last, np.uint64(0)))


def merge_deferred(recording: Recording) -> Recording:
    """Merge the deferred callchains into the samples, with an ordinary USER marker; no deferred records are left.
    Samples whose record never came keep their kernel part, lose marker and cookie, are flagged UNMERGED and counted."""
    samples, deferred, chains = recording.samples, recording.deferred, recording.callchains
    merged = DeferredMatcher(deferred, chains).merge(chains, samples.callchain, samples.tid, samples.time_ns)
    if not len(merged.samples):
        return recording.replaced(deferred=DeferredChains())
    is_merged = merged.deferred >= 0
    completed, unmerged = merged.samples[is_merged], merged.samples[~is_merged]
    callchain, flags, space = samples.callchain.copy(), samples.flags.copy(), samples.space.copy()
    callchain[merged.samples] = merged.row + len(chains)
    # The user part was walked later than the sample was taken: perhaps after an exec.
    walked = deferred.space[merged.deferred[is_merged]]
    space[completed] = np.where(walked >= 0, walked, space[completed])
    flags[unmerged] |= np.uint32(SampleFlag.UNMERGED | SampleFlag.NO_USER_STACK)
    callchains, ids = unique_rows(Ragged.concat([chains, merged.chains]))
    # The callchain of a waker may be the callchain of a sample: of its sched_waking.
    successor = np.arange(len(chains), dtype=np.int32)
    successor[samples.callchain[merged.samples]] = callchain[merged.samples]
    none = np.int32(-1)
    wakers = np.append(successor, none)[samples.waker_callchain]
    callchain, wakers = (np.append(ids, none)[rows] for rows in (callchain, wakers))
    lost = Losses(recording.losses)
    lost.add(losses.UNMERGED, len(unmerged))
    return recording.replaced(
        samples=samples.with_columns(callchain=callchain, waker_callchain=wakers, flags=flags, space=space),
        callchains=callchains,
        deferred=DeferredChains(),
        losses=dict(lost),
    )


class MergedChains(NamedTuple):
    """Holds m samples whose user part was deferred, and their new callchains, without user parts that never came."""

    samples: I64  # int64[m], rows of the samples
    deferred: I32  # int32[m], the row in DeferredChains of each sample's user part, -1 where it never came
    chains: Ragged  # the distinct new callchains
    row: I32  # int32[m], the row in `chains` of each sample


class DeferredMatcher:
    """Finds the deferred records of samples, and completes their callchains. (thread, cookie) becomes the rank of that
    pair, a time its rank among the times, and both together one int64 key, so that a binary search answers for any
    number of samples. `deferred.callchain` are rows of `chains`."""

    def __init__(self, deferred: DeferredChains, chains: Ragged) -> None:
        self.deferred, self.chains = deferred, chains
        self._cookies, cookie = np.unique(deferred.cookie, return_inverse=True)
        self._times, time = np.unique(deferred.time_ns, return_inverse=True)
        self._pairs, pair = np.unique(self._pair(deferred.tid, cookie), return_inverse=True)
        self._order = np.lexsort((time, pair))
        self._keys = (pair * (len(self._times) + 1) + time)[self._order]
        self._pair_of_key = pair[self._order]

    def _pair(self, tid: I32, cookie: I64) -> I64:
        pair: I64 = tid.astype(np.int64) * max(1, len(self._cookies)) + cookie
        return pair

    def merge(self, chains: Ragged, chain: I32 | I64, tid: I32, time_ns: I64) -> MergedChains:
        """Complete the callchains of n samples where their user part was deferred. `chain`: int[n], row in `chains` of
        each sample, -1 none. `tid`, `time_ns`: of each sample."""
        pending = pending_chains(chains)
        # A sample without a callchain has row -1: the False at the end.
        rows = np.flatnonzero(np.append(pending.is_pending, False)[chain])
        if not len(rows):
            return MergedChains(rows, np.empty(0, np.int32), Ragged(), np.empty(0, np.int32))
        head = chain[rows]
        deferred = self.find(tid[rows], time_ns[rows], pending.cookie[head])
        user = np.append(self.deferred.callchain, np.int32(-1))[deferred]
        first, row = group(head, user)
        head = head[first]
        completed = join_parts(chains.take(head).cut(pending.kept[head]), self.chains.take(user[first]))
        return MergedChains(rows, deferred, completed, row.astype(np.int32))

    def find(self, tid: I32, time_ns: I64, cookie: U64) -> I32:
        """Return int32[n]: the row in `deferred` for each sample, -1 none: the next one of the same thread and cookie
        at or after the sample, else the last one before it. Without a cookie (0), only a later one."""
        if not len(self.deferred):
            return np.full(len(tid), -1, np.int32)
        code = np.minimum(np.searchsorted(self._cookies, cookie), len(self._cookies) - 1)
        wanted = self._pair(tid, code)
        pair = np.minimum(np.searchsorted(self._pairs, wanted), len(self._pairs) - 1)
        is_match = (self._cookies[code] == cookie) & (self._pairs[pair] == wanted)
        key = pair * (len(self._times) + 1) + np.searchsorted(self._times, time_ns)
        slot = np.searchsorted(self._keys, key)
        after, earlier = np.minimum(slot, len(self._order) - 1), np.maximum(slot - 1, 0)
        is_after = is_match & (slot < len(self._order)) & (self._pair_of_key[after] == pair)
        is_earlier = is_match & (self._pair_of_key[earlier] == pair) & (cookie > 0)
        row = np.where(is_after, self._order[after], np.where(is_earlier, self._order[earlier], -1))
        return row.astype(np.int32)


def deferred_as_samples(recording: Recording) -> Recording:
    """Return the recording with each deferred callchain, not merged, as a sample of period 0 at its time, as `perf
    script --no-merge-callchains` shows them, to inspect the matching. Its callchain begins with the words that end the
    sample's own (USER_DEFERRED and the cookie; none without a cookie), then come USER and the addresses."""
    deferred = recording.deferred
    if not len(deferred):
        return recording
    extra = Samples.filled(
        len(deferred),
        **{name: getattr(deferred, name) for name in ("time_ns", "pid", "tid", "comm", "space")},
        callchain=np.arange(len(deferred)) + len(recording.callchains),
        cpumode=np.full(len(deferred), CpuMode.USER),
    )
    samples = Samples.concat([recording.samples, extra])
    named = deferred.cookie != 0
    words = np.stack([np.full(len(deferred), _MARKER), deferred.cookie], axis=1)
    marks = Ragged(offsets_of(2 * named.astype(np.int64)), words[named].ravel())
    chains = join_parts(marks, recording.callchains.take(deferred.callchain))
    return recording.replaced(
        samples=samples.take(np.argsort(samples.time_ns, kind="stable")),
        callchains=Ragged.concat([recording.callchains, chains]),
        deferred=DeferredChains(),
    )
