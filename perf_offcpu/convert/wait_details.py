# SPDX-License-Identifier: Apache-2.0
"""Describe samples in words, for timelines: state, class, system call, object, cause of a wait for a connection,
holder, waker, cgroup. Details hold no number that differs from wait to wait, so that samples share them."""

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.offcpu import SYSCALL_NONE
from perf_offcpu.analysis.classes.classify import Waits, classify
from perf_offcpu.analysis.classes.network import LABELS, network_of
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.holders import holders_of
from perf_offcpu.analysis.selection.states import STATES, state_codes
from perf_offcpu.analysis.times.wakeups import Wakeups
from perf_offcpu.model.columns import I64, group
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.structs import mutable
from perf_offcpu.text import printable

_NOTES = {
    SampleFlag.STILL_BLOCKED: losses.STILL_BLOCKED.text,
    SampleFlag.BEGAN_BEFORE: losses.BEGAN_BEFORE.text,
    SampleFlag.AGGREGATED: "a sum of waits",
}


@mutable
class Details:
    """Distinct sets of details of n samples, and the set of each sample."""

    sets: list[dict[str, str]]  # name → printable text; unknown details are left out
    of: I64  # int64[n]: index in `sets` of each sample


def details_of(profile: Profile, wakeups: Wakeups, waits: Waits | None = None) -> Details:
    """Describe all samples of a profile in words. `waits`: `classify(profile)`, if it was called already."""
    samples, waits = profile.samples, waits or classify(profile)
    state = state_codes(samples)
    no_syscall = samples.syscall == SYSCALL_NONE
    noted = samples.flags & np.uint32(sum(_NOTES))
    offcpu, interrupt = profile.is_offcpu(), wakeups.interrupt.astype(np.uint8)
    facts = (waits.wait_class, waits.syscall, no_syscall.astype(np.uint8), samples.cgroup)
    objects, held = np.append(profile.objects.name, 0), holders_of(profile).held
    named, network = objects[samples.object], network_of(profile, waits).cause
    first, group_of = group(state, noted, *facts, wakeups.waker, interrupt, named, network, held)
    labels = {track.tid: track.label for track in wakeups.tracks}
    sets = []
    for row in first.tolist():
        details = {}
        if offcpu[row]:
            details["state"] = STATES[state[row]].words
            details["note"] = ", ".join(text for flag, text in _NOTES.items() if noted[row] & flag)
            wait_class = WaitClass(waits.wait_class[row])
            details["class"] = wait_class.label if wait_class != WaitClass.OTHER else ""
            details["syscall"] = "none" if no_syscall[row] else waits.syscall_names[waits.syscall[row]]
            details["object"] = profile.strings[named[row]]
            details["network"] = LABELS[network[row]]
            holder = int(held[row])
            details["held by"] = labels.get(holder, str(holder)) if holder >= 0 else ""
            waker = int(wakeups.waker[row])
            details["woken by"] = wakeups.tracks[waker].label if waker >= 0 else ""
            if wakeups.interrupt[row]:
                details["woken by"] = "an interrupt"
        details["cgroup"] = profile.cgroups.get(int(samples.cgroup[row]), "")
        sets.append({name: printable(text) for name, text in details.items() if text})
    return Details(sets, group_of)
