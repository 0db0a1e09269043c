# SPDX-License-Identifier: Apache-2.0
"""Names of wakers and of their frames, as they stand after the stacks of sleepers."""

from __future__ import annotations

import numpy as np

from perf_offcpu.analysis.group import group
from perf_offcpu.analysis.timeline import timeline_of
from perf_offcpu.analysis.wakeups import INTERRUPT, with_wakers
from perf_offcpu.callpaths.names import Name, NameKind
from perf_offcpu.callpaths.options import PathOptions
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.text import WAKER_SUFFIX, thread_label

WAKER_DELIMITER = "--"
"""Between sleeper and waker, as in offwaketime of https://github.com/iovisor/bcc."""


def waker_name(label: str, dso: str = "") -> Name:
    """Return the name of a waker's thread, or of one of its frames."""
    return Name(label + WAKER_SUFFIX, dso, NameKind.WAKER)


def wakers_of(profile: Profile, options: PathOptions) -> tuple[list[Name], I64]:
    """Name the thread that ended the wait of each sample by comm and, with options, pid and tid.

    Returns:
        (names, name): the distinct names, the first for no waker; int64[samples], index into names, 0 where
        the waker is not known or the sample is no wait.
    """
    tracks, waker = with_wakers(profile, timeline_of(profile))
    labels = [""]
    for track in tracks:
        pid = track.pid if options.pid or options.tid else None
        labels.append(thread_label(track.comm, pid, track.tid if options.tid else None))
    distinct = sorted(set(labels))
    of_track = np.array([distinct.index(label) for label in labels], np.int64)
    interrupt = profile.samples.has(SampleFlag.WAKER_INTERRUPT)
    name = np.where(interrupt, len(distinct), of_track[waker + 1])
    name = np.append(0, np.where(profile.is_offcpu(), name, 0))
    first, of = group(name)
    names = [*map(waker_name, distinct), Name(INTERRUPT, "", NameKind.MARK)]
    return [names[row] for row in name[first].tolist()], of[1:]
