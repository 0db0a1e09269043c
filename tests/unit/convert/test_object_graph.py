# SPDX-License-Identifier: Apache-2.0
"""The graph of threads, objects and holders, read by networkx and graphviz."""

import json
import subprocess
from typing import Any

import networkx
import pytest
from builders.converted import converted
from builders.profile import ProfileBuilder

from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag

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
