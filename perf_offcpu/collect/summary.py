# SPDX-License-Identifier: Apache-2.0
"""What became of a recording: numbers for the line that ends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perf_offcpu.collect.kernel_totals.losses import Counter, Span

# Counters of bpf/off_cpu.h that stand for something missing in the file, and what that is. The others count
# what went another way: sum-map-full waits, for example, became samples.
_LOSSES = {
    "waits-lost": "waits neither sampled nor summed",
    "ring-full": "waits summed without stack (ring full)",
    "output-failed": "waits summed without stack (no event on their CPU)",
    "stack-map-full": "waits summed without stack (stack map full)",
    "stack-collision": "waits summed without stack (hash collision)",
    "user-stack-failed": "user stacks not readable",
    "snapshots-lost": "short waits whose stack was not copied (ring full)",
    "kernel-stack-failed": "kernel stacks not readable",
    "storage-failed": "switch-outs not noted (no memory)",
    "missed-runs": "switches not seen (BPF program busy)",
}


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
    counters: Mapping[str, Counter] = field(default_factory=dict)
    span: Span = Span(0, 0, 0)
    ring_bytes: int = 0
    ring_fullest: float = 0.0
    cpu_s: float = 0.0
    remedy: str = ""
    programs: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def events(self, counter: str) -> int:
        """A counter by its name; 0 if the BPF program has none of that name."""
        return self.counters[counter].events if counter in self.counters else 0

    def rings_overflowed(self) -> bool:
        """Whether anything found a ring full."""
        return bool(self.lost_records or self.events("ring-full"))

    def losses(self) -> dict[str, int]:
        """What is missing in the file → how often, only what happened."""
        found = {"records (ring full)": self.lost_records}
        found |= {what: self.events(name) for name, what in _LOSSES.items()}
        return {what: count for what, count in found.items() if count}
