# SPDX-License-Identifier: Apache-2.0
"""Damage at random: whatever a file holds, there is a Recording or a reason, soon and in little memory. A sample of
what `tests/fuzz/mutate.py` does with 100 000 copies, `tests/fuzz/prefixes.py` with each prefix."""

import random

import pytest
from builders.mutations import content, mutated, survive
from builders.zoo import as_file, recordings

ZOO = recordings()
SECONDS = 5.0  # A step takes some milliseconds; on a busy machine, what does not end by itself still takes longer


@pytest.mark.parametrize("name", ZOO)
def test_seeded_damage(name: str) -> None:
    for seed in range(2):
        data = mutated(ZOO[name], random.Random(f"{name} {seed}"))
        assert survive(data, rewriting=seed % 4 == 0, showing=seed % 4 == 1) < SECONDS


@pytest.mark.parametrize("name", ZOO)
def test_prefixes(name: str) -> None:
    """Cut at each 59th of the first 300 bytes, and at some of the others. Most prefixes have the records, events
    and features of a shorter one: these are only cut into records."""
    data, seen = ZOO[name], set[bytes]()
    for size in [*range(0, 300, 59), *range(300, len(data), max(1, len(data) // 7))]:
        with as_file(data[:size]) as path:
            what = content(str(path))
        if what not in seen:
            seen.add(what)
            shown = len(seen)
            assert survive(data[:size], rewriting=shown % 16 == 0, showing=shown % 16 == 1) < SECONDS
