# SPDX-License-Identifier: Apache-2.0
"""What a flame graph's tooltip says of a part of the tree besides its weight: task states, wakers, and the
weight in an older profile.

Each is a series: the weight of some samples at the nodes where they end, and nothing at the others. Nodes are
numbered in preorder, so what lies below a node is a range of them, and the page sums a range at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from perf_offcpu.analysis.group import group, sum_by
from perf_offcpu.analysis.intervals import timeline_of, with_wakers
from perf_offcpu.analysis.states import RUNNING, STATES, UNKNOWN_STATE, state_codes
from perf_offcpu.model.columns import I64, Bool
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag

_GIGA = 10**9
_WAKERS = 12
_OTHERS = "others"


def breakdown(profile: Profile, place: I64, chosen: Bool) -> list[dict[str, Any]]:
    """Series of the off-cpu samples among the chosen ones, by task state and by the comm of the waker.

    Args:
        place: int64[samples], the node at which each ends, in preorder.
    """
    rows = np.flatnonzero(chosen & profile.is_offcpu())
    states = state_codes(profile.samples)[rows]
    found = [
        {"kind": "state", "name": STATES[code].words} | series(profile, place, rows[states == code])
        for code in np.unique(states).tolist()
        if code not in {RUNNING, UNKNOWN_STATE}
    ]
    return found + _by_waker(profile, place, rows)


def series(profile: Profile, place: I64, rows: I64) -> dict[str, list[int]]:
    """The weight of some samples by node: ascending nodes, and weights as hi * 10^9 + lo."""
    first, of = group(place[rows])
    hi, lo = np.divmod(sum_by(of, profile.samples.period[rows], len(first)), _GIGA)
    return {"node": place[rows][first].tolist(), "hi": hi.tolist(), "lo": lo.tolist()}


def _by_waker(profile: Profile, place: I64, rows: I64) -> list[dict[str, Any]]:
    """The wakers that most time was waited for, the others together; unknown ones are in none."""
    tracks, waker = with_wakers(profile, timeline_of(profile))
    labels = [*(track.comm for track in tracks), "an interrupt"]
    interrupt = (profile.samples.flags & np.uint32(SampleFlag.WAKER_INTERRUPT)) != 0
    waker = np.where(interrupt, len(tracks), waker)[rows]
    names = sorted(set(labels))
    of_track = np.array([names.index(label) for label in labels], np.int64)
    name = np.where(waker >= 0, of_track[waker], -1)
    total = sum_by(name, profile.samples.period[rows], len(names))
    ranked = [row for row in np.argsort(-total, kind="stable").tolist() if total[row] > 0]
    sets = [(names[row], name == row) for row in ranked[:_WAKERS]]
    if len(ranked) > _WAKERS:
        sets.append((_OTHERS, np.isin(name, ranked[_WAKERS:])))
    return [{"kind": "waker", "name": label} | series(profile, place, rows[mine]) for label, mine in sets]
