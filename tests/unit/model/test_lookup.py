# SPDX-License-Identifier: Apache-2.0
"""Mappings of addresses, against a search row by row."""

import numpy as np

from perf_offcpu.model.lookup import NO_MAP, find_mappings
from perf_offcpu.model.recording import Maps, Spaces


def test_each_address_has_the_mapping_of_its_space() -> None:
    random = np.random.default_rng(32)
    rows = [
        (space, 100 * place, 100 * place + int(random.integers(1, 101)))
        for space, count in ((-1, 2), (0, 9), (2, 1), (3, 40))  # space 1 has none
        for place in sorted(random.choice(60, count, replace=False).tolist())
    ]
    space, start, end = np.array(rows).T
    maps = Maps.filled(len(rows), space=space, start=start.astype(np.uint64), end=end.astype(np.uint64))
    spaces = Spaces.filled(5, previous=np.array([-1, 0, -1, 2, -1]))
    asked = random.integers(-1, 5, 3000).astype(np.int32)
    addresses = random.integers(0, 6200, 3000).astype(np.uint64)

    def expected(space: int, address: int) -> int:
        hits = [row for row, (owner, begin, stop) in enumerate(rows) if owner == space and begin <= address < stop]
        before = int(spaces.previous[space]) if space >= 0 else -1
        return hits[0] if hits else NO_MAP if before < 0 else expected(before, address)

    result = find_mappings(maps, spaces, asked, addresses).tolist()
    assert result == [expected(*pair) for pair in zip(asked.tolist(), addresses.tolist(), strict=True)]
    assert len({*result}) > 45
    assert find_mappings(Maps(), spaces, asked, addresses).tolist() == [NO_MAP] * 3000
