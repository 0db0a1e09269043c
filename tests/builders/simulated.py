# SPDX-License-Identifier: Apache-2.0
"""Recordings of simulated loads: threads that wait and run by turns, with random lengths."""

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.model.profile import ProfileSamples
from perf_offcpu.model.recording import SampleFlag

LENGTH_NS = 10**10


def waits(tid: NDArray[np.int64], begin: NDArray[np.float64], end: NDArray[np.float64]) -> ProfileSamples:
    """Return the waits as far as they lie in the recording, which begins at 1 and lasts LENGTH_NS."""
    begin, end = np.clip(begin, 0, LENGTH_NS).astype(np.int64), np.clip(end, 0, LENGTH_NS).astype(np.int64)
    rows = np.flatnonzero(end > begin)
    rows = rows[np.argsort(end[rows], kind="stable")]
    return ProfileSamples.filled(
        len(rows), time_ns=end[rows] + 1, period=(end - begin)[rows], pid=np.full(len(rows), 100),
        tid=tid[rows], flags=np.full(len(rows), int(SampleFlag.OFFCPU)),
    )  # fmt: skip


def load(
    rng: np.random.Generator, *, threads: int, wait_ns: float, pause_ns: float, spread: float = 0.0
) -> ProfileSamples:
    """Return waits of threads that wait and pause by turns. `wait_ns` and `pause_ns` are means of exponential lengths;
    with `spread`, waits are lognormal with this sigma, `wait_ns` their median."""
    number = int(3 * LENGTH_NS / (wait_ns + pause_ns)) + 20
    shape = (threads, number)
    wait = rng.lognormal(np.log(wait_ns), spread, shape) if spread else rng.exponential(wait_ns, shape)
    pause = rng.exponential(pause_ns, shape)
    edges = np.cumsum(np.stack([pause, wait], axis=2).reshape(threads, -1), axis=1) - LENGTH_NS / 2
    return waits(np.repeat(np.arange(1, threads + 1), number), edges[:, ::2].ravel(), edges[:, 1::2].ravel())


def bursts(rng: np.random.Generator, *, threads: int, number: int, wait_ns: float) -> ProfileSamples:
    """Return waits that all threads begin and end together, about so many in the recording."""
    count = rng.poisson(2 * number)
    begin, length = rng.uniform(-0.5 * LENGTH_NS, 1.5 * LENGTH_NS, count), rng.exponential(wait_ns, count)
    tid = np.tile(np.arange(1, threads + 1), count)
    return waits(tid, np.repeat(begin, threads), np.repeat(begin + length, threads))
