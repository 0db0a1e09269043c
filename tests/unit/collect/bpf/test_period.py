# SPDX-License-Identifier: Apache-2.0
"""The period of sampling at a limit of the rate: the C code of bpf/period.h, on simulated waits."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from builders.compiled import build

from perf_offcpu.collect.bpf.config import OffCpuConfig
from perf_offcpu.collect.bpf.defines import control_values
from perf_offcpu.collect.bpf.header import read_header
from perf_offcpu.model.columns import I64

BPF = Path(__file__).parents[4] / "bpf"
MS = 1_000_000
S = 1000 * MS
PERIOD = 10_000
MODES = read_header(BPF / "off_cpu.h").enums["mode"]


class Waits(NamedTuple):
    """Waits in the order of their ends, ns."""

    end: I64
    thread: I64
    length: I64


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    flags = ("-O2", "-shared", "-fPIC", "-isystem", f"{BPF}/include", "-I", str(BPF))
    return ctypes.CDLL(str(build("programs/period.c", tmp_path_factory.mktemp("period") / "period.so", *flags)))


def weights(
    library: ctypes.CDLL, waits: Waits, limit: int, period: int = PERIOD, seed: int = 1, paused: I64 | None = None
) -> I64:
    """Return the weight of each wait; 0: it is no sample. `paused`: length of pauses by its end, ns."""
    control = control_values(OffCpuConfig(off_cpu_period_ns=period, max_rate=limit), MODES, True)
    found, phases = np.zeros(len(waits.end), np.int64), np.zeros((int(waits.thread.max()) + 1, 2), np.int64)
    before = np.zeros(len(waits.end), np.int64) if paused is None else paused
    numbers = (period, control["max_rate"], control["window_ns"], seed, len(found))
    arrays = [np.ascontiguousarray(column, np.int64) for column in (*waits, before, phases, found)]
    library.draw_all(*map(ctypes.c_uint64, numbers), *(ctypes.c_void_p(column.ctypes.data) for column in arrays))
    return arrays[-1]


def naps(rng: np.random.Generator, threads: Sequence[int], begin_s: float, end_s: float) -> Waits:
    """Return waits of 0.2 ms on average, each thread half of the time, from begin to end."""
    number = int((end_s - begin_s) * S / (0.4 * MS) * 1.1) + 100
    length = rng.exponential(0.2 * MS, (len(threads), number))
    end = begin_s * S + np.cumsum(length + 0.2 * MS, 1)
    thread = np.broadcast_to(np.array(threads)[:, None], end.shape)
    kept = end < end_s * S
    return Waits(*(column[kept].astype(np.int64) for column in (end, thread, length)))


def together(*parts: Waits) -> Waits:
    columns = Waits(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    order = np.argsort(columns.end, kind="stable")
    return Waits(*(column[order] for column in columns))


def per_second(waits: Waits, found: I64) -> I64:
    return np.bincount(waits.end[found > 0] // S)


@pytest.mark.parametrize("limit", [10, 30, 60, 100, 500, 5000])
def test_a_steady_load_uses_the_limit_and_stays_below_it(library: ctypes.CDLL, limit: int) -> None:
    waits = together(naps(np.random.default_rng(limit), range(16), 1, 21))
    found = weights(library, waits, limit)
    rate = per_second(waits, found)[1:]
    assert rate[0] <= limit + 4 * max(50, limit // 10)
    assert 0.7 * limit <= rate[10:].mean() <= limit and rate[1:].max() <= 1.2 * limit + 2
    # Two changes of the period at most, each with an error below a period in each thread.
    assert abs(found.sum() - waits.length.sum()) < 3 * 16 * found[waits.end > 20 * S].max()


@pytest.mark.parametrize("limit", [60, 500, 5000])
def test_bursts_cost_windows_not_seconds_and_the_period_falls_after_them(library: ctypes.CDLL, limit: int) -> None:
    """Fifty times the load for 0.3 s of each 4 s."""
    rng = np.random.default_rng(limit)
    bursts = [naps(rng, range(1, 51), begin, begin + 0.3) for begin in range(3, 43, 4)]
    waits = together(naps(rng, [0], 1, 43), *bursts)
    found = weights(library, waits, limit)
    rate = per_second(waits, found)[2:]
    in_window = max(50, limit // 10)
    assert rate.mean() <= limit and rate.max() <= limit + 4 * in_window
    assert np.bincount(waits.end[found > 0] // (100 * MS)).max() <= 0.1 * limit + 4 * in_window
    # The last of four seconds, where the load has long been that of one thread.
    assert (rate[3::4] >= 0.6 * np.minimum(limit, np.bincount(waits.end // S)[5::4])).all()


def test_no_time_moves_between_bursts_and_quiet_parts(library: ctypes.CDLL) -> None:
    errors = []
    for seed in range(120):
        rng = np.random.default_rng(seed)
        bursts = [naps(rng, range(1, 21), begin, begin + 0.2) for begin in range(1, 6, 2)]
        waits = together(naps(rng, [0, 1], 1, 7), *bursts)
        found = weights(library, waits, 100, seed=seed)
        in_burst = (waits.end % (2 * S) >= S) & (waits.end % S < 200 * MS)
        errors.append([found[part].sum() / waits.length[part].sum() - 1 for part in (in_burst, ~in_burst)])
    mean, error = np.mean(errors, 0), np.std(errors, 0) / np.sqrt(len(errors))
    assert (error < 0.02).all() and (np.abs(mean) < 3 * error).all()


@pytest.mark.parametrize("limit", [10, 60, 500])
def test_pauses_change_nothing(library: ctypes.CDLL, limit: int) -> None:
    """A pause of 9 s every 1.5 s, which for the lower limits is within a window."""
    waits = together(naps(np.random.default_rng(limit), range(16), 1, 13))
    paused = waits.end // (1500 * MS) * 9 * S
    found = weights(library, waits._replace(end=waits.end + paused), limit, paused=paused)
    assert (found == weights(library, waits, limit)).all() and per_second(waits, found)[4:].mean() <= limit


def test_phases_of_long_periods_are_random(library: ctypes.CDLL) -> None:
    """Each of 4000 threads waits once, for a tenth of a period that 32 bits of ns do not hold."""
    number = np.arange(4000)
    waits = Waits(20 * S + number, number, np.full(4000, 2 * S))
    assert abs((weights(library, waits, 0, 20 * S) > 0).sum() - 400) < 5 * 19


def test_a_wait_of_a_period_is_always_a_sample(library: ctypes.CDLL) -> None:
    """Its weight is its length but for a part of the period, here one that naps have made longer."""
    number = np.arange(200)
    long = Waits(4 * S + 20 * MS * number, 16 + number, np.full(200, 3 * S))
    waits = together(naps(np.random.default_rng(1), range(16), 1, 4), long)
    found = weights(library, waits, 100)
    is_long = waits.thread >= 16
    period, error = found[~is_long].max(), np.abs(found - waits.length)[is_long]
    assert 10 * MS < period < S and PERIOD < error.max() < period
