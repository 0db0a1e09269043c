# SPDX-License-Identifier: Apache-2.0
"""Compare the lengths of sleeps with the times that the threads asked for."""

from __future__ import annotations

import numpy as np

from perf_offcpu.analysis.classes.classify import Waits
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SUM_FLAGS, SampleFlag
from perf_offcpu.structs import frozen


@frozen
class Oversleep:
    """The sleeps that lasted as long as asked, or longer; ns."""

    sleeps: int
    median: int  # time over the time asked for
    longest: int
    interrupted: int  # sleeps that ended earlier: by a signal, or because the recording ended


def oversleep_of(profile: Profile, waits: Waits) -> Oversleep | None:
    """Return by how much single sleeps exceeded the time asked for; None if no such time is known.

    Args:
        waits: `classify(profile)`.
    """
    samples = profile.samples
    asked = (samples.asked_ns >= 0) & (waits.wait_class == WaitClass.SLEEP)
    asked &= ~samples.has(SUM_FLAGS | SampleFlag.BEGAN_BEFORE)
    over = (samples.length_ns() - samples.asked_ns)[asked]
    whole = ~samples.has(SampleFlag.STILL_BLOCKED)[asked] & (over >= 0)
    if not len(over):
        return None
    slept = np.sort(over[whole])
    median = int(slept[(len(slept) - 1) // 2]) if len(slept) else 0
    return Oversleep(len(slept), median, int(slept.max(initial=0)), int((~whole).sum()))
