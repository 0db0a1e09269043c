# SPDX-License-Identifier: Apache-2.0
"""Deferred callchains shown as they were sent: beside the samples that they belong to, not merged.

What `perf script --no-merge-callchains` shows, for those who look into the matching (`decode.deferred`).
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.abi.records import CpuMode
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.binary.gather import offsets_of
from perf_offcpu.model.callchains import Ragged, spread
from perf_offcpu.model.recording import DeferredChains, Recording, Samples

NO_EVENT = -1
"""Column `evsel` of what no event sampled."""


def deferred_as_samples(recording: Recording) -> Recording:
    """The recording with each deferred callchain as a sample of no event, of period 0, at its time.

    Its callchain begins as the sample's ends, with USER_DEFERRED and the cookie (which the v12 form does not
    have); then come USER and the addresses.
    """
    deferred = recording.deferred
    if not len(deferred):
        return recording
    extra = Samples.filled(
        len(deferred),
        **{name: getattr(deferred, name) for name in ("time_ns", "pid", "tid", "comm", "space")},
        callchain=np.arange(len(deferred)) + len(recording.callchains),
        cpumode=np.full(len(deferred), CpuMode.USER),
    )
    samples = Samples.concat([recording.samples, extra])
    return recording.replaced(
        samples=samples.take(np.argsort(samples.time_ns, kind="stable")),
        callchains=Ragged.concat([recording.callchains, _with_cookies(deferred, recording.callchains)]),
        deferred=DeferredChains(),
    )


def _with_cookies(deferred: DeferredChains, chains: Ragged) -> Ragged:
    taken = chains.take(deferred.callchain)
    head = np.where(deferred.cookie != 0, 3, 1)
    offsets = offsets_of(taken.lengths + head)
    starts = offsets[:-1]
    values = np.full(int(offsets[-1]), np.uint64(CallchainContext.USER))
    named = starts[deferred.cookie != 0]
    values[named] = np.uint64(CallchainContext.USER_DEFERRED)
    values[named + 1] = deferred.cookie[deferred.cookie != 0]
    values[spread(starts + head, taken.lengths, taken.offsets)] = taken.values
    return Ragged(offsets, values)
