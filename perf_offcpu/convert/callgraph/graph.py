# SPDX-License-Identifier: Apache-2.0
"""Write graphs for graphviz, Gephi, yEd, networkx and the terminal.

The graph is of calls between functions, or (`wakers`) of wake-ups between threads. Functions have their own
and their inclusive time (`callpaths.calls`). Nodes and edges of less than `min_share` of the total are left
out, because nobody could draw them all; the graph says how many. With `wakers`, strongly connected threads,
which wait for each other in turn, are numbered as knots, and the critical chain is the heaviest path through
the graph with each knot taken as one node: the path that a delay at its begin takes.
"""

from __future__ import annotations

import functools
import io
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any, TextIO

import numpy as np

from perf_offcpu.analysis.wakeups import waker_graph_of
from perf_offcpu.callpaths.calls import Calls, calls_of
from perf_offcpu.callpaths.compare import with_older
from perf_offcpu.callpaths.weights import title_of, unit_of
from perf_offcpu.convert.callgraph.text_forms import dot_text, plain_text
from perf_offcpu.convert.options import Options
from perf_offcpu.errors import CapabilityError
from perf_offcpu.model.profile import Profile
from perf_offcpu.text import printable

_DATE = re.compile(r' lastmodifieddate="[^"]*"')
"""networkx puts the day into GEXF files; the same profile must yield the same bytes."""
_DRAWING_S = 300


def write(profile: Profile, out: TextIO, options: Options) -> None:
    """Write the graph in the form that `options.form` names: dot, graphml, gexf, json or text.

    Raises:
        UsageError: the events have different units.
        CapabilityError: a picture is asked for, and graphviz is not installed.
    """
    import networkx

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
    """Return the attributes of a function's node."""
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

    found = waker_graph_of(profile)
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
