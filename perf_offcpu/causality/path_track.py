# SPDX-License-Identifier: Apache-2.0
"""Make a track of a critical path, for views with a time axis: its segments with texts."""

from __future__ import annotations

import numpy as np

from perf_offcpu.analysis.group import group
from perf_offcpu.causality.critical_path import CriticalPath, Doing
from perf_offcpu.causality.path_rows import DOING, labels_of_waits
from perf_offcpu.causality.path_stacks import chains_of
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Profile
from perf_offcpu.structs import frozen


@frozen
class PathTrack:
    """k segments without gap or overlap, in the order of time."""

    title: str  # `critical path of COMM (pid PID, tid TID)`
    pid: int  # of the thread
    begin_ns: I64  # int64[k], the recording's clock
    end_ns: I64  # int64[k]
    name: I64  # int64[k], index into `names`
    chain: I64  # int64[k], index into `chains`
    names: list[str]  # `COMM: running`, `COMM: disk wait in FUNCTION`
    kinds: list[str]  # of each name: running, runnable, not recorded, or the class of the wait
    chains: list[str]  # the comms from the thread to the one of the segment: `client, server, disk`


def path_track(profile: Profile, path: CriticalPath) -> PathTrack:
    """Return the track of a critical path; texts are printable."""
    comms, comm = path.comms()
    labels, label = labels_of_waits(profile, path)
    first, name = group(comm[path.track], path.doing, label)
    names, kinds = [], []
    for row in first.tolist():
        wait_class, function = labels[label[row]]
        state = DOING.get(Doing(path.doing[row]))
        doing = state or f"{wait_class} wait"
        kinds.append(state or wait_class)
        names.append(f"{comms[comm[path.track[row]]]}: {doing}{f' in {function}' if function else ''}")
    chains = chains_of(profile, path)
    root = path.tracks[path.root]
    numbers = {root.comm: 0}
    through = list[str]()
    for above, one in zip(chains.parent.tolist(), chains.comm.tolist(), strict=True):
        through.append(f"{through[above] if above >= 0 else root.comm}, {chains.comms[one]}")
        numbers.setdefault(through[-1], len(numbers))
    of_chain = np.array([*(numbers[text] for text in through), 0], np.int64)
    chain = of_chain[np.append(chains.of_hop, len(chains.parent))[path.hop]]
    return PathTrack(
        f"critical path of {root.label}",
        root.pid,
        path.begin_ns,
        path.end_ns,
        name,
        chain,
        names,
        kinds,
        list(numbers),
    )
