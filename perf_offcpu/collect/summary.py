# SPDX-License-Identifier: Apache-2.0
"""Numbers of a recording, for the progress line on the terminal and for the last line."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from perf_offcpu import losses
from perf_offcpu.collect.collector import Collector
from perf_offcpu.collect.counters import Counter
from perf_offcpu.collect.options import RecordOptions
from perf_offcpu.collect.rings.pressure import TimeSpent, remedy
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.unprivileged.collector import UserCollector
from perf_offcpu.losses import LossCause

Source = Collector | UserCollector
"""The collector with BPF programs or the one without (`record --unprivileged`); a file and its summary take either."""


@dataclass(slots=True)
class Summary:
    """Numbers of a recording; complete after `complete` was called at its end."""

    path: str  # the file, or the last one of several
    status: int = 0  # exit status for the recorder: the command's, or 128 + the signal that ended the recording
    files: int = 1  # number of files
    file_bytes: int = 0  # size of all files up to their features
    sums: int = 0  # number of sums written, of short waits; also counts each sum of one wait with a copy of its stack
    still_blocked: int = 0  # number of samples written of threads that wait when the recording ends
    oncpu_samples: int = 0  # samples of on-CPU events written
    lost_records: int = 0  # records that found a ring full
    counters: Mapping[LossCause, Counter] = field(default_factory=dict)
    """Losses and counts by cause, as of `Collector.counters`."""
    recorded_ns: int = 0  # time in which waits were recorded, without pauses
    ring_bytes: int = 0  # size of each ring
    ring_fullest: float = 0.0  # largest fill of a ring, 0 to 1
    longest: TimeSpent = TimeSpent()  # the longest time between two drains of the rings
    cpu_s: float = 0.0  # CPU seconds of the recorder from the begin of the recording to the end of the file
    remedy: str = ""  # cause and remedy, if a ring was full; else ""
    programs: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """(runs, ns) of each BPF program; 0 unless sysctl kernel.bpf_stats_enabled is 1."""

    def events(self, cause: LossCause) -> int:
        """Return the number of events counted for a cause; 0 if the cause was not counted."""
        return self.counters[cause].events if cause in self.counters else 0

    @property
    def waits(self) -> int:
        """Return the number of samples and sums of waits that were written."""
        return self.events(losses.SAMPLES) + self.still_blocked + self.sums

    def losses(self) -> dict[LossCause, int]:
        """Return the losses of the file by cause, without causes whose count is 0."""
        counts = {losses.LOST_RECORDS: self.lost_records}
        counts |= {cause: counter.events for cause, counter in self.counters.items() if cause.in_last_line}
        return {cause: count for cause, count in counts.items() if count}

    def progress(self, collector: Source, sums: int, file_bytes: int) -> str:
        """Update the losses; return a progress line of some 80 characters. `sums`: number of sums written so far.
        `file_bytes`: size of the current file."""
        self.counters, self.lost_records = collector.counters(), sum(collector.lost_by_id().values())
        elapsed_s = (self.recorded_ns + now_ns() - collector.span.begin_ns) / 1e9
        lost, fill = sum(self.losses().values()), collector.rings.recent_fill()
        return (
            f"{elapsed_s:.0f} s: {self.events(losses.SAMPLES)} samples, {sums} sums, {lost or 'none'} lost, "
            f"rings {fill:.0%}, from {collector.threshold_ns / 1e6:g} ms, {file_bytes / 2**20:.1f} MB"
        )

    def complete(self, collector: Source, sums: int, file_bytes: int, options: RecordOptions) -> None:
        """Add the numbers that are known at the end of a recording. `sums`: number of sums written. `file_bytes`: size
        of the last file; 0 if `self.file_bytes` includes it already."""
        self.counters, self.lost_records = collector.counters(), sum(collector.lost_by_id().values())
        self.sums = sums + self.events(losses.SNAPSHOTS)
        self.oncpu_samples, self.ring_fullest = collector.oncpu_samples(), collector.rings.fullest
        self.programs = collector.run_stats()
        self.file_bytes += file_bytes
        self.longest = collector.pressure.longest
        if self.lost_records or self.events(losses.RING_FULL):
            compressed = bool(options.compression_level)
            self.remedy = remedy(collector.pressure.full, options.stack_bytes > 0, compressed)
