# SPDX-License-Identifier: Apache-2.0
"""Waits with a place in time and a waker, for tests of what threads waited for."""

from collections.abc import Iterable
from typing import Any

from builders.profile import ProfileBuilder, Stack
from hypothesis import strategies as st

COMMS = {1: "client", 2: "server", 3: "disk"}


def wait(
    builder: ProfileBuilder, tid: int, begin: int, end: int, *,
    waker: int = -1, queued: int = 0, path: Stack | None = None, **other: Any,
) -> ProfileBuilder:  # fmt: skip
    """Add a wait from `begin` to `end`, at the end of which it was `queued` ns on a run queue."""
    return builder.sample(
        COMMS.get(tid, f"t{tid}"), path or [f"main{tid}", f"sleep_in_{tid}"], end - begin, tid=tid, pid=tid,
        time_ns=end, switch_out_ns=begin, wakeup_ns=end - queued, runq_ns=queued, waker_tid=waker,
        waker_pid=waker, **other,
    )  # fmt: skip


def waits_of(*waits: tuple[int, int, int, int]) -> ProfileBuilder:
    """Waits of threads: tid, begin, end, waker (-1 unknown)."""
    builder = ProfileBuilder()
    for tid, begin, end, waker in waits:
        wait(builder, tid, begin, end, waker=waker)
    return builder


Waits = list[tuple[int, int, int, int, int]]
"""Waits as (tid, begin, length, waker, time on a run queue)."""


def random_waits(begin: int = 90, longest: int = 40, *, shortest: int = 1) -> st.SearchStrategy[Waits]:
    """Draw waits of five threads that begin up to a time; they may overlap, and wakers may sleep."""
    columns = ((1, 5), (0, begin), (shortest, longest), (-1, 7), (0, longest))
    return st.lists(st.tuples(*(st.integers(*bounds) for bounds in columns)), min_size=1, max_size=25)


def with_waits(waits: Iterable[tuple[int, int, int, int, int]]) -> ProfileBuilder:
    builder = ProfileBuilder()
    for tid, begin, length, waker, queued in waits:
        wait(builder, tid, begin, begin + length, waker=waker, queued=min(queued, length))
    return builder
