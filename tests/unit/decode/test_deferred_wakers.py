# SPDX-License-Identifier: Apache-2.0
"""Stacks of wakers whose user part came later: they are those of the samples in which they were taken."""

from __future__ import annotations

import numpy as np

from perf_offcpu.abi.attr import Attr, SampleType
from perf_offcpu.abi.sample import CallchainContext as Context
from perf_offcpu.decode.deferred import merge_deferred
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.recording import DeferredChains, Evsel, Recording, SampleFlag, Samples

COOKIE = (3 << 32) + 1
IN_KERNEL = 0xFFFFFFFF81000010


def recording(cookie: int) -> Recording:
    """Thread 5 wakes thread 7, which has waited; its user part comes behind, under a cookie."""
    samples = Samples.filled(
        2, time_ns=[10, 20], pid=[5, 7], tid=[5, 7], evsel=[0, 1], callchain=[0, 1], waker_callchain=[-1, 0]
    )
    chains = [
        [Context.KERNEL, IN_KERNEL, Context.USER_DEFERRED, COOKIE],
        [Context.KERNEL, IN_KERNEL + 4],
        [0x401000, 0x402000],
    ]
    deferred = DeferredChains.filled(
        1, time_ns=[30], pid=[5], tid=[5], cookie=np.array([cookie], np.uint64), callchain=[2]
    )
    made = Recording(
        samples=samples,
        callchains=Ragged.from_lists([list(map(int, chain)) for chain in chains]),
        evsels=[
            Evsel("sched:sched_waking", Attr(sample_type=SampleType.CALLCHAIN)),
            Evsel("offcpu-time", Attr(sample_type=SampleType.CALLCHAIN)),
        ],
        deferred=deferred,
    )
    made.check()
    return made


def test_the_waker_gets_what_its_sample_gets() -> None:
    merged = merge_deferred(recording(COOKIE))
    merged.check()
    sample, waker = int(merged.samples.callchain[0]), int(merged.samples.waker_callchain[1])
    expected = [Context.KERNEL, IN_KERNEL, Context.USER, 0x401000, 0x402000]
    assert merged.callchains.row(sample).tolist() == merged.callchains.row(waker).tolist() == expected
    assert merged.samples.waker_callchain[0] == -1


def test_a_cookie_never_shows_as_a_frame() -> None:
    merged = merge_deferred(recording(COOKIE + 1))
    assert merged.samples.flags.tolist() == [SampleFlag.UNMERGED | SampleFlag.NO_USER_STACK, 0]
    waker = merged.callchains.row(int(merged.samples.waker_callchain[1])).tolist()
    assert waker == [Context.KERNEL, IN_KERNEL]
