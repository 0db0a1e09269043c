# SPDX-License-Identifier: Apache-2.0
"""What became of a recording: numbers for the line that ends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perf_offcpu import losses
from perf_offcpu.collect.kernel_totals.losses import Counter, Span
from perf_offcpu.losses import LossCause


@dataclass(slots=True)
class Summary:
    """One finished recording.

    Args:
        path: the file.
        status: exit status for the recorder: the command's, or 128 + the signal that ended the recording.
        files: how many there are; `path` is the last.
        file_bytes: size of all files up to their features.
        sums: sums of short waits written, those of one wait with a copy of its stack included.
        still_blocked: samples written of threads that wait when the recording ends.
        oncpu_samples: samples of on-CPU events written.
        lost_records: records that found a ring full.
        counters: what the BPF program counted.
        span: when waits were recorded.
        ring_bytes, ring_fullest: size of each ring, and the most that was ever used of one, 0 to 1.
        cpu_s: CPU seconds that the recorder spent from the begin of the recording to the end of the file.
        remedy: where a ring was full, what the cause was and what helps.
        programs: (runs, ns) of each BPF program; 0 unless sysctl kernel.bpf_stats_enabled is 1.
    """

    path: str
    status: int = 0
    files: int = 1
    file_bytes: int = 0
    sums: int = 0
    still_blocked: int = 0
    oncpu_samples: int = 0
    lost_records: int = 0
    counters: Mapping[LossCause, Counter] = field(default_factory=dict)
    span: Span = Span(0, 0, 0)
    ring_bytes: int = 0
    ring_fullest: float = 0.0
    cpu_s: float = 0.0
    remedy: str = ""
    programs: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def events(self, cause: LossCause) -> int:
        """Return the events of a counter; 0 if it was not counted."""
        return self.counters[cause].events if cause in self.counters else 0

    def rings_overflowed(self) -> bool:
        """Whether anything found a ring full."""
        return bool(self.lost_records or self.events(losses.RING_FULL))

    def losses(self) -> dict[LossCause, int]:
        """Return what is missing in the file by cause, only what happened."""
        counts = {losses.LOST_RECORDS: self.lost_records}
        counts |= {cause: counter.events for cause, counter in self.counters.items() if cause.in_last_line}
        return {cause: count for cause, count in counts.items() if count}
