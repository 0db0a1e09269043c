# SPDX-License-Identifier: Apache-2.0
"""Write graphs for graphviz, Gephi, yEd, networkx and the terminal.

The graph is of calls between functions, or (`wakers`) of wake-ups between threads, of which those of one comm
are one unless they are wanted `per_thread`; or (`cascade`) of waits for each other (`convert.wait_graph`), or
(`objects`) of threads and the objects that they wait for (`convert.object_graph`).
Functions have their own and their inclusive time (`callpaths.calls`). Nodes and edges of less than
`min_share` of the total are left out, because they would hide the others; the graph says how many. With
`wakers`, strongly connected threads, which wait for each other in turn, are numbered as knots, and the
critical chain is the heaviest path through the graph with each knot taken as one node: the path that a delay
at its begin takes.
"""

from __future__ import annotations

import functools
import io
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import numpy as np

from perf_offcpu.analysis.wakeups import waker_graph_of
from perf_offcpu.callpaths.calls import Calls, calls_of
from perf_offcpu.callpaths.tree import with_older
from perf_offcpu.callpaths.weights import title_of, unit_of
from perf_offcpu.convert import object_graph
from perf_offcpu.convert.options import Options
from perf_offcpu.convert.wait_graph import graph_of, text_of
from perf_offcpu.errors import CapabilityError
from perf_offcpu.model.profile import Profile
from perf_offcpu.text import printable

_DATE = re.compile(r' lastmodifieddate="[^"]*"')
"""networkx puts the day into GEXF files; the same profile must yield the same bytes."""
_DRAWING_S = 300


def write(profile: Profile, out: TextIO, options: Options) -> None:
    """Write the graph in the form that `options.form` names: dot, graphml, gexf, json or text."""
    import networkx

    if options.cascade is not None:
        title = title_of(profile, options.title)
        graph = graph_of(options.cascade, title, options.per_thread, options.min_share)
    elif options.objects:
        title = title_of(profile, options.title)
        graph = object_graph.graph_of(profile, title, options.per_thread, options.min_share)
    else:
        graph = wakeups(profile, options) if options.wakers else calls(profile, options)
    if options.svg:
        out.write(_drawn(dot_text(graph)))
        return
    writers: dict[str, Callable[[Any], str]] = {
        "dot": dot_text,
        "text": plain_text,
        "json": _json,
        "graphml": functools.partial(_xml, networkx.write_graphml_xml),
        "gexf": functools.partial(_xml, networkx.write_gexf),
    }
    out.write(writers[options.form or "dot"](graph))


def calls(profile: Profile, options: Options) -> Any:
    """Return the graph of calls, a `networkx.DiGraph`."""
    import networkx

    unit = unit_of(profile) or "events"
    both, is_old = with_older(profile, options.diff)
    found = calls_of(both, options, ~is_old)
    old = calls_of(both, options, is_old) if options.diff is not None else None
    ids = _ids([(name.label, name.dso) for name in found.names])
    heavy = found.inclusive if old is None else np.maximum(found.inclusive, old.inclusive)
    least = max(found.total * options.min_share / 100, 1)
    kept = [row for row, weight in enumerate(heavy.tolist()) if weight >= least]
    graph = networkx.DiGraph(
        title=title_of(profile, options.title), unit=unit, total=found.total, kind="calls"
    )
    graph.graph |= {"left_out": len(found.names) - len(kept), "min_share": options.min_share}
    for row in sorted(kept, key=lambda row: (-int(heavy[row]), ids[row])):
        graph.add_nodes_from([(ids[row], _function(found, old, row))])
    pairs = zip(found.caller.tolist(), found.callee.tolist(), found.weight.tolist(), strict=True)
    for caller, callee, weight in sorted(pairs, key=lambda pair: (-pair[2], ids[pair[0]], ids[pair[1]])):
        if weight >= least and ids[caller] in graph and ids[callee] in graph:
            graph.add_edge(ids[caller], ids[callee], weight=weight, share=_share(weight, found.total))
    return graph


def _function(found: Calls, old: Calls | None, row: int) -> dict[str, Any]:
    name = found.names[row]
    own, inclusive = int(found.own[row]), int(found.inclusive[row])
    facts: dict[str, Any] = {"label": name.label, "dso": name.dso, "kind": name.kind.name.lower()}
    facts |= {"own": own, "inclusive": inclusive, "waits": int(found.waits[row])}
    facts["share"] = _share(inclusive, found.total)
    if old is not None:
        facts |= {"own_change": own - int(old.own[row]), "change": inclusive - int(old.inclusive[row])}
    return facts


def _share(weight: int, total: int) -> float:
    return round(100 * weight / max(total, 1), 3)


def wakeups(profile: Profile, options: Options) -> Any:
    """Return the graph of wake-ups, a `networkx.DiGraph`, with knots and the critical chain marked."""
    import networkx

    found = waker_graph_of(profile, options.per_thread)
    total = int(found.blocked_ns.sum())
    least = max(total * options.min_share / 100, 1)
    graph = networkx.DiGraph(title=title_of(profile, options.title), unit="ns", total=total, kind="wakers")
    edges = zip(*(column.tolist() for column in (found.waker, found.sleeper, found.blocked_ns)), strict=True)
    order = sorted(enumerate(edges), key=lambda edge: (-edge[1][2], edge[1]))
    kept = [(row, edge) for row, edge in order if edge[2] >= least]
    graph.graph |= {"left_out": len(order) - len(kept), "min_share": options.min_share}
    for row, (waker, sleeper, blocked) in kept:
        ends = [found.labels[thread] for thread in (waker, sleeper)]
        for label, thread in zip(ends, (waker, sleeper), strict=True):
            graph.add_node(label, label=label, off_cpu=int(found.off_cpu_ns[thread]))
        facts = {"weight": blocked, "share": _share(blocked, total), "count": int(found.count[row])}
        graph.add_edge(*ends, **facts, longest=int(found.longest_ns[row]))
    _mark_knots(graph)
    return graph


def _mark_knots(graph: Any) -> None:
    """Number the knots by weight, and mark the nodes and edges of the critical chain."""
    import networkx

    knots = [sorted(knot) for knot in networkx.strongly_connected_components(graph)]
    condensed = networkx.DiGraph()  # a node for each knot
    of = {label: place for place, knot in enumerate(knots) for label in knot}
    inside = [0] * len(knots)
    condensed.add_nodes_from(sorted(range(len(knots)), key=lambda place: knots[place]))
    for waker, sleeper, facts in graph.edges(data=True):
        if of[waker] == of[sleeper]:
            inside[of[waker]] += facts["weight"]
        else:
            known = condensed.get_edge_data(of[waker], of[sleeper], {"weight": 0})["weight"]
            condensed.add_edge(of[waker], of[sleeper], weight=known + facts["weight"])
    for _, place, facts in condensed.edges(data=True):
        facts["weight"] += inside[place]
    chain = networkx.dag_longest_path(condensed) if len(condensed) else []
    tied = sorted(
        (place for place, knot in enumerate(knots) if len(knot) > 1), key=lambda at: (-inside[at], knots[at])
    )
    number = {place: row for row, place in enumerate(tied, 1)}
    for label, place in of.items():
        graph.nodes[label]["knot"] = number.get(place, 0)
        graph.nodes[label]["critical"] = place in chain
    steps = set(zip(chain, chain[1:], strict=False))
    for waker, sleeper, facts in graph.edges(data=True):
        facts["critical"] = (of[waker], of[sleeper]) in steps
    graph.graph["knots"] = [" ".join(knots[place]) for place in tied]
    graph.graph["chain"] = [" ".join(knots[place]) for place in chain]


def _ids(names: list[tuple[str, str]]) -> list[str]:
    """Return a distinct id for each (label, dso): the label, with the dso and a number where needed."""
    seen: dict[str, int] = {}
    ids = []
    for label, dso in names:
        id_ = label if label not in seen else f"{label} ({dso})"
        while id_ in seen:
            seen[label] += 1
            id_ = f"{label} ({dso}, {seen[label]})"
        seen[id_] = 1
        ids.append(id_)
    return ids


def _xml(write_xml: Callable[..., None], graph: Any) -> str:
    """Return the graph as XML, whose attributes cannot be lists: they are joined."""
    plain, out = graph.copy(), io.BytesIO()
    plain.graph = {key: "; ".join(one) if isinstance(one, list) else one for key, one in graph.graph.items()}
    write_xml(plain, out, encoding="utf-8")
    return _DATE.sub("", out.getvalue().decode()) + "\n"


def _json(graph: Any) -> str:
    """Return JSON that `networkx.node_link_graph(…, edges="edges")` reads."""
    document = {
        "directed": True,
        "multigraph": False,
        "graph": graph.graph,
        "nodes": [{"id": id_, **facts} for id_, facts in graph.nodes(data=True)],
        "edges": [{"source": one, "target": other, **facts} for one, other, facts in graph.edges(data=True)],
    }
    return json.dumps(document, indent=1) + "\n"


def _drawn(dot: str) -> str:
    """Return the picture that graphviz makes of DOT text."""
    program = shutil.which("dot")
    if program is None:
        raise CapabilityError(
            "--svg needs graphviz's dot", "install it (Debian: graphviz), or write --callgraph dot"
        )
    command = [program, "-Tsvg"]
    done = subprocess.run(command, input=dot, capture_output=True, text=True, timeout=_DRAWING_S, check=False)
    if done.returncode:
        raise CapabilityError("graphviz could not draw the graph", printable(done.stderr.strip()[:200]))
    return done.stdout


_LINE = 60
"""Characters of a name in a picture; a longer name is cut in the middle."""
_COLD, _HOT, _GROWN, _SHRUNK = (0.58, 0.02), (0.58, 0.55), 0.0, 0.36
_NS = ((10**9, "s"), (10**6, "ms"), (10**3, "us"))


def amount(value: int, unit: str) -> str:
    """Format a weight for people: three decimals of a fitting unit of time."""
    if unit == "ns":
        for size, name in _NS:
            if abs(value) >= size:
                return f"{value / size:.3f} {name}"
    return f"{value} {unit}"


def dot_text(graph: Any) -> str:
    """Return the graph in the DOT language (https://graphviz.org/doc/info/lang.html)."""
    return "\n".join(_dot_lines(graph)) + "\n"


def _dot_lines(graph: Any) -> Iterator[str]:
    facts, unit = graph.graph, graph.graph["unit"]
    left_out = f"; {facts['left_out']} below {facts['min_share']:g} % left out" if facts["left_out"] else ""
    title = f"{facts['title']}\\n{amount(facts['total'], unit)}{left_out}"
    yield "digraph offcpu {"
    yield f'  graph [label={_quoted(title)}, labelloc=t, labeljust=l, fontname="sans-serif"];'
    yield '  node [shape=box, style=filled, fontname="sans-serif", fontsize=10];'
    yield '  edge [fontname="sans-serif", fontsize=9, color="#60656a"];'
    for id_, node in graph.nodes(data=True):
        lines = "\\n".join(_node_lines(node, unit))
        weight = node.get("inclusive", node.get("off_cpu", node.get("held", 0)))
        is_marked = node.get("critical") or (facts["kind"] == "cascade" and node["knot"])
        shape = ", shape=ellipse" if node.get("role") == "object" else ""
        outline = ', color="#c0392b", penwidth=2' if is_marked else ""
        look = f"fillcolor={_fill(node, weight, facts)}{outline}{shape}"
        yield f"  {_quoted(id_)} [label={_quoted(lines)}, {look}];"
    for one, other, edge in graph.edges(data=True):
        width = 0.6 + 5 * min(edge["share"], 100) / 100
        label = amount(edge["weight"], unit) + (f"\\n{edge['count']} x" if "count" in edge else "")
        label += f"\\n{edge['what']}" if edge.get("what", "waited") != "waited" else ""
        colour = ', color="#c0392b"' if edge.get("critical") else ""
        colour += ", style=dashed" if edge.get("dropped") else ""
        yield f"  {_quoted(one)} -> {_quoted(other)} [label={_quoted(label)}, penwidth={width:.2f}{colour}];"
    yield "}"


def _node_lines(node: dict[str, Any], unit: str) -> Iterator[str]:
    label = node["label"]
    short = label if len(label) <= _LINE else f"{label[: _LINE // 2]}...{label[-_LINE // 2 :]}"
    yield short.replace("\\", "\\\\")  # backslashes begin escapes
    if "inclusive" in node:
        yield f"{amount(node['inclusive'], unit)} ({node['share']:.2f} %)"
        yield f"self {amount(node['own'], unit)}, {node['waits']} x"
        if "change" in node:
            sign = "+" if node["change"] >= 0 else ""
            yield f"change {sign}{amount(node['change'], unit)}"
    else:
        held = "held" in node
        yield f"holds {amount(node['held'], unit)}" if held else f"off-cpu {amount(node['off_cpu'], unit)}"
        if node["knot"]:
            yield f"knot {node['knot']}"


def _fill(node: dict[str, Any], weight: int, facts: dict[str, Any]) -> str:
    """Return hue, saturation, value: bluer is heavier; compared, red has grown and green has shrunk."""
    if "change" in node:
        part = min(abs(node["change"]) / max(facts["total"], 1), 1)
        return f'"{_GROWN if node["change"] > 0 else _SHRUNK} {0.02 + 0.7 * part:.3f} 1.0"'
    part = min(weight / max(facts["total"], 1), 1)
    return f'"{_COLD[0]} {_COLD[1] + (_HOT[1] - _COLD[1]) * part:.3f} 1.0"'


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


def plain_text(graph: Any) -> str:
    """Return tables for people."""
    facts, unit = graph.graph, graph.graph["unit"]
    lines = [f"# {facts['title']}", f"# total: {amount(facts['total'], unit)} ({facts['total']} {unit})"]
    if facts["left_out"]:
        lines.append(f"# {facts['left_out']} below {facts['min_share']:g} % left out")
    if facts["kind"] == "cascade":
        lines += text_of(graph, amount)
    elif facts["kind"] == "objects":
        lines += object_graph.text_of(graph, amount)
    else:
        lines += _wakers_text(graph) if facts["kind"] == "wakers" else _calls_text(graph)
    return "\n".join(lines) + "\n"


def _calls_text(graph: Any) -> Iterator[str]:
    """Write a table as gprof does: callers above each function, callees below it."""
    unit = graph.graph["unit"]
    yield f"#\n#  Share  {'Inclusive':>14}  {'Self':>14}  Function"
    for id_, node in graph.nodes(data=True):
        yield ""
        for caller, _, edge in graph.in_edges(id_, data=True):
            yield f"{'':9}{amount(edge['weight'], unit):>14}  {'':14}      from {caller}"
        own, change = amount(node["own"], unit), node.get("change")
        note = "" if change is None else f"  ({change:+d} {unit})"
        times = f"{amount(node['inclusive'], unit):>14}  {own:>14}"
        yield f"{node['share']:6.2f} % {times}  {id_} [{node['dso']}]{note}"
        for _, callee, edge in graph.out_edges(id_, data=True):
            yield f"{'':9}{amount(edge['weight'], unit):>14}  {'':14}      to {callee}"


def _wakers_text(graph: Any) -> Iterator[str]:
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
