# SPDX-License-Identifier: Apache-2.0
"""Callchains that are kept for further parts of a recording: each is followed once, cut ones again."""

import numpy as np

from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I64
from perf_offcpu.unwind.state import End
from perf_offcpu.unwind.unwinder import KnownStacks, Unwound


def test_known_callchains_are_not_followed_again_but_cut_ones_are() -> None:
    walked: list[list[int]] = []

    def walk(pairs: I64) -> Unwound:
        """Return the chain (pair, pair + 1) of each pair; those of odd pairs are cut."""
        walked.append(pairs.tolist())
        ends = np.where(pairs % 2 == 1, End.OUTSIDE, End.ROOT).astype(np.uint8)
        return Unwound(Ragged.from_lists([[pair, pair + 1] for pair in pairs.tolist()]), ends)

    known = KnownStacks()
    for pairs in ([4, 7, 10], [2, 7, 8, 10], [4, 10], [2, 4, 7, 8, 10]):
        unwound = known.unwind(np.array(pairs), walk)
        assert [unwound.chains.row(row).tolist() for row in range(len(unwound))] == [[pair, pair + 1] for pair in pairs]
        assert unwound.is_cut().tolist() == [pair % 2 == 1 for pair in pairs]
    assert walked == [[4, 7, 10], [2, 7, 8], [7]]
