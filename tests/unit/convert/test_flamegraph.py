# SPDX-License-Identifier: Apache-2.0
"""The flame graph's page as bytes; tests/browser opens it."""

from typing import Any

import numpy as np
from builders.converted import converted
from builders.html_page import Page
from builders.large import large_profile
from builders.profile import Code, ProfileBuilder, kernel
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.callpaths.tree import PathTree, build_paths
from perf_offcpu.convert.html.flamegraph import describe, preorder
from perf_offcpu.convert.registry import Options
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag


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
