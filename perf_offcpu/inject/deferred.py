# SPDX-License-Identifier: Apache-2.0
"""Stage: deferred user callchains go into the samples that they belong to.

Samples whose part never came lose marker and cookie, and keep their kernel part.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perf_offcpu import losses
from perf_offcpu.decode.deferred import DeferredMatcher
from perf_offcpu.inject.samples import SampleBatch
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged


class Completer:
    """Completes samples of a recording.

    Args:
        matcher: of its deferred records.
        counters: where samples whose part never came are counted.

    Attributes:
        done: samples that got their user part so far.
    """

    def __init__(self, matcher: DeferredMatcher, counters: Losses) -> None:
        self.matcher, self.counters = matcher, counters
        self.done = 0

    def __call__(self, batch: SampleBatch) -> SampleBatch:
        """Complete the callchains of a batch."""
        if batch.chains is None:
            return batch
        own = np.arange(len(batch))
        merged = self.matcher.merge(batch.chains, own, batch.samples.tid, batch.samples.time_ns)
        if not len(merged.samples):
            return batch
        found = merged.deferred >= 0
        self.done += int(found.sum())
        self.counters.add(losses.UNMERGED, int((~found).sum()))
        own[merged.samples] = len(batch) + merged.row
        return replace(batch, chains=Ragged.concat([batch.chains, merged.chains]).take(own))
