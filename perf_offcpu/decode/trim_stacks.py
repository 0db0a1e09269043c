# SPDX-License-Identifier: Apache-2.0
"""Cut wrong callers at the root of callchains: words that frame-pointer walks took for return addresses. Code built
without frame pointers keeps other values in the register that a walk follows; after the last real frame the walk reads
words of the stack, which lie in no mapping of the process. The innermost user frame is never cut."""

from collections.abc import Iterator

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged, unique_rows
from perf_offcpu.model.columns import I32, I64, Bool, distinct
from perf_offcpu.model.lookup import NO_MAP, find_mappings
from perf_offcpu.model.recording import Recording, Samples

_KERNEL_HALF = np.uint64(1 << 63)


def cut_wrong_callers(recording: Recording) -> Recording:
    """Return the recording without root-most frames that lie in no mapping of their process. Processes of which no
    mapping is known keep all frames, and so do samples with a snapshot, which is unwound. Counts cut callchains."""
    samples, chains = recording.samples, recording.callchains
    has_maps = np.zeros(len(recording.spaces) + 1, np.bool_)  # the last one is that of space -1
    has_maps[recording.maps.space[recording.maps.space >= 0]] = True
    keys = (distinct(keys) for _, _, keys in _keys(samples, has_maps))
    pairs, shorter = _shortened(distinct(np.concatenate([np.empty(0, np.int64), *keys])), recording)
    if not len(pairs):
        return recording
    unique, ids = unique_rows(Ragged.concat([chains, shorter]))
    counters = Losses(recording.losses)
    counters.add(losses.WRONG_CALLERS, len(pairs))
    samples = samples.with_columns(
        callchain=_renumbered(samples, has_maps, pairs, ids),
        waker_callchain=np.where(samples.waker_callchain >= 0, ids[samples.waker_callchain], np.int32(-1)),
    )
    return recording.replaced(samples=samples, callchains=unique, losses=dict(counters))


_BLOCK = 1 << 15  # samples or callchains that are worked on at once: their columns stay in a core's cache


def _keys(samples: Samples, known: Bool) -> Iterator[tuple[slice, Bool, I64]]:
    """Yield (rows, usable, keys) of each block of samples. usable: bool[rows], whether a sample has a callchain to cut
    and a space in the mask `known`; keys: int64[usable samples], space << 32 | callchain."""
    for index in range(0, len(samples), _BLOCK):
        rows = slice(index, index + _BLOCK)
        space, chain = samples.space[rows], samples.callchain[rows]
        usable = known[space] & (chain >= 0) & (samples.snapshot[rows] < 0)
        yield rows, usable, space[usable].astype(np.int64) << 32 | chain[usable].astype(np.int64)


def _shortened(pairs: I64, recording: Recording) -> tuple[I64, Ragged]:
    """Return (int64[m]: `pairs` (space << 32 | callchain) whose callchain is cut; what stays of these m callchains)."""
    keys, parts = [np.empty(0, np.int64)], [Ragged()]
    for index in range(0, len(pairs), _BLOCK):
        block = pairs[index : index + _BLOCK]
        chains = recording.callchains.take(block & 0xFFFFFFFF)
        good = _is_code(chains, (block >> 32).astype(np.int32), recording)
        last_good = np.append(np.maximum.accumulate(np.where(good, np.arange(len(good)), -1)), -1)
        kept: I64 = np.maximum(last_good[chains.offsets[1:] - 1] - chains.offsets[:-1] + 1, 0)
        cut = np.flatnonzero(kept < chains.lengths)
        keys.append(block[cut])
        parts.append(chains.take(cut).cut(kept[cut]))
    return np.concatenate(keys), Ragged.concat(parts)


def _renumbered(samples: Samples, known: Bool, pairs: I64, ids: I32) -> I32:
    """Return int32[n]: the samples' new callchain rows. `known`: mask of spaces with mappings. `pairs`: space << 32 |
    callchain of those that are cut. `ids`: the new row of each old callchain, then of each pair."""
    callchain = samples.callchain.copy()
    first_pair = len(ids) - len(pairs)
    for rows, usable, keys in _keys(samples, known):
        block = callchain[rows]
        block[block >= 0] = ids[block[block >= 0]]
        place = np.minimum(np.searchsorted(pairs, keys), len(pairs) - 1)
        cut = pairs[place] == keys
        block[np.flatnonzero(usable)[cut]] = ids[first_pair + place[cut]]
    return callchain


def _is_code(chains: Ragged, spaces: I32, recording: Recording) -> Bool:
    """Return bool[words]: True for markers and for kernel, mapped and innermost addresses, which may be frames."""
    words = chains.values
    good = words >= _KERNEL_HALF
    is_marker = words >= np.uint64(CallchainContext.MAX)
    first = np.zeros(len(words), np.bool_)
    first[chains.offsets[:-1][chains.lengths > 0]] = True
    good |= first | np.append(False, is_marker[:-1])[: len(words)]
    doubtful = np.flatnonzero(~good)
    space = spaces[chains.row_of_value()[doubtful]]
    # A return address may be the byte after its mapping: the call before it is what must be code.
    mapping = find_mappings(recording.maps, recording.spaces, space, words[doubtful] - np.uint64(1))
    good[doubtful[mapping != NO_MAP]] = True
    return good
