# SPDX-License-Identifier: Apache-2.0
"""Make the graph of wake-ups between threads, or between comms, and write it as text. Strongly connected threads, which
wait for each other in turn, are numbered as knots. The critical chain is the heaviest path through the graph with each
knot as one node: the path of a delay at its begin."""

from collections.abc import Iterator
from typing import Any

from perf_offcpu.analysis.times.wakeups import waker_graph_of
from perf_offcpu.callpaths.weights import amount, share, title_of
from perf_offcpu.convert.registry import Options
from perf_offcpu.model.profile import Profile


def graph_of(profile: Profile, options: Options) -> Any:
    """Return a `networkx.DiGraph` of wake-ups, waker → sleeper, with the knots and the critical chain marked."""
    import networkx

    waker_graph = waker_graph_of(profile, options.per_thread)
    total = int(waker_graph.blocked_ns.sum())
    least = max(total * options.min_share / 100, 1)
    graph = networkx.DiGraph(title=title_of(profile, options.title), unit="ns", total=total, kind="wakers")
    columns = (waker_graph.waker, waker_graph.sleeper, waker_graph.blocked_ns)
    edges = zip(*(column.tolist() for column in columns), strict=True)
    order = sorted(enumerate(edges), key=lambda edge: (-edge[1][2], edge[1]))
    kept = [(row, edge) for row, edge in order if edge[2] >= least]
    graph.graph |= {"left_out": len(order) - len(kept), "min_share": options.min_share}
    for row, (waker, sleeper, blocked) in kept:
        ends = [waker_graph.labels[thread] for thread in (waker, sleeper)]
        for label, thread in zip(ends, (waker, sleeper), strict=True):
            graph.add_node(label, label=label, off_cpu=int(waker_graph.off_cpu_ns[thread]))
        facts = {"weight": blocked, "share": share(blocked, total), "count": int(waker_graph.count[row])}
        graph.add_edge(*ends, **facts, longest=int(waker_graph.longest_ns[row]))
    _mark_knots(graph)
    return graph


def _mark_knots(graph: Any) -> None:
    """Set `knot` of the nodes (number of their group of threads that wake each other, by weight; 0 none) and `critical`
    of the nodes and edges of the critical chain; list knots and chain as graph attributes."""
    import networkx

    knots = [sorted(knot) for knot in networkx.strongly_connected_components(graph)]
    condensed = networkx.DiGraph()  # a node for each component, the index in `knots`
    knot_of = {label: index for index, knot in enumerate(knots) for label in knot}
    inside = [0] * len(knots)
    condensed.add_nodes_from(sorted(range(len(knots)), key=lambda index: knots[index]))
    for waker, sleeper, facts in graph.edges(data=True):
        if knot_of[waker] == knot_of[sleeper]:
            inside[knot_of[waker]] += facts["weight"]
        else:
            weight_before = condensed.get_edge_data(knot_of[waker], knot_of[sleeper], {"weight": 0})["weight"]
            condensed.add_edge(knot_of[waker], knot_of[sleeper], weight=weight_before + facts["weight"])
    for _, index, facts in condensed.edges(data=True):
        facts["weight"] += inside[index]
    chain = networkx.dag_longest_path(condensed) if len(condensed) else []
    tied = [index for index, knot in enumerate(knots) if len(knot) > 1]
    tied.sort(key=lambda index: (-inside[index], knots[index]))
    number = {index: row for row, index in enumerate(tied, 1)}
    for label, index in knot_of.items():
        graph.nodes[label]["knot"] = number.get(index, 0)
        graph.nodes[label]["critical"] = index in chain
    steps = set(zip(chain, chain[1:], strict=False))
    for waker, sleeper, facts in graph.edges(data=True):
        facts["critical"] = (knot_of[waker], knot_of[sleeper]) in steps
    graph.graph["knots"] = [" ".join(knots[index]) for index in tied]
    graph.graph["chain"] = [" ".join(knots[index]) for index in chain]


def text_of(graph: Any) -> Iterator[str]:
    """Yield the lines of a table of wake-ups, of the knots, and of the critical chain."""
    unit = graph.graph["unit"]
    yield f"#\n#  Share  {'Blocked':>14}  {'Longest':>14}  {'Wakes':>8}  Waker -> sleeper"
    for waker, sleeper, edge in graph.edges(data=True):
        times = f"{amount(edge['weight'], unit):>14}  {amount(edge['longest'], unit):>14}"
        mark = "  *" if edge["critical"] else ""
        yield f"{edge['share']:6.2f} % {times}  {edge['count']:8}  {waker} -> {sleeper}{mark}"
    yield ""
    for number, knot in enumerate(graph.graph["knots"], 1):
        yield f"Knot {number}, threads that wait for each other: {knot}"
    chain = " -> ".join(graph.graph["chain"])
    yield f"Critical chain (*): {chain or 'none: no waker is known'}"
