# SPDX-License-Identifier: Apache-2.0
"""The page of a recording in time, as bytes; tests/browser opens it."""

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

from perf_offcpu.analysis.times.timeline import timeline_of
from perf_offcpu.callpaths.options import PathOptions
from perf_offcpu.callpaths.tree import build_paths
from perf_offcpu.convert.html.page import packed
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
