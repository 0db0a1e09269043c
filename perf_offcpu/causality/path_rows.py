# SPDX-License-Identifier: Apache-2.0
"""Sum a critical path: in rows by thread, state, class and function; as a tree of hops."""

import numpy as np

from perf_offcpu.analysis.causes import causes_of
from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.times.lanes import Lane
from perf_offcpu.analysis.times.timeline import Timeline
from perf_offcpu.causality.critical_path import CriticalPath, Doing
from perf_offcpu.causality.path_stacks import Chains, chains_of, running_samples, shared_out
from perf_offcpu.model.columns import I64, distinct, group, sum_by
from perf_offcpu.model.join import is_idle_task
from perf_offcpu.model.profile import Profile
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable

DOING = {Doing.RUNNING: "running", Doing.RUNNABLE: "runnable", Doing.NOT_RECORDED: "not recorded"}


@frozen
class PathRow:
    """Segments of a critical path that have one comm, state, wait class and function, in sum."""

    comm: str
    doing: Doing
    wait_class: str  # label; "" for no wait
    function: str  # of the program, where it waited or ran; "" unknown
    ns: int
    segments: int


@frozen
class HopRow:
    """Node of the tree of hops: threads of one comm that were reached through the same comms."""

    depth: int  # 0 the root
    comm: str
    wakeups: int  # number of waits that led here
    total_ns: int  # with all hops below
    own_ns: dict[Doing, int]  # ns by state, without the hops below


def path_rows(profile: Profile, timeline: Timeline, path: CriticalPath) -> list[PathRow]:
    """Return the rows of a path, the longest first; their times sum to the window."""
    names, comm = path.comms()
    labels, label = labels_of_waits(profile, path)
    first, group_of = group(comm[path.track], path.doing, label)
    ns = sum_by(group_of, path.length_ns - path.queued_ns, len(first))
    segments = np.bincount(group_of, minlength=len(first))
    rows, segment = running_samples(profile, timeline, path)
    functions, function = functions_of(profile, rows)
    first_sample, part_of = group(group_of[segment], function)
    cell = group_of[segment][first_sample]
    parts = shared_out(ns, cell, np.bincount(part_of, minlength=len(first_sample)))
    sampled = set(cell.tolist())
    spent = [(index, int(ns[index]), labels[label[row]][1]) for index, row in enumerate(first) if index not in sampled]
    spent += zip(cell.tolist(), parts.tolist(), (functions[row] for row in function[first_sample]), strict=True)
    path_rows = []
    for index, time, function_name in spent:
        row = first[index]
        facts = names[comm[path.track[row]]], Doing(path.doing[row]), labels[label[row]][0], function_name
        path_rows.append(PathRow(*facts, time, int(segments[index])))
    made = _with_queued(path, path_rows)
    return sorted(made, key=lambda row: (-row.ns, row.comm, row.doing, row.wait_class, row.function))


def _with_queued(path: CriticalPath, rows: list[PathRow]) -> list[PathRow]:
    """Return the rows with `path.queued_ns` (time of RUNNING segments that was in fact preemption) added to the
    RUNNABLE row of each comm, which is made if there is none. The RUNNING `rows` do not have that time."""
    names, comm = path.comms()
    preempted = np.flatnonzero(path.queued_ns)
    of_comm = comm[path.track[preempted]]
    ns = sum_by(of_comm, path.queued_ns[preempted], len(names)).tolist()
    spans = np.bincount(of_comm, minlength=len(names)).tolist()
    runnable = {row.comm: (row.ns, row.segments) for row in rows if row.doing == Doing.RUNNABLE}
    merged = [row for row in rows if row.doing != Doing.RUNNABLE]
    for name, more_ns, more_spans in zip(names, ns, spans, strict=True):
        time, number = runnable.get(name, (0, 0))
        if time + more_ns:
            merged.append(PathRow(name, Doing.RUNNABLE, "", "", time + more_ns, number + more_spans))
    return merged


def hop_rows(path: CriticalPath, chains: Chains) -> list[HopRow]:
    """Return the tree of hops, the root first, depth first: after a node its children, the longest one first."""
    # Node 0 is the root; a chain's node is that of its parent and its comm.
    node_of: dict[tuple[int, int], int] = {}
    parents, comms = [-1], [-1]
    of_chain = list[int]()
    for above, comm in zip(chains.parent.tolist(), chains.comm.tolist(), strict=True):
        key = (of_chain[above] if above >= 0 else 0, comm)
        if key not in node_of:
            node_of[key] = len(parents)
            parents.append(key[0])
            comms.append(comm)
        of_chain.append(node_of[key])
    nodes = np.append(np.array(of_chain, np.int64), 0)
    size = len(parents)
    wakeups = np.bincount(nodes[chains.of_hop], minlength=size).tolist()
    node = nodes[np.append(chains.of_hop, -1)[path.hop]]
    own = sum_by(node * len(Doing) + path.doing, path.length_ns, size * len(Doing)).reshape(size, len(Doing))
    queued = sum_by(node, path.queued_ns, size)
    own[:, Doing.RUNNING] -= queued
    own[:, Doing.RUNNABLE] += queued
    total = own.sum(axis=1).tolist()
    for child in range(size - 1, 0, -1):
        total[parents[child]] += total[child]
    below: list[list[int]] = [[] for _ in range(size)]
    for child in range(1, size):
        below[parents[child]].append(child)
    rows, waiting = list[HopRow](), [(0, 0)]
    while waiting:
        row, depth = waiting.pop()
        comm = chains.comms[comms[row]] if row else path.tracks[path.root].comm
        spent = {doing: int(own[row, doing]) for doing in Doing}
        rows.append(HopRow(depth, comm, wakeups[row] if row else 0, total[row], spent))
        waiting += [(child, depth + 1) for child in sorted(below[row], key=total.__getitem__)]
    return rows


def rivals(profile: Profile, timeline: Timeline, path: CriticalPath) -> dict[str, int]:
    """Return comm → number of CPU samples on the CPU for which a thread of the path was waiting then; most first."""
    samples = profile.samples
    waiting = np.flatnonzero((path.doing == Doing.RUNNABLE) & (path.wait >= 0))
    cpu = samples.cpu[path.wait[waiting]].astype(np.int64)
    moments = np.flatnonzero(timeline.moments & (samples.cpu >= 0) & (samples.tid >= 0) & ~is_idle_task(samples.tid))
    time_ns = timeline.begin_ns[moments] + timeline.origin_ns
    segment = np.searchsorted(path.begin_ns[waiting], time_ns, "right") - 1
    hit = segment >= 0
    if len(waiting):
        hit &= (time_ns < path.end_ns[waiting][segment]) & (cpu[segment] == samples.cpu[moments])
    first, group_of = group(samples.comm[moments[hit]])
    number = np.bincount(group_of, minlength=len(first)).tolist()
    names = [printable(profile.strings[int(row)]) for row in samples.comm[moments[hit]][first]]
    return dict(sorted(zip(names, number, strict=True), key=lambda pair: (-pair[1], pair[0])))


def labels_of_waits(profile: Profile, path: CriticalPath) -> tuple[list[tuple[str, str]], I64]:
    """Return distinct (class, function) pairs of waits, and int64[segments]: index of a segment's pair; 0: no wait."""
    waiting = path.doing == Doing.WAITING
    rows = distinct(path.wait[waiting])
    subject = profile.select(rows)
    waits = classify(subject)
    causes = causes_of(subject, waits)
    first, group_of = group(waits.wait_class, causes.function)
    pairs = zip(waits.wait_class[first].tolist(), causes.function[first].tolist(), strict=True)
    labels = [("", ""), *((WaitClass(code).label, causes.names[name]) for code, name in pairs)]
    label = np.zeros(len(path.wait), np.int64)
    label[waiting] = group_of[np.searchsorted(rows, path.wait[waiting])] + 1
    return labels, label


def functions_of(profile: Profile, rows: I64) -> tuple[list[str], I64]:
    """Return the distinct functions of the CPU samples `rows`, and int64[n]: the index of each sample's function."""
    subject = profile.select(rows)
    causes = causes_of(subject, classify(subject))
    return causes.names, causes.function


def path_lane(profile: Profile, path: CriticalPath) -> Lane:
    """Return a critical path as a lane without gaps, `critical path of COMM (pid PID, tid TID)`. Spans are named `COMM:
    running` or `COMM: disk wait in FUNCTION`; details are the comms from the root on: `client, server, disk`."""
    comms, comm = path.comms()
    labels, label = labels_of_waits(profile, path)
    first, name = group(comm[path.track], path.doing, label)
    names, kinds = [], []
    for row in first.tolist():
        (wait_class, function), state = labels[label[row]], DOING.get(Doing(path.doing[row]))
        kinds.append(state or wait_class)
        where = f" in {function}" if function else ""
        names.append(f"{comms[comm[path.track[row]]]}: {state or f'{wait_class} wait'}{where}")
    chains = chains_of(profile, path)
    root = path.tracks[path.root]
    numbers = {root.comm: 0}
    through = list[str]()
    for above, comm_row in zip(chains.parent.tolist(), chains.comm.tolist(), strict=True):
        through.append(f"{through[above] if above >= 0 else root.comm}, {chains.comms[comm_row]}")
        numbers.setdefault(through[-1], len(numbers))
    of_chain = np.array([*(numbers[text] for text in through), 0], np.int64)
    chain = of_chain[np.append(chains.of_hop, len(chains.parent))[path.hop]]
    title = f"critical path of {root.label}"
    return Lane(title, root.pid, path.begin_ns, path.end_ns, name, chain, names, kinds, list(numbers))
