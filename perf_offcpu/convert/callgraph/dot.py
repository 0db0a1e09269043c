# SPDX-License-Identifier: Apache-2.0
"""Write a graph in the language of graphviz, and draw it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

from perf_offcpu.environment import child_environment
from perf_offcpu.errors import CapabilityError
from perf_offcpu.text import printable

_NS = ((10**9, "s"), (10**6, "ms"), (10**3, "us"))


def amount(value: int, unit: str) -> str:
    """Format a weight for people: three decimals of a fitting unit of time."""
    if unit == "ns":
        for size, name in _NS:
            if abs(value) >= size:
                return f"{value / size:.3f} {name}"
    return f"{value} {unit}"


def share(weight: int, total: int) -> float:
    """Return a weight in percent of the total, with three decimals."""
    return round(100 * weight / max(total, 1), 3)


_DRAWING_S = 300
_LINE = 60
"""Characters of a name in a picture; a longer name is cut in the middle."""
_COLD, _HOT, _GROWN, _SHRUNK = (0.58, 0.02), (0.58, 0.55), 0.0, 0.36


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
    """Return hue, saturation, value: bluer is heavier; compared, red has grown and green has shrunk."""
    if "change" in node:
        part = min(abs(node["change"]) / max(facts["total"], 1), 1)
        return f'"{_GROWN if node["change"] > 0 else _SHRUNK} {0.02 + 0.7 * part:.3f} 1.0"'
    part = min(weight / max(facts["total"], 1), 1)
    return f'"{_COLD[0]} {_COLD[1] + (_HOT[1] - _COLD[1]) * part:.3f} 1.0"'


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


def drawn(dot: str) -> str:
    """Return the picture that graphviz makes of DOT text."""
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
