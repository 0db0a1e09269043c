# SPDX-License-Identifier: Apache-2.0
"""Waits sampled by length: weights, numbers of waits; deferred callchains, also in the stacks of wakers."""

from pathlib import Path

import numpy as np
from builders.accounts import counters, told
from builders.chains import chains_of, recording_of_chains
from builders.recording import BASE, S, comm, event, raw_wait, sample, write
from builders.wait_objects import COUNTERS

from perf_offcpu.abi.offcpu import BLANK_EXTENSION, EXTENSION, WaitFlag
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.decode.deferred import deferred_as_samples, merge_deferred
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.join import joined_sampling
from perf_offcpu.model.recording import DeferredChains, Recording, SampleFlag, Samples, Spaces

PERIOD = 1_000_000


def drawn(lengths: list[int], phase: int) -> list[tuple[int, int]]:
    """Return (length, number of periods) of the waits of a thread that become samples, as BPF draws them."""
    found, accumulated = [], phase
    for length in lengths:
        number, accumulated = divmod(accumulated + length, PERIOD)
        if number:
            found.append((length, number))
    return found


def recording_of(
    path: Path, samples: list[tuple[int, int]], runq_share: float = 0.0, account: bytes = b""
) -> Recording:
    """Write and read samples, which end 3 us after each other, and an account."""
    waits, time = event("offcpu-time", (3,), BASE | S.RAW), 10**12
    records = [comm(waits, 70, 71, "thread")]
    for at, (length, number) in enumerate(samples):
        extension = BLANK_EXTENSION | {
            "kind": 1, "flags": int(WaitFlag.SAMPLED), "count": number, "longest_ns": length,
            "switch_out_ns": time + 3000 * at - length, "runq_ns": int(length * runq_share),
        }  # fmt: skip
        raw = raw_wait(70, 71, number * PERIOD, [])[:-4] + EXTENSION.pack(extension)
        records.append(sample(waits, time=time + 3000 * at, raw=raw))
    records += [told(account)] if account else []
    return load_recording(write(path, [waits, COUNTERS], records))


def test_weight_and_length_are_kept_apart(tmp_path: Path) -> None:
    samples = recording_of(tmp_path / "x.data", [(250_000, 1), (2_600_000, 3)], 0.5).samples
    assert samples.has(SampleFlag.SAMPLED).all()
    assert samples.period.tolist() == [PERIOD, 3 * PERIOD]
    assert samples.length_ns().tolist() == [250_000, 2_600_000]
    assert samples.count.tolist() == [4, 1], "short waits stand for others, long ones for themselves"
    assert samples.runq_ns.tolist() == [500_000, 1_500_000], "half of the weight"
    assert samples.delay_ns().tolist() == [125_000, 1_300_000], "half of the length"
    assert not recording_of(tmp_path / "x.data", [(PERIOD, 1)]).meta.sampling, "no account says so"


def test_numbers_of_waits_are_right_in_sum(tmp_path: Path) -> None:
    lengths = np.exp(np.random.default_rng(7).uniform(np.log(2_000), np.log(8_000_000), 20_000)).astype(int).tolist()
    samples = recording_of(tmp_path / "x.data", drawn(lengths, 123_456)).samples
    assert abs(int(samples.period.sum()) - sum(lengths)) < PERIOD
    for low, high in ((2_000, 20_000), (20_000, 200_000), (200_000, 1_000_000), (1_000_000, 10**9)):
        inside = (samples.length_ns() >= low) & (samples.length_ns() < high)
        estimate, truth = int(samples.count[inside].sum()), sum(low <= one < high for one in lengths)
        # Each sample stands for at most PERIOD / low waits: the error of independent draws.
        error = np.sqrt(truth * max(1, PERIOD / low))
        assert abs(estimate - truth) < 4 * error, (low, estimate, truth)
        if low >= PERIOD:
            assert estimate == truth, "a wait of a period or more is always drawn"


def test_the_period_that_a_limit_of_the_rate_chose_is_known(tmp_path: Path) -> None:
    """Also in a file in which it did not change. A wait of 2.6 periods has the weight of three."""
    samples = [(250_000, 1), (2_600_000, 3)]

    def read(raised: int, highest_ns: int) -> Recording:
        account = counters(1, 2, sampling_period=(1, 10_000), threshold_raised=(raised, highest_ns))
        return recording_of(tmp_path / "x.data", samples, account=account)

    limited = [read(0, 90 * PERIOD), read(4, 90 * PERIOD)]
    assert [one.meta.sampling.longest_period_ns for one in limited] == [PERIOD, PERIOD]
    without = read(0, 0).meta.sampling
    assert (without.period_ns, without.longest_period_ns, without.period_text) == (10_000, 0, "0.01 ms")
    joined = joined_sampling([limited[0].meta.sampling, without])
    assert joined.period_text == "0.01 to 1 ms" and joined.estimated_ns == 8 * PERIOD


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
