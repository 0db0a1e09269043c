# SPDX-License-Identifier: Apache-2.0
"""Measure what finds causes of waits:  python benchmarks/causality.py [--waits N] [--threads N]

A synthetic program whose threads wait for each other in chains: each thread waits for the next one of its
group, which sleeps or computes first; the last one of a group waits for a device. Prints the seconds of each
analysis and the peak memory of the process. The marks are the project's goals: for a million waits 2 s for
the critical path of one thread, 10 s for the cascade, and 1 GB.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / room) for room in ("", "tests")]

from perf_offcpu.abi.attr import Attr, SampleType  # noqa: E402
from perf_offcpu.analysis.times.timeline import timeline_of  # noqa: E402
from perf_offcpu.callpaths.chains import waker_chains  # noqa: E402
from perf_offcpu.callpaths.options import PathOptions  # noqa: E402
from perf_offcpu.causality.cascade import cascade_of  # noqa: E402
from perf_offcpu.causality.critical_path import CriticalPath, critical_path  # noqa: E402
from perf_offcpu.causality.path_stacks import path_profile  # noqa: E402
from perf_offcpu.model.callchains import Ragged, build_stack_tree  # noqa: E402
from perf_offcpu.model.columns import Strings  # noqa: E402
from perf_offcpu.model.profile import Frames, Profile, ProfileSamples, Stacks  # noqa: E402
from perf_offcpu.model.recording import Evsel, SampleFlag  # noqa: E402
from perf_offcpu.report.bottlenecks import bottlenecks_of  # noqa: E402
from perf_offcpu.report.serial import serial_of  # noqa: E402

DEPTH = 12
"""Threads of a group: a request passes through all of them."""
BEGIN_NS = 10**12
Found = TypeVar("Found")
PATH_S, CASCADE_S, MEMORY_MB = 2.0, 10.0, 1024


def program(waits: int, threads: int, seed: int = 1) -> Profile:
    """Return a profile in which groups of DEPTH threads serve one request after the other."""
    rng = np.random.default_rng(seed)
    groups, requests = threads // DEPTH, waits // threads
    # The time that each thread of a chain runs before it asks the next one, and after the answer.
    before, after = rng.integers(1_000, 40_000, (2, groups, requests, DEPTH))
    device = rng.integers(5_000, 200_000, (groups, requests))
    length = before.sum(axis=2) + after.sum(axis=2) + device
    start = BEGIN_NS + np.cumsum(length, axis=1) - length
    # Thread k waits from its question until the answer of thread k + 1, the last one for the device.
    asked = start[:, :, None] + np.cumsum(before, axis=2)
    answered = (start + length)[:, :, None] - np.cumsum(after, axis=2)
    thread = np.broadcast_to(np.arange(groups * DEPTH).reshape(groups, 1, DEPTH), asked.shape)
    last = np.broadcast_to(np.arange(DEPTH) == DEPTH - 1, asked.shape).ravel()
    thread, begin, end = thread.ravel(), asked.ravel(), answered.ravel()
    strings = Strings()
    comms = strings.intern_all(f"stage-{number}" for number in range(DEPTH))
    chains = [[number, DEPTH] for number in range(DEPTH)]
    parent, frame, leaf = build_stack_tree(Ragged.from_lists(chains))
    runq = rng.integers(0, 900, len(begin))
    order = np.argsort(end, kind="stable")
    samples = ProfileSamples.filled(
        len(begin),
        time_ns=end,
        period=end - begin,
        evsel=np.zeros(len(begin)),
        pid=1 + thread // DEPTH,
        tid=10_000 + thread,
        comm=comms[thread % DEPTH],
        stack=leaf[thread % DEPTH],
        flags=SampleFlag.OFFCPU + last * int(SampleFlag.WAKER_INTERRUPT),
        state=np.ones(len(begin)),
        switch_out_ns=begin,
        wakeup_ns=end - runq,
        runq_ns=runq,
        waker_tid=np.where(last, 0, 10_001 + thread),
        waker_pid=np.where(last, 0, 1 + thread // DEPTH),
    ).take(order)
    names = [*(f"wait_{number}" for number in range(DEPTH)), "main"]
    frames = Frames.filled(len(names), symbol=strings.intern_all(names))
    events = [Evsel("offcpu-time", Attr(sample_type=SampleType.CALLCHAIN), "ns")]
    return Profile(samples, Stacks(parent, frame), frames, strings, events)


def measured(name: str, work: Callable[[], Found], mark_s: float = 0) -> Found:
    """Run some work and print its seconds."""
    since = time.perf_counter()
    found = work()
    seconds = time.perf_counter() - since
    verdict = f"  (goal: {mark_s:g} s)" if mark_s else ""
    print(f"{name:24} {seconds:8.2f} s{verdict}", flush=True)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--waits", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=240)
    args = parser.parse_args()
    profile = program(args.waits, args.threads)
    print(f"{len(profile.samples)} waits of {args.threads} threads in chains of {DEPTH}")
    timeline = timeline_of(profile)
    end = int(profile.samples.time_ns.max())

    def path() -> CriticalPath:
        return critical_path(profile, timeline, 0, timeline.origin_ns, end)

    found = measured("critical path", path, PATH_S)
    print(f"{'its wake-ups':24} {len(found.hops.wait):8}")
    measured("its stacks", lambda: path_profile(profile, timeline, found))
    cascade = measured("cascade", lambda: cascade_of(profile, timeline), CASCADE_S)
    measured("bottlenecks", lambda: bottlenecks_of(profile, timeline, cascade))
    everyone = np.ones(len(timeline.tracks), np.bool_)
    measured("serialization", lambda: serial_of(profile, timeline, everyone, None, 10))
    measured("chains of wakers", lambda: waker_chains(profile, PathOptions()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{'peak memory':24} {peak:8} MB  (goal: {MEMORY_MB} MB)")


if __name__ == "__main__":
    main()
