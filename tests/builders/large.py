# SPDX-License-Identifier: Apache-2.0
"""Large profiles that look like real ones: few hot stacks, many rare ones, shared roots, many threads."""

import numpy as np

from perf_offcpu.abi.attr import Attr, SampleType
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.binary.columnar import offsets_of
from perf_offcpu.model.callchains import Ragged, build_stack_tree, unique_rows
from perf_offcpu.model.columns import I64, Strings
from perf_offcpu.model.profile import Frames, Profile, ProfileSamples, Stacks
from perf_offcpu.model.recording import Evsel, Meta, SampleFlag

_CALLEES = 6
_CALL_SITES = 3


def large_profile(waits: int, stacks: int, *, functions: int = 4000, threads: int = 64, seed: int = 1) -> Profile:
    """A profile of so many off-cpu samples over about so many different stacks, 8 to 40 frames deep."""
    rng = np.random.default_rng(seed)
    chains, _ = unique_rows(_chains(rng, stacks, functions))
    parent, frame, leaf = build_stack_tree(chains)
    chosen = np.minimum(rng.zipf(1.3, waits) - 1, len(chains) - 1)
    chosen[: len(chains)] = np.arange(len(chains))[:waits]  # every stack waits at least once
    thread = (chosen % 8 + 8 * rng.integers(0, threads // 8, waits)).astype(np.int64)
    wait_ns, strings = (rng.pareto(1.5, waits) * 50_000).astype(np.int64) + 1_000, Strings()
    comms = strings.intern_all(f"worker-{number}" for number in range(8))
    end_ns, runq_ns = _ends(rng, thread, wait_ns), wait_ns // rng.integers(20, 2_000, waits)
    waker = np.where(rng.random(waits) < 0.8, thread // 8 * 8 + rng.integers(0, 8, waits), -1)
    samples = ProfileSamples.filled(
        waits, time_ns=end_ns, period=wait_ns, evsel=np.zeros(waits), pid=1000 + thread // 16,
        tid=2000 + thread, cpu=rng.integers(0, 8, waits), comm=comms[thread % len(comms)], stack=leaf[chosen],
        flags=np.full(waits, SampleFlag.OFFCPU), state=rng.choice([1, 2], waits, p=[0.9, 0.1]),
        switch_out_ns=end_ns - wait_ns, wakeup_ns=end_ns - runq_ns, runq_ns=runq_ns,
        waker_tid=np.where(waker < 0, -1, 2000 + waker),
        waker_pid=np.where(waker < 0, -1, 1000 + waker // 16), longest_ns=wait_ns,
    ).take(np.argsort(end_ns, kind="stable"))  # fmt: skip
    profile = Profile(
        samples, Stacks(parent, frame), _frames(strings, functions), strings,
        [Evsel("offcpu-time", Attr(sample_type=SampleType.CALLCHAIN), "ns")],
        meta=Meta(hostname="example", cmdline=("perf-offcpu", "record", "-a"), source="perf.data"),
    )  # fmt: skip
    profile.check()
    return profile


def _ends(rng: np.random.Generator, thread: I64, wait_ns: I64) -> I64:
    """When each wait ends: a thread runs for a while, waits, runs again, and so on."""
    run_ns, end_ns = rng.integers(1_000, 60_000, len(thread)), np.empty(len(thread), np.int64)
    for number in np.unique(thread):
        mine = np.flatnonzero(thread == number)
        end_ns[mine] = 10**12 + np.cumsum(run_ns[mine] + wait_ns[mine])
    return end_ns


def _chains(rng: np.random.Generator, stacks: int, functions: int) -> Ragged:
    """Random walks from `main` in a random call graph; a frame is a call site within a function."""
    callees = rng.integers(1, functions, (functions, _CALLEES))
    callees[0, :] = 1 + np.arange(_CALLEES)
    lengths, walk = rng.integers(8, 40, stacks), np.zeros((stacks, 40), np.int64)
    for depth in range(1, 40):
        choice = np.minimum(rng.geometric(0.5, stacks) - 1, _CALLEES - 1)
        walk[:, depth] = callees[walk[:, depth - 1], choice]
    codes = walk * _CALL_SITES + np.roll(walk, -1, axis=1) % _CALL_SITES  # one site for each callee
    kept = [codes[row, : lengths[row]][::-1] for row in range(stacks)]
    return Ragged(offsets_of(lengths), np.concatenate(kept).astype(np.uint64))


def _frames(strings: Strings, functions: int) -> Frames:
    names = [f"namespace_{number % 37}::Type{number % 211}::function_{number}" for number in range(functions)]
    symbol = np.repeat(strings.intern_all(names), _CALL_SITES)
    rows = len(symbol)
    dsos = strings.intern_all(f"/usr/lib/libpart{number}.so.1" for number in range(12))
    return Frames.filled(
        rows, symbol=symbol, dso=dsos[np.arange(rows) // _CALL_SITES % len(dsos)], address=np.arange(rows) * 64 + 4096,
        cpumode=np.where(np.arange(rows) // _CALL_SITES % 5 == 0, CpuMode.KERNEL, CpuMode.USER),
    )  # fmt: skip
