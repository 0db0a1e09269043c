# SPDX-License-Identifier: Apache-2.0
"""Small pieces of bytes are joined to larger ones, and none is lost before an exception."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.perfdata.compressed import joined


@given(st.lists(st.binary(max_size=9)), st.integers(1, 20))
def test_the_same_bytes_in_fewer_pieces(pieces: list[bytes], least: int) -> None:
    found = list(joined(iter(pieces), least))
    assert b"".join(found) == b"".join(pieces)
    assert all(len(piece) >= least for piece in found[:-1])


def test_what_came_before_damage_is_given_first() -> None:
    def damaged() -> Iterator[bytes]:
        yield from (b"ab", b"c", b"d")
        raise ValueError("damage")

    pieces = joined(damaged(), 3)
    assert (next(pieces), next(pieces)) == (b"abc", b"d")
    with pytest.raises(ValueError, match="damage"):
        next(pieces)
