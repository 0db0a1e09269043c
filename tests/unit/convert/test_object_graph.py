# SPDX-License-Identifier: Apache-2.0
"""The graph of threads, objects and holders, read by networkx and graphviz."""

import json
import subprocess

import networkx
import pytest
from builders.converted import converted
from builders.profile import ProfileBuilder

from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Comms, SampleFlag, Tasks

BLOCKED = SampleFlag.STILL_BLOCKED


def bank() -> Profile:
    """Two workers wait for a lock that audit holds or releases; one for a socket; a name is a comm, too."""
    builder = ProfileBuilder()
    lock = builder.thing('ledger "x" in bank')
    socket = builder.thing("tcp 10.0.0.7:80", ObjectKind.SOCKET)
    same = builder.thing("worker", ObjectKind.FILE)
    waits = [
        ("worker", 11, lock, 600, {"holder_tid": 13}),
        ("worker", 12, lock, 300, {"waker_tid": 13, "waker_pid": 10}),
        ("worker", 11, socket, 80, {"waker_tid": 0, "waker_pid": 0, "flags": SampleFlag.WAKER_INTERRUPT}),
        ("worker", 11, socket, 20, {"waker_tid": 7, "waker_pid": 7, "flags": SampleFlag.WAKER_INTERRUPT}),
        ("audit", 13, same, 50, {"waker_tid": 12, "waker_pid": 10}),
        ("audit", 13, -1, 5000, {}),
    ]
    for comm, tid, thing, weight, more in waits:
        builder.sample(comm, ["main"], weight, pid=10, tid=tid, object=thing, switch_out_ns=5, **more)  # type: ignore[arg-type]
    profile = builder.build()
    profile.tasks = Tasks.from_rows([(tid, 10, 0, -1) for tid in (11, 12, 13)])
    text = profile.strings.intern
    names = (11, "worker"), (12, "worker"), (13, "audit")
    profile.comms = Comms.from_rows([(tid, 10, 0, text(name)) for tid, name in names])
    return profile


def written(profile: Profile, form: str, *, per_thread: bool = False, min_share: float = 0) -> str:
    options = {"objects": True, "form": form, "per_thread": per_thread, "min_share": min_share}
    return converted("callgraph", profile, **options)


def edges(profile: Profile, *, per_thread: bool = False) -> set[tuple[str, str, str, int, int]]:
    text = written(profile, "json", per_thread=per_thread)
    found = networkx.node_link_graph(json.loads(text), edges="edges").edges(data=True)
    return {(one, other, edge["what"], edge["weight"], edge["count"]) for one, other, edge in found}


LOCK = 'ledger "x" in bank'


def test_edges_by_name() -> None:
    assert edges(bank()) == {
        ("worker (thread)", LOCK, "waited", 900, 2),
        (LOCK, "audit", "held", 900, 2),
        ("worker (thread)", "tcp 10.0.0.7:80", "waited", 100, 2),
        ("tcp 10.0.0.7:80", "[interrupt]", "ended", 100, 2),
        ("audit", "worker", "waited", 50, 1),
        ("worker", "worker (thread)", "ended", 50, 1),
    }


def test_edges_by_thread() -> None:
    found = edges(bank(), per_thread=True)
    assert ("worker-10/11", LOCK, "waited", 600, 1) in found
    assert (LOCK, "audit-10/13", "held", 900, 2) in found
    assert ("worker", "worker-10/12", "ended", 50, 1) in found


@pytest.mark.parametrize("form", ["dot", "graphml", "gexf", "json", "text"])
def test_every_form(form: str) -> None:
    text = written(bank(), form)
    if form == "dot":
        done = subprocess.run(["dot", "-Tplain"], input=text, capture_output=True, text=True, check=True)
        assert "ledger" in done.stdout
        assert "shape=ellipse" in text
    if form == "graphml":
        graph = networkx.parse_graphml(text)
        assert graph.nodes[LOCK]["role"] == "object"
    if form == "text":
        assert f" -> {LOCK}" in text
        assert f"{LOCK} -> audit (held)" in text


def test_light_edges_are_left_out() -> None:
    found = json.loads(written(bank(), "json", min_share=50))
    assert {edge["weight"] for edge in found["edges"]} == {900}
    assert found["graph"]["left_out"] == 4
    assert found["graph"]["total"] == 1050


def test_deadlocks_are_marked() -> None:
    builder = ProfileBuilder()
    a, b, c = (builder.thing(name) for name in "abc")
    for tid, lock, holder in ((11, b, 12), (12, a, 11), (13, c, 11)):
        columns = {"object": lock, "holder_tid": holder, "flags": BLOCKED, "time_ns": 900}
        builder.sample("t", [], 10, pid=10, tid=tid, **columns)  # type: ignore[arg-type]
    profile = builder.build()
    profile.tasks = Tasks.from_rows([(tid, 10, 0, -1) for tid in (11, 12, 13)])
    found = json.loads(written(profile, "json", per_thread=True))
    assert found["graph"]["deadlocks"] == ["t-10/11 -> b -> t-10/12 -> a"]
    assert {node["id"] for node in found["nodes"] if node["critical"]} == {"a", "b", "t-10/11", "t-10/12"}
    assert "Deadlock: t-10/11 -> b" in written(profile, "text", per_thread=True)


def test_nothing_to_show_is_a_graph() -> None:
    assert edges(ProfileBuilder().build()) == set()
    assert edges(ProfileBuilder().sample("a", [], 5).build()) == set()
