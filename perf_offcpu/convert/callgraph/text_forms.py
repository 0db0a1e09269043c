# SPDX-License-Identifier: Apache-2.0
"""Write graphs as text: DOT for graphviz, and tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
        weight = node.get("inclusive", node.get("off_cpu", 0))
        outline = ', color="#c0392b", penwidth=2' if node.get("critical") else ""
        yield f"  {_quoted(id_)} [label={_quoted(lines)}, fillcolor={_fill(node, weight, facts)}{outline}];"
    for one, other, edge in graph.edges(data=True):
        width = 0.6 + 5 * edge["share"] / 100
        label = amount(edge["weight"], unit) + (f"\\n{edge['count']} x" if "count" in edge else "")
        colour = ', color="#c0392b"' if edge.get("critical") else ""
        yield f"  {_quoted(one)} -> {_quoted(other)} [label={_quoted(label)}, penwidth={width:.2f}{colour}];"
    yield "}"


def _node_lines(node: dict[str, Any], unit: str) -> Iterator[str]:
    label = node["label"]
    yield _escaped(label if len(label) <= _LINE else f"{label[: _LINE // 2]}...{label[-_LINE // 2 :]}")
    if "inclusive" in node:
        yield f"{amount(node['inclusive'], unit)} ({node['share']:.2f} %)"
        yield f"self {amount(node['own'], unit)}, {node['waits']} x"
        if "change" in node:
            sign = "+" if node["change"] >= 0 else ""
            yield f"change {sign}{amount(node['change'], unit)}"
    else:
        yield f"off-cpu {amount(node['off_cpu'], unit)}"
        if node["knot"]:
            yield f"knot {node['knot']}"


def _fill(node: dict[str, Any], weight: int, facts: dict[str, Any]) -> str:
    """Return hue, saturation, value: bluer is heavier; compared, red has grown and green has shrunk."""
    if "change" in node:
        part = min(abs(node["change"]) / max(facts["total"], 1), 1)
        return f'"{_GROWN if node["change"] > 0 else _SHRUNK} {0.02 + 0.7 * part:.3f} 1.0"'
    part = min(weight / max(facts["total"], 1), 1)
    return f'"{_COLD[0]} {_COLD[1] + (_HOT[1] - _COLD[1]) * part:.3f} 1.0"'


def _escaped(text: str) -> str:
    """Escape text for a label, where backslashes begin escapes."""
    return text.replace("\\", "\\\\")


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


def plain_text(graph: Any) -> str:
    """Return tables for people."""
    facts, unit = graph.graph, graph.graph["unit"]
    lines = [f"# {facts['title']}", f"# total: {amount(facts['total'], unit)} ({facts['total']} {unit})"]
    if facts["left_out"]:
        lines.append(f"# {facts['left_out']} below {facts['min_share']:g} % left out")
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
