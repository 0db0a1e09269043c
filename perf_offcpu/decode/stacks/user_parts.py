# SPDX-License-Identifier: Apache-2.0
"""The kernel's and the user's part of callchains, taken apart and joined with others."""

from __future__ import annotations

import numpy as np

from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.binary.gather import offsets_of
from perf_offcpu.model.callchains import Ragged, spread
from perf_offcpu.model.columns import I32, I64


def kernel_parts(chains: Ragged) -> I64:
    """int64[n]: how many words of each callchain come before its user part."""
    words = chains.values
    is_user = (words == np.uint64(CallchainContext.USER)) | (
        words == np.uint64(CallchainContext.USER_DEFERRED)
    )
    starts = chains.offsets[:-1]
    place = np.append(np.where(is_user, np.arange(len(words)), len(words)), len(words))
    next_user = np.minimum.accumulate(place[::-1])[::-1]
    kept: I64 = np.minimum(next_user[starts], chains.offsets[1:]) - starts
    filled = np.flatnonzero(chains.lengths > 0)
    unmarked = filled[words[starts[filled]] < np.uint64(CallchainContext.MAX)]
    kept[unmarked] = 0  # without any marker the words are the user's
    return kept


def join_parts(old: Ragged, kept: I64, rows: I32, user: Ragged) -> Ragged:
    """Callchains of n samples: the kernel's part of row `rows[i]` of `old`, if there is one, then `user`."""
    front = np.where(rows >= 0, np.append(kept, 0)[rows], 0)
    lengths = front + 1 + user.lengths
    offsets = offsets_of(lengths)
    values = np.full(offsets[-1], np.uint64(CallchainContext.USER))
    begins = np.append(old.offsets[:-1], 0)[rows]
    values[spread(offsets[:-1], front, offsets_of(front))] = old.values[
        spread(begins, front, offsets_of(front))
    ]
    behind = offsets[:-1] + front + 1
    values[spread(behind, user.lengths, user.offsets)] = user.values
    return Ragged(offsets, values)


def first_words(chains: Ragged, lengths: I64) -> Ragged:
    """Return the first `lengths` words (int64[n]) of each row."""
    offsets = offsets_of(lengths)
    return Ragged(offsets, chains.values[spread(chains.offsets[:-1], lengths, offsets)])
