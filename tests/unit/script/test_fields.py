# SPDX-License-Identifier: Apache-2.0
"""The fields that `-F` chooses."""

from __future__ import annotations

import pytest

from perf_offcpu.errors import UsageError
from perf_offcpu.script.fields import DEFAULT_FIELDS, LEFT_TO_PERF, OWN_FIELDS, PERF_FIELDS, choose_fields


def test_the_defaults_are_perfs() -> None:
    choice = choose_fields([])
    assert choice.shown == set(DEFAULT_FIELDS) <= set(PERF_FIELDS)
    assert not choice.asked
    assert not choice.has(*OWN_FIELDS)


def test_a_list_replaces_the_defaults() -> None:
    choice = choose_fields(["comm,tid", " time "])
    assert choice.shown == choice.asked == {"comm", "tid", "time"}


def test_changes_keep_the_rest() -> None:
    choice = choose_fields(["+state,-cpu", "+period"])
    assert choice.shown == {*DEFAULT_FIELDS, "state"} - {"cpu"}
    assert choice.asked == {"state", "period"}


def test_the_last_change_of_a_field_counts() -> None:
    choice = choose_fields(["+cpu,-cpu,-sym,+sym"])
    assert choice.shown == {*DEFAULT_FIELDS} - {"cpu"}
    assert choice.asked == {"sym"}


@pytest.mark.parametrize(
    "texts", [["comm,+tid"], ["-cpu", "tid"], ["nonsense"], ["+nonsense"], ["+"], ["comm,pid,-"]]
)
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
