# SPDX-License-Identifier: Apache-2.0
"""Selections: times as users write them, labels, and the sentence that says what was chosen."""

from __future__ import annotations

from typing import Any

import pytest

from perf_offcpu.fleet.selection import Selection, parse_labels, parse_time, utc

NOW_NS = 1_790_000_000 * 10**9


@pytest.mark.parametrize(("text", "shown"), [
    ("2026-11-22T14:00", "2026-11-22 14:00:00"), ("2026-11-22T14:00+02:00", "2026-11-22 12:00:00"),
    ("23:59:01", "2026-09-21 23:59:01"), ("-2h", "2026-09-21 12:13:20"),
    ("-999999999w", "1970-01-01 00:00:00"), ("0001-01-01", "1970-01-01 00:00:00"),
    ("9999-12-31T23:59:59-14:00", "2200-01-01 00:00:00"),
])  # fmt: skip
def test_times(text: str, shown: str) -> None:
    ns = parse_time("--since", text, NOW_NS)
    assert utc(ns) == shown
    assert 0 <= ns < 1 << 63  # as engines have them


@pytest.mark.parametrize("text", ["", "25:00", "now", "1790000000", "-1", "-1y", "2026-11-22T14:00Z+1"])
def test_what_is_no_time_is_shown_as_it_was_written(text: str) -> None:
    with pytest.raises(Exception, match=f"^--since: '{text.replace('+', '.')}' is not a time"):
        parse_time("--since", text, NOW_NS)


def test_values_of_labels_may_have_any_character() -> None:
    found = parse_labels("--label", ["a=x,y=z", "a=", "b=\n"])
    assert found == {"a": ("x,y=z", ""), "b": ("\n",)}


def test_all_that_was_chosen_is_described() -> None:
    chosen: dict[str, Any] = {
        "hosts": ("web1", "web2"), "labels": {"service": ("shop", "cart")}, "events": ("cpu-clock",),
        "classes": ("lock",), "objects": ("ledger*",), "comms": ("nginx",), "containers": ("0a1b",),
    }  # fmt: skip
    text = Selection(since_ns=NOW_NS, until_ns=NOW_NS + 10**9, idle="hide", **chosen).describe()
    for part in (
        "service=shop|cart, host web1|web2, since 2026-09-21 14:13:20, until 2026-09-21 14:13:21, ",
        "event cpu-clock",
        "class lock",
        "object ledger*",
        "comm nginx",
        "container 0a1b",
        "threads that merely wait for work left out",
    ):
        assert part in text
    assert Selection().describe() == "everything"
    assert Selection(idle="only").describe() == "threads that merely wait for work alone"
