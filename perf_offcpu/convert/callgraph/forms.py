# SPDX-License-Identifier: Apache-2.0
"""Write graphs for graphviz, Gephi, yEd, networkx and the terminal.

The graph is of calls between functions (`calls`), of wake-ups between threads (`wakeups`), of threads that
wait for each other (`waits`), or of threads and the objects for which they wait (`objects`). Nodes and edges
of less than `min_share` of the total are left out, because they would hide the others; the graph has their
number.
"""

from __future__ import annotations

import functools
import io
import json
import re
from collections.abc import Callable
from typing import Any, TextIO

from perf_offcpu.callpaths.weights import title_of
from perf_offcpu.convert.callgraph import calls, objects, waits, wakeups
from perf_offcpu.convert.callgraph.dot import amount, dot_text, drawn
from perf_offcpu.convert.registry import Options
from perf_offcpu.model.profile import Profile

_DATE = re.compile(r' lastmodifieddate="[^"]*"')
"""networkx puts the day into GEXF files; the same profile must yield the same bytes."""


def write(profile: Profile, out: TextIO, options: Options) -> None:
    """Write the graph in the form that `options.form` names: dot, graphml, gexf, json or text."""
    import networkx

    more = title_of(profile, options.title), options.per_thread, options.min_share
    if options.cascade is not None:
        graph = waits.graph_of(options.cascade, *more)
    elif options.objects:
        graph = objects.graph_of(profile, *more)
    else:
        graph = (wakeups if options.wakers else calls).graph_of(profile, options)
    if options.svg:
        out.write(drawn(dot_text(graph)))
        return
    writers: dict[str, Callable[[Any], str]] = {
        "dot": dot_text,
        "text": _plain_text,
        "json": _json,
        "graphml": functools.partial(_xml, networkx.write_graphml_xml),
        "gexf": functools.partial(_xml, networkx.write_gexf),
    }
    out.write(writers[options.form or "dot"](graph))


def _xml(write_xml: Callable[..., None], graph: Any) -> str:
    """Return the graph as XML, whose attributes cannot be lists: they are joined."""
    plain, out = graph.copy(), io.BytesIO()
    plain.graph = {key: "; ".join(fact) if isinstance(fact, list) else fact for key, fact in graph.graph.items()}
    write_xml(plain, out, encoding="utf-8")
    return _DATE.sub("", out.getvalue().decode()) + "\n"


def _json(graph: Any) -> str:
    """Return JSON that `networkx.node_link_graph(…, edges="edges")` reads."""
    document = {
        "directed": True,
        "multigraph": False,
        "graph": graph.graph,
        "nodes": [{"id": id_, **facts} for id_, facts in graph.nodes(data=True)],
        "edges": [{"source": source, "target": target, **facts} for source, target, facts in graph.edges(data=True)],
    }
    return json.dumps(document, indent=1) + "\n"


def _plain_text(graph: Any) -> str:
    facts, unit = graph.graph, graph.graph["unit"]
    lines = [f"# {facts['title']}", f"# total: {amount(facts['total'], unit)} ({facts['total']} {unit})"]
    if facts["left_out"]:
        lines.append(f"# {facts['left_out']} below {facts['min_share']:g} % left out")
    makers = {"calls": calls, "wakers": wakeups, "cascade": waits, "objects": objects}
    lines += makers[facts["kind"]].text_of(graph)
    return "\n".join(lines) + "\n"
