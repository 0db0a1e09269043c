# SPDX-License-Identifier: Apache-2.0
"""Deferred callchains shown beside their samples, and the address space that merged ones belong to."""

from __future__ import annotations

import numpy as np

from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.decode.deferred import deferred_as_samples, merge_deferred
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.recording import DeferredChains, Recording, Samples, Spaces

KERNEL, USER, WAITING = (
    int(CallchainContext.KERNEL),
    int(CallchainContext.USER),
    int(CallchainContext.USER_DEFERRED),
)
COOKIE = 0x300000001


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


def chains(result: Recording) -> list[list[int]]:
    return [result.callchains.row(row).tolist() for row in result.samples.callchain.tolist()]


def test_each_record_becomes_a_sample_of_no_event_at_its_time() -> None:
    result = deferred_as_samples(recording())
    assert result.samples.time_ns.tolist() == [10, 20, 30]
    assert result.samples.evsel.tolist() == [0, -1, 0]
    assert result.samples.period.tolist() == [1, 0, 1]
    assert chains(result) == [
        [KERNEL, 0xFF, WAITING, COOKIE],
        [WAITING, COOKIE, USER, 0x10, 0x20],
        [USER, 0x30],
    ]
    assert result.samples.space.tolist() == [0, 1, 1]
    assert not len(result.deferred)


def test_the_form_without_cookie_has_none() -> None:
    assert chains(deferred_as_samples(recording(cookie=0)))[:2] == [
        [KERNEL, 0xFF, WAITING],
        [USER, 0x10, 0x20],
    ]


def test_without_records_nothing_changes() -> None:
    merged = merge_deferred(recording())
    assert deferred_as_samples(merged) is merged


def test_merged_user_addresses_are_of_the_time_when_they_were_walked() -> None:
    result = merge_deferred(recording())
    assert chains(result)[0] == [KERNEL, 0xFF, USER, 0x10, 0x20]
    assert result.samples.space.tolist() == [1, 1]


def test_a_sample_that_is_not_merged_stays_where_it_was() -> None:
    lonely = recording()
    lonely.deferred = lonely.deferred.with_columns(cookie=np.array([COOKIE + 2**33], np.uint64))
    result = merge_deferred(lonely)
    assert chains(result)[0] == [KERNEL, 0xFF]
    assert result.samples.space.tolist() == [0, 1]
