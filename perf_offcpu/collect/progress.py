# SPDX-License-Identifier: Apache-2.0
"""How a recording is getting on: numbers for the line on the terminal."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """A recording at one moment.

    Args:
        elapsed_s: since it began.
        samples: off-cpu samples so far; short waits are in `sums`.
        sums: sums of short waits written so far.
        lost: what is missing in the file, of any kind.
        ring_fill: the fullest ring since the last time, 0 to 1.
        threshold_ns: waits from here on are samples.
        file_bytes: size of the file.
    """

    elapsed_s: float
    samples: int
    sums: int
    lost: int
    ring_fill: float
    threshold_ns: int
    file_bytes: int

    def line(self) -> str:
        """One line of less than 80 characters."""
        megabytes = self.file_bytes / (1 << 20)
        lost = f"{self.lost} lost" if self.lost else "none lost"
        return (
            f"{self.elapsed_s:.0f} s: {self.samples} samples, {self.sums} sums, {lost}, "
            f"rings {self.ring_fill:.0%}, from {self.threshold_ns / 1e6:g} ms, {megabytes:.1f} MB"
        )
