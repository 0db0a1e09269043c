# SPDX-License-Identifier: Apache-2.0
"""Which fields `-F` chooses."""

from __future__ import annotations

import pytest

from perf_offcpu.decode.field_store import ALL_FIELDS
from perf_offcpu.errors import UsageError
from perf_offcpu.script.fields import DEFAULT_FIELDS, OWN_FIELDS, PERF_FIELDS, choose_fields


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
    with pytest.raises(UsageError, match=r"no field 'insn' \(known: comm, .*, waker"):
        choose_fields(["insn"])


def test_fields_of_events_of_a_type() -> None:
    choice = choose_fields(["trace:comm,trace", "+period", "sw:-cpu", "hw:"])
    assert choice.shown == {*DEFAULT_FIELDS, "period"}
    assert choice.of_type["trace"].shown == {"comm", "trace"}
    assert choice.of_type["sw"].shown == {*DEFAULT_FIELDS, "period"} - {"cpu"}
    assert choice.of_type["hw"].shown == set()
    assert choice.all_asked() == {"period", "comm", "trace"}
    with pytest.raises(UsageError, match=r"no type of events 'cpu-clock' \(known: hw, sw, trace"):
        choose_fields(["cpu-clock:comm"])


def test_what_has_to_be_loaded() -> None:
    assert choose_fields([]).to_load() == {"trace"}
    assert choose_fields(["comm,weight", "trace:brstack"]).to_load() == {"weight", "var1_dw", "branch_stack"}
    every = choose_fields([",".join(PERF_FIELDS)]).to_load()
    assert every <= set(ALL_FIELDS)
