# SPDX-License-Identifier: Apache-2.0
"""Follow wake-ups back: who woke the sleeper, who had woken that thread before, and so on. A hop is one wake-up: the
comm of the waker, and its stack. The next hop is the wake-up that ended the last wait of the waker, if that wait ended
within the sleeper's wait: a wait that ended earlier did not delay the sleeper. Source: chain graphs,
https://www.brendangregg.com/FlameGraphs/offcpuflamegraphs.html."""

import numpy as np

from perf_offcpu.analysis.times.timeline import timeline_of
from perf_offcpu.analysis.times.wakeups import INTERRUPT, with_wakers
from perf_offcpu.callpaths.options import Name, NameKind, PathOptions, WakerChains
from perf_offcpu.causality.wait_table import WaitTable
from perf_offcpu.model.columns import I64, group
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.text import WAKER_SUFFIX, thread_label

WAKER_DELIMITER = "--"  # between sleeper and waker, as in offwaketime of https://github.com/iovisor/bcc

MAX_HOPS = 32  # most wake-ups of a chain that are shown: no picture shows longer chains


def waker_name(label: str, dso: str = "") -> Name:
    """Return the name `LABEL_[w]`, of kind WAKER. `label`: a waker's comm or the function of a frame of its stack."""
    return Name(label + WAKER_SUFFIX, dso, NameKind.WAKER)


def _wakers_of(profile: Profile, options: PathOptions) -> tuple[list[Name], I64]:
    """Return the distinct names (comm and, with options, pid and tid) of threads that ended waits, after an empty name;
    and int64[samples]: the index of each sample's waker in them, 0 if it is not known or the sample is no wait."""
    tracks, waker = with_wakers(profile, timeline_of(profile))
    with_pid, with_tid = options.pid or options.tid, options.tid
    ids = ((track.pid if with_pid else None, track.tid if with_tid else None) for track in tracks)
    labels = ["", *(thread_label(track.comm, *pair) for track, pair in zip(tracks, ids, strict=True))]
    distinct = sorted(set(labels))
    of_track = np.array([distinct.index(label) for label in labels], np.int64)
    name = np.where(profile.samples.has(SampleFlag.WAKER_INTERRUPT), len(distinct), of_track[waker + 1])
    name = np.append(0, np.where(profile.is_offcpu(), name, 0))
    first, group_of = group(name)
    names = [*map(waker_name, distinct), Name(INTERRUPT, "", NameKind.MARK)]
    return [names[row] for row in name[first].tolist()], group_of[1:]


def direct_wakers(profile: Profile, options: PathOptions, *, shown: bool = True) -> WakerChains:
    """Return chains of one hop, the direct waker; without any hop if wakers are not `shown`."""
    if not shown:
        return WakerChains([], np.zeros(len(profile.samples), np.int64), [])
    names, name = _wakers_of(profile, options)
    stack = np.where(name > 0, profile.samples.waker_stack.astype(np.int64), -1)
    return WakerChains(names, group(name, profile.samples.waker_stack)[1], [(name, stack)])


def waker_chains(profile: Profile, options: PathOptions) -> WakerChains:
    """Return for each sample who woke the thread, who that one, …, up to MAX_HOPS. The profile has all threads."""
    chains = direct_wakers(profile, options)
    first, stack = chains.hops[0]
    table = WaitTable(profile, timeline_of(profile))
    row_of = np.full(len(profile.samples), -1, np.int64)
    row_of[table.row] = np.arange(len(table.row))
    before = np.full(len(table.row) + 1, -1, np.int64)
    followed = np.flatnonzero(table.waker >= 0)
    before[followed] = table.last_before(table.waker[followed], table.queued[followed])
    live = np.flatnonzero(row_of >= 0)
    since, wait = table.begin[row_of[live]], row_of[live]
    while len(live) and len(chains.hops) < MAX_HOPS:
        wait = before[wait]
        within = (wait >= 0) & (np.append(table.queued, -1)[wait] > since)
        live, since, wait = live[within], since[within], wait[within]
        name, place = np.zeros_like(first), np.full_like(stack, -1)
        name[live], place[live] = first[table.row[wait]], stack[table.row[wait]]
        if not name.any():
            break
        chains.hops.append((name, place))
        chains.chain = group(chains.chain, name, place)[1]
    return chains
