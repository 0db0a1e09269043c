# SPDX-License-Identifier: Apache-2.0
"""Make the wait-for graph of a cascade, find its knots, and write it as text.

An edge A → B is the time that A waited for B, with the time of the waits that A delayed at the same time
(`causality.cascade`). Each node holds the weight that ends there. A knot is a strongly connected component
without outgoing edges: its threads wait for no thread outside of it, so the time is spent there.

Threads that serve each other in turn (client, server) wait for each other, too, if only for a moment: such light edges
hide knots. So the lightest-edge rule of wPerf (OSDI 2018) is applied to all components: while a component of several
threads has edges of less than half the weight of its heaviest edge, the lightest edges are dropped until it splits.
Threads that stay together wait mainly for each other, as threads that share a lock do."""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import numpy as np

from perf_offcpu.callpaths.weights import amount, share
from perf_offcpu.causality.cascade import DEVICES, Cascade, Held
from perf_offcpu.model.columns import I64, group, sum_by
from perf_offcpu.structs import frozen

_LIGHT = 0.5  # edges of less than this part of the heaviest edge of a component are light


@frozen
class Component:
    """Strongly connected component of a wait-for graph: threads (or comms) that wait for each other, or one."""

    members: tuple[str, ...]  # labels, the largest weight first
    held: int  # ns of waits that end at the members
    is_knot: bool  # True if no edge leaves it, except light edges


def labels_of(cascade: Cascade, per_thread: bool) -> tuple[list[str], I64]:
    """Return the labels of a cascade's nodes (COMM, with `per_thread` COMM-PID/TID, or a device), each once, and
    int64[nodes]: the index of each node's label."""
    names = [f"{track.comm}-{track.pid}/{track.tid}" if per_thread else track.comm for track in cascade.tracks]
    names += DEVICES
    rows = {name: row for row, name in enumerate(dict.fromkeys(names))}
    return list(rows), np.array([rows[name] for name in names], np.int64)


def graph_of(cascade: Cascade, title: str, per_thread: bool, min_share: float) -> Any:
    """Return the wait-for graph of a cascade as a `networkx.DiGraph` with its knots marked. Edges, and nodes without
    edges, of less than `min_share` percent of the time of all waits are left out."""
    import networkx

    labels, label_of = labels_of(cascade, per_thread)
    total, least = cascade.total_ns, max(cascade.total_ns * min_share / 100, 1)
    graph = networkx.DiGraph(title=title, unit="ns", total=total, kind="cascade", min_share=min_share)
    rows = np.flatnonzero(cascade.target >= 0)
    sleeper, target = label_of[cascade.waiter[rows]], label_of[cascade.target[rows]]
    first, edge = group(sleeper, target)
    weights = (sum_by(edge, column[rows], len(first)) for column in (cascade.carried_ns, cascade.own_ns))
    columns = (sleeper[first], target[first], *weights, np.bincount(edge, minlength=len(first)))
    edges = sorted(zip(*(column.tolist() for column in columns), strict=True), key=lambda row: (-row[2], row[:2]))
    kept = [row for row in edges if row[2] >= least]
    held = np.zeros((len(labels), len(Held)), np.int64)
    np.add.at(held, label_of, cascade.held_ns)
    waited = sum_by(label_of[cascade.waiter], cascade.own_ns, len(labels))
    ends = {node for row in kept for node in row[:2]}
    shown = [node for node in range(len(labels)) if node in ends or held[node].sum() >= least]
    for node in sorted(shown, key=lambda node: (-int(held[node].sum()), labels[node])):
        parts = {f"held_{kind.name.lower()}": int(held[node, kind]) for kind in Held}
        facts = {"label": labels[node], "waited": int(waited[node]), "held": int(held[node].sum())}
        graph.add_nodes_from([(labels[node], facts | parts)])
    for source, node, weight, own, count in kept:
        facts = {"weight": weight, "share": share(weight, total), "waited": own, "count": count}
        graph.add_edge(labels[source], labels[node], **facts, dropped=False)
    graph.graph |= {"left_out": len(edges) - len(kept), "unplaced": cascade.unplaced_ns}
    graph.graph["held_left_out"] = total - sum(facts["held"] for _, facts in graph.nodes(data=True))
    _mark_knots(graph)
    return graph


def components(graph: Any) -> list[Component]:
    """Return the components of a graph of `graph_of` without its dropped edges, the largest weight first."""
    import networkx

    bare = _bare(graph)
    bare.remove_edges_from([edge[:2] for edge in graph.edges(data="dropped") if edge[2]])
    parts = list(networkx.strongly_connected_components(bare))
    part_of = {node: row for row, part in enumerate(parts) for node in part}
    leaving = {part_of[source] for source, target in bare.edges if part_of[source] != part_of[target]}
    held = dict(graph.nodes(data="held"))
    result = [
        Component(
            tuple(sorted(part, key=lambda name: (-held[name], name))),
            sum(held[name] for name in part),
            row not in leaving,
        )
        for row, part in enumerate(parts)
    ]
    return sorted(result, key=lambda part: (-part.held, part.members))


def _bare(graph: Any) -> Any:
    """Return a copy of a graph without edges from a node to itself."""
    bare = graph.copy()
    bare.remove_edges_from([(node, node) for node in graph if graph.has_edge(node, node)])
    return bare


def _mark_knots(graph: Any) -> None:
    """Find knots, threads that wait for none outside of the knot: set `knot` of nodes (number of the node's knot, 0
    none), `dropped` of light edges that hide knots, and the graph's list of knots, by the time that they hold."""
    import networkx

    bare = _bare(graph)
    unsplit = [bare.subgraph(part) for part in networkx.strongly_connected_components(bare) if len(part) > 1]
    while unsplit:
        part = unsplit.pop().copy()
        if light := _to_drop(part):
            part.remove_edges_from(light)
            unsplit += [part.subgraph(rest) for rest in networkx.strongly_connected_components(part) if len(rest) > 1]
            networkx.set_edge_attributes(graph, dict.fromkeys(light, True), "dropped")
    for _, facts in graph.nodes(data=True):
        facts["knot"] = 0
    knots = [component for component in components(graph) if component.is_knot and component.held > 0]
    for number, knot in enumerate(knots, 1):
        for name in knot.members:
            graph.nodes[name]["knot"] = number
    dropped = [facts["weight"] for _, _, facts in graph.edges(data=True) if facts["dropped"]]
    graph.graph["knots"] = [" ".join(knot.members) for knot in knots]
    graph.graph |= {"dropped": len(dropped), "dropped_weight": sum(dropped)}


def _to_drop(part: Any) -> list[tuple[str, str]]:
    """Return the fewest lightest edges whose removal splits component `part`; [] if even all light ones are too few."""
    import networkx

    inner = sorted(part.edges(data="weight"), key=lambda edge: (edge[2], edge[:2]))
    light = [edge[:2] for edge in inner if edge[2] < _LIGHT * inner[-1][2]]

    def splits(number: int) -> bool:
        rest = part.copy()
        rest.remove_edges_from(light[:number])
        return not networkx.is_strongly_connected(rest)

    if not splits(len(light)):
        return []
    return light[: bisect_left(range(len(light)), True, key=splits)]


def text_of(graph: Any) -> Iterator[str]:
    """Yield the lines of the tables of edges, nodes and knots."""
    facts = graph.graph
    if facts["unplaced"]:
        yield f"# not in it: {amount(facts['unplaced'], 'ns')} of short waits that were only summed"
    yield f"#\n#  Share  {'Weight':>14}  {'Waited':>14}  {'Waits':>8}  Sleeper -> what it waited for"
    for sleeper, target, edge in graph.edges(data=True):
        times = f"{amount(edge['weight'], 'ns'):>14}  {amount(edge['waited'], 'ns'):>14}"
        mark = "  (dropped)" if edge["dropped"] else ""
        yield f"{edge['share']:6.2f} % {times}  {edge['count']:8}  {sleeper} -> {target}{mark}"
    yield f"#\n#  Share  {'Held up':>14}  {'running':>14}  {'runnable':>14}  {'waiting':>14}  By"
    for name, node in graph.nodes(data=True):
        waiting_ns = node["held"] - node["held_running"] - node["held_runnable"]
        held = [amount(node[key], "ns") for key in ("held", "held_running", "held_runnable")]
        columns = "  ".join(f"{text:>14}" for text in (*held, amount(waiting_ns, "ns")))
        yield f"{share(node['held'], facts['total']):6.2f} % {columns}  {name}"
    yield ""
    for number, knot in enumerate(facts["knots"], 1):
        ends = sum(node["held"] for _, node in graph.nodes(data=True) if node["knot"] == number)
        yield f"Knot {number}, where {amount(ends, 'ns')} of waits end: {knot}"
    if facts["dropped"]:
        weight = amount(facts["dropped_weight"], "ns")
        yield f"{facts['dropped']} light edges dropped to find the knots: {weight}"
