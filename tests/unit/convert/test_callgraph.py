# SPDX-License-Identifier: Apache-2.0
"""Graphs of calls, wake-ups, cascades and objects: their numbers, and that other programs read them."""

import io
import json
import subprocess
from collections import Counter
from dataclasses import replace
from typing import Any

import networkx
import pytest
from builders.converted import converted
from builders.large import large_profile
from builders.profile import Code, ProfileBuilder, kernel
from builders.waits import wait
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.analysis.times.timeline import timeline_of
from perf_offcpu.causality.cascade import cascade_of
from perf_offcpu.convert.callgraph import calls, wakeups
from perf_offcpu.convert.callgraph.waits import components, graph_of
from perf_offcpu.convert.registry import FORMATS, Options
from perf_offcpu.errors import CapabilityError
from perf_offcpu.model.coverage import Sampling
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag

ALL = Options(min_share=0, per_thread=True)


def text(profile: Profile, **options: Any) -> str:
    return converted("callgraph", profile, **{"min_share": 0, **options})


SAMPLES = st.tuples(st.lists(st.sampled_from("abc"), min_size=1, max_size=6), st.integers(1, 9))


@given(st.lists(SAMPLES, min_size=1, max_size=12))
def test_recursion_counts_once(samples: list[tuple[list[str], int]]) -> None:
    """Against a loop over samples: each function and each call once a sample, however often it is there."""
    builder = ProfileBuilder()
    own: Counter[str] = Counter()
    inclusive: Counter[str] = Counter()
    edges: Counter[tuple[str, str]] = Counter()
    for number, (path, weight) in enumerate(samples):
        builder.sample(f"t{number % 2}", [*path], weight)
        own[path[-1]] += weight
        inclusive.update(dict.fromkeys(path, weight))
        edges.update(dict.fromkeys(zip(path, path[1:], strict=False), weight))
    graph = calls.graph_of(builder.build(), ALL)
    assert {id_: node["inclusive"] for id_, node in graph.nodes(data=True)} == dict(inclusive)
    assert {id_: node["own"] for id_, node in graph.nodes(data=True) if node["own"]} == dict(own)
    assert {(one, other): edge["weight"] for one, other, edge in graph.edges(data=True)} == dict(edges)
    assert graph.graph["total"] == sum(weight for _, weight in samples)


def simple() -> Profile:
    builder = ProfileBuilder(meta={"hostname": "box"})
    builder.sample("a", ["main", "f", kernel("schedule")], 96, count=3)
    builder.sample("a", ["main", 'say "hi"\\n'], 3).sample("b", ["main", Code("f", "/lib/other.so")], 1)
    return builder.build()


def test_small_shares_are_left_out_and_that_is_told() -> None:
    assert {"f", "f (other.so)"} <= set(calls.graph_of(simple(), ALL)), "one name in several objects"
    graph = calls.graph_of(simple(), Options(min_share=2))
    assert "f (other.so)" not in graph and graph.graph["left_out"] == 1
    assert "1 below 2 % left out" in text(simple(), min_share=2.0, form="dot")


def test_text() -> None:
    lines = text(simple(), form="text").splitlines()
    assert lines[:2] == ["# Off-CPU time (offcpu-time) on box", "# total: 100 ns (100 ns)"]
    assert lines[lines.index("100.00 %         100 ns            0 ns  main []") + 1].split() == "96 ns to f".split()


@pytest.mark.parametrize("wakers", [False, True])
def test_networkx_reads_what_it_should(wakers: bool) -> None:
    profile = waking() if wakers else simple()
    graph = wakeups.graph_of(profile, ALL) if wakers else calls.graph_of(profile, ALL)
    forms = {form: text(profile, form=form, wakers=wakers, per_thread=wakers) for form in ("json", "graphml", "gexf")}
    document = json.loads(forms["json"])
    edges = {frozenset((one, other, facts["weight"])) for one, other, facts in graph.edges(data=True)}
    assert {frozenset((e["source"], e["target"], e["weight"])) for e in document["edges"]} == edges
    assert document["graph"]["total"] == graph.graph["total"]
    graphml = networkx.parse_graphml(forms["graphml"])
    for read in (graphml, networkx.read_gexf(io.BytesIO(forms["gexf"].encode()))):
        assert {frozenset((one, other, facts["weight"])) for one, other, facts in read.edges(data=True)} == edges
    own = sum(node["off_cpu" if wakers else "own"] for _, node in graphml.nodes(data=True))
    assert own == sum(profile.samples.period.tolist()) - (1000 if wakers else 0), "e has no known waker"


@pytest.mark.parametrize("form", FORMATS["callgraph"].forms)
@pytest.mark.parametrize("wakers", [False, True])
def test_every_form_is_deterministic_and_bears_nothing(form: str, wakers: bool) -> None:
    assert text(waking(), form=form, wakers=wakers) == text(waking(), form=form, wakers=wakers)
    text(ProfileBuilder().build(), form=form, wakers=wakers)


def test_graphviz_reads_and_draws_hostile_names(monkeypatch: pytest.MonkeyPatch) -> None:
    dot = text(simple(), form="dot")
    plain = subprocess.run(["dot", "-Tplain"], input=dot, capture_output=True, text=True, check=True).stdout
    kinds = Counter(line.split()[0] for line in plain.splitlines())
    assert (kinds["node"], kinds["edge"]) == (5, 4)
    picture = text(simple(), svg=True)
    assert picture.startswith("<?xml") and "schedule" in picture and "say &quot;hi&quot;" in picture
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(CapabilityError, match="Debian: graphviz"):
        text(simple(), svg=True)


def waking() -> Profile:
    """a and b wake each other, b wakes c, c wakes d; an interrupt wakes a, and e has no known waker."""
    builder = ProfileBuilder()
    waits = (("a", "b", 50, 10), ("b", "a", 30, 0), ("b", "a", 20, 5), ("c", "b", 70, 0), ("d", "c", 60, 0))
    for sleeper, waker, weight, runq in waits:
        woken = dict[str, Any](waker_tid=ord(waker), waker_pid=100, wakeup_ns=1, runq_ns=runq)
        builder.sample(sleeper, ["f"], weight, tid=ord(sleeper), **woken)
    builder.sample("a", ["f"], 9, tid=ord("a"), waker_tid=5, waker_pid=5, flags=SampleFlag.WAKER_INTERRUPT)
    return builder.sample("e", ["f"], 1000, tid=ord("e")).build()


def test_wake_ups_of_sampled_waits_are_estimates_and_the_longest_is_no_weight() -> None:
    builder = ProfileBuilder()
    of: dict[str, Any] = {"waker_tid": 7, "waker_pid": 7, "wakeup_ns": 1, "flags": SampleFlag.SAMPLED}
    builder.sample("a", ["f"], 1000, **of, longest_ns=10, runq_ns=200, count=100)
    built = builder.build()
    graph = wakeups.graph_of(replace(built, meta=replace(built.meta, sampling=Sampling(2_000_000))), ALL)
    ((_, _, edge),) = graph.edges(data=True)
    assert (edge["weight"], edge["count"], edge["longest"]) == (800, 100, 8)
    assert "estimated from a sample for each 2 ms of waiting" in graph.graph["title"]


def test_wakers_knots_and_the_critical_chain() -> None:
    graph = wakeups.graph_of(waking(), ALL)
    a, b, c, d = (f"{name}-100/{ord(name)}" for name in "abcd")
    edges = {(*ends, edge["weight"], edge["count"], edge["longest"]) for *ends, edge in graph.edges(data=True)}
    between_threads = {(b, a, 40, 1, 40), (a, b, 45, 2, 30), (b, c, 70, 1, 70), (c, d, 60, 1, 60)}
    assert edges == between_threads | {("[interrupt]", a, 9, 1, 9)}
    assert dict(graph.nodes(data="knot")) == {a: 1, b: 1, c: 0, d: 0, "[interrupt]": 0}
    assert graph.graph["chain"] == ["[interrupt]", f"{a} {b}", c, d]
    assert [edge["critical"] for edge in (graph.edges[b, c], graph.edges[a, b])] == [True, False]
    shown = text(waking(), form="text", wakers=True, per_thread=True)
    assert f"Knot 1, threads that wait for each other: {a} {b}" in shown
    assert f"Critical chain (*): [interrupt] -> {a} {b} -> {c} -> {d}" in shown


def test_threads_of_one_comm_are_one() -> None:
    builder = ProfileBuilder()
    for comm, tid, waker, period in (("make", 1, 11, 30), ("make", 1, 12, 20), ("cc", 11, 1, 7), ("cc", 12, 11, 5)):
        builder.sample(comm, ["f"], period, tid=tid, pid=tid, waker_tid=waker, waker_pid=waker, runq_ns=1)
    graph = wakeups.graph_of(builder.build(), Options(min_share=0))
    found = {(*ends, edge["weight"], edge["count"], edge["longest"]) for *ends, edge in graph.edges(data=True)}
    assert found == {("cc", "make", 48, 2, 29), ("make", "cc", 6, 1, 6), ("cc", "cc", 4, 1, 4)}
    assert {id_: node["off_cpu"] for id_, node in graph.nodes(data=True)} == {"make": 50, "cc": 12}
    assert graph.graph["knots"] == ["cc make"] and graph.graph["total"] == 58


def test_changes_since_an_older_profile() -> None:
    old = ProfileBuilder().sample("z", ["main", "f"], 60).sample("z", ["main", "gone"], 30).build()
    new = ProfileBuilder().sample("a", ["main", "f"], 100).sample("a", ["main", "new"], 5).build()
    graph = calls.graph_of(new, Options(min_share=0, diff=old))
    assert {id_: (node["inclusive"], node["change"]) for id_, node in graph.nodes(data=True)} == {
        "main": (105, 15), "f": (100, 40), "gone": (0, -30), "new": (5, 5),
    }  # fmt: skip


def test_large_totals_are_exact() -> None:
    profile = large_profile(50_000, 2_000)
    graph = calls.graph_of(profile, ALL)
    total = sum(profile.samples.period.tolist())
    assert sum(node["own"] for _, node in graph.nodes(data=True)) == total
    assert graph.nodes["namespace_0::Type0::function_0"]["inclusive"] == total


Waits = list[tuple[int, int, int, int]]


def profile_of(waits: Waits) -> Profile:
    """Waits are (tid, begin, end, waker); waker 0 is a device."""
    builder = ProfileBuilder()
    for tid, begin, end, waker in waits:
        wait(builder, tid, begin, end, waker=waker or 99, flags=SampleFlag(0) if waker else SampleFlag.WAKER_INTERRUPT)
    return builder.build()


def graph(waits: Waits, *, min_share: float = 0) -> Any:
    profile = profile_of(waits)
    return graph_of(cascade_of(profile, timeline_of(profile)), "title", False, min_share)


def graph_text(profile: Profile, **options: Any) -> str:
    cascade = cascade_of(profile, timeline_of(profile))
    return converted("callgraph", profile, **{"min_share": 0, "cascade": cascade, **options})


SERVICE: Waits = [
    # client (1) asks the server (2), which asks the third (3); the third computes most of the time.
    *((1, 100 * at + 2, 100 * at + 98, 2) for at in range(5)),
    *((2, 100 * at + 6, 100 * at + 94, 3) for at in range(5)),
    *((3, 100 * at - 4, 100 * at + 5, 2) for at in range(1, 5)),
    *((2, 100 * at - 1, 100 * at + 2, 1) for at in range(1, 5)),
]


def test_light_edges_of_threads_that_serve_each_other_are_dropped() -> None:
    found = graph(SERVICE)
    assert networkx.is_strongly_connected(found) and found.graph["knots"] == ["disk"]
    assert {edge[:2] for edge in found.edges(data="dropped") if edge[2]} == {("server", "client"), ("disk", "server")}
    first = components(found)[0]
    assert (first.members, first.is_knot) == (("disk",), True)
    assert first.held == found.nodes["disk"]["held_running"]


def test_threads_that_share_a_lock_stay_one_knot() -> None:
    """Each waits for the one before it; all edges weigh about the same."""
    begins = ((tid, 30 * turn + 10 * tid) for turn in range(9) for tid in (4, 5, 6))
    found = graph([(tid, begin, begin + 20, 4 + (tid - 2) % 3) for tid, begin in begins])
    knots = [one for one in components(found) if one.is_knot]
    assert [set(knot.members) for knot in knots] == [{"t4", "t5", "t6"}] and found.graph["dropped"] == 0


def test_threads_by_themselves_have_their_ids() -> None:
    profile = wait(ProfileBuilder(), 5, 0, 10, waker=6).build()
    profile.samples.comm[:] = profile.strings.intern("pool")
    cascade = cascade_of(profile, timeline_of(profile))
    assert list(graph_of(cascade, "", True, 0).edges) == [("pool-5/5", "[unknown]-6/6")]


def test_small_edges_are_left_out_and_said() -> None:
    waits = [(1, 0, 1000, 2), (3, 0, 3, 2), (2, 1500, 1501, 0)]
    found = graph(waits, min_share=1)
    assert list(found.edges) == [("client", "server")]
    assert found.graph["left_out"] == 2 and found.graph["held_left_out"] == 1
    assert "2 below 1 % left out" in graph_text(profile_of(waits), form="text", min_share=1.0)


def test_forms() -> None:
    profile = profile_of([*SERVICE, (3, 600, 700, 0)])
    lines = graph_text(profile, form="text")
    assert "client -> server" in lines and "disk -> [interrupt]" in lines and "(dropped)" in lines
    assert "light edges dropped" in lines
    read = networkx.node_link_graph(json.loads(graph_text(profile, form="json")), edges="edges")
    assert set(read.edges) == set(networkx.parse_graphml(graph_text(profile, form="graphml")).edges)
    assert sum(held for _, held in read.nodes(data="held")) == read.graph["total"]
    dot = graph_text(profile, form="dot")
    assert "style=dashed" in dot and "knot 1" in dot
    subprocess.run(["dot", "-Tsvg"], input=dot, text=True, check=True, capture_output=True)


WAITS = st.tuples(st.integers(1, 6), st.integers(0, 60), st.integers(1, 30), st.integers(0, 7))


@given(st.lists(WAITS, min_size=1, max_size=30))
def test_held_weights_of_components_sum_to_all_waits(waits: Waits) -> None:
    found = graph([(tid, begin, begin + length, waker) for tid, begin, length, waker in waits])
    parts = components(found)
    assert sum(part.held for part in parts) == found.graph["total"] > 0
    assert sorted(name for part in parts for name in part.members) == sorted(found)
    assert any(part.is_knot for part in parts)


@pytest.mark.parametrize("form", ["text", "dot", "json", "graphml", "gexf"])
def test_nothing_waited(form: str) -> None:
    assert graph_text(ProfileBuilder().sample("a", ["f"], 5, event="cpu-clock").build(), form=form)


LOCK = 'ledger "x" in bank'
TASKS = [(tid, 10, 0, -1) for tid in (11, 12, 13)]


def bank() -> Profile:
    """Two workers wait for a lock that audit holds or releases; one for a socket; a name is a comm, too."""
    builder = ProfileBuilder(tasks=TASKS, comms=[(11, 10, 0, "worker"), (12, 10, 0, "worker"), (13, 10, 0, "audit")])
    lock = builder.thing(LOCK)
    socket = builder.thing("tcp 10.0.0.7:80", ObjectKind.SOCKET)
    same = builder.thing("worker", ObjectKind.FILE)
    waits: list[tuple[str, int, int, int, dict[str, Any]]] = [
        ("worker", 11, lock, 600, {"holder_tid": 13}), ("worker", 12, lock, 300, {"waker_tid": 13, "waker_pid": 10}),
        ("worker", 11, socket, 80, {"waker_tid": 0, "waker_pid": 0, "flags": SampleFlag.WAKER_INTERRUPT}),
        ("worker", 11, socket, 20, {"waker_tid": 7, "waker_pid": 7, "flags": SampleFlag.WAKER_INTERRUPT}),
        ("audit", 13, same, 50, {"waker_tid": 12, "waker_pid": 10}), ("audit", 13, -1, 5000, {}),
    ]  # fmt: skip
    for comm, tid, thing, weight, more in waits:
        builder.sample(comm, ["main"], weight, pid=10, tid=tid, object=thing, switch_out_ns=5, **more)
    return builder.build()


def written(profile: Profile, form: str, *, per_thread: bool = False, min_share: float = 0) -> str:
    options = {"objects": True, "form": form, "per_thread": per_thread, "min_share": min_share}
    return converted("callgraph", profile, **options)


def edges(profile: Profile, *, per_thread: bool = False) -> set[tuple[str, str, str, int, int]]:
    text = written(profile, "json", per_thread=per_thread)
    found = networkx.node_link_graph(json.loads(text), edges="edges").edges(data=True)
    return {(one, other, edge["what"], edge["weight"], edge["count"]) for one, other, edge in found}


def test_edges_by_name_or_thread() -> None:
    assert edges(bank()) == {
        ("worker (thread)", LOCK, "waited", 900, 2), (LOCK, "audit", "held", 900, 2),
        ("worker (thread)", "tcp 10.0.0.7:80", "waited", 100, 2), ("tcp 10.0.0.7:80", "[interrupt]", "ended", 100, 2),
        ("audit", "worker", "waited", 50, 1), ("worker", "worker (thread)", "ended", 50, 1),
    }  # fmt: skip
    assert edges(bank(), per_thread=True) >= {
        ("worker-10/11", LOCK, "waited", 600, 1), (LOCK, "audit-10/13", "held", 900, 2),
        ("worker", "worker-10/12", "ended", 50, 1),
    }  # fmt: skip


@pytest.mark.parametrize("form", ["dot", "graphml", "gexf", "json", "text"])
def test_every_form(form: str) -> None:
    text = written(bank(), form)
    if form == "dot":
        done = subprocess.run(["dot", "-Tplain"], input=text, capture_output=True, text=True, check=True)
        assert "ledger" in done.stdout and "shape=ellipse" in text
    if form == "graphml":
        assert networkx.parse_graphml(text).nodes[LOCK]["role"] == "object"
    if form == "text":
        assert f" -> {LOCK}" in text and f"{LOCK} -> audit (held)" in text


def test_light_edges_are_left_out() -> None:
    found = json.loads(written(bank(), "json", min_share=50))
    assert {edge["weight"] for edge in found["edges"]} == {900}
    assert (found["graph"]["left_out"], found["graph"]["total"]) == (4, 1050)


def test_deadlocks_are_marked() -> None:
    builder = ProfileBuilder(tasks=TASKS)
    a, b, c = (builder.thing(name) for name in "abc")
    for tid, lock, holder in ((11, b, 12), (12, a, 11), (13, c, 11)):
        builder.sample(
            "t", [], 10, pid=10, tid=tid, object=lock, holder_tid=holder, flags=SampleFlag.STILL_BLOCKED, time_ns=900
        )
    profile = builder.build()
    found = json.loads(written(profile, "json", per_thread=True))
    assert found["graph"]["deadlocks"] == ["t-10/11 -> b -> t-10/12 -> a"]
    assert {node["id"] for node in found["nodes"] if node["critical"]} == {"a", "b", "t-10/11", "t-10/12"}
    assert "Deadlock: t-10/11 -> b" in written(profile, "text", per_thread=True)


def test_nothing_to_show_is_a_graph() -> None:
    assert edges(ProfileBuilder().build()) == set()
    assert edges(ProfileBuilder().sample("a", [], 5).build()) == set()
