# SPDX-License-Identifier: Apache-2.0
"""What wakers are called behind the stacks of those whom they woke."""

from __future__ import annotations

import numpy as np

from perf_offcpu.analysis.group import group
from perf_offcpu.analysis.intervals import timeline_of, with_wakers
from perf_offcpu.analysis.options import Options
from perf_offcpu.analysis.waker_graph import INTERRUPT
from perf_offcpu.callpaths.names import Name, NameKind, waker_name
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.structs import mutable
from perf_offcpu.text import thread_label

WAKER_DELIMITER = "--"
"""Between sleeper and waker, as in offwaketime of https://github.com/iovisor/bcc."""


@mutable
class Wakers:
    """The wakers of n samples.

    Args:
        names: the different ones; the first is nobody.
        name: int64[n], index into names; 0 where it is not known, or the sample is no wait.
    """

    names: list[Name]
    name: I64


def wakers_of(profile: Profile, options: Options) -> Wakers:
    """Who woke the thread at the end of each sample, named by comm and, with options, pid and tid."""
    samples = profile.samples
    tracks, waker = with_wakers(profile, timeline_of(profile))
    labels = [""]
    for track in tracks:
        pid = track.pid if options.pid or options.tid else None
        labels.append(thread_label(track.comm, pid, track.tid if options.tid else None))
    different = sorted(set(labels))
    of_track = np.array([different.index(label) for label in labels], np.int64)
    interrupt = (samples.flags & np.uint32(SampleFlag.WAKER_INTERRUPT)) != 0
    name = np.where(interrupt, len(different), of_track[waker + 1])
    name = np.where(profile.is_offcpu(), name, 0)
    first, of = group(np.append(0, name))
    used = np.append(0, name)[first]
    names = [*(waker_name(label, "") for label in different), Name(INTERRUPT, "", NameKind.MARK)]
    return Wakers([names[row] for row in used.tolist()], of[1:])
