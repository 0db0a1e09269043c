# SPDX-License-Identifier: Apache-2.0
"""Features of a recording that describe its machine: HOSTNAME to CMDLINE, PMU_MAPPINGS and clocks. perf shows them in
the header of reports, and accepts no file without NRCPUS and HOSTNAME. Features that perf 6.1 does not know (E_MACHINE
and later) are left out: its `perf inject` reads past the end of its table of features when a file has one (seen to
crash with bit 200)."""

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from perf_offcpu.abi.features import Feature
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.system import clock
from perf_offcpu.collect.system.cpus import online_cpus, present_cpus
from perf_offcpu.files import read_kernel
from perf_offcpu.perfdata.features import cmdline_body, encoded, feature_body, text_body
from perf_offcpu.resources import version


def machine_features(argv: Sequence[str], clock_pair: tuple[int, int]) -> dict[int, bytes]:
    """Return feature → body of the features that describe machine and recorder. `argv`: command line of the recorder.
    `clock_pair`: (CLOCK_REALTIME, recording's clock) of one moment near the start, ns."""
    system = os.uname()
    cpu_id = [_cpu_field(name) for name in ("vendor_id", "cpu family", "model", "stepping")]  # as perf on x86
    texts = {
        Feature.HOSTNAME: system.nodename,
        Feature.OSRELEASE: system.release,
        Feature.VERSION: f"perf-offcpu {version()}",
        Feature.ARCH: system.machine,
        Feature.CPUDESC: _cpu_field("model name") or _cpu_field("Model") or _cpu_field("cpu"),
        Feature.CPUID: ",".join(cpu_id) if all(cpu_id) else "",
    }
    bodies: dict[int, bytes] = {bit: text_body(text, NATIVE) for bit, text in texts.items() if text}
    wall_ns, clock_ns = clock_pair
    memory = re.search(r"^MemTotal:\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    resolution_ns = max(1, round(time.clock_getres(clock.CLOCKID) * 1e9))
    return bodies | {
        Feature.NRCPUS: feature_body(
            Feature.NRCPUS, NATIVE, available=max(present_cpus()) + 1, online=len(online_cpus())
        ),
        Feature.TOTAL_MEM: feature_body(Feature.TOTAL_MEM, NATIVE, kb=int(memory[1]) if memory else 0),
        Feature.CMDLINE: cmdline_body(argv, NATIVE),
        Feature.PMU_MAPPINGS: feature_body(Feature.PMU_MAPPINGS, NATIVE, mappings=_pmus()),
        Feature.CLOCKID: feature_body(Feature.CLOCKID, NATIVE, resolution=resolution_ns),
        Feature.CLOCK_DATA: feature_body(
            Feature.CLOCK_DATA, NATIVE, version=1, clockid=clock.CLOCKID, wall_clock=wall_ns, clockid_time=clock_ns
        ),
    }


def _cpu_field(name: str) -> str:
    """Return a field of the first CPU in /proc/cpuinfo; "" where this architecture has no such field."""
    match = re.search(rf"^{name}\s*: (.*)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return match[1].strip() if match else ""


def _pmus() -> list[dict[str, object]]:
    """Return the PMUs of this machine as values of the layout PMU_MAPPING (attr.type, name), ascending by type."""
    pmus = []
    # direct: a directory of /sys
    for directory in Path("/sys/bus/event_source/devices").glob("*"):
        if (directory / "type").exists():  # direct: a file of /sys
            pmus.append((int(_read(directory / "type")), directory.name))
    return [{"type": number, "name": encoded(name)} for number, name in sorted(pmus)]


def _read(path: str | Path) -> str:
    return os.fsdecode(read_kernel(str(path)))
