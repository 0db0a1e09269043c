# SPDX-License-Identifier: Apache-2.0
"""An interactive flame graph: one HTML file that needs nothing else, from a file URL as well.

The page is three assets (HTML, CSS, JavaScript) and one JSON document in a script element. Names in it are
hostile until proven otherwise: `<`, `>` and `&` are escapes in the JSON, the script hands names to
textContent and fillText only, and a content security policy allows no script and no style but the two whose
hashes it names, and no network at all.

Nodes are columns in preorder, siblings by name, as the script wants them. Weights stay exact: JavaScript's
numbers end at 2^53, so each is written as hi * 10^9 + lo.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib import resources
from string import Template
from typing import Any, TextIO

import numpy as np

from perf_offcpu.analysis.options import Options
from perf_offcpu.callpaths.compare import Together, together
from perf_offcpu.callpaths.depths import depths
from perf_offcpu.callpaths.names import Name
from perf_offcpu.callpaths.tree import PathTree, build_paths
from perf_offcpu.callpaths.weights import events_of, title_of, unit_of
from perf_offcpu.convert.flamegraph.series import breakdown, series
from perf_offcpu.losses import by_text
from perf_offcpu.model.columns import I64, Bool
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Meta
from perf_offcpu.text import for_script_element, printable

_GIGA = 10**9


def write(profile: Profile, out: TextIO, options: Options) -> None:
    """Write all samples of the profile as a page.

    Raises:
        UsageError: its events have different units.
    """
    document = describe(profile, options)
    style, script = _asset("flamegraph.css"), _asset("flamegraph.js")
    out.write(
        Template(_asset("flamegraph.html")).substitute(
            policy=_policy(style, script),
            title=html.escape(document["title"]),
            style=style,
            script=script,
            data=for_script_element(json.dumps(document, separators=(",", ":"))),
        )
    )


def describe(profile: Profile, options: Options) -> dict[str, Any]:
    """What the page's script reads: title, facts, unit, names and nodes as columns, a layer of weights for
    waiting ("off") and for running ("on"), each only if it has samples, and the series of the tooltip."""
    both = together(profile, options.diff)
    unit = unit_of(both.profile)
    tree = build_paths(both.profile, options)
    order = preorder(tree)
    dsos = {dso: row for row, dso in enumerate(sorted({name.dso for name in tree.names}))}
    document = {
        "title": printable(options.title) or title_of(profile),
        "facts": _facts(profile, options.diff),
        "unit": unit,
        "dsos": list(dsos),
        "names": {
            "label": [name.label for name in tree.names],
            "dso": [dsos[name.dso] for name in tree.names],
            "kind": [int(name.kind) for name in tree.names],
        },
        "nodes": {
            "depth": depths(tree.parent)[order].tolist(),
            "name": tree.name[order].tolist(),
        },
    }
    return document | _weights(both, tree, order, compared=options.diff is not None)


def _weights(both: Together, tree: PathTree, order: I64, *, compared: bool) -> dict[str, Any]:
    """Layers, what they consist of, and the weights of the older profile."""
    profile, off = both.profile, both.profile.is_offcpu()
    place_of_node = np.empty(len(order), np.int64)
    place_of_node[order] = np.arange(len(order))
    place = place_of_node[tree.of_sample]
    kinds = (("off", off & both.new), ("on", ~off & both.new))
    return {
        "layers": [_layer(kind, tree, profile, rows, order) for kind, rows in kinds if rows.any()],
        "parts": breakdown(profile, place, both.new),
        "before": series(profile, place, np.flatnonzero(both.old)) if compared else None,
    }


def preorder(tree: PathTree) -> I64:
    """int64[n]: the nodes in preorder, siblings by name; a permutation.

    A node's place is its parent's plus one plus the sizes of the siblings before it: one pass up for the
    sizes and one down for the places, by level.
    """
    rank, depth = _rank(tree.names)[tree.name], depths(tree.parent)
    by_depth = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[by_depth], np.arange(1, int(depth.max(initial=0)) + 2))
    levels = [by_depth[begin:end] for begin, end in zip(bounds, bounds[1:], strict=False)]
    size = np.ones(len(tree), np.int64)
    for level in levels[:0:-1]:
        np.add.at(size, tree.parent[level], size[level])
    place = np.empty(len(tree) + 1, np.int64)
    place[-1] = -1  # above the roots, whose parent is -1
    for level in levels:
        above = place[tree.parent[level]]
        sorted_ = np.lexsort((rank[level], above))
        node, above = level[sorted_], above[sorted_]
        before = np.cumsum(size[node]) - size[node]
        opens = np.flatnonzero(np.diff(above, prepend=-2))  # the first of each group of siblings
        family = np.repeat(before[opens], np.diff(opens, append=len(node)))
        place[node] = above + 1 + before - family
    return np.argsort(place[:-1], kind="stable")


def _rank(names: list[Name]) -> I64:
    """int64[names]: the place of each name among all."""
    rank = np.empty(len(names), np.int64)
    rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    return rank


def _layer(kind: str, tree: PathTree, profile: Profile, rows: Bool, order: I64) -> dict[str, Any]:
    """The weights of some samples, by node: exclusive, `hi * 10^9 + lo`, and how many waits or samples."""
    samples = profile.samples
    hi, lo = np.divmod(tree.total(np.where(rows, samples.period, 0))[order], _GIGA)
    count = tree.total(np.where(rows, samples.count, 0))[order]
    return {"kind": kind, "hi": hi.tolist(), "lo": lo.tolist(), "count": count.tolist()}


def _facts(profile: Profile, old: Profile | None) -> list[tuple[str, str]]:
    """What is known of the recording, as (term, text); what is not known is left out."""
    meta = profile.meta
    facts = [
        ("Events", ", ".join(event.name for event in events_of(profile))),
        ("Command", " ".join(meta.cmdline)),
        ("Host", meta.hostname),
        ("Kernel", f"{meta.os_release} {meta.arch}".strip()),
        ("CPUs", f"{meta.nr_cpus} × {meta.cpu_desc}" if meta.nr_cpus else meta.cpu_desc),
        ("Duration", _duration(meta)),
        ("File", meta.source),
        ("Compared with", "" if old is None else old.meta.source or "an older profile"),
    ]
    lost = [("Lost", f"{count} {cause}") for cause, count in by_text(profile.losses).items()]
    return [(term, printable(text)) for term, text in facts + (lost or [("Lost", "nothing")]) if text]


def _duration(meta: Meta) -> str:
    known = meta.last_ns > meta.first_ns >= 0
    return f"{(meta.last_ns - meta.first_ns) / _GIGA:.3f} s" if known else ""


def _policy(style: str, script: str) -> str:
    """The content security policy: these two texts, nothing else, and no network."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _asset(name: str) -> str:
    return resources.files("perf_offcpu.convert.flamegraph").joinpath("assets", name).read_text("utf-8")
