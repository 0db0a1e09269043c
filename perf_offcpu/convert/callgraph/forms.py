# SPDX-License-Identifier: Apache-2.0
"""Write graphs for graphviz, Gephi, yEd, networkx and the terminal. The graph is of calls between functions (`calls`),
of wake-ups between threads (`wakeups`), of threads that wait for each other (`waits`), or of threads and the objects
for which they wait (`objects`). Nodes and edges of less than `min_share` of the total are left out, because they would
hide heavier ones; the graph's attribute `left_out` is their number."""

import functools
import io
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from perf_offcpu.callpaths.weights import amount, title_of
from perf_offcpu.convert.callgraph import calls, objects, waits, wakeups
from perf_offcpu.convert.registry import Options
from perf_offcpu.environment import child_environment
from perf_offcpu.errors import CapabilityError
from perf_offcpu.model.profile import Profile
from perf_offcpu.text import printable

_DATE = re.compile(r' lastmodifieddate="[^"]*"')
"""networkx puts the day into GEXF files; the same profile must yield the same bytes."""
_DRAWING_S = 300
_LINE = 60  # characters of a name in a picture; a longer name is cut in the middle
_COLD, _HOT, _GROWN, _SHRUNK = (0.58, 0.02), (0.58, 0.55), 0.0, 0.36


def write(profile: Profile, out: TextIO, options: Options) -> None:
    """Write the graph that the options choose as a picture (`svg`) or in a `form`: dot, graphml, gexf, json or text."""
    import networkx

    more = title_of(profile, options.title), options.per_thread, options.min_share
    if options.cascade is not None:
        graph = waits.graph_of(options.cascade, *more)
    elif options.objects:
        graph = objects.graph_of(profile, *more)
    else:
        graph = (wakeups if options.wakers else calls).graph_of(profile, options)
    if options.svg:
        out.write(_drawn(_dot(graph)))
        return
    writers: dict[str, Callable[[Any], str]] = {
        "dot": _dot,
        "text": _plain_text,
        "json": _json,
        "graphml": functools.partial(_xml, networkx.write_graphml_xml),
        "gexf": functools.partial(_xml, networkx.write_gexf),
    }
    out.write(writers[options.form or "dot"](graph))


def _xml(write_xml: Callable[..., None], graph: Any) -> str:
    """Format a graph with a writer of networkx; lists, which XML attributes cannot be, are joined to texts."""
    plain, out = graph.copy(), io.BytesIO()
    plain.graph = {key: "; ".join(fact) if isinstance(fact, list) else fact for key, fact in graph.graph.items()}
    write_xml(plain, out, encoding="utf-8")
    return _DATE.sub("", out.getvalue().decode()) + "\n"


def _json(graph: Any) -> str:
    """Format a graph as JSON that `networkx.node_link_graph(…, edges="edges")` reads."""
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


def _dot(graph: Any) -> str:
    """Format a graph in the DOT language (https://graphviz.org/doc/info/lang.html)."""
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
    for source, target, edge in graph.edges(data=True):
        width = 0.6 + 5 * min(edge["share"], 100) / 100
        label = amount(edge["weight"], unit) + (f"\\n{edge['count']} x" if "count" in edge else "")
        label += f"\\n{edge['what']}" if edge.get("what", "waited") != "waited" else ""
        colour = ', color="#c0392b"' if edge.get("critical") else ""
        colour += ", style=dashed" if edge.get("dropped") else ""
        line = f"label={_quoted(label)}, penwidth={width:.2f}{colour}"
        yield f"  {_quoted(source)} -> {_quoted(target)} [{line}];"
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
    """Return a node's colour as DOT's quoted "hue saturation value": the bluer, the larger `weight` is of
    facts["total"]; in a comparison red if the node grew, green if it shrank."""
    if "change" in node:
        part = min(abs(node["change"]) / max(facts["total"], 1), 1)
        return f'"{_GROWN if node["change"] > 0 else _SHRUNK} {0.02 + 0.7 * part:.3f} 1.0"'
    part = min(weight / max(facts["total"], 1), 1)
    return f'"{_COLD[0]} {_COLD[1] + (_HOT[1] - _COLD[1]) * part:.3f} 1.0"'


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


def _drawn(dot: str) -> str:
    """Draw a graph in the DOT language as SVG by graphviz; raise CapabilityError if that is missing or fails."""
    program = shutil.which("dot")
    if program is None:
        raise CapabilityError("--svg needs graphviz's dot", "install it (Debian: graphviz), or write --callgraph dot")
    done = subprocess.run(
        [program, "-Tsvg"], input=dot, capture_output=True, text=True, timeout=_DRAWING_S, check=False,
        env=child_environment(),
    )  # fmt: skip
    if done.returncode:
        raise CapabilityError("graphviz could not draw the graph", printable(done.stderr.strip()[:200]))
    return done.stdout
