# SPDX-License-Identifier: Apache-2.0
"""Critical paths: known chains, one found by hand by Perfetto's definition, and what holds of every path."""

import lzma
from pathlib import Path

import numpy as np
import pytest
from builders.examples import examples
from builders.profile import ProfileBuilder
from builders.waits import Waits, random_waits, wait, with_waits
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.analysis.selection.select import Selection
from perf_offcpu.analysis.selection.time_windows import parse_windows
from perf_offcpu.analysis.times.timeline import timeline_of
from perf_offcpu.causality.critical_path import CriticalPath, Doing, choose_thread, critical_path, window_of
from perf_offcpu.causality.path_rows import hop_rows, path_rows, rivals
from perf_offcpu.causality.path_stacks import chains_of, path_profile
from perf_offcpu.convert.folded import folded_totals
from perf_offcpu.convert.registry import Options
from perf_offcpu.errors import UsageError
from perf_offcpu.model.join import PID_STEP
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.symbolize.load import load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions

DATA = Path(__file__).parents[2] / "data"


def follow(profile: Profile, tid: int = 1, window: tuple[int, int] | None = None) -> CriticalPath:
    timeline = timeline_of(profile)
    thread = choose_thread(timeline, Selection(tids=(tid,)))
    path = critical_path(profile, timeline, thread, *(window or window_of(profile, timeline, thread, ())))
    assert bool((path.length_ns > 0).all()) and np.array_equal(path.begin_ns[1:], path.end_ns[:-1])
    if window:
        assert (path.begin_ns[0], path.end_ns[-1]) == window
    return path


def segments(path: CriticalPath) -> list[tuple[int, str, int, int]]:
    """(tid, doing, begin, end) of each segment."""
    columns = (path.track.tolist(), path.doing.tolist(), path.begin_ns.tolist(), path.end_ns.tolist())
    return [(path.tracks[track].tid, Doing(doing).name, *span) for track, doing, *span in zip(*columns, strict=True)]


@pytest.fixture
def chain() -> ProfileBuilder:
    """1 waits for 2, which waits for 3, which sleeps and then computes; an interrupt ends that sleep."""
    builder = ProfileBuilder()
    wait(builder, 3, 100, 1100, waker=9, flags=SampleFlag.WAKER_INTERRUPT)
    wait(builder, 2, 100, 1600, waker=3)
    wait(builder, 1, 100, 1900, waker=2, queued=50)
    return wait(builder, 1, 2000, 2100)


def test_a_chain_is_followed_to_its_end(chain: ProfileBuilder) -> None:
    path = follow(chain.build(), window=(0, 2050))
    assert segments(path) == [
        (1, "RUNNING", 0, 100), (3, "WAITING", 100, 1100), (3, "RUNNING", 1100, 1600),
        (2, "RUNNING", 1600, 1850), (1, "RUNNABLE", 1850, 1900), (1, "RUNNING", 1900, 2000),
        (1, "WAITING", 2000, 2050),
    ]  # fmt: skip
    assert path.hops.parent.tolist() == [-1, 0]
    # The waker slept before the wait began, too: only the part in the wait counts.
    path = follow(chain.build(), window=(500, 1200))
    assert segments(path) == [(3, "WAITING", 500, 1100), (3, "RUNNING", 1100, 1200)]


def test_a_preempted_thread_waits_for_a_cpu_and_who_has_it_is_said() -> None:
    builder = ProfileBuilder()
    wait(builder, 1, 100, 500, flags=SampleFlag.PREEMPTED, state=0, cpu=1)
    for at, cpu in ((200, 1), (300, 1), (400, 0), (600, 1)):
        builder.sample("hog", ["spin"], 100, event="cpu-clock", tid=7, pid=7, time_ns=at, cpu=cpu)
    profile = builder.build()
    path = follow(profile, window=(0, 700))
    assert segments(path) == [(1, "RUNNING", 0, 100), (1, "RUNNABLE", 100, 500), (1, "RUNNING", 500, 700)]
    assert rivals(profile, timeline_of(profile), path) == {"hog": 2}


def test_a_waker_without_samples_is_not_recorded() -> None:
    profile = wait(ProfileBuilder(), 1, 100, 500, waker=8).build()
    assert segments(follow(profile, window=(100, 500))) == [(8, "NOT_RECORDED", 100, 500)]


def test_a_damaged_wait_longer_than_the_time_of_its_end_begins_at_zero() -> None:
    """Differences of times fit in 63 bits then; the thread 2 waits until the last moment."""
    builder = ProfileBuilder().sample("a", ["f"], 2**62, time_ns=5, tid=1)
    profile = builder.sample("b", ["f"], 1, time_ns=2**63 - 1, tid=2).build()
    assert segments(follow(profile)) == [(1, "WAITING", 0, 5)]
    assert timeline_of(profile).duration_ns == 2**63 - 1


def test_waits_that_contradict_each_other_end_the_walk() -> None:
    builder = ProfileBuilder()
    wait(builder, 1, 0, 1000, waker=2)
    wait(builder, 2, 0, 1000, waker=1)
    assert segments(follow(builder.build(), window=(0, 1000))) == [(2, "WAITING", 0, 1000)]


def test_stacks_name_each_hop_and_running_time_is_shared_out_by_samples(chain: ProfileBuilder) -> None:
    for at in (1200, 1300, 1400):
        chain.sample("disk", ["main3", "sum" if at < 1400 else "sort"], 1, event="cpu-clock", tid=3, pid=3, time_ns=at)
    profile = chain.build()
    path = follow(profile, window=(0, 2000))
    shown = path_profile(profile, timeline_of(profile), path)
    shown.check()
    first, second = "client;main1;sleep_in_1;[woken by] server", ";main2;sleep_in_2;[woken by] disk"
    assert folded_totals(shown, Options()) == {
        "client;[running]": 200, "client;[runnable]": 50, f"{first};[running]": 250,
        f"{first}{second};main3;sleep_in_3": 1000, f"{first}{second};[running];main3;sum": 333,
        f"{first}{second};[running];main3;sort": 167,
    }  # fmt: skip
    rows = path_rows(profile, timeline_of(profile), path)
    assert sum(row.ns for row in rows) == 2000
    longest = ("disk", Doing.WAITING, "sleep_in_3", 1000), ("disk", Doing.RUNNING, "sum", 333)
    assert tuple((row.comm, row.doing, row.function, row.ns) for row in rows[:2]) == longest
    assert (rows[2].comm, rows[2].doing, rows[2].function, rows[2].ns) == ("server", Doing.RUNNING, "", 250)
    tree = hop_rows(path, chains_of(profile, path))
    assert [(row.depth, row.comm, row.wakeups, row.total_ns) for row in tree] == [
        (0, "client", 0, 2000), (1, "server", 1, 1750), (2, "disk", 1, 1500),
    ]  # fmt: skip


@given(random_waits(300, 60, shortest=0), st.integers(1, 5))
def test_a_path_covers_its_window_whatever_was_recorded(waits: Waits, tid: int) -> None:
    """Waits that overlap and wakers that sleep are what damaged files hold."""
    profile = with_waits(waits).build()
    if tid not in {one[0] for one in waits}:
        return
    path = follow(profile, tid, (0, 400))
    assert int(path_profile(profile, timeline_of(profile), path).samples.period.sum()) == 400
    assert sum(row.ns for row in path_rows(profile, timeline_of(profile), path)) == 400
    assert hop_rows(path, chains_of(profile, path))[0].total_ns == 400


def test_nothing_is_known_of_threads_that_ran_in_pauses(chain: ProfileBuilder) -> None:
    profile = chain.build()
    whole = segments(follow(profile, window=(0, 2050)))
    profile.meta.parts = ((0, 1050), (1150, 1200), (1300, 1700), (1950, 2020), (2030, 2100))
    path = follow(profile, window=(0, 2050))
    pauses = {at for begin, end in profile.meta.pauses for at in range(begin, end)}

    def each(found: list[tuple[int, str, int, int]]) -> list[tuple[int, str]]:
        return [(tid, doing) for tid, doing, begin, end in found for _ in range(begin, end)]

    expected = [
        (tid, "NOT_RECORDED" if doing == "RUNNING" and at in pauses else doing)
        for at, (tid, doing) in enumerate(each(whole))
    ]
    assert each(segments(path)) == expected
    assert {"NOT_RECORDED", "RUNNING", "RUNNABLE", "WAITING"} == {doing for _, doing in expected}
    assert sum(row.ns for row in path_rows(profile, timeline_of(profile), path)) == 2050
    assert int(path_profile(profile, timeline_of(profile), path).samples.period.sum()) == 2050


def test_pauses_are_those_of_the_host_of_the_thread(chain: ProfileBuilder) -> None:
    """What other hosts recorded meanwhile says nothing of a thread, nor do their pauses."""
    profile = chain.build()
    profile.meta.parts = ((0, 2050), (2060, 2100), (2200, 3000))
    profile.meta.hosts = (((0, 1200), (1300, 2050), (2060, 2100)), ((500, 600), (1000, 1700), (2200, 3000)))
    spans = segments(follow(profile, window=(0, 2100)))
    assert (3, "RUNNING", 1100, 1200) in spans and (3, "NOT_RECORDED", 1200, 1300) in spans
    assert {one[:2] for one in spans if 1300 <= one[2] < 1600} == {(3, "RUNNING")}


@pytest.mark.parametrize("host", [0, 1])
def test_idle_tasks_of_all_hosts_are_no_threads(host: int) -> None:
    """They neither take the CPU from others nor end waits by themselves."""
    first = host * PID_STEP
    builder = ProfileBuilder()
    wait(builder, first + 1, 100, 500, waker=first, queued=300, cpu=2)
    for tid, at in ((first, 250), (first, 300), (first + 2, 350)):
        builder.sample(f"c{tid - first}", ["f"], 1, event="cpu-clock", tid=tid, pid=tid, cpu=2, time_ns=at)
    profile = builder.build()
    path = follow(profile, first + 1, (100, 500))
    assert rivals(profile, timeline_of(profile), path) == {"c2": 1}
    assert [doing for _, doing, _, _ in segments(path)] == ["WAITING", "RUNNABLE"]
    timeline = timeline_of(profile)
    chosen = [choose_thread(timeline, Selection(pids=(first + one,))) for one in (1, 2)]
    assert [timeline.tracks[row].tid - first for row in chosen] == [1, 2]
    with pytest.raises(UsageError):
        choose_thread(timeline, Selection(pids=(first,)))


@pytest.mark.parametrize(
    "path", [DATA / "demo.data", *sorted((DATA / "perf-7.2").glob("*.data"))], ids=lambda path: path.name
)
def test_paths_of_recordings_sum_to_their_windows(path: Path) -> None:
    profile = load_profile([str(path)], SymbolizeOptions())
    timeline = timeline_of(profile)
    for track in timeline.tracks:
        if track.tid <= 0 or not timeline.placed[track.rows].any():
            continue
        thread = choose_thread(timeline, Selection(tids=(track.tid,), pids=(track.pid,)))
        try:
            window = window_of(profile, timeline, thread, ())
        except UsageError:  # a thread with one moment has no window
            continue
        found = critical_path(profile, timeline, thread, *window)
        assert int(found.length_ns.sum()) == window[1] - window[0]
        shown = path_profile(profile, timeline, found)
        shown.check()
        assert int(shown.samples.period.sum()) == window[1] - window[0]


def test_the_main_thread_of_the_first_process_is_the_default() -> None:
    builder = ProfileBuilder()
    wait(builder, 5, 50, 90)
    wait(builder, 4, 10, 20, count=1)
    timeline = timeline_of(builder.build())
    assert timeline.tracks[choose_thread(timeline, Selection())].tid == 4
    with pytest.raises(UsageError, match="no such thread"):
        choose_thread(timeline, Selection(comms=("nobody",)))


def test_a_window_lies_within_the_life_of_the_thread(chain: ProfileBuilder) -> None:
    chain.meta = {"first_ns": 1100, "last_ns": 2100}
    profile = chain.build()
    timeline = timeline_of(profile)
    thread = choose_thread(timeline, Selection(tids=(1,)))
    assert window_of(profile, timeline, thread, ()) == (100, 2100)
    assert window_of(profile, timeline, thread, parse_windows("0%-50%")) == (1100, 1600)
    assert window_of(profile, timeline, thread, parse_windows("0.0000005,0.0000012")) == (500, 1200)
    with pytest.raises(UsageError, match="no samples in that time"):
        window_of(profile, timeline, thread, parse_windows("5,6"))
    with pytest.raises(UsageError, match="more than one window"):
        window_of(profile, timeline, thread, parse_windows("0,1 2,3"))


PERF_DATA = DATA / "perf-7.2"
KWORKER = 125


def test_the_path_is_the_one_found_by_hand() -> None:
    profile = load_profile([str(PERF_DATA / "sched.data")], SymbolizeOptions())
    path = follow(profile, KWORKER, (145_079_000_000, 145_096_318_000))
    comm = {track.tid: track.comm for track in path.tracks}
    assert [(comm[tid], doing, *map(in_perf, times)) for tid, doing, *times in segments(path)] == examples(
        "unit/causality/by_hand.txt", "path"
    )


def in_perf(ns: int) -> str:
    """The time as perf script prints it: microseconds, rounded down."""
    return f"{ns // 10**9}.{ns % 10**9 // 1000:06}"


def test_the_events_of_the_path_by_hand_are_those_that_perf_prints() -> None:
    printed = lzma.decompress((PERF_DATA / "sched.script.txt.xz").read_bytes()).decode().splitlines()
    for (line,) in examples("unit/causality/by_hand.txt", "events"):
        time, _, words = line.partition(": ")
        facts = [word for word in words.split() if "=" in word]
        assert any(time in one and all(fact in one for fact in facts) for one in printed), line
