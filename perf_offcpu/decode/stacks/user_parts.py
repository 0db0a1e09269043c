# SPDX-License-Identifier: Apache-2.0
"""Take the kernel's and the user's part of callchains apart, and join them with others."""

from __future__ import annotations

import numpy as np

from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.binary.gather import offsets_of
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I64, Bool

_USER = np.uint64(CallchainContext.USER)


def kernel_parts(chains: Ragged) -> Ragged:
    """Return what comes before the user part of each callchain."""
    return chains.cut(_kernel_lengths(chains))


def without_user_parts(chains: Ragged, chosen: Bool) -> Ragged:
    """Return the callchains, the chosen ones (bool[n]) without their user part."""
    return chains.cut(np.where(chosen, _kernel_lengths(chains), chains.lengths))


def join_parts(kernel: Ragged, user: Ragged) -> Ragged:
    """Return n callchains of two parts, with the marker USER between them where there is a user part."""
    offsets = offsets_of((user.lengths > 0).astype(np.int64))
    return Ragged.beside([kernel, Ragged(offsets, np.full(int(offsets[-1]), _USER)), user])


def _kernel_lengths(chains: Ragged) -> I64:
    """Return int64[n]: the words of each callchain before its user part."""
    words = chains.values
    is_user = (words == _USER) | (words == np.uint64(CallchainContext.USER_DEFERRED))
    starts = chains.offsets[:-1]
    place = np.append(np.where(is_user, np.arange(len(words)), len(words)), len(words))
    next_user = np.minimum.accumulate(place[::-1])[::-1]
    kept: I64 = np.minimum(next_user[starts], chains.offsets[1:]) - starts
    filled = np.flatnonzero(chains.lengths > 0)
    unmarked = filled[words[starts[filled]] < np.uint64(CallchainContext.MAX)]
    kept[unmarked] = 0  # without any marker the words are the user's
    return kept
