# SPDX-License-Identifier: Apache-2.0
"""The report as people see it, tables that fit, numbers that are exact and honest about what sums do not tell."""

import re
from pathlib import Path
from typing import Any

import pytest
from builders.examples import examples
from builders.large import large_profile
from builders.profile import Code, ProfileBuilder, kernel
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu import losses
from perf_offcpu.errors import UsageError
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.report.style import Column, Style, amount, cut, display_width, lay_out, pad
from perf_offcpu.report.summary import Limits, Summary, summarize
from perf_offcpu.report.terminal import render
from perf_offcpu.report.totals import Total

META = {
    "hostname": "box", "os_release": "6.1.0-13", "arch": "x86_64", "nr_cpus": 2,
    "cmdline": ("perf-offcpu", "record", "--", "./waiter"), "source": "perf.data", "first_ns": 10**9,
    "last_ns": 3 * 10**9, "wall_clock_ns": 1_762_000_000 * 10**9, "wall_clock_at_ns": 10**9,
}  # fmt: skip


def sample_profile() -> Profile:
    builder = ProfileBuilder(losses={"records lost in full rings (LOST)": 12}, meta=META)
    for extra in (0, 1):
        lock = ["start_thread", Code("pthread_mutex_lock", "/lib/libc.so.6"), kernel("futex_wait")]
        builder.sample("locker", lock, 12_345_678 + extra, tid=101, state=1)
    builder.sample("deep", ["start_thread", *["recurse"] * 100, kernel("schedule")], 6_000_000, tid=102, state=2)
    builder.sample("deep", ["burn"], 10_101_010, event="cpu-clock", tid=102)
    upstream = SampleFlag.AGGREGATED | SampleFlag.UNTIMED | SampleFlag.NO_USER_STACK
    builder.sample("old", [], 2_000_000, tid=103, flags=upstream)
    return builder.build()


def lines(profile: Profile, style: Style | None = None, limits: Limits | None = None) -> list[str]:
    return list(render(summarize(profile, limits=limits), style or Style()))


def test_time_that_was_not_recorded() -> None:
    profile = sample_profile()
    profile.meta.parts = ((10**9, 2 * 10**9), (2_250_000_000, 2_500_000_000), (2_600_000_000, 3 * 10**9))
    time = "# Time:      2.000 s from first to last sample, 0.350 s of it not recorded, beginning 2025-11-01"
    assert any(line.startswith(time) for line in lines(profile))
    # Pauses before the first and after the last sample, next to parts without samples, are not in this time.
    profile.meta.parts = ((10**8, 2 * 10**8), *profile.meta.parts, (5 * 10**9, 6 * 10**9))
    assert any(line.startswith(time) for line in lines(profile))


def test_whole() -> None:
    text = (Path(__file__).parents[2] / "golden" / "texts" / "report.txt").read_text()
    assert lines(sample_profile(), Style(width=110)) == text.splitlines()


def test_leaf_first_units_and_limits() -> None:
    shown = lines(sample_profile(), Style(unit="us", leaf_first=True), Limits(1, 1))
    stack = shown.index("            |")
    assert shown[stack - 1 : stack + 4] == [
        "   75.53%  locker  24691.357 us  2 waits  average 12345.679  longest 12345.679  S  lock",
        "            |",
        "            ---futex_wait [k]",
        "               pthread_mutex_lock (libc.so.6)",
        "               start_thread",
    ]
    assert "# and 2 more threads: 8000.000 us (8000000 ns)" in shown
    assert "# and 2 more stacks: 8000.000 us (8000000 ns)" in shown


def test_stacks_that_are_not_over_are_marked() -> None:
    builder = ProfileBuilder().sample("a", ["main", "stuck"], 7, flags=SampleFlag.STILL_BLOCKED)
    builder.sample("a", ["main", "stuck"], 5).sample("a", ["main", "over"], 3)
    text = list(render(summarize(builder.build()), Style()))
    stuck, over = (line for line in text if "%" in line and "wait" in line and "  a  " in line)
    assert stuck.endswith("1 still blocked at the end") and "still" not in over


def test_nothing_waited() -> None:
    assert lines(ProfileBuilder(events={"offcpu-time": "ns"}, meta={"source": "perf.data"}).build()) == [
        "# Recording: perf.data", "#", "# Event 'offcpu-time': no samples", "#", "# Nothing was lost.",
    ]  # fmt: skip


def test_occurrences_have_no_unit() -> None:
    shown = lines(ProfileBuilder(events={"cycles": ""}).sample("a", ["f"], 5_000, event="cycles").build())
    assert "# Event 'cycles' (this report): 1 sample, 5000 events" in shown
    assert "#   Share  Weight  Samples  PID  TID  Command" in shown
    assert "  100.00%  a  5000  1 sample" in shown


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80])
def test_tables_and_stacks_fit_the_terminal(width: int) -> None:
    builder = ProfileBuilder().sample("a", ["name_" * 30], 5, tid=2**22)
    inside = [line for line in lines(builder.build(), Style(width=width)) if not line.startswith("# ")]
    assert max(map(len, inside)) <= max(width, 40), "a row is wider than the terminal"
    assert any(line.endswith("…") and len(line) == width for line in inside), "the long name was not cut"
    total = "# Event 'offcpu-time' (this report): 4 samples, 32.691 ms (32691357 ns)"
    assert total in lines(sample_profile(), Style(width=width)), "totals are never cut"


def test_colours_change_nothing_but_colours() -> None:
    plain = lines(sample_profile(), Style(width=100))
    coloured = lines(sample_profile(), Style(width=100, color=True))
    assert any("\x1b[31m75.53%\x1b[0m" in line for line in coloured)
    assert [re.sub("\x1b\\[(31|32|1|2|0)m", "", line) for line in coloured] == plain


def test_hostile_names_stay_on_their_line() -> None:
    evil = "x\n# Nothing was lost.\x1b[2J\u202e"
    builder = ProfileBuilder(losses={evil: 1}, meta={"hostname": evil, "cmdline": (evil,), "source": evil})
    builder.sample(evil, [Code(evil, evil), kernel(evil)], 5)
    shown = lines(builder.build(), Style(color=False))
    assert all(line.isprintable() for line in shown)
    assert "# Nothing was lost." not in shown


@pytest.mark.parametrize(("weight", "unit", "text"), examples("unit/examples.txt", "amounts"))
def test_amounts_are_rounded_as_integers(weight: str, unit: str, text: str) -> None:
    assert amount(int(weight), "ns", Style(unit=unit)) == text
    assert amount(1234, "", Style(unit=unit)) == "1234", "no time"
    assert amount(None, "ns", Style(unit=unit)) == "-"


COLUMNS = [
    Column("Share", ["9.50%", "100.00%"]), Column("Time ms", ["1.000", "22.000"], spare=1),
    Column("Waits", ["3", "4"], spare=2), Column("Command", ["short", "a longer one"], left=True),
]  # fmt: skip


def test_a_table() -> None:
    assert list(lay_out([Column("A", []), Column("B", [], left=True)], 80)) == ["# A  B", "# .  ."]
    assert list(lay_out(COLUMNS, None)) == [
        "#   Share  Time ms  Waits  Command",
        "# .......  .......  .....  ............",
        "    9.50%    1.000      3  short",
        "  100.00%   22.000      4  a longer one",
    ]


def test_columns_that_can_be_spared_go_first_then_the_last_is_cut() -> None:
    def titles(width: int) -> str:
        lines = list(lay_out(COLUMNS, width))
        assert all(display_width(line) <= width for line in lines)
        return " ".join(lines[0].split()[1:])

    assert titles(39) == "Share Time ms Waits Command"
    assert titles(38) == "Share Time ms Command"
    assert titles(31) == "Share Command"
    assert list(lay_out(COLUMNS, 20))[-1] == "  100.00%  a longer…"
    assert titles(5) == "…"


@pytest.mark.parametrize(("text", "width"), [("abc", 3), ("名前", 4), ("e\u0301", 1), ("…", 1), ("größe", 5)])
def test_display_width(text: str, width: int) -> None:
    assert display_width(text) == width
    assert display_width(pad(text, 9)) == display_width(pad(text, 9, left=True)) == 9


def test_cut() -> None:
    assert cut("abcdef", 6) == cut("abcdef", None) == "abcdef"
    assert cut("abcdef", 5) == "abcd…"
    assert cut("名前名前", 6) == "名前…"
    assert cut("abc", 1) == "…"


SUM, UNTIMED = SampleFlag.AGGREGATED, SampleFlag.UNTIMED


@pytest.mark.parametrize(("samples", "total"), [
    ([], Total(0, 0)),
    ([(7, SampleFlag(0), 1, -1), (4, SampleFlag(0), 1, 4)], Total(11, 2, True, 7)),
    # a sum knows its longest wait; one with a longer total may still hide no longer one
    ([(7, SampleFlag(0), 1, -1), (40, SUM, 10, 9)], Total(47, 11, True, 9)),
    # upstream's sums do not say how many waits they hold, nor how long the longest was …
    ([(7, SampleFlag(0), 1, -1), (40, SUM | UNTIMED, 1, -1)], Total(47, 2, False, None)),
    # … but it cannot have been longer than the sum
    ([(50, SampleFlag(0), 1, -1), (40, SUM | UNTIMED, 1, -1)], Total(90, 2, False, 50)),
])  # fmt: skip
def test_totals(samples: list[tuple[int, SampleFlag, int, int]], total: Total) -> None:
    """Samples are (weight, flags, count, longest)."""
    builder = ProfileBuilder()
    for weight, flags, count, longest in samples:
        builder.sample("a", ["f"], weight, flags=flags, count=count, longest_ns=longest)
    assert summarize(builder.build()).total == total


def test_average_is_rounded_and_only_given_if_known() -> None:
    assert Total(11, 2).average == 6
    assert Total(10, 4).average == 3
    assert Total(0, 0).average is None
    assert Total(10, 4, count_is_exact=False).average is None


def mixed() -> ProfileBuilder:
    builder = ProfileBuilder(losses={"b lost": 2, "a lost": 1})
    builder.sample("sleeper", ["main", kernel("schedule")], 30, tid=1, state=1)
    builder.sample("sleeper", ["main", kernel("schedule")], 10, tid=1, state=2)
    builder.sample("renamed", ["main"], 5, tid=1)
    builder.sample("other", [], 40, tid=2, pid=7, flags=SampleFlag.NO_USER_STACK | SampleFlag.STILL_BLOCKED)
    builder.sample("sleeper", ["main"], 3, tid=1, event="cpu-clock")
    builder.sample("burner", ["main"], 9, tid=3, event="cpu-clock")
    return builder


def test_threads() -> None:
    summary = summarize(mixed().build())
    assert [
        (r.comm, r.pid, r.tid, r.total.weight, r.total.count, r.beside.weight, r.beside.count) for r in summary.threads
    ] == [
        ("sleeper", 100, 1, 40, 2, 3, 1), ("other", 7, 2, 40, 1, 0, 0), ("renamed", 100, 1, 5, 1, 0, 0),
        ("burner", 100, 3, 0, 0, 9, 1),
    ]  # fmt: skip
    assert summary.subject == ("offcpu-time",) and summary.is_offcpu and summary.unit == "ns"
    assert summary.total == Total(85, 4, True, 40)
    events = [(row.name, row.samples, row.total.weight) for row in summary.events]
    assert events == [("offcpu-time", 4, 85), ("cpu-clock", 2, 12)]
    assert summary.beside is not None and summary.beside.name == "cpu-clock"


def test_stacks() -> None:
    other, sleeper, renamed = sorted(summarize(mixed().build()).stacks, key=lambda row: (-row.total.weight, row.comm))
    assert [frame.label for frame in sleeper.frames] == ["main", "schedule"]
    assert (sleeper.total, sleeper.states) == (Total(40, 2, True, 30), {"S": 30, "D": 10})
    assert [frame.label for frame in other.frames] == ["[missed stack]"] and other.states == {}
    assert (renamed.comm, renamed.total.weight) == ("renamed", 5)


def test_losses_and_notes() -> None:
    summary = summarize(mixed().sample("swapped", ["main"], 5, flags=SampleFlag.REPAIRED_IDS).build())
    assert [(str(cause), count) for cause, count in summary.losses.items()] == [("a lost", 1), ("b lost", 2)]
    assert summary.notes == {
        losses.NO_STACK: 1, losses.NO_USER_STACK: 1, losses.REPAIRED_IDS: 1, losses.STILL_BLOCKED: 1,
    }  # fmt: skip


def test_limits_cut_lists_and_say_what_they_cut() -> None:
    profile = mixed().build()
    summary = summarize(profile, limits=Limits(threads=1, stacks=2))
    assert (len(summary.threads), summary.more_threads) == (1, (3, 45))
    assert (len(summary.stacks), summary.more_stacks) == (2, (1, 5))
    assert summary.total == summarize(profile).total


def test_call_sites_share_a_stack() -> None:
    builder = ProfileBuilder().sample("a", [Code("main", "x", 1)], 3).sample("a", [Code("main", "x", 2)], 4)
    assert [(row.total.weight, row.total.count) for row in summarize(builder.build()).stacks] == [(7, 2)]


def test_another_subject() -> None:
    summary = summarize(mixed().build(), ["cpu-clock"])
    assert (summary.subject, summary.is_offcpu, summary.total.weight) == (("cpu-clock",), False, 12)
    assert summary.beside is not None and summary.beside.name == "offcpu-time"
    assert summary.threads[0].comm == "burner" and summary.threads[1].beside.weight == 40
    with pytest.raises(UsageError, match="no event 'x'"):
        summarize(mixed().build(), ["x"])


def test_recordings_without_what_was_asked_for() -> None:
    only_cpu = summarize(ProfileBuilder().sample("a", ["f"], 3, event="cpu-clock").build())
    assert (only_cpu.total, only_cpu.is_offcpu, only_cpu.unit, only_cpu.stacks) == (
        Total(0, 0), True, "ns", [],
    )  # fmt: skip
    assert [row.beside.weight for row in only_cpu.threads] == [3]
    nothing = summarize(ProfileBuilder(events={}).build())
    assert (nothing.subject, nothing.unit, nothing.threads, nothing.events) == ((), "", [], [])


def weights(summary: Summary) -> tuple[int, int]:
    return sum(row.total.weight for row in summary.threads), sum(row.total.weight for row in summary.stacks)


THREADS_AND_PATHS = st.tuples(st.sampled_from("ab"), st.integers(1, 3), st.lists(st.sampled_from("fg"), max_size=3))


@given(st.lists(st.tuples(THREADS_AND_PATHS, st.integers(0, 2**45)), max_size=20), st.integers(0, 4))
def test_rows_and_what_was_cut_are_the_total(samples: list[Any], limit: int) -> None:
    builder = ProfileBuilder()
    for (comm, tid, path), weight in samples:
        builder.sample(comm, [*path], weight, tid=tid)
    summary = summarize(builder.build(), limits=Limits(limit, limit))
    threads, stacks = weights(summary)
    assert summary.total.weight == sum(sample[-1] for sample in samples)
    assert threads + summary.more_threads[1] == stacks + summary.more_stacks[1] == summary.total.weight


def test_large() -> None:
    profile = large_profile(100_000, 3_000)
    summary, exact = summarize(profile), sum(profile.samples.period.tolist())
    assert weights(summary) == (exact, exact)
    assert sum(row.total.count for row in summary.stacks) == 100_000
    assert summary.stacks == sorted(summary.stacks, key=lambda row: row.total.weight, reverse=True)
