# SPDX-License-Identifier: Apache-2.0
"""Make the graph of threads and the objects that they wait for, and write it as text.

    worker ── 1.2 s, 40 x ──> ledger_lock in bank ── held, 1.1 s ──> audit

An edge from a thread to an object has the time that the thread waited for it; an edge from an object to a
thread the part of that time in which this thread held the object when the wait began, or released it, or, if
the object has no holders (a pipe, a socket), ended the wait. Threads and locks of a deadlock are marked."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.holders import Holders, holders_of
from perf_offcpu.analysis.times.timeline import Track, comm_of, timeline_of
from perf_offcpu.analysis.times.wakeups import INTERRUPT
from perf_offcpu.callpaths.weights import amount, share
from perf_offcpu.causality.locks import deadlocks_of, ends_after
from perf_offcpu.model.columns import I64, Bool, group, sum_by
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.text import printable

_HELD, _RELEASED, _ENDED = range(3)
_WHAT = ("held", "released", "ended")
_INTERRUPT = -2


def graph_of(profile: Profile, title: str, per_thread: bool, min_share: float) -> Any:
    """Return the `networkx.DiGraph` of threads and objects; threads of one comm share a node unless `per_thread`. Edges
    of less than `min_share` percent of the time of all waits for objects are left out."""
    import networkx

    subject = profile.select((profile.samples.object >= 0) & profile.is_offcpu())
    samples, holders = subject.samples, holders_of(subject)
    texts = {row: printable(subject.strings[row]) for row in subject.objects.name.tolist()}
    name = subject.objects.name.astype(np.int64)[samples.object]
    total = int(samples.period.sum())
    least = max(total * min_share / 100, 1)
    graph = networkx.DiGraph(title=title, unit="ns", total=total, kind="objects", min_share=min_share)
    things = set(texts.values())
    labels = _Labels(subject, things, per_thread=per_thread)
    waited = _sums(labels.sleepers(), name, np.zeros(len(samples), np.int64), subject)
    other_tid, relation = _other_ends(subject, holders)
    held = _sums(labels.threads(other_tid), name, relation, subject, other_tid != -1)
    edges = [_Edge(labels.texts[thread], texts[thing], "waited", *sums) for (thread, thing, _), sums in waited.items()]
    off_cpu = Counter[str]()
    for edge in edges:
        off_cpu.update({edge.source: edge.weight, edge.target: edge.weight})
    edges += _merged(
        _Edge(texts[thing], labels.texts[thread], _WHAT[code], *sums) for (thread, thing, code), sums in held.items()
    )
    kept = sorted((edge for edge in edges if edge.weight >= least), key=lambda edge: (-edge.weight, edge))
    for label in dict.fromkeys(label for edge in kept for label in edge[:2]):
        role = "object" if label in things else "thread"
        graph.add_node(label, label=label, role=role, off_cpu=off_cpu[label], knot=0, critical=False)
    for edge in kept:
        facts = {"weight": edge.weight, "count": edge.waits, "what": edge.what}
        graph.add_edge(*edge[:2], **facts, share=share(edge.weight, total))
    graph.graph["left_out"] = len(edges) - len(kept)
    _mark_deadlocks(graph, subject, holders, labels)
    return graph


class _Edge(NamedTuple):
    """Edge between a thread and an object; `what` is "waited" or one of _WHAT, `weight` in ns."""

    source: str
    target: str
    what: str
    weight: int
    waits: int


def _merged(edges: Iterable[_Edge]) -> list[_Edge]:
    """Merge edges of the same source and target: sum weight and waits, keep `what` of the heaviest edge."""
    edge_of_ends: dict[tuple[str, str], _Edge] = {}
    for edge in sorted(edges, key=lambda edge: (-edge.weight, edge)):
        first = edge_of_ends.get(edge[:2], edge._replace(weight=0, waits=0))
        weight, waits = first.weight + edge.weight, first.waits + edge.waits
        edge_of_ends[edge[:2]] = first._replace(weight=weight, waits=waits)
    return list(edge_of_ends.values())


class _Labels:
    """Labels of threads, numbered in order of first use (`texts`); no label is in `taken`, the names of objects."""

    def __init__(self, profile: Profile, taken: set[str], *, per_thread: bool) -> None:
        self._profile, self._taken, self._per_thread = profile, taken, per_thread
        self.texts, self._rows = list[str](), dict[str, int]()
        timeline = timeline_of(profile)
        self._of_sample, self._tracks = timeline.track, timeline.tracks
        self._of_tid = {track.tid: track for track in timeline.tracks}

    def sleepers(self) -> I64:
        """Return int64[samples]: the label of each sample's thread, as an index in `texts`."""
        return np.array([self._row(self._text(track)) for track in self._tracks], np.int64)[self._of_sample]

    def threads(self, tids: I64) -> I64:
        """Return int64[n]: the label of each thread id, as an index in `texts` (new ones are added); -1 for tid -1."""
        first, group_of = group(tids)
        return np.array([self.of_tid(tid) for tid in tids[first].tolist()], np.int64)[group_of]

    def of_tid(self, tid: int) -> int:
        """Return the index in `texts` of the label (a new one is added) of a tid or of _INTERRUPT; -1 for tid -1."""
        if tid < 0:
            return self._row(INTERRUPT) if tid == _INTERRUPT else -1
        return self._row(self._text(self._of_tid.get(tid), tid))

    def _text(self, track: Track | None, tid: int = -1) -> str:
        comm = track.comm if track else comm_of(self._profile, tid)
        if not self._per_thread:
            return comm
        return f"{comm}-{track.pid}/{track.tid}" if track else f"{comm}-?/{tid}"

    def _row(self, text: str) -> int:
        text = f"{text} (thread)" if text in self._taken else text
        row = self._rows.setdefault(text, len(self.texts))
        if row == len(self.texts):
            self.texts.append(text)
        return row


def _other_ends(profile: Profile, holders: Holders) -> tuple[I64, I64]:
    """Return int64[samples] twice: the tid of the thread that held or released the object or ended the wait (-1: none;
    _INTERRUPT: an interrupt ended it), and which of these it did (index in _WHAT)."""
    samples, kind = profile.samples, profile.objects.kind[profile.samples.object]
    ended = ~samples.has(SampleFlag.STILL_BLOCKED) & ~holders.cut_off & (kind != ObjectKind.FUTEX)
    other_tid = np.where(ended & (samples.waker_tid > 0), samples.waker_tid, -1).astype(np.int64)
    other_tid[ended & samples.has(SampleFlag.WAKER_INTERRUPT)] = _INTERRUPT
    relation = np.full(len(samples), _ENDED, np.int64)
    for tids, code in ((holders.released, _RELEASED), (holders.held, _HELD)):
        other_tid, relation = np.where(tids >= 0, tids, other_tid), np.where(tids >= 0, code, relation)
    return other_tid, relation


def _sums(
    thread: I64, name: I64, what: I64, profile: Profile, chosen: Bool | bool = True
) -> dict[tuple[int, int, int], tuple[int, int]]:
    """Sum the chosen samples by three columns, int64[samples]: return (thread, name, what) → (weight, waits)."""
    samples = profile.samples
    rows = np.flatnonzero(np.broadcast_to(chosen, len(samples)))
    first, group_of = group(thread[rows], name[rows], what[rows])
    keys = zip(*(column[rows[first]].tolist() for column in (thread, name, what)), strict=True)
    sums = (sum_by(group_of, column[rows], len(first)).tolist() for column in (samples.period, samples.count))
    return dict(zip(keys, zip(*sums, strict=True), strict=True))


def _mark_deadlocks(graph: Any, profile: Profile, holders: Holders, labels: _Labels) -> None:
    """Mark nodes of deadlocks that never ended as critical, and list these deadlocks as graph attribute."""
    graph.graph["deadlocks"] = []
    for deadlock in deadlocks_of(profile, classify(profile), holders):
        if ends_after(deadlock) >= 0:
            continue
        circle = [label for thread in deadlock for label in (labels.texts[labels.of_tid(thread.tid)], thread.lock)]
        graph.graph["deadlocks"].append(" -> ".join(circle))
        for label in graph.nodes & circle:
            graph.nodes[label]["critical"] = True


def text_of(graph: Any) -> Iterator[str]:
    """Yield the lines of two tables of edges, thread → object that it waited for, object → thread that held it."""
    unit = graph.graph["unit"]
    for title, is_wait in (("Thread -> object", True), ("Object -> thread that had it", False)):
        yield f"#\n#  Share  {'Waited':>14}  {'Waits':>8}  {title}"
        for source, target, edge in sorted(graph.edges(data=True), key=lambda edge: -edge[2]["weight"]):
            if (edge["what"] == "waited") == is_wait:
                note = "" if is_wait else f" ({edge['what']})"
                weight = amount(edge["weight"], unit)
                yield f"{edge['share']:6.2f} % {weight:>14}  {edge['count']:8}  {source} -> {target}{note}"
        yield ""
    for circle in graph.graph["deadlocks"]:
        yield f"Deadlock: {circle} -> the first"
