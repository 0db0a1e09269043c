# SPDX-License-Identifier: Apache-2.0
"""Waits that were sampled by length: weights, lengths, and the numbers of waits that samples stand for."""

from pathlib import Path

import numpy as np
from builders.accounts import counters, told
from builders.recording import BASE, S, comm, event, raw_wait, sample, write
from builders.wait_objects import COUNTERS

from perf_offcpu.abi.offcpu import BLANK_EXTENSION, EXTENSION, WaitFlag
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.join import joined_sampling
from perf_offcpu.model.recording import Recording, SampleFlag

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
