# SPDX-License-Identifier: Apache-2.0
"""Pages of a flame graph and of a recording in time, as bytes; tests/browser opens them."""

import base64
import json
import zlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
from builders.converted import converted
from builders.html_page import HOSTILE, Page, assert_no_markup, assert_no_network, named_profile
from builders.large import large_profile
from builders.profile import Code, ProfileBuilder, kernel
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.analysis.timeline import timeline_of
from perf_offcpu.callpaths.options import PathOptions
from perf_offcpu.callpaths.tree import PathTree, build_paths
from perf_offcpu.convert.html.flamegraph import describe, preorder
from perf_offcpu.convert.html.page import packed
from perf_offcpu.convert.registry import Options
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Budget, SampleFlag


def unpacked(directory: dict[str, dict[str, int]], text: str) -> dict[str, list[int]]:
    """Read columns by the page's own rule: the least value and byte planes."""
    data = zlib.decompress(base64.b64decode(text))
    columns = {}
    for name, where in directory.items():
        values = [where["least"]] * where["length"]
        for plane in range(where["planes"]):
            begin = where["at"] + plane * where["length"]
            plane_bytes = data[begin : begin + where["length"]]
            values = [value + (byte << 8 * plane) for value, byte in zip(values, plane_bytes, strict=True)]
        columns[name] = values
    return columns


class Opened:
    """A page's document and columns."""

    def __init__(self, profile: Profile, **options: Any) -> None:
        self.page = Page(converted("html", profile, **options))
        self.document: dict[str, Any] = json.loads(self.page.texts["script#profile"])
        self.columns = unpacked(self.document["columns"], self.page.texts["script#columns"])

    def rows(self, kind: int) -> list[tuple[int, int]]:
        firsts, tids = self.document["firsts"][kind], self.document["tracks"]["tid"]
        return [(tid, row) for at, tid in enumerate(tids) for row in range(firsts[at], firsts[at + 1])]

    def weight(self, row: int) -> int:
        return self.columns["hi"][row] * 10**9 + self.columns["lo"][row]


@given(st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40)))
def test_columns_come_back(columns: dict[str, list[int]]) -> None:
    directory, text = packed({name: np.array(values, np.int64) for name, values in columns.items()})
    assert unpacked(directory, text) == columns
    directory, _ = packed({"same": np.full(9, 10**15), "small": np.arange(200), "none": np.empty(0, np.int64)})
    assert [directory[name]["planes"] for name in directory] == [0, 1, 0], "a plane that is zero is not there"


def profile() -> Profile:
    builder = ProfileBuilder(losses={"records lost": 3}, meta={"hostname": "box", "source": "p.data", "arch": "x86_64"})
    builder.sample(
        "b", ["main", kernel("futex_wait")], 5_000_000_007, tid=2, time_ns=9 * 10**9, syscall=202, runq_ns=7,
        wakeup_ns=9 * 10**9 - 7, waker_tid=1, waker_pid=100, waker_path=["main", "unlock"],
    )  # fmt: skip
    builder.sample("b", ["main"], 40, tid=2, time_ns=3 * 10**9)
    builder.sample("a", ["main", Code("f", "/lib/x.so")], 3, tid=1, event="cpu-clock", time_ns=8 * 10**9)
    builder.sample("a", [], 4, tid=1, flags=SampleFlag.AGGREGATED, count=10, time_ns=5 * 10**9)
    builder.sample("a", ["g"], 6, tid=1, flags=SampleFlag.UNTIMED, time_ns=-1)
    return builder.build()


def test_rows_are_by_kind_thread_and_begin() -> None:
    opened = Opened(profile())
    waits, moments, others = (opened.rows(kind) for kind in range(3))
    assert [(tid, opened.weight(row)) for tid, row in waits] == [(2, 40), (2, 5_000_000_007)]
    assert [(tid, opened.weight(row)) for tid, row in moments] == [(1, 3)]
    assert [(tid, opened.weight(row)) for tid, row in others] == [(1, 4), (1, 6)]
    assert opened.document["origin"] == str(3 * 10**9 - 40)
    assert [opened.columns["gap"][row] for _, row in waits] == [0, 10**9 - 7]
    assert opened.columns["lasts"] == [2 * 10**9 + 40, -1] and opened.columns["timed"] == [1, 0]
    assert [opened.columns["runq"][row] for _, row in waits] == [0, 7]


def test_stacks_and_wakers_are_nodes_of_one_tree() -> None:
    opened = Opened(profile())
    document, columns = opened.document, opened.columns

    def path(node: int) -> list[str]:
        depth, found = columns["depth"][node], []
        for at in range(node, -1, -1):
            if columns["depth"][at] == depth:
                found.append(document["names"]["label"][columns["name"][at]])
                depth -= 1
        return found[::-1]

    row = opened.rows(0)[1][1]
    assert path(columns["node"][row]) == ["b", "main", "futex_wait"]
    assert path(columns["waker_node"][row])[1:] == ["main", "unlock"]
    assert document["tracks"]["tid"][columns["waker_track"][row]] == 1
    labels = {key["key"]: key["labels"][columns[f"key.{key['key']}"][row]] for key in document["keys"]}
    assert labels | {"class": "lock", "waker": "[unknown]", "syscall": "futex", "event": "offcpu-time"} == labels


def test_times_and_weights_of_many_waits_are_exact() -> None:
    many = large_profile(3000, 200)
    opened, timeline = Opened(many), timeline_of(many)
    seen, end = set(), 0
    for tid, row in opened.rows(0):
        begin = opened.columns["gap"][row] + (0 if row in opened.document["firsts"][0] else end)
        end = begin + opened.weight(row)
        seen.add((tid, begin, end))
    assert len(opened.rows(0)) == 3000
    tids = many.samples.tid.tolist()
    assert seen == set(zip(tids, timeline.begin_ns.tolist(), timeline.end_ns.tolist(), strict=True))
    weights: I64 = build_paths(many, PathOptions()).total(many.samples.period)
    by_node = Counter[int]()
    for row, node in enumerate(opened.columns["node"]):
        by_node[node] += opened.weight(row)
    assert sorted(by_node.values()) == sorted(weights[weights > 0].tolist())


def test_head() -> None:
    options = {"title": "Mine", "sentences": ("Nothing waits.",), "selected": ("-i", "p.data")}
    document = Opened(profile(), **options).document
    assert (document["title"], document["sentences"]) == ("Mine", ["Nothing waits."])
    assert document["options"] == ["-i", "p.data"]
    assert document["lost"] == [["3", "records lost"]] and ["File", "p.data"] in document["facts"]


@pytest.mark.parametrize("empty", [ProfileBuilder(), ProfileBuilder().sample("a", ["f"], 7, time_ns=-1)])
def test_without_times_there_is_a_page(empty: ProfileBuilder) -> None:
    document = Opened(empty.build()).document
    assert document["span"][0] < document["span"][1] and document["firsts"][0][-1] == 0


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("format_", ["html", "flamegraph"])
def test_hostile_names_are_data(format_: str, name: str) -> None:
    given = {"title": name, "sentences": (name,), "selected": ("-i", name)} if format_ == "html" else {}
    plain = Page(converted(format_, named_profile("e")))
    assert_no_markup(Page(converted(format_, named_profile(name), **given)), plain)
    assert_no_network(plain)


def test_time_outside_of_single_waits_is_running_short_waits_and_waiting_for_a_cpu() -> None:
    builder = ProfileBuilder().sample("worker", ["main", kernel("futex_wait")], 30, state=1, tid=1, pid=1)
    builder.sample("worker", ["main"], 40, state=2, tid=1, pid=1, flags=SampleFlag.AGGREGATED)
    profile = builder.build()
    times = {"running_ns": [20, 5], "preempted_ns": [10, 95], "end_ns": [100, 100]}
    profile.budget = Budget.filled(2, tid=[1, 2], pid=[1, 1], begin_ns=[0, 0], **times)
    document = Opened(profile).document
    assert document["tracks"]["tid"] == [1, 2], "a thread without any sample waited for a CPU"
    running, runqueue = -1, [one["label"] for one in document["classes"]].index("runqueue")
    assert document["between"] == [[[running, 20], [0, 40], [runqueue, 10]], [[running, 5], [runqueue, 95]]]


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
