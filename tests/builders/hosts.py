# SPDX-License-Identifier: Apache-2.0
"""Small recordings of several hosts: what a recorder says of its host, its kernel and its processes."""

from typing import Any

from builders.recording import BASE, USER, S, comm, event, raw_wait, sample, side

from perf_offcpu.abi.attr import AttrFlag
from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.records import Misc, RecordType
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Recording
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.features import feature_body, text_body

MONO: dict[str, Any] = {"flags": AttrFlag.USE_CLOCKID | event("", (), BASE).attr.flags, "clockid": 1}
CLOCK = event("cpu-clock", (1, 2), BASE | S.CALLCHAIN, **MONO)
OFFCPU = event("offcpu-time", (3, 4), BASE | S.RAW, **MONO)
TEXT = 0xFFFFFFFF81000000
DAY_NS = 86_400 * 10**9


def host(name: str, wall_ns: int | None = None, release: str = "6.1") -> dict[int, bytes]:
    """Features of a host whose monotonic clock was at 0 when the wall clock was at `wall_ns`."""
    features: dict[int, bytes] = {Feature.HOSTNAME: text_body(name), Feature.OSRELEASE: text_body(release)}
    if wall_ns is not None:
        values = dict[str, Any](version=1, clockid=1, wall_clock=wall_ns + 500, clockid_time=500)
        features[Feature.CLOCK_DATA] = feature_body(Feature.CLOCK_DATA, **values)
    return features


def kernel_map(text: int = TEXT, build_id: bytes = b"", name: bytes = b"[kernel.kallsyms]_text") -> bytes:
    return _mapping(1, build_id, pid=2**32 - 1, tid=0, addr=text, len=1 << 24, pgoff=text, filename=name, flags=0)


def mapped(pid: int, start: int, name: bytes, build_id: bytes = b"") -> bytes:
    """A file that a process had mapped when the recorder began."""
    return _mapping(2, build_id, pid=pid, tid=pid, addr=start, len=0x1000, pgoff=0, filename=name, flags=2)


def _mapping(misc: int, build_id: bytes, **values: Any) -> bytes:
    if build_id:
        values |= {"build_id_size": 20, "reserved_1": 0, "reserved_2": 0, "build_id": build_id}
        misc |= Misc.MMAP_BUILD_ID
    else:
        values |= {"maj": 8, "min": 1, "ino": 5, "ino_generation": 0}
    return side(CLOCK, RecordType.MMAP2, misc, prot=5, **values)


def existing(pid: int, name: str) -> list[bytes]:
    """What a recorder says of a process that is there when it begins."""
    fork = side(CLOCK, RecordType.FORK, Misc.FORK_EXEC, pid=pid, tid=pid, ppid=pid, ptid=pid)
    return [fork, comm(CLOCK, pid, pid, name)]


def tick(time: int, pid: int = 7, spec: EventSpec = CLOCK, misc: int = 2, **values: Any) -> bytes:
    given = dict[str, Any](pid=pid, tid=pid, cpu=1, period=10, ip=0x1004, callchain=[USER, 0x1004])
    return sample(spec, misc, time=time, **(given | values))


def wait(time: int, pid: int = 7, tid: int = 7, ns: int = 100, **values: Any) -> bytes:
    """A wait, in cgroup 9."""
    raw = raw_wait(pid, tid, ns, [USER, 0x1000], cgroup=9)
    return sample(OFFCPU, time=time, **(dict[str, Any](cpu=1, raw=raw) | values))


def comms_of(recorded: Recording | Profile) -> list[str]:
    return [recorded.strings[row] for row in recorded.samples.comm.tolist()]
