# SPDX-License-Identifier: Apache-2.0
"""Read a recording of the spool as a Profile.

A killed recorder leaves a file without its end, where machine and clocks are described. If the file was made
in this boot, the present values are used instead; only the wall clock may have been set since.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from perf_offcpu.build_ids import kernel_build_id
from perf_offcpu.cache import DiskCache
from perf_offcpu.collect.system.clock import wall_clock_pair
from perf_offcpu.decode.continued import at_pauses
from perf_offcpu.decode.deferred import deferred_as_samples
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.coverage import Sampling
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Recording, SampleFlag, Spans
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize
from perf_offcpu.unwind.unwinder import unwind

ClockPair = tuple[int, int]
"""A time in UTC and in CLOCK_MONOTONIC, as of `wall_clock_pair`."""


def read_segment(
    path: str,
    *,
    of_this_boot: bool,
    after_ns: int,
    period_ns: int = 0,
    clock: Callable[[ClockPair], ClockPair] = lambda pair: pair,
) -> Profile:
    """Return the profile of a recording; a file without its end, of an earlier boot, has no clocks.

    Args:
        after_ns: end of the file before it, of the same recorder; 0 none.
        period_ns: sampling period of a recording whose end is missing, if no sample tells it.
        clock: is called with the present clocks if the recording has none; returns the clocks to use.

    Raises:
        FormatError: it is no recording.
        OSError: it cannot be read.
    """
    symbols = SymbolizeOptions(cache=DiskCache.usual())
    recording = load_recording(path, snapshots=True)
    if of_this_boot and not recording.meta.wall_clock_ns:
        recording = completed(recording, after_ns, clock(wall_clock_pair()), period_ns)
    return symbolize(deferred_as_samples(unwind(recording, symbols.search())), symbols)


def completed(recording: Recording, after_ns: int, clock: ClockPair, period_ns: int) -> Recording:
    """Return a recording of this boot with the facts that the end of a file holds.

    Args:
        after_ns: end of the file before it. Waits before this time may be in the recording: drained late.
        period_ns: sampling period, if no sample tells it.
    """
    machine, meta = os.uname(), recording.meta
    wall_ns, at_ns = clock
    samples = recording.samples
    weights = samples.period[samples.has(SampleFlag.SAMPLED)]
    begin_ns = meta.begin_ns or after_ns or max(meta.first_ns, 0)
    end_ns = max(meta.end_ns, meta.last_ns, after_ns, 0)
    joined_meta = replace(
        meta,
        hostname=meta.hostname or machine.nodename,
        os_release=meta.os_release or machine.release,
        arch=meta.arch or machine.machine,
        nr_cpus=meta.nr_cpus or os.cpu_count() or 0,
        kernel_build_id=meta.kernel_build_id or kernel_build_id().hex(),
        wall_clock_ns=wall_ns,
        wall_clock_at_ns=at_ns,
        begin_ns=begin_ns,
        end_ns=end_ns,
        parts=_parts(recording, end_ns),
        # The weight of a sample is a multiple of the period, mostly the period itself.
        sampling=meta.sampling or Sampling(period_ns=int(weights.min()) if len(weights) else period_ns),
    )
    return replace(recording, samples=at_pauses(samples, joined_meta.parts), meta=joined_meta)


def _parts(recording: Recording, end_ns: int) -> Spans:
    """Return (begin, end) of each time between pauses; the last one has no account in the file.

    So the last one is taken to begin with its first sample.
    """
    meta, times = recording.meta, recording.samples.time_ns
    if not meta.end_ns or end_ns <= meta.end_ns:
        return meta.parts
    after = times[times > meta.end_ns]
    spans = meta.parts or ((meta.begin_ns, meta.end_ns),)
    return (*spans, (int(after[0]) if len(after) else end_ns, end_ns))
