# SPDX-License-Identifier: Apache-2.0
"""Make the graph of calls between functions, with own and inclusive time (`callpaths.calls`); write it as text."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from perf_offcpu.callpaths.calls import Calls, calls_of
from perf_offcpu.callpaths.tree import with_older
from perf_offcpu.callpaths.weights import amount, share, title_of, unit_of
from perf_offcpu.convert.registry import Options
from perf_offcpu.model.profile import Profile


def graph_of(profile: Profile, options: Options) -> Any:
    """Return a `networkx.DiGraph`: nodes are functions with own and inclusive weight, edges calls; heaviest first."""
    import networkx

    unit = unit_of(profile) or "events"
    both, is_old = with_older(profile, options.diff)
    calls = calls_of(both, options, ~is_old)
    old = calls_of(both, options, is_old) if options.diff is not None else None
    ids = _ids([(name.label, name.dso) for name in calls.names])
    heavy = calls.inclusive if old is None else np.maximum(calls.inclusive, old.inclusive)
    least = max(calls.total * options.min_share / 100, 1)
    kept = [row for row, weight in enumerate(heavy.tolist()) if weight >= least]
    graph = networkx.DiGraph(title=title_of(profile, options.title), unit=unit, total=calls.total, kind="calls")
    graph.graph |= {"left_out": len(calls.names) - len(kept), "min_share": options.min_share}
    for row in sorted(kept, key=lambda row: (-int(heavy[row]), ids[row])):
        graph.add_nodes_from([(ids[row], _function(calls, old, row))])
    pairs = zip(calls.caller.tolist(), calls.callee.tolist(), calls.weight.tolist(), strict=True)
    for caller, callee, weight in sorted(pairs, key=lambda pair: (-pair[2], ids[pair[0]], ids[pair[1]])):
        if weight >= least and ids[caller] in graph and ids[callee] in graph:
            graph.add_edge(ids[caller], ids[callee], weight=weight, share=share(weight, calls.total))
    return graph


def _function(calls: Calls, old: Calls | None, row: int) -> dict[str, Any]:
    """Return the attributes of the node of function `row`; with `old`, also the changes since then."""
    name = calls.names[row]
    own, inclusive = int(calls.own[row]), int(calls.inclusive[row])
    facts: dict[str, Any] = {"label": name.label, "dso": name.dso, "kind": name.kind.name.lower(), "own": own}
    facts |= {"inclusive": inclusive, "waits": int(calls.waits[row]), "share": share(inclusive, calls.total)}
    if old is not None:
        facts |= {"own_change": own - int(old.own[row]), "change": inclusive - int(old.inclusive[row])}
    return facts


def _ids(names: list[tuple[str, str]]) -> list[str]:
    """Return a distinct id for each (label, dso): the label, with dso and a number appended where needed."""
    seen, ids = dict[str, int](), list[str]()
    for label, dso in names:
        id_ = label if label not in seen else f"{label} ({dso})"
        while id_ in seen:
            seen[label] += 1
            id_ = f"{label} ({dso}, {seen[label]})"
        seen[id_] = 1
        ids.append(id_)
    return ids


def text_of(graph: Any) -> Iterator[str]:
    """Yield the lines of a table like gprof's: callers above each function, callees below it."""
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
