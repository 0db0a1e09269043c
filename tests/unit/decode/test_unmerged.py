# SPDX-License-Identifier: Apache-2.0
"""Deferred callchains: beside their samples, merged with them, and in the stacks of wakers."""

import numpy as np
from builders.chains import chains_of, recording_of_chains

from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.decode.deferred import deferred_as_samples, merge_deferred
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.recording import DeferredChains, Recording, SampleFlag, Samples, Spaces

KERNEL, USER, WAITING = (int(CallchainContext.KERNEL), int(CallchainContext.USER), int(CallchainContext.USER_DEFERRED))
COOKIE, IN_KERNEL = 0x300000001, 0xFFFFFFFF81000010


def recording(cookie: int = COOKIE) -> Recording:
    """A sample at 10 in space 0, and its user callchain at 20, when an exec has made it space 1."""
    ending = [WAITING, cookie] if cookie else [WAITING]
    return Recording(
        samples=Samples.filled(
            2, time_ns=[10, 30], tid=[5, 5], pid=[5, 5], evsel=[0, 0], callchain=[0, 2], space=[0, 1],
            period=[1, 1],
        ),
        callchains=Ragged.from_lists([[KERNEL, 0xFF, *ending], [0x10, 0x20], [USER, 0x30]]),
        spaces=Spaces.filled(2, pid=[5, 5], begin_ns=[0, 15]),
        deferred=DeferredChains.filled(
            1, time_ns=[20], tid=[5], pid=[5], cookie=[cookie], callchain=[1], space=[1], comm=[0]
        ),
    )  # fmt: skip


def test_each_record_becomes_a_sample_of_no_event_at_its_time() -> None:
    result = deferred_as_samples(recording())
    assert result.samples.time_ns.tolist() == [10, 20, 30]
    assert (result.samples.evsel.tolist(), result.samples.period.tolist()) == ([0, -1, 0], [1, 0, 1])
    assert chains_of(result) == [[KERNEL, 0xFF, WAITING, COOKIE], [WAITING, COOKIE, USER, 0x10, 0x20], [USER, 0x30]]
    assert result.samples.space.tolist() == [0, 1, 1]
    assert not len(result.deferred)
    assert chains_of(deferred_as_samples(recording(cookie=0)))[:2] == [[KERNEL, 0xFF, WAITING], [USER, 0x10, 0x20]]


def test_merged_user_addresses_are_of_the_time_when_they_were_walked() -> None:
    result = merge_deferred(recording())
    assert deferred_as_samples(result) is result  # without records nothing changes
    assert chains_of(result)[0] == [KERNEL, 0xFF, USER, 0x10, 0x20]
    assert result.samples.space.tolist() == [1, 1]


def test_a_sample_that_is_not_merged_stays_where_it_was() -> None:
    lonely = recording()
    lonely.deferred = lonely.deferred.with_columns(cookie=np.array([COOKIE + 2**33], np.uint64))
    result = merge_deferred(lonely)
    assert chains_of(result)[0] == [KERNEL, 0xFF]
    assert result.samples.space.tolist() == [0, 1]


def woken(cookie: int) -> Recording:
    """Thread 5 wakes thread 7, which has waited; its user part comes behind, under a cookie."""
    chains = [[KERNEL, IN_KERNEL, WAITING, COOKIE], [KERNEL, IN_KERNEL + 4], [0x401000, 0x402000]]
    samples = {"pid": [5, 7], "tid": [5, 7], "evsel": [0, 1], "waker_callchain": [-1, 0], "time_ns": [10, 20]}
    late = DeferredChains.filled(1, time_ns=[30], pid=[5], tid=[5], cookie=[cookie], callchain=[2])
    made = recording_of_chains(chains, columns={"callchain": [0, 1], **samples}, deferred=late)
    made.evsels *= 2
    made.check()
    return made


def test_the_waker_gets_what_its_sample_gets() -> None:
    merged = merge_deferred(woken(COOKIE))
    merged.check()
    sample, waker = int(merged.samples.callchain[0]), int(merged.samples.waker_callchain[1])
    expected = [KERNEL, IN_KERNEL, USER, 0x401000, 0x402000]
    assert merged.callchains.row(sample).tolist() == merged.callchains.row(waker).tolist() == expected
    assert merged.samples.waker_callchain[0] == -1


def test_a_cookie_never_shows_as_a_frame() -> None:
    merged = merge_deferred(woken(COOKIE + 1))
    assert merged.samples.flags.tolist() == [SampleFlag.UNMERGED | SampleFlag.NO_USER_STACK, 0]
    assert merged.callchains.row(int(merged.samples.waker_callchain[1])).tolist() == [KERNEL, IN_KERNEL]
