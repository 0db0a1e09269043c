# SPDX-License-Identifier: Apache-2.0
"""Follow wake-ups back: who woke the sleeper, who had woken that thread before, and so on.

A hop is a wake-up: the comm of the waker, and where it was. The next hop is the wake-up that ended the last
wait of the waker, as long as that one ended within the sleeper's wait: earlier ones did not hold it up.
Source: chain graphs, https://www.brendangregg.com/FlameGraphs/offcpuflamegraphs.html.
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.analysis.group import group
from perf_offcpu.analysis.timeline import timeline_of
from perf_offcpu.callpaths.names import wakers_of
from perf_offcpu.callpaths.options import PathOptions, WakerChains
from perf_offcpu.causality.wait_table import WaitTable
from perf_offcpu.model.profile import Profile

MAX_HOPS = 32
"""Wake-ups of one chain that are shown: longer lines than that no picture shows."""


def wakers_once(profile: Profile, options: PathOptions, *, known: bool = True) -> WakerChains:
    """Return chains of one hop, or without hops unless wakers are to be `known`."""
    if not known:
        return WakerChains([], np.zeros(len(profile.samples), np.int64), [])
    names, name = wakers_of(profile, options)
    stack = np.where(name > 0, profile.samples.waker_stack.astype(np.int64), -1)
    return WakerChains(names, group(name, profile.samples.waker_stack)[1], [(name, stack)])


def waker_chains(profile: Profile, options: PathOptions) -> WakerChains:
    """Return the chains of all samples of a profile, as deep as they are known.

    Args:
        profile: the waits of all threads.
        options: `pid` and `tid` are for the names of wakers.
    """
    chains = wakers_once(profile, options)
    first, stack = chains.hops[0]
    table = WaitTable(profile, timeline_of(profile))
    row_of = np.full(len(profile.samples), -1, np.int64)
    row_of[table.row] = np.arange(len(table.row))
    before = np.full(len(table.row) + 1, -1, np.int64)
    followed = np.flatnonzero(table.waker >= 0)
    before[followed] = table.last_before(table.waker[followed], table.queued[followed])
    live = np.flatnonzero(row_of >= 0)
    since, at = table.begin[row_of[live]], row_of[live]
    while len(live) and len(chains.hops) < MAX_HOPS:
        at = before[at]
        within = (at >= 0) & (np.append(table.queued, -1)[at] > since)
        live, since, at = live[within], since[within], at[within]
        name, place = np.zeros_like(first), np.full_like(stack, -1)
        name[live] = first[table.row[at]]
        place[live] = stack[table.row[at]]
        if not name.any():
            break
        chains.hops.append((name, place))
        chains.of = group(chains.of, name, place)[1]
    return chains
