# SPDX-License-Identifier: Apache-2.0
"""Stacks, chains of wakers and the tree of paths, in every format that shows them."""

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.converted import converted
from builders.perfetto import read
from builders.profile import Code, ProfileBuilder, kernel
from builders.refused import refused
from builders.waits import Waits, random_waits, wait, waits_of, with_waits
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.callpaths import chains
from perf_offcpu.callpaths.chains import waker_chains
from perf_offcpu.callpaths.options import NameKind, PathOptions
from perf_offcpu.callpaths.tree import build_paths
from perf_offcpu.cli import main
from perf_offcpu.convert.folded import folded_totals
from perf_offcpu.convert.html.flamegraph import describe
from perf_offcpu.convert.registry import Options
from perf_offcpu.model.callchains import depths, frames_of, path_lengths
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.script.fields import choose_fields
from perf_offcpu.script.samples import TextOptions
from perf_offcpu.script.samples import write as write_text
from perf_offcpu.text import frame_label

DATA = Path(__file__).resolve().parents[2] / "data"


def shown(profile: Profile) -> dict[str, int]:
    return folded_totals(profile, Options(wakers=True, chains=waker_chains(profile, Options())))


@pytest.fixture
def request_() -> ProfileBuilder:
    """1 waits for 2, which waits for 3, which a timer wakes; 3 has also waited before."""
    builder = ProfileBuilder()
    wait(builder, 3, 10, 90, waker=1, waker_path=["main1", "old"])
    wait(builder, 3, 110, 1100, waker=9, flags=SampleFlag.WAKER_INTERRUPT, waker_path=["irq"])
    wait(builder, 2, 100, 1600, waker=3, waker_path=["main3", "write"])
    return wait(builder, 1, 100, 1900, waker=2, queued=50, waker_path=["main2", "answer"])


def test_a_chain_leads_to_the_first_cause_in_lines_and_pictures(request_: ProfileBuilder) -> None:
    profile = request_.build()
    of_1 = "client;main1;sleep_in_1;--;answer_[w];main2_[w];server_[w]"
    of_2 = "--;write_[w];main3_[w];disk_[w];--;irq_[w];[interrupt]"
    assert shown(profile) == {
        f"{of_1};{of_2}": 1800,
        f"server;main2;sleep_in_2;{of_2}": 1500,
        "disk;main3;sleep_in_3;--;irq_[w];[interrupt]": 990,
        # The client has no wait that ended before that.
        "disk;main3;sleep_in_3;--;old_[w];main1_[w];client_[w]": 80,
    }
    options: dict[str, Any] = {"wakers": True, "chains": waker_chains(profile, Options())}
    assert sum(describe(profile, Options(**options))["layers"][0]["lo"]) == sum(shown(profile).values())
    assert "answer_[w]" in converted("flamegraph", profile, **options)


@pytest.mark.parametrize(("waits", "line"), [
    # Without stacks the names of wakers are a chain.
    ([(2, 100, 1600, 3), (1, 100, 1900, 2)], "client;main1;sleep_in_1;--;server_[w];--;[unknown]_[w]"),
    # A wait of the waker before the sleeper waited is no cause.
    ([(2, 100, 200, 3), (1, 300, 900, 2)], "client;main1;sleep_in_1;--;server_[w]"),
])  # fmt: skip
def test_names_of_wakers(waits: list[tuple[int, int, int, int]], line: str) -> None:
    assert line in shown(waits_of(*waits).build())


def test_chains_are_cut_where_lines_become_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = waits_of(*((tid, 0, 1000 - 10 * tid, tid + 1) for tid in range(1, 9))).build()
    for hops in (8, 3):
        assert max(line.count(";--;") for line in shown(profile)) == hops
        monkeypatch.setattr(chains, "MAX_HOPS", 3)


@given(random_waits())
def test_weights_are_those_of_the_waits(waits: Waits) -> None:
    profile = with_waits(waits).build()
    bare = Counter[str]()
    for line, weight in shown(profile).items():
        bare[line.partition(";--;")[0]] += weight
    assert bare == folded_totals(profile, Options()) and bare.total() == int(profile.samples.period.sum())


@pytest.mark.parametrize("selection", [(), ("--time", "10%-80%"), ("--idle", "hide")])
def test_a_recording(selection: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    given = ("convert", "-f", "-i", str(DATA / "perf-7.2" / "sched.data"), "--folded", "-o", "-", *selection)
    sums, lines = [], list[str]()
    for options in ([], ["--wakers"]):
        assert main([*given, *options]) == 0
        lines = capsys.readouterr().out.splitlines()
        sums.append(sum(int(line.rpartition(" ")[2]) for line in lines))
    assert sums[0] == sums[1] > 0 and any(line.count(";--;") > 1 for line in lines)


def test_without_wakers_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    given = ("convert", "-f", "-i", str(DATA / "demo.data"), "--flamegraph", "--wakers", "-o", str(out))
    assert main([*given]) == 129 and "none was recorded" in capsys.readouterr().err
    assert "no --diff" in refused(capsys, *given, "--diff", str(DATA / "demo.data")) and not out.exists()


WAKES = ["main", Code("un;lock", "/bin/w"), kernel("try_to_wake_up")]


@pytest.fixture
def profile() -> Profile:
    builder = ProfileBuilder()
    builder.sample("w 1", ["main"], 3, time_ns=10_000, tid=7, pid=7)
    waker: dict[str, Any] = {"waker_pid": 7, "waker_tid": 7, "waker_path": WAKES}
    builder.sample("s", ["main", "lock"], 500, time_ns=20_000, tid=8, wakeup_ns=19_900, runq_ns=100, **waker)
    builder.sample("s", ["main", "lock"], 700, time_ns=30_000, tid=8, wakeup_ns=29_000, **waker)
    interrupt = dict[str, Any](flags=SampleFlag.WAKER_INTERRUPT, waker_path=[kernel("hrtimer_wakeup")])
    by_7 = dict[str, Any](waker_pid=7, waker_tid=7)
    builder.sample("s", ["main", "sleep"], 40, time_ns=40_000, tid=8, wakeup_ns=39_999, **by_7, **interrupt)
    builder.sample("s", ["main"], 50, time_ns=50_000, tid=8, **by_7)
    builder.sample("s", ["main", "run"], 60, time_ns=60_000, tid=8)
    return builder.build()


def test_folded_stacks_continue_with_the_waker_upside_down(profile: Profile) -> None:
    assert converted("folded", profile, waker_stack=True).splitlines() == [
        "s;main;--;w 1_[w] 50", "s;main;lock;--;try_to_wake_up_[w];un:lock_[w];main_[w];w 1_[w] 1200",
        "s;main;run 60", "s;main;sleep;--;hrtimer_wakeup_[w];[interrupt] 40", "w_1;main 3",
    ]  # fmt: skip
    folded = converted("folded", profile, waker_stack=True, tid=True, kernel=True, state=True)
    waker = "try_to_wake_up_[w];un:lock_[w];main_[w];w 1-7/7_[w]"
    assert folded.splitlines()[1] == f"s-100/8;main;lock;[state unknown];--;{waker} 1200"


def test_wakers_have_kinds_of_their_own_in_the_flame_graph(profile: Profile) -> None:
    names = describe(profile, Options(waker_stack=True))["names"]
    kinds = dict(zip(names["label"], names["kind"], strict=True))
    assert kinds["try_to_wake_up_[w]"] == kinds["w 1_[w]"] == NameKind.WAKER
    assert kinds["--"] == kinds["[interrupt]"] == NameKind.MARK
    assert all("_[w]" not in label for label in describe(profile, Options())["names"]["label"])


def test_waker_stacks_in_the_details_of_chrome_traces(profile: Profile) -> None:
    events = json.loads(converted("chrome-trace", profile))["traceEvents"]
    waits = [one["args"] for one in events if one.get("cat") == "offcpu"]
    whole = "main;un:lock;try_to_wake_up"
    assert [one.get("waker stack") for one in waits] == [None, whole, whole, "hrtimer_wakeup", None, None]
    assert [one["stack"] for one in waits] == "main main;lock main;lock main;sleep main main;run".split()


def test_waker_stacks_at_the_marks_and_in_the_details_of_perfetto(profile: Profile) -> None:
    slices = read(profile).slices
    assert [one.stack for one in slices if one.category == "wakeup"] == ["main;un;lock;try_to_wake_up"] * 2
    found = [one.details["waker stack"] for one in slices if "waker stack" in one.details]
    assert found == ["main;un:lock;try_to_wake_up"] * 2 + ["hrtimer_wakeup"]


def test_waker_stacks_as_a_field_of_script(profile: Profile) -> None:
    out = io.StringIO()
    write_text(profile, out, TextOptions(choose_fields(["comm,waker_stack"])))
    lines = [line.split() for line in out.getvalue().splitlines() if line.startswith(" ")]
    found = [line[-1].partition("=")[2] for line in lines]
    assert found == ["-", *["main;un:lock;try_to_wake_up"] * 2, "hrtimer_wakeup", "-", "-"]


CODES = [
    Code("main", "/bin/a", 16),
    Code("main", "/bin/a", 32),  # another call site of the same function
    Code("main", "/bin/b", 16),  # another program's
    Code("", "/lib/x.so", 48),
    Code("", "/lib/x.so", 64),
    kernel("schedule"),
]
PATHS = st.lists(st.sampled_from(CODES), max_size=6)
FLAGS = st.sampled_from([0, *SampleFlag])
SAMPLES = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(1, 3), PATHS, FLAGS, st.integers(0, 2**40)), max_size=25
)


def built(samples: list[tuple[str, int, list[str | Code], SampleFlag, int]]) -> Profile:
    builder = ProfileBuilder()
    for comm, tid, path, flags, weight in samples:
        builder.sample(comm, path, weight, tid=tid, flags=flags)
    return builder.build()


def expected(profile: Profile, row: int) -> tuple[str, ...]:
    samples, flags = profile.samples, SampleFlag(int(profile.samples.flags[row]))
    labels = [profile.strings[int(samples.comm[row])]]
    user_lost = flags & (SampleFlag.NO_USER_STACK | SampleFlag.UNMERGED)
    stack = int(samples.stack[row])
    if stack < 0:
        return (*labels, "[missed stack]" if user_lost or flags & SampleFlag.NO_KERNEL_STACK else "[no stack]")
    if user_lost:
        labels.append("[missed user stack]")
    elif flags & SampleFlag.TRUNCATED:
        labels.append("[truncated]")
    for frame in frames_of(profile.stacks.parent, profile.stacks.frame, stack):
        symbol, dso = (profile.strings[int(column[frame])] for column in (profile.frames.symbol, profile.frames.dso))
        labels.append(frame_label(symbol, dso))
    return (*labels, "[missed kernel stack]") if flags & SampleFlag.NO_KERNEL_STACK else tuple(labels)


@given(SAMPLES)
def test_every_sample_ends_at_its_path(samples: list[tuple[str, int, list[str | Code], SampleFlag, int]]) -> None:
    profile = built(samples)
    tree = build_paths(profile, PathOptions())
    paths = tree.paths(tree.of_sample.astype(np.int64))
    shown = [tuple(tree.names[name].label for name in paths.row(row).tolist()) for row in range(len(samples))]
    assert shown == [expected(profile, row) for row in range(len(samples))]


@given(SAMPLES)
def test_totals_and_shape(samples: list[tuple[str, int, list[str | Code], SampleFlag, int]]) -> None:
    profile = built(samples)
    tree = build_paths(profile, PathOptions(tid=True))
    assert int(tree.total(profile.samples.period).sum()) == sum(sample[-1] for sample in samples)
    assert bool((tree.parent < np.arange(len(tree))).all())
    family = Counter((int(p), tree.names[int(n)]) for p, n in zip(tree.parent, tree.name, strict=True))
    assert set(family.values()) <= {1}, "siblings of one name"
    assert depths(tree.parent).tolist() == path_lengths(tree.parent, np.arange(len(tree))).tolist()


def test_call_sites_of_a_function_are_one_name_programs_are_not() -> None:
    profile = built([("a", 1, [code], SampleFlag(0), 1) for code in CODES])
    tree = build_paths(profile, PathOptions())
    names = sorted((name.label, name.dso) for name in tree.names if name.kind == NameKind.USER)
    assert names == [("[x.so]", "x.so"), ("main", "a"), ("main", "b")]
    labels = {name.label for name in build_paths(profile, PathOptions(addrs=True)).names if name.kind == NameKind.USER}
    assert labels == {"main", "[x.so <30>]", "[x.so <40>]"}


def test_only_used_frames_are_named() -> None:
    profile = built([("a", 1, ["used"], SampleFlag(0), 1), ("a", 1, ["unused"], SampleFlag(0), 1)])
    tree = build_paths(profile.select(np.array([True, False])), PathOptions())
    assert "unused" not in {name.label for name in tree.names}


def test_roots() -> None:
    profile = built([("a", 1, ["f"], SampleFlag(0), 1), ("a", 2, ["f"], SampleFlag(0), 1)])

    def roots(options: PathOptions) -> list[str]:
        return [name.label for name in build_paths(profile, options).names if name.kind == NameKind.ROOT]

    assert roots(PathOptions()) == ["a"] and roots(PathOptions(pid=True)) == ["a-100"]
    assert roots(PathOptions(tid=True)) == ["a-100/1", "a-100/2"]
