# SPDX-License-Identifier: Apache-2.0
"""The fields that `-F` chooses, and the lines about machine and run in front of samples."""

import time
from typing import Any

import pytest

from perf_offcpu.errors import UsageError
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Meta
from perf_offcpu.script.fields import DEFAULT_FIELDS, LEFT_TO_PERF, OWN_FIELDS, PERF_FIELDS, choose_fields
from perf_offcpu.script.samples import header_lines


def test_the_defaults_are_perfs() -> None:
    choice = choose_fields([])
    assert choice.shown == set(DEFAULT_FIELDS) <= set(PERF_FIELDS)
    assert not choice.asked
    assert not choice.has(*OWN_FIELDS)


@pytest.mark.parametrize(("texts", "shown", "asked"), [
    (["comm,tid", " time "], {"comm", "tid", "time"}, {"comm", "tid", "time"}),
    (["+state,-cpu", "+period"], {*DEFAULT_FIELDS, "state"} - {"cpu"}, {"state", "period"}),
    (["+cpu,-cpu,-sym,+sym"], {*DEFAULT_FIELDS} - {"cpu"}, {"sym"}),
])  # fmt: skip
def test_a_list_replaces_the_defaults_and_changes_keep_the_rest(
    texts: list[str], shown: set[str], asked: set[str]
) -> None:
    choice = choose_fields(texts)
    assert choice.shown == shown and choice.asked == asked


@pytest.mark.parametrize("texts", [["comm,+tid"], ["-cpu", "tid"], ["nonsense"], ["+nonsense"], ["+"], ["comm,pid,-"]])
def test_what_cannot_be_meant_is_refused(texts: list[str]) -> None:
    with pytest.raises(UsageError, match="--fields"):
        choose_fields(texts)


def test_an_unknown_field_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no field 'lock_owner' \(known: comm, .*, waker"):
        choose_fields(["lock_owner"])


@pytest.mark.parametrize("text", ["+brstack", "comm,data_src", "trace:trace"])
def test_fields_that_only_perf_prints_are_refused_with_what_to_use(text: str) -> None:
    name = text.replace("+", ",").replace(":", ",").split(",")[-1]
    with pytest.raises(UsageError, match=rf"'{name}' is printed by perf script; .*perf-offcpu inject"):
        choose_fields([text])
    assert name in LEFT_TO_PERF


def test_a_field_that_only_perf_prints_may_be_left_out() -> None:
    assert choose_fields(["-trace,-cpu"]) == choose_fields(["-cpu"])


def test_no_field_is_both_here_and_left_to_perf() -> None:
    assert not LEFT_TO_PERF & {*PERF_FIELDS, *OWN_FIELDS}


def test_fields_of_events_of_a_type() -> None:
    choice = choose_fields(["trace:comm,event", "+period", "sw:-cpu", "hw:"])
    assert choice.shown == {*DEFAULT_FIELDS, "period"}
    assert choice.of_type["trace"].shown == choice.of_type["trace"].asked == {"comm", "event"}
    assert choice.of_type["sw"].shown == {*DEFAULT_FIELDS, "period"} - {"cpu"}
    assert choice.of_type["hw"].shown == set()
    assert choice.anywhere() == {*DEFAULT_FIELDS, "period"}
    with pytest.raises(UsageError, match=r"no type of events 'cpu-clock' \(known: hw, sw, trace"):
        choose_fields(["cpu-clock:comm"])


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
    said = captured(wall_clock_at_ns=1000 * SECOND, first_ns=105 * SECOND, last_ns=last * SECOND, end_ns=end * SECOND)
    assert len(said) == 1 and said[0].startswith("unknown, ") != known
