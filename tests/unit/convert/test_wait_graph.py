# SPDX-License-Identifier: Apache-2.0
"""Graphs of cascades: weights, knots and the lightest-edge rule, in all forms."""

import json
import subprocess
from typing import Any

import networkx
import pytest
from builders.converted import converted
from builders.profile import ProfileBuilder
from builders.waits import wait
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.analysis.timeline import timeline_of
from perf_offcpu.causality.cascade import cascade_of
from perf_offcpu.convert.callgraph.waits import components, graph_of
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag

Waits = list[tuple[int, int, int, int]]


def profile_of(waits: Waits) -> Profile:
    """Waits are (tid, begin, end, waker); waker 0 is a device."""
    builder = ProfileBuilder()
    for tid, begin, end, waker in waits:
        wait(builder, tid, begin, end, waker=waker or 99, flags=SampleFlag(0) if waker else SampleFlag.WAKER_INTERRUPT)
    return builder.build()


def graph(waits: Waits, *, per_thread: bool = False, min_share: float = 0) -> Any:
    profile = profile_of(waits)
    return graph_of(cascade_of(profile, timeline_of(profile)), "title", per_thread, min_share)


def text(profile: Profile, **options: Any) -> str:
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


def test_threads_of_one_comm_are_one_or_each_by_itself() -> None:
    profile = wait(ProfileBuilder(), 5, 0, 10, waker=6).build()
    profile.samples.comm[:] = profile.strings.intern("pool")
    cascade = cascade_of(profile, timeline_of(profile))
    assert list(graph_of(cascade, "", True, 0).edges) == [("pool-5/5", "[unknown]-6/6")]


def test_small_edges_are_left_out_and_said() -> None:
    waits = [(1, 0, 1000, 2), (3, 0, 3, 2), (2, 1500, 1501, 0)]
    found = graph(waits, min_share=1)
    assert list(found.edges) == [("client", "server")]
    assert found.graph["left_out"] == 2 and found.graph["held_left_out"] == 1
    assert "2 below 1 % left out" in text(profile_of(waits), form="text", min_share=1.0)


def test_forms() -> None:
    profile = profile_of([*SERVICE, (3, 600, 700, 0)])
    lines = text(profile, form="text")
    assert "client -> server" in lines and "disk -> [interrupt]" in lines and "(dropped)" in lines
    assert "light edges dropped" in lines
    read = networkx.node_link_graph(json.loads(text(profile, form="json")), edges="edges")
    assert set(read.edges) == set(networkx.parse_graphml(text(profile, form="graphml")).edges)
    assert sum(held for _, held in read.nodes(data="held")) == read.graph["total"]
    dot = text(profile, form="dot")
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
    assert text(ProfileBuilder().sample("a", ["f"], 5, event="cpu-clock").build(), form=form)
