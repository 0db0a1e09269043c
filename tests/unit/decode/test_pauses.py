# SPDX-License-Identifier: Apache-2.0
"""Several accounts in one file: the times between pauses, and the sums of their counters."""

from __future__ import annotations

import pytest

from perf_offcpu import losses
from perf_offcpu.abi.counters import COUNTERS, MAGIC, VERSION
from perf_offcpu.decode.account import CollectorAccount
from perf_offcpu.losses import Losses


def counters(begin_ns: int, end_ns: int, **counts: tuple[int, int]) -> bytes:
    """Return the payload of an account; `counts` are (events, ns) by the names of causes ("_" for "-")."""
    rows = [
        {"events": events, "ns": ns, "name": name.replace("_", "-").encode()}
        for name, (events, ns) in counts.items()
    ]
    values = {"magic": MAGIC, "version": VERSION, "nr": len(rows), "counters": rows}
    return COUNTERS.pack(values | {"begin_ns": begin_ns, "end_ns": end_ns, "threshold_ns": 0}, "<")


def account_of(*payloads: bytes) -> CollectorAccount:
    account, damaged = CollectorAccount(), Losses()
    account.take(payloads, "<", damaged)
    assert not damaged
    return account


@pytest.mark.parametrize(("spans", "parts"), [
    ([], ()), ([(5, 9)], ()), ([(5, 9), (9, 12)], ()), ([(5, 9), (10, 12)], ((5, 9), (10, 12))),
    ([(20, 30), (5, 9), (6, 10), (20, 30)], ((5, 10), (20, 30))),
    ([(5, 9), (40, 30), (10, 12)], ((5, 9), (10, 12))),
])  # fmt: skip
def test_parts_are_the_times_between_pauses(
    spans: list[tuple[int, int]], parts: tuple[tuple[int, int], ...]
) -> None:
    account = account_of(*(counters(*span) for span in spans))
    assert account.parts() == parts
    if spans:
        assert (account.begin_ns, account.end_ns) == (min(spans)[0], max(end for _, end in spans))


def test_counters_of_all_parts_are_added() -> None:
    first = counters(1, 2, samples=(3, 70), sampling_period=(1, 20), threshold_raised=(4, 900))
    second = counters(3, 4, samples=(5, 30), sampling_period=(1, 20), threshold_raised=(1, 400))
    account = account_of(first, second)
    assert account.notes[losses.SAMPLES.name] == (8, 100)
    assert account.notes[losses.SAMPLING_PERIOD.name][1] == 20
    assert account.notes[losses.THRESHOLD_RAISED.name] == (5, 900)
