# SPDX-License-Identifier: Apache-2.0
"""Comparison by object: names of two runs meet, although addresses and ids differ."""

from builders.profile import ProfileBuilder

from perf_offcpu.model.profile import Profile
from perf_offcpu.report.diff.compare import Comparison, compare
from perf_offcpu.report.diff.output import document, render
from perf_offcpu.report.diff.sides import Per, side_of
from perf_offcpu.report.style import Style

STABLE = "lock heap (via transfer)"


def run(address: int, waits: int, *, objects: bool = True) -> Profile:
    meta = {"begin_ns": 1, "end_ns": 10**10, "first_ns": 1, "last_ns": 10**10}
    builder = ProfileBuilder(meta=meta)
    lock = builder.thing(f"lock heap {address:#x} (via transfer)", stable=STABLE) if objects else -1
    for at in range(waits):
        builder.sample("bank", ["main"], 10**6, object=lock, time_ns=10**7 * (at + 1))
    return builder.sample("bank", ["main"], 5 * 10**6).build()


def compared(old: Profile, new: Profile, *keys: str) -> Comparison:
    per = Per("second")
    sides = [side_of(profile, (), per, 1.0, (), whole=True) for profile in (old, new)]
    return compare(sides[0], sides[1], per, keys=keys or ("class",))


def test_one_lock_of_two_runs_is_one_row() -> None:
    comparison = compared(run(0x55D0, 100), run(0x7F12, 400))
    assert comparison.objects
    rows = {row.values[0]: (row.old.weight, row.new.weight) for row in comparison.objects.rows}
    assert rows == {STABLE: (100 * 10**6, 400 * 10**6), "[none]": (5 * 10**6, 5 * 10**6)}
    text = "\n".join(render(comparison, None, Style()))
    assert "# Off-cpu time by object, largest change first" in text
    assert "0x55d0" not in text
    assert document(comparison, None)["objects"]["rows"][0]["values"] == [STABLE]


def test_by_key() -> None:
    comparison = compared(run(0x55D0, 100), run(0x7F12, 400), "comm", "object")
    assert comparison.objects is None, "the first table has them"
    assert ("bank", STABLE) in {row.values for row in comparison.groups.rows}


def test_without_objects_there_is_no_table() -> None:
    comparison = compared(run(0, 9, objects=False), run(0, 9, objects=False))
    assert comparison.objects is None
    assert document(comparison, None)["objects"] is None
    assert compared(run(0, 9, objects=False), run(1, 9)).objects is not None
