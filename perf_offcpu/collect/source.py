# SPDX-License-Identifier: Apache-2.0
"""Declare the interface that file, table of objects and summary of a recording have to the collector: that of BPF
programs (`collector`), or that of an ordinary user (`unprivileged.collector`)."""

from typing import Any, Protocol

from numpy.typing import NDArray

from perf_offcpu.collect.counters import Counter, Span
from perf_offcpu.collect.existing.inventory import KnownTasks
from perf_offcpu.collect.existing.kernel_maps import KnownKernel
from perf_offcpu.collect.existing.maps import MappedBuildIds
from perf_offcpu.collect.kernel_totals.user_stacks import Unread
from perf_offcpu.collect.options import RecordOptions
from perf_offcpu.collect.rings.pressure import Pressure
from perf_offcpu.collect.rings.rings import Rings
from perf_offcpu.losses import LossCause
from perf_offcpu.perfdata.events import EventSpec


class Source(Protocol):
    """A collector; attributes and methods as those of `collector.Collector`."""

    options: RecordOptions
    span: Span
    rings: Rings
    pressure: Pressure
    build_ids: MappedBuildIds
    unread: Unread
    known_tasks: KnownTasks
    known_kernel: KnownKernel
    counters_event: EventSpec

    @property
    def events(self) -> list[EventSpec]:
        """Return all events as the file describes them."""

    @property
    def draws_stacks(self) -> bool:
        """Return True if stacks are taken of a sample of the short waits, and stand for all of them."""

    @property
    def threshold_ns(self) -> int:
        """Return the length of the shortest wait that is a sample now, ns."""

    def counters(self) -> dict[LossCause, Counter]:
        """Return the counters of losses."""

    def lost_by_id(self) -> dict[int, int]:
        """Return event id → number of records that found a full ring."""

    def oncpu_samples(self) -> int:
        """Return the number of on-CPU samples that went into the rings."""

    def note_existing(self, records: bytes) -> None:
        """Take note of whole records of what existed when a file began."""

    def take_objects(self) -> NDArray[Any]:
        """Return the new wait objects."""

    def run_stats(self) -> dict[str, tuple[int, int]]:
        """Return name → (runs, ns) of each BPF program."""
