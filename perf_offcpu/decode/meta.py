# SPDX-License-Identifier: Apache-2.0
"""Convert header features to the model's Meta and Evsels."""

from __future__ import annotations

from perf_offcpu.abi.attr import AttrFlag, PerfType, SoftwareConfig
from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.decode.account import CollectorAccount
from perf_offcpu.decode.samples import is_offcpu
from perf_offcpu.model.recording import Evsel, Meta, Samples
from perf_offcpu.perfdata.events import Events, EventSpec
from perf_offcpu.perfdata.features import Features

_TIME_CLOCKS = (SoftwareConfig.CPU_CLOCK, SoftwareConfig.TASK_CLOCK)


def read_meta(
    events: Events, features: Features, path: str, samples: Samples, account: CollectorAccount
) -> Meta:
    """Return what a recording says of its machine and run, once its last chunk has been read."""
    attrs = [spec.attr for spec in events.specs]
    with_clock = [attr for attr in attrs if attr.flags & AttrFlag.USE_CLOCKID]
    clock = features.values(Feature.CLOCK_DATA) or {}
    cpus = features.values(Feature.NRCPUS) or {}
    timed = samples.time_ns[samples.time_ns >= 0]
    return Meta(
        hostname=features.text(Feature.HOSTNAME),
        os_release=features.text(Feature.OSRELEASE),
        arch=features.text(Feature.ARCH),
        version=features.text(Feature.VERSION),
        cmdline=features.cmdline(),
        cpu_desc=features.text(Feature.CPUDESC),
        nr_cpus=cpus.get("available", 0),
        clockid=with_clock[0].clockid if with_clock else -1,
        wall_clock_ns=clock.get("wall_clock", 0),
        wall_clock_at_ns=clock.get("clockid_time", 0),
        begin_ns=account.begin_ns,
        end_ns=account.end_ns,
        threshold_ns=account.threshold_ns if account.end_ns else -1,
        first_ns=int(timed[0]) if len(timed) else -1,
        last_ns=int(timed[-1]) if len(timed) else -1,
        kernel_build_id=_kernel_build_id(features),
        source=path,
    )


def _kernel_build_id(features: Features) -> str:
    for entry in features.build_ids():
        if entry.cpumode == CpuMode.KERNEL and entry.filename.startswith(b"[kernel.kallsyms]"):
            return entry.build_id
    return ""


def evsel_of(spec: EventSpec) -> Evsel:
    """Convert an event to the model's."""
    clock = spec.attr.type == PerfType.SOFTWARE and spec.attr.config in _TIME_CLOCKS
    return Evsel(spec.name, spec.attr, "ns" if clock or is_offcpu(spec) else "")
