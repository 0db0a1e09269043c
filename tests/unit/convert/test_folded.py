# SPDX-License-Identifier: Apache-2.0
"""Folded stacks: what a line says, and that every nanosecond is in one; the flame graph's page as bytes, which
tests/browser opens."""

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from builders.converted import converted
from builders.html_page import Page
from builders.large import large_profile
from builders.profile import Code, ProfileBuilder, kernel
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.callpaths.tree import PathTree, build_paths
from perf_offcpu.convert.html.flamegraph import describe, preorder
from perf_offcpu.convert.registry import Options
from perf_offcpu.errors import UsageError
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag


def folded(profile: Profile, **options: Any) -> list[str]:
    return converted("folded", profile, **options).splitlines()


def read(lines: list[str]) -> Counter[str]:
    """The strictest reader: speedscope's and Perfetto's expression."""
    totals: Counter[str] = Counter()
    for line in lines:
        stack, weight = re.fullmatch(r"(.*) (\d+)", line).groups()  # type: ignore[union-attr]
        totals[stack] += int(weight)
    return totals


@pytest.fixture
def profile() -> Profile:
    builder = ProfileBuilder()
    builder.sample("web server", ["main", Code("read", "libc", 16), kernel("schedule")], 5, tid=101)
    builder.sample("web server", ["main", Code("read", "libc", 32), kernel("schedule")], 7, tid=102)
    builder.sample("web server", [], 11, flags=SampleFlag.NO_USER_STACK)
    builder.sample("db", ["f;g", Code(dso="/lib/libx.so", address=0x1234)], 13, flags=SampleFlag.TRUNCATED, pid=-1)
    builder.sample("db", [kernel("io_schedule")], 17, flags=SampleFlag.NO_USER_STACK, pid=-1)
    builder.sample("db", ["f;g"], 19, flags=SampleFlag.NO_KERNEL_STACK, pid=-1)
    return builder.build()


def test_lines(profile: Profile) -> None:
    assert folded(profile) == [
        "db;[missed user stack];io_schedule 17", "db;[truncated];f:g;[libx.so] 13",
        "db;f:g;[missed kernel stack] 19", "web_server;[missed stack] 11", "web_server;main;read;schedule 12",
    ]  # fmt: skip


def test_options(profile: Profile) -> None:
    assert folded(profile, kernel=True, tid=True, addrs=True) == [
        "db-?/100;[missed user stack];io_schedule_[k] 17", "db-?/100;[truncated];f:g;[libx.so <1234>] 13",
        "db-?/100;f:g;[missed kernel stack] 19", "web_server-100/100;[missed stack] 11",
        "web_server-100/101;main;read;schedule_[k] 5", "web_server-100/102;main;read;schedule_[k] 7",
    ]  # fmt: skip
    assert folded(profile, pid=True)[-1] == "web_server-100;main;read;schedule 12"


def test_names_that_become_the_same_text_share_a_line() -> None:
    builder = ProfileBuilder()
    builder.sample("a b", ["x;y"], 1).sample("a_b", ["x:y"], 2).sample("a_b", [Code("x:y", "other.so")], 4)
    assert folded(builder.build()) == ["a_b;x:y 7"]
    assert folded(ProfileBuilder().build()) == folded(ProfileBuilder().sample("a", ["f"], 0).build()) == []


@pytest.mark.parametrize(("unit", "lines"), [("us", ["a;f 1", "a;g 2"]), ("ms", []), ("ns", ["a;f 1400", "a;g 1500"])])
def test_units_round_by_line_and_keep_the_total(unit: str, lines: list[str]) -> None:
    """1400 + 1500 ns are 3 us: the line that lost more of its fraction has the third."""
    builder = ProfileBuilder().sample("a", ["g"], 1500)
    for _ in range(14):  # not rounded one by one
        builder.sample("a", ["f"], 100)
    assert folded(builder.build(), unit=unit) == lines


def test_a_unit_of_time_needs_an_event_of_time() -> None:
    builder = ProfileBuilder(events={"cycles": "", "cpu-clock": "ns"}).sample("a", ["f"], 5, event="cycles")
    assert folded(builder.build()) == ["a;f 5"]
    with pytest.raises(UsageError, match="cycles is not counted in time: --unit us does not apply"):
        folded(builder.build(), unit="us")


def test_weights_of_different_units_are_not_added() -> None:
    builder = ProfileBuilder(events={"cycles": "", "cpu-clock": "ns"})
    builder.sample("a", ["f"], 5, event="cycles").sample("a", ["f"], 5, event="cpu-clock")
    for format_ in ("folded", "flamegraph"):
        with pytest.raises(UsageError, match=r"cycles \(events\) and cpu-clock \(ns\) do not add up"):
            converted(format_, builder.build())


SIZES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


@given(st.lists(st.tuples(st.sampled_from("fgh"), st.integers(0, 2**50)), max_size=30), st.sampled_from([*SIZES]))
def test_totals_survive(samples: list[tuple[str, int]], unit: str) -> None:
    builder, size = ProfileBuilder(), SIZES[unit]
    exact: Counter[str] = Counter()
    for symbol, weight in samples:
        builder.sample("a", [symbol], weight)
        exact[f"a;{symbol}"] += weight
    totals = read(folded(builder.build(), unit=unit))
    assert all(abs(totals[stack] * size - exact[stack]) < size for stack in exact)
    assert 2 * abs(totals.total() * size - exact.total()) <= size


def test_large_and_deterministic() -> None:
    profile = large_profile(200_000, 5_000)
    lines = folded(profile)
    assert read(lines).total() == sum(profile.samples.period.tolist()) and lines == sorted(lines)
    assert folded(profile.select(np.random.default_rng(5).permutation(len(profile.samples)))) == lines


def page_of(profile: Profile, **options: Any) -> Page:
    return Page(converted("flamegraph", profile, **options))


def totals_of(series: dict[str, Any]) -> int:
    return sum(hi * 10**9 + lo for hi, lo in zip(series["hi"], series["lo"], strict=True))


def weights(document: dict[str, Any]) -> int:
    """Everything that the page shows, by the page's own rule."""
    return sum(map(totals_of, document["layers"]))


def paths(document: dict[str, Any]) -> dict[str, int]:
    """Path → exclusive weight, read as the script does: preorder and depths."""
    names, nodes = document["names"]["label"], document["nodes"]
    found: dict[str, int] = {}
    way: list[str] = []
    for at, (depth, name) in enumerate(zip(nodes["depth"], nodes["name"], strict=True)):
        way[depth - 1 :] = [names[name]]
        weight = sum(layer["hi"][at] * 10**9 + layer["lo"][at] for layer in document["layers"])
        if weight:
            found[";".join(way)] = found.get(";".join(way), 0) + weight
    return found


def test_nodes_layers_and_facts() -> None:
    meta = {"hostname": "box", "cmdline": ("record", "<x>"), "source": "p.data"}
    builder = ProfileBuilder(losses={"records lost": 3}, meta=meta)
    builder.sample("b", ["main", kernel("schedule")], 5_000_000_007)
    builder.sample("a", ["main", Code("f", "/lib/x.so")], 3, event="cpu-clock")
    builder.sample("b", ["main"], 2, event="cpu-clock", count=1)
    builder.sample("b", [], 4, flags=SampleFlag.NO_USER_STACK, count=10)
    document = page_of(builder.build()).profile
    assert document["title"] == "Off-CPU and CPU time (offcpu-time, cpu-clock) on box: record <x>"
    assert ["Lost", "3 records lost"] in document["facts"] and ["File", "p.data"] in document["facts"]
    assert paths(document) == {
        "a;main;f": 3, "b;[missed stack]": 4, "b;main": 2, "b;main;schedule": 5_000_000_007,
    }  # fmt: skip
    assert document["nodes"]["depth"] == [1, 2, 3, 1, 2, 2, 3]
    off, on = document["layers"]
    assert (off["kind"], on["kind"]) == ("off", "on") and (sum(off["count"]), sum(on["count"])) == (11, 2)
    kinds = dict(zip(document["names"]["label"], document["names"]["kind"], strict=True))
    assert (kinds["main"], kinds["schedule"], kinds["b"], kinds["[missed stack]"]) == (0, 1, 2, 3)


def test_title_and_options() -> None:
    profile = ProfileBuilder().sample("a", ["f"], 3, event="cpu-clock", tid=7).build()
    assert describe(profile, Options())["title"] == "CPU samples (cpu-clock)"
    assert describe(profile, Options(title="<Mine>"))["title"] == "<Mine>"
    assert "a-100/7" in describe(profile, Options(tid=True))["names"]["label"]
    assert page_of(profile, title="</title><b>").tags.count("b") == 0
    empty = page_of(ProfileBuilder().build()).profile
    assert empty["nodes"] == {"depth": [], "name": []} and empty["layers"] == []


@given(st.text(st.characters(codec=None), max_size=30))
def test_any_name_is_in_the_page_as_it_is_shown(name: str) -> None:
    assert weights(page_of(ProfileBuilder().sample("a", ["f", name], 5).build()).profile) == 5


def slow_preorder(tree: PathTree) -> list[int]:
    def children(of: int) -> list[int]:
        mine = [node for node in range(len(tree)) if tree.parent[node] == of]
        return sorted(mine, key=lambda node: tree.names[int(tree.name[node])])

    def walk(node: int) -> list[int]:
        return [node] + [below for child in children(node) for below in walk(child)]

    return [node for root in children(-1) for node in walk(root)]


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.lists(st.sampled_from("abcd"), max_size=5)), max_size=20))
def test_preorder_agrees_with_a_recursive_walk(samples: list[tuple[str, list[str]]]) -> None:
    builder = ProfileBuilder()
    for comm, path in samples:
        builder.sample(comm, [*path], 1)
    tree = build_paths(builder.build(), Options())
    assert preorder(tree).tolist() == slow_preorder(tree)


def test_large_totals_are_exact() -> None:
    profile = large_profile(100_000, 3_000)
    document = describe(profile, Options())
    assert weights(document) == sum(profile.samples.period.tolist())
    assert sum(document["layers"][0]["count"]) == 100_000
    order = preorder(build_paths(profile, Options()))
    assert np.array_equal(np.sort(order), np.arange(len(order)))


def test_states_and_wakers_of_the_tooltip() -> None:
    builder = ProfileBuilder()
    builder.sample("a", ["main", "f"], 5, state=1, waker_tid=7, waker_pid=7, tid=1)
    builder.sample("a", ["main"], 7, state=2, tid=1).sample("w", ["main"], 100, state=2, tid=7, pid=7)
    builder.sample("a", ["main"], 9, event="cpu-clock", tid=1)
    parts = {(one["kind"], one["name"]): one for one in page_of(builder.build()).profile["parts"]}
    states = {("state", "interruptible sleep"): 5, ("state", "uninterruptible sleep"): 107}
    assert {key: totals_of(one) for key, one in parts.items()} == states | {("class", "other"): 112, ("waker", "w"): 5}
    assert parts["state", "uninterruptible sleep"]["node"] == [1, 4], "main of a and of w, in preorder"


def test_an_older_profile_is_a_series() -> None:
    old = ProfileBuilder().sample("a", ["main", "f"], 3).sample("a", ["main", "gone"], 4).build()
    new = ProfileBuilder().sample("a", ["main", "f"], 10).build()
    document = page_of(new, diff=old).profile
    assert weights(document) == 10 and totals_of(document["before"]) == 7
    assert "gone" in document["names"]["label"] and page_of(new).profile["before"] is None
