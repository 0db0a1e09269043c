# SPDX-License-Identifier: Apache-2.0
"""Write an interactive flame graph: one HTML file that needs nothing else, not even a web server.

The page is its assets (template, styles, scripts) and one JSON document in a script element (`write_page`). Names
may be hostile: `<`, `>` and `&` are escapes in the JSON, scripts hand names to textContent and fillText only, and a
content security policy allows the one script and the one style whose hashes it names, and no network.

Nodes are columns in preorder, siblings by name, so that a subtree is a range of nodes. A series is the weight
of some samples at the nodes where they end; the page sums a range at once. Weights stay exact: JavaScript's
numbers are exact up to 2^53, so each weight is written as hi * 10^9 + lo."""

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib import resources
from string import Template
from typing import Any, TextIO

import numpy as np

from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.selection.states import RUNNING, STATES, UNKNOWN_STATE, state_codes
from perf_offcpu.analysis.times.timeline import timeline_of
from perf_offcpu.analysis.times.wakeups import with_wakers
from perf_offcpu.callpaths.calls import subtree_sums
from perf_offcpu.callpaths.tree import PathTree, build_paths, with_older
from perf_offcpu.callpaths.weights import events_of, title_of, unit_of
from perf_offcpu.convert.encode.text_columns import running_sums
from perf_offcpu.convert.registry import Options
from perf_offcpu.losses import by_text
from perf_offcpu.model.callchains import depths
from perf_offcpu.model.columns import I64, Bool, distinct, group, sum_by
from perf_offcpu.model.profile import TASK_READING, Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.text import for_script_element, printable

_GIGA = 10**9
_WAKERS = 12
_OTHERS = "others"


def write(profile: Profile, out: TextIO, options: Options) -> None:
    """Write a flame graph of all samples as one HTML page."""
    styles, scripts = ("base.css", "flamegraph.css"), ("text.js", "flame.js", "flamegraph.js")
    write_page(out, "flamegraph.html", styles, scripts, describe(profile, options))


def describe(profile: Profile, options: Options) -> dict[str, Any]:
    """Return the JSON document of a flame graph: title, facts, unit, names and nodes as columns, a layer of weights for
    waiting ("off") and for running ("on") if there are such samples, and series (`breakdown`) for the tooltip."""
    both, is_old = with_older(profile, options.diff)
    tree = build_paths(both, options)
    order, off = preorder(tree), both.is_offcpu() | (profile.other_samples == TASK_READING)
    number_of_node = np.empty(len(order), np.int64)
    number_of_node[order] = np.arange(len(order))
    node = number_of_node[tree.of_sample]
    names = names_document(tree)
    kinds = (("off", off & ~is_old), ("on", ~off & ~is_old))
    return {
        "title": title_of(profile, options.title),
        "facts": _facts(profile, options.diff),
        "unit": unit_of(both),
        "dsos": names.pop("dsos"),
        "names": names,
        "nodes": {"depth": depths(tree.parent)[order].tolist(), "name": tree.name[order].tolist()},
        "layers": [_layer(kind, tree, both, rows, order) for kind, rows in kinds if rows.any()],
        "parts": breakdown(both, node, ~is_old),
        "before": series(both, node, np.flatnonzero(is_old)) if options.diff is not None else None,
    }


def names_document(tree: PathTree) -> dict[str, Any]:
    """Return the names of a tree as columns of JSON: label, dso (index in "dsos", the sorted paths), kind."""
    dsos = {dso: row for row, dso in enumerate(sorted({name.dso for name in tree.names}))}
    return {
        "label": [name.label for name in tree.names],
        "dso": [dsos[name.dso] for name in tree.names],
        "kind": [int(name.kind) for name in tree.names],
        "dsos": list(dsos),
    }


def preorder(tree: PathTree) -> I64:
    """Return int64[n], the nodes of a tree in preorder, siblings by name. A node's place in that order is its parent's
    place plus one plus the sizes of the siblings before it, computed level by level."""
    by_name = sorted(range(len(tree.names)), key=tree.names.__getitem__)
    rank, depth = np.argsort(by_name)[tree.name], depths(tree.parent)
    size = subtree_sums(tree, np.ones(len(tree), np.int64))
    by_depth = np.argsort(depth, kind="stable")
    levels = np.split(by_depth, np.flatnonzero(np.diff(depth[by_depth])) + 1)
    number = np.empty(len(tree) + 1, np.int64)
    number[-1] = -1  # above the roots, whose parent is -1
    for level in levels:
        above = number[tree.parent[level]]
        sorted_ = np.lexsort((rank[level], above))
        node, above = level[sorted_], above[sorted_]
        number[node] = above + 1 + running_sums(above + 1, size[node])
    return np.argsort(number[:-1], kind="stable")


def _layer(kind: str, tree: PathTree, profile: Profile, rows: Bool, order: I64) -> dict[str, Any]:
    """Return a layer of the document: of the samples where `rows` is True, own weight (hi * 10^9 + lo) and number of
    waits of each node, in `order`."""
    samples = profile.samples
    hi, lo = np.divmod(tree.total(np.where(rows, samples.period, 0))[order], _GIGA)
    count = tree.total(np.where(rows, samples.count, 0))[order]
    return {"kind": kind, "hi": hi.tolist(), "lo": lo.tolist(), "count": count.tolist()}


def breakdown(profile: Profile, node: I64, chosen: Bool) -> list[dict[str, Any]]:
    """Return a `series` for each task state, wait class and comm of a waker among the chosen off-cpu samples. `node`:
    int64[samples], the number in preorder of the node at which a sample's stack ends."""
    rows = np.flatnonzero(chosen & profile.is_offcpu())
    states, classes = state_codes(profile.samples)[rows], classify(profile).wait_class[rows]
    codes = [code for code in distinct(states).tolist() if code not in {RUNNING, UNKNOWN_STATE}]
    parts = [("state", STATES[code].words, rows[states == code]) for code in codes]
    parts += [("class", WaitClass(code).label, rows[classes == code]) for code in distinct(classes).tolist()]
    parts += [("waker", name, rows_of_waker) for name, rows_of_waker in _by_waker(profile, rows)]
    return [{"kind": kind, "name": name} | series(profile, node, chosen_rows) for kind, name, chosen_rows in parts]


def series(profile: Profile, node: I64, rows: I64) -> dict[str, list[int]]:
    """Sum the weights of samples `rows` by `node`, int64[samples]; return columns: nodes, weights (hi * 10^9 + lo)."""
    first, group_of = group(node[rows])
    hi, lo = np.divmod(sum_by(group_of, profile.samples.period[rows], len(first)), _GIGA)
    return {"node": node[rows][first].tolist(), "hi": hi.tolist(), "lo": lo.tolist()}


def _by_waker(profile: Profile, rows: I64) -> list[tuple[str, I64]]:
    """Divide `rows` by the comm of the waker: return (comm, its rows), the heaviest first; wakers beyond the first
    _WAKERS are one entry at the end, rows without a known waker are left out."""
    tracks, waker = with_wakers(profile, timeline_of(profile))
    names, of_track = np.unique([*(track.comm for track in tracks), "an interrupt"], return_inverse=True)
    waker = np.where(profile.samples.has(SampleFlag.WAKER_INTERRUPT), len(tracks), waker)[rows]
    name = np.where(waker >= 0, of_track[waker], -1)
    total = sum_by(name, profile.samples.period[rows], len(names))
    ranked = [row for row in np.argsort(-total, kind="stable").tolist() if total[row] > 0]
    others = [(_OTHERS, rows[np.isin(name, ranked[_WAKERS:])])] if len(ranked) > _WAKERS else []
    return [(str(names[row]), rows[name == row]) for row in ranked[:_WAKERS]] + others


def _facts(profile: Profile, old: Profile | None) -> list[tuple[str, str]]:
    """Return (term, text) for the facts about the recording, then for the notes and losses of `profile`."""
    compared = [("Compared with", printable(old.meta.source or "an older profile"))] if old is not None else []
    counts = [(cause.is_loss, printable(f"{count} {cause}")) for cause, count in by_text(profile.losses).items()]
    notes = [("Note", text) for is_loss, text in counts if not is_loss]
    lost = [("Lost", text) for is_loss, text in counts if is_loss]
    return [*recording_facts(profile), *compared, *notes, *(lost or [("Lost", "nothing")])]


def recording_facts(profile: Profile) -> list[tuple[str, str]]:
    """Return (term, text) for each known fact about machine and run."""
    meta, sampling = profile.meta, profile.meta.sampling
    facts = [
        ("Events", ", ".join(event.name for event in events_of(profile))),
        ("Command", " ".join(meta.cmdline)),
        ("Host", meta.hostname),
        ("Kernel", f"{meta.os_release} {meta.arch}".strip()),
        ("CPUs", f"{meta.nr_cpus} × {meta.cpu_desc}" if meta.nr_cpus else meta.cpu_desc),
        ("Duration", f"{meta.duration_ns / _GIGA:.3f} s" if meta.duration_ns else ""),
        ("Estimated", f"from a sample for each {sampling.period_text} of waiting of a thread" if sampling else ""),
        ("File", meta.source),
    ]
    return [(term, printable(text)) for term, text in facts if text]


def write_page(
    out: TextIO, template: str, styles: Sequence[str], scripts: Sequence[str], document: dict[str, Any], **more: str
) -> None:
    """Write an HTML page with the JSON `document`, whose "title" it has. `template`: name of the asset with
    placeholders `$$policy`, `$$title`, `$$style`, `$$script` and `$$data`; `styles`, `scripts`: assets to concatenate;
    `more`: further placeholder → text, which is not escaped."""
    style, script = ("".join(map(_asset, assets)) for assets in (styles, scripts))
    # The content security policy allows these two texts, nothing else, and no network.
    allowed = f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    page = Template(_asset(template)).substitute(
        policy=f"{allowed}; base-uri 'none'; form-action 'none'",
        title=html.escape(document["title"]),
        style=style,
        script=script,
        data=for_script_element(json.dumps(document, separators=(",", ":"))),
        **more,
    )
    out.write(page)


def _hash(text: str) -> str:
    """Return the hash of a text as a source expression of a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _asset(name: str) -> str:
    # direct: the package's own file
    return resources.files("perf_offcpu.convert.html").joinpath("assets", name).read_text("utf-8")
