# SPDX-License-Identifier: Apache-2.0
"""Make a Profile of a critical path: each stack is a chain of waits and of the threads that ended them.

    main ─ request ─ recv ─ [woken by] server ─ main ─ query ─ fsync
    main ─ request ─ recv ─ [woken by] server ─ [running] ─ main ─ parse
    [running] ─ main ─ render
    [runnable]

A stack holds, for each hop, the stack in which a thread waited and the comm of the thread that woke it, then the state
of the last thread: the stack of its own wait, or the stacks of its CPU samples below `[running]`. Its running time is
divided among the CPU samples in this time. Weights sum to the window, in ns."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from perf_offcpu.abi.records import CpuMode
from perf_offcpu.analysis.times.timeline import Timeline
from perf_offcpu.causality.critical_path import CriticalPath, Doing
from perf_offcpu.model.callchains import Ragged, build_stack_tree, depths, frames_of
from perf_offcpu.model.columns import I64, group, sum_by
from perf_offcpu.model.profile import Frames, Profile, ProfileSamples, Stacks
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.structs import mutable

WOKEN_BY = "[woken by]"
_STATES = {Doing.RUNNING: "[running]", Doing.RUNNABLE: "[runnable]", Doing.NOT_RECORDED: "[not recorded]"}


@mutable
class Chains:
    """c chains of hops, a tree: hops of a path with equal stacks and comms of wakers from the root on are one chain."""

    parent: I64  # int64[c]; -1 for the waits of the root
    stack: I64  # int64[c], row in the profile's stacks: where the thread waited; -1 unknown
    comm: I64  # int64[c], index into `comms`: the waker
    of_hop: I64  # int64[hops], the chain of each hop
    comms: list[str]  # printable


def chains_of(profile: Profile, path: CriticalPath) -> Chains:
    """Return the hops of a path, those with equal stacks and wakers merged; parents come before children."""
    hops = path.hops
    names, comm_of = path.comms()
    stack, comm = profile.samples.stack[hops.wait].astype(np.int64), comm_of[hops.waker]
    level = depths(hops.parent.astype(np.int32))
    of_hop, parts = np.full(len(level) + 1, -1), list[tuple[I64, I64, I64]]()
    total = 0
    for depth in range(1, int(level.max(initial=0)) + 1):
        rows = np.flatnonzero(level == depth)
        parent = of_hop[hops.parent[rows]]
        first, group_of = group(parent, stack[rows], comm[rows])
        of_hop[rows] = group_of + total
        parts.append((parent[first], stack[rows][first], comm[rows][first]))
        total += len(first)
    none = np.empty(0, np.int64)
    columns = [np.concatenate([none, *(part[index] for part in parts)]) for index in range(3)]
    return Chains(columns[0], columns[1], columns[2], of_hop[:-1], names)


def path_profile(profile: Profile, timeline: Timeline, path: CriticalPath) -> Profile:
    """Return a critical path as a profile: a sample, which is a sum, for each distinct stack."""
    chains = chains_of(profile, path)
    chain, doing, stack, weight, count = _cells(profile, timeline, path, chains)
    strings = profile.strings.copy()
    texts = [*_STATES.values(), *(f"{WOKEN_BY} {comm}" for comm in chains.comms)]
    added = Frames.filled(len(texts), symbol=strings.intern_all(texts), cpumode=CpuMode.USER)
    rows = _frame_rows(profile, chains, chain, doing, stack)
    parent, frame, leaf = build_stack_tree(Ragged.from_lists(list(rows)))
    root, offcpu = path.tracks[path.root], profile.samples.evsel[profile.is_offcpu()]
    event = max(0, int(offcpu[0])) if len(offcpu) else 0
    evsels = list(profile.evsels)
    evsels[event] = replace(evsels[event], name=f"critical path of {root.label}")
    shared = {"evsel": event, "pid": root.pid, "tid": root.tid, "comm": strings.intern(root.comm)}
    shared["flags"] = SampleFlag.OFFCPU | SampleFlag.AGGREGATED
    samples = ProfileSamples.filled(len(weight), period=weight, stack=leaf, count=count, **shared)
    frames = Frames.concat([profile.frames, added])
    stacks = Stacks(parent, frame)
    return replace(profile, samples=samples, stacks=stacks, frames=frames, strings=strings, evsels=evsels)


def running_samples(profile: Profile, timeline: Timeline, path: CriticalPath) -> tuple[I64, I64]:
    """Return int64[k] twice: rows of CPU samples in RUNNING segments of their threads; index of each one's segment."""
    moments = of_one_event(profile, np.flatnonzero(timeline.moments))
    if not len(path.begin_ns):
        return moments[:0], moments[:0]
    time_ns = timeline.begin_ns[moments] + timeline.origin_ns
    segment = np.searchsorted(path.begin_ns, time_ns, "right") - 1
    hit = (segment >= 0) & (time_ns < path.end_ns[-1])
    hit &= (path.track[segment] == timeline.track[moments]) & (path.doing[segment] == Doing.RUNNING)
    return moments[hit], segment[hit]


def of_one_event(profile: Profile, rows: I64) -> I64:
    """Return those of the CPU samples `rows` whose event has the lowest number, so that no moment counts twice."""
    events = profile.samples.evsel[rows]
    return rows[events == events.min()] if len(rows) else rows


def _cells(profile: Profile, timeline: Timeline, path: CriticalPath, chains: Chains) -> tuple[I64, I64, I64, I64, I64]:
    """Return five int64[m], a row for each distinct stack of a path: chain (-1: of the root thread), Doing, row in the
    profile's stacks (-1 none), ns, and number of segments, or of CPU samples where there are some."""
    chain = np.append(chains.of_hop, -1)[path.hop]
    stack = np.where(path.doing == Doing.WAITING, profile.samples.stack[path.wait], -1).astype(np.int64)
    doing, length = path.doing.astype(np.int64), path.length_ns
    first, group_of = group(chain, doing, stack)
    segments = np.bincount(group_of, minlength=len(first))
    cells = chain[first], doing[first], stack[first], sum_by(group_of, length, len(first)), segments
    rows, segment = running_samples(profile, timeline, path)
    if not len(rows):
        return cells
    cell, stacks = group_of[segment], profile.samples.stack[rows].astype(np.int64)
    first, group_of = group(cell, stacks)
    cell, stacks, number = cell[first], stacks[first], np.bincount(group_of)
    chain, doing, stack, weight, count = cells
    other_weight = weight.copy()
    other_weight[cell] = 0
    kept = np.flatnonzero(other_weight)
    weight = np.append(weight[kept], shared_out(weight, cell, number))
    chain, doing = np.append(chain[kept], chain[cell]), np.append(doing[kept], doing[cell])
    return chain, doing, np.append(stack[kept], stacks), weight, np.append(count[kept], number)


def shared_out(weight: I64, cell_of: I64, number: I64) -> I64:
    """Divide `weight[c]` among the parts of cell c in proportion to their `number` (int64[n]), and return int64[n]; the
    parts of a cell sum exactly to its weight. `cell_of`: int64[n], the cell of each part, ascending."""
    total = np.bincount(cell_of, number, len(weight)).astype(np.int64)
    # The share of all samples up to and with each part, rounded down, minus the share up to the one before.
    before = np.cumsum(number) - number
    before -= before[np.searchsorted(cell_of, cell_of)]
    ends = [_product(weight[cell_of], upto, total[cell_of]) for upto in (before + number, before)]
    return ends[0] - ends[1]


def _product(weight: I64, part: I64, total: I64) -> I64:
    """Return weight * part // total without overflow of 63 bits; part is at most total."""
    quotient, rest = np.divmod(weight, total)
    exact: I64 = quotient * part + rest * part // total
    return exact


def _frame_rows(profile: Profile, chains: Chains, chain: I64, doing: I64, stack: I64) -> Iterator[list[int]]:
    """Yield the frames of each stack by `_cells` (`chain`, `doing`, `stack`), leaf first: rows of `profile.frames`;
    numbers from its length on stand for _STATES, then for comms of wakers."""
    recorded_frames = len(profile.frames)
    state_frame = {state: recorded_frames + row for row, state in enumerate(_STATES)}
    first_comm = recorded_frames + len(_STATES)
    parent, frame = profile.stacks.parent, profile.stacks.frame
    prefixes = list[list[int]]()
    for above, stack_row, comm in zip(chains.parent.tolist(), chains.stack.tolist(), chains.comm.tolist(), strict=True):
        before = prefixes[above] if above >= 0 else []
        prefixes.append([*before, *frames_of(parent, frame, stack_row), first_comm + comm])
    for above, state, leaf in zip(chain.tolist(), doing.tolist(), stack.tolist(), strict=True):
        prefix = prefixes[above] if above >= 0 else []
        marks = [state_frame[Doing(state)]] if Doing(state) in state_frame else []
        yield [*prefix, *marks, *frames_of(parent, frame, leaf)][::-1]
