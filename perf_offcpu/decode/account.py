# SPDX-License-Identifier: Apache-2.0
"""What the collector says of its own recording: from the `offcpu-counters` sample to losses and limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from perf_offcpu.abi.attr import PerfType, SoftwareConfig
from perf_offcpu.abi.counters import COUNTERS, EVENT_NAME, MAGIC
from perf_offcpu.binary.layout import Order
from perf_offcpu.decode.budget import is_budget, read_budgets
from perf_offcpu.errors import LayoutError
from perf_offcpu.model.recording import Budget
from perf_offcpu.perfdata import losses
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.losses import Losses

_NO_LOSS = {"samples", "snapshots"}
_CAUSES = {
    "ring-full": "waits without own sample because the ring was full (their time is in the sums)",
    "output-failed": "waits without own sample because their CPU had no event (their time is in the sums)",
    "sum-map-full": "short waits kept as samples because the map of sums was full (nothing is missing)",
    "stack-map-full": "waits summed without stack because the map of stacks was full",
    "stack-collision": "waits summed without stack because of a hash collision",
    "waits-lost": "waits lost: neither sent nor summed",
    "too-short": "waits left out because they were shorter than asked for (--min-block)",
    "dropped": "waits under the threshold left out as asked for (--short-waits drop)",
    "rate-limited": "waits over the threshold summed to limit the rate of samples (--max-rate)",
    "threshold-raised": "times that the threshold rose to limit the rate of samples (--max-rate)",
    "budgets-lost": "threads that ended and whose budget found no room",
    "ends-missed": "waits whose end the kernel did not tell",
    "begins-missed": "times off the CPU whose begin the kernel did not tell",
    "wakeups-missed": "waits whose wake-up the kernel did not tell (their run-queue delay is not known)",
    "snapshots-lost": "short waits summed without a copy of their stack because the ring was full",
    "user-stack-failed": "user stacks that could not be walked",
    "kernel-stack-failed": "kernel stacks that could not be walked",
    "storage-failed": "switches not noted for want of memory in the kernel",
    "records-unwritten": "records not written because the file took no more (disk full)",
    "sums-unwritten": "sums of short waits not written because the file took no more (disk full)",
    "still-blocked-unwritten": "threads still blocked not written because the file took no more (disk full)",
    "budgets-unwritten": "budgets of threads not written because the file took no more (disk full)",
    "missed-runs": "switches not noted because the BPF program was already running on that CPU",
}


def is_counters(spec: EventSpec) -> bool:
    """Whether an evsel is the collector's account of itself, and not an event of the machine."""
    return (
        spec.name == EVENT_NAME
        and spec.attr.type == PerfType.SOFTWARE
        and spec.attr.config == SoftwareConfig.BPF_OUTPUT
    )


@dataclass(slots=True)
class CollectorAccount:
    """When and how waits were recorded; all 0 if the file does not say.

    Args:
        begin_ns, end_ns: CLOCK_MONOTONIC: waits that end in between are in the file.
        threshold_ns: waits from here on are samples of their own.
    """

    begin_ns: int = 0
    end_ns: int = 0
    threshold_ns: int = 0
    counted: dict[str, int] = field(default_factory=dict)
    """Losses by cause."""
    budgets: list[Budget] = field(default_factory=list)
    """What threads did with their time, in the order of the file."""

    def take(self, payloads: Iterable[bytes], order: Order, counters: Losses) -> None:
        """Read the payloads of an `offcpu-counters` event; damaged ones are counted."""
        for payload in payloads:
            if is_budget(payload, order):
                self._take_budgets(payload, order, counters)
                continue
            try:
                values = COUNTERS.unpack(payload, order)
            except LayoutError:
                counters.add(losses.BAD_SAMPLE)
                continue
            if values["magic"] == MAGIC:
                self._read(values)

    def _take_budgets(self, payload: bytes, order: Order, counters: Losses) -> None:
        budgets = read_budgets(payload, order)
        if budgets is None:
            counters.add(losses.BAD_SAMPLE)
        else:
            self.budgets.append(budgets)

    def _read(self, values: dict[str, Any]) -> None:
        begin, end, threshold = (
            min(values[name], 2**63 - 1) for name in ("begin_ns", "end_ns", "threshold_ns")
        )
        # In a merged recording there are several: from the first begin to the last end.
        self.begin_ns = min(begin, self.begin_ns or begin)
        self.end_ns = max(end, self.end_ns)
        self.threshold_ns = max(threshold, self.threshold_ns)
        for counter in values["counters"]:
            name = counter["name"].split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
            if counter["events"] and name not in _NO_LOSS:
                cause = _CAUSES.get(name, f"collector: {name}")
                self.counted[cause] = self.counted.get(cause, 0) + counter["events"]
