# SPDX-License-Identifier: Apache-2.0
"""What merging has to know of a recording before it writes the first record: found in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perf_offcpu.abi.attr import AttrFlag
from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.records import CpuMode, Misc, RecordType
from perf_offcpu.binary.layout import Order
from perf_offcpu.errors import FormatError
from perf_offcpu.perfdata.events import Events
from perf_offcpu.perfdata.features import Features
from perf_offcpu.perfdata.losses import Losses
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.scan import Chunk
from perf_offcpu.perfdata.side_records import side_records
from perf_offcpu.perfdata.trailers import read_trailers, record_times

SCHED_CLOCK = -1
"""Times of a recording that asked for no clock: those of perf's own, the scheduler's."""

_SECOND = 10**9
_MAPS = (RecordType.MMAP, RecordType.MMAP2)


@dataclass(frozen=True, slots=True)
class KernelMap:
    """The kernel's code or a module's: [start, start + size); `pgoff` of the kernel is its `_text`."""

    name: bytes
    start: int
    size: int
    pgoff: int
    build_id: str


@dataclass(slots=True)
class Facts:
    """One recording.

    Args:
        name: as the user knows it.
        begin_ns: the time of its first record with one, on its own clock; 0 if there is none.
        streams: in how many its records come: more than one in a directory.
        cpus: how many CPUs its machine has, as far as it says.
    """

    name: str
    order: Order
    events: Events
    features: Features
    begin_ns: int = 0
    end_ns: int = 0
    streams: int = 1
    cpus: int = 0
    kernel: dict[bytes, KernelMap] = field(default_factory=dict)

    @property
    def hostname(self) -> str:
        """ "" if unknown."""
        return self.features.text(Feature.HOSTNAME)

    @property
    def clockid(self) -> int:
        """The clock of all times."""
        attrs = [spec.attr for spec in self.events.specs if spec.attr.flags & AttrFlag.USE_CLOCKID]
        return attrs[0].clockid if attrs else SCHED_CLOCK

    @property
    def wall_offset_ns(self) -> int | None:
        """What has to be added to its times to get those of CLOCK_REALTIME; None if it does not say.

        A recorder notes both clocks as it begins. If that lies behind all that it recorded, it ran in a time
        namespace: clock_gettime() is shifted there, the kernel's own times are not, and perf knows nothing
        of it.
        """
        values = self.features.values(Feature.CLOCK_DATA)
        if not values or values["clockid_time"] > max(self.end_ns, self.begin_ns) + _SECOND > _SECOND:
            return None
        offset: int = values["wall_clock"] - values["clockid_time"]
        return offset

    @property
    def kernel_text(self) -> KernelMap | None:
        """The kernel itself, not its modules."""
        return next((one for name, one in self.kernel.items() if is_kernel(name)), None)

    def build_ids(self) -> dict[bytes, str]:
        """File → build-id, from the feature."""
        return {entry.filename: entry.build_id for entry in self.features.build_ids()}


def is_kernel(name: bytes) -> bool:
    """Whether a kernel map is the kernel's own: `[kernel.kallsyms]_text`."""
    return name.startswith(b"[kernel.kallsyms]")


def facts_of(reader: PerfDataReader) -> Facts:
    """Read a recording once. Damage is not counted: the second pass meets it again.

    Raises:
        FormatError: there are no events in it.
    """
    begins: list[int] = []
    ends, streams = [0], set()
    maps: list[dict[str, Any]] = []
    cpus = {-1}
    for chunk in reader.chunks():
        times = record_times(chunk, reader.events)
        cpus.add(int(read_trailers(chunk, np.arange(len(chunk)), reader.events).cpu.max(initial=-1)))
        streams.add(chunk.origin.removesuffix("zstd").strip())
        ends.append(int(times.max(initial=0)))
        begins.extend([int(times[times > 0].min())] if (times > 0).any() else [])
        maps.extend(_kernel_maps(chunk, reader.events))
    if not reader.events.specs:
        raise FormatError(reader.path, "attr section", "there is no event in it")
    facts = Facts(reader.path, reader.order, reader.events, reader.features)
    facts.begin_ns, facts.end_ns, facts.streams = min(begins, default=0), max(ends), len(streams)
    stated = reader.features.values(Feature.NRCPUS)
    facts.cpus = stated["available"] if stated else max(cpus) + 1
    known = facts.build_ids()
    for values in maps:
        build_id = values.get("build_id", b"")[: values.get("build_id_size", 0)].hex()
        name = values["filename"]
        recorded = known.get(b"[kernel.kallsyms]" if is_kernel(name) else name, "")
        one = KernelMap(name, values["addr"], values["len"], values["pgoff"], build_id or recorded)
        facts.kernel.setdefault(name, one)
    return facts


def _kernel_maps(chunk: Chunk, events: Events) -> Iterator[dict[str, Any]]:
    kernel = (chunk.miscs & np.uint16(Misc.CPUMODE_MASK)) == CpuMode.KERNEL
    rows = np.flatnonzero(kernel & np.isin(chunk.types, _MAPS))
    for record in side_records(chunk.take(rows), events, Losses()):
        yield record.values
