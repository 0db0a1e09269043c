# SPDX-License-Identifier: Apache-2.0
"""Which fields `-F` chooses."""

from __future__ import annotations

import pytest

from perf_offcpu.convert.perf_fields import DEFAULT_FIELDS, OWN_FIELDS, PERF_FIELDS, choose_fields
from perf_offcpu.errors import UsageError


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
    with pytest.raises(UsageError, match=r"no field 'brstack' \(known: comm, .*, waker"):
        choose_fields(["brstack"])
