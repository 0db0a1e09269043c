# SPDX-License-Identifier: Apache-2.0
"""The lines about machine and run in front of samples."""

from __future__ import annotations

import time
from typing import Any

import pytest

from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Meta
from perf_offcpu.script.header import header_lines

SECOND = 10**9


def captured(**facts: Any) -> list[str]:
    profile = Profile(meta=Meta(wall_clock_ns=10**18, **facts))
    return [line.partition(" : ")[2] for line in header_lines(profile) if line.startswith("# captured on")]


def test_the_date_is_that_of_the_first_sample() -> None:
    date = time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(10**9 + 5))
    assert captured(wall_clock_at_ns=100 * SECOND, first_ns=105 * SECOND, last_ns=900 * SECOND) == [date]


@pytest.mark.parametrize(("last", "end", "known"), [(200, 0, False), (200, 950, True), (950, 0, True)])
def test_a_clock_that_began_after_all_samples_is_another_one(last: int, end: int, known: bool) -> None:
    """As perf's is in a time namespace whose clock is ahead; a recording may end without samples, though."""
    said = captured(
        wall_clock_at_ns=1000 * SECOND, first_ns=105 * SECOND, last_ns=last * SECOND, end_ns=end * SECOND
    )
    assert len(said) == 1 and said[0].startswith("unknown, ") != known
