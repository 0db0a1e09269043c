# SPDX-License-Identifier: Apache-2.0
"""Break the report's weight down: by sort keys (normally the class), by function, and by length of waits."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perf_offcpu.analysis.classes.classify import Waits
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.callpaths.calls import calls_of
from perf_offcpu.callpaths.keys import column_of
from perf_offcpu.callpaths.options import Name, PathOptions
from perf_offcpu.callpaths.tree import build_paths
from perf_offcpu.callpaths.weights import EDGES
from perf_offcpu.model.columns import I64, group, sum_by
from perf_offcpu.model.profile import Profile, ProfileSamples
from perf_offcpu.model.recording import SUM_FLAGS, SampleFlag
from perf_offcpu.report.totals import Total, heaviest, places_of, totals_of
from perf_offcpu.structs import frozen

BLOCKED = "blocked"  # the key that sorts the rows of a table by time blocked, without waits for a CPU


@frozen
class GroupRow:
    """Samples with the same values of some sort keys, in sum."""

    values: tuple[str, ...]  # printable, in the order of the keys
    total: Total
    runq: int  # ns of the weight between wake-up and running, as far as recorded
    blocked: int  # the rest of the weight; nothing of waits of class runqueue


@frozen
class GroupTable:
    """Sums of samples by some sort keys, heaviest first, or longest blocked first."""

    keys: tuple[str, ...]
    rows: list[GroupRow]
    more: tuple[int, int]  # (rows, weight) over the limit
    runq_known: bool  # any sample has a run-queue delay
    by_blocked: bool = False  # sorted by time blocked


def group_table(profile: Profile, waits: Waits, keys: Sequence[str], limit: int | None) -> GroupTable:
    """Sum samples by sort keys (`callpaths.keys`), at most `limit` rows. The key BLOCKED is no column: it sorts the
    rows by time blocked; if it is the only key, rows are by class."""
    samples, by_blocked = profile.samples, BLOCKED in keys
    keys = [key for key in keys if key != BLOCKED] or ["class"]
    made = [column_of(key, profile, waits) for key in keys]
    first, group_of = group(*(column for column, _ in made))
    runq = np.maximum(samples.runq_ns, 0)
    blocked_ns = np.where(waits.wait_class == WaitClass.RUNQUEUE, 0, samples.period - runq)
    weight, blocked = (sum_by(group_of, values, len(first)) for values in (samples.period, blocked_ns))
    kept, _ = heaviest(blocked if by_blocked else weight, limit)
    row_of = places_of(kept, len(first))[group_of]
    totals = totals_of(samples, row_of, len(kept))
    numbers = totals, sum_by(row_of, runq, len(kept)).tolist(), blocked[kept].tolist()
    columns = zip(first[kept].tolist(), *numbers, strict=True)
    rows = [GroupRow(tuple(label(row) for _, label in made), *sums) for row, *sums in columns]
    more = len(first) - len(kept), int(weight.sum()) - sum(total.weight for total in totals)
    return GroupTable(tuple(keys), rows, more, bool((samples.runq_ns >= 0).any()), by_blocked)


@frozen
class FunctionRow:
    """Sums of a function, or of a mark such as "[truncated]", over all threads."""

    name: Name
    inclusive: int  # weight of the samples that have it on their stack; recursion counts nothing twice
    own: int  # weight of the samples that end in it


@frozen
class FunctionTable:
    """Functions, the largest inclusive weight first; they overlap, so their weights do not add up to the total."""

    rows: list[FunctionRow]
    more: int  # number of functions over the limit


def function_table(subject: Profile, limit: int | None = None) -> FunctionTable:
    """Return the functions on the stacks of a profile, at most `limit`, the largest inclusive weight first."""
    calls = calls_of(subject, PathOptions(), np.ones(len(subject.samples), np.bool_))
    order = np.lexsort((np.arange(len(calls.names)), -calls.own, -calls.inclusive))
    shown = order[:limit].tolist()
    rows = [FunctionRow(calls.names[row], int(calls.inclusive[row]), int(calls.own[row])) for row in shown]
    return FunctionTable(rows, len(order) - len(rows))


@dataclass(frozen=True, slots=True)
class Bucket:
    """Single waits of lengths from `low` to below `high`, in sum; ns, None: no limit."""

    low: int
    high: int | None
    count: int
    weight: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """Single waits by length; samples that are sums of waits are in `sums` and `summed` only."""

    buckets: list[Bucket]  # ascending; the first and the last are not empty, those between may be
    sums: int  # number of samples that are sums
    summed: Total  # the total of the sums


def histogram(samples: ProfileSamples) -> Histogram:
    """Return the number and weight of single waits by length."""
    is_sum = samples.has(SUM_FLAGS)
    length = samples.length_ns()[~is_sum]
    bucket = np.searchsorted(np.array(EDGES, np.int64), np.maximum(length, 0), side="right") - 1
    counts = sum_by(bucket, samples.count[~is_sum], len(EDGES)).tolist()
    weights = sum_by(bucket, samples.period[~is_sum], len(EDGES)).tolist()
    used = [row for row, count in enumerate(counts) if count] or [0, -1]
    buckets = list(map(Bucket, EDGES, [*EDGES[1:], None], counts, weights))[used[0] : used[-1] + 1]
    summed = samples.take(is_sum)
    return Histogram(buckets, len(summed), totals_of(summed, np.zeros(len(summed), np.int64), 1)[0])


@frozen
class HeavyStack:
    """Samples of one comm with one stack, in sum."""

    comm: str
    frames: tuple[Name, ...]  # root first
    weight: int

    @property
    def labels(self) -> list[str]:
        """Return the labels of the frames, root first."""
        return [name.label for name in self.frames]


def heavy_stacks(profile: Profile, rows: I64, weight: I64, most: int) -> list[HeavyStack]:
    """Return the `most` heaviest stacks of the samples `rows`, heaviest first. `weight`: int64[n], of `rows`."""
    tree = build_paths(profile.select(rows), PathOptions())
    total = sum_by(tree.of_sample.astype(np.int64), weight, len(tree))
    nodes = np.argsort(-total, kind="stable")[:most]
    nodes = nodes[total[nodes] > 0]
    stacks = zip(tree.names_of(nodes), total[nodes].tolist(), strict=True)
    return [HeavyStack(comm.label, tuple(frames), ns) for (comm, *frames), ns in stacks]


@frozen
class Oversleep:
    """Sleeps that lasted longer than asked; times in ns."""

    sleeps: int  # number of sleeps that were not interrupted
    median: int  # time over the time asked for
    longest: int
    interrupted: int  # sleeps that ended earlier: by a signal, or because the recording ended


def oversleep_of(profile: Profile, waits: Waits) -> Oversleep | None:
    """Return how much longer single sleeps took than asked; None if no sleep has a known timeout."""
    samples = profile.samples
    is_timed = (samples.asked_ns >= 0) & (waits.wait_class == WaitClass.SLEEP)
    is_timed &= ~samples.has(SUM_FLAGS | SampleFlag.BEGAN_BEFORE)
    over = (samples.length_ns() - samples.asked_ns)[is_timed]
    is_complete = ~samples.has(SampleFlag.STILL_BLOCKED)[is_timed] & (over >= 0)
    if not len(over):
        return None
    slept = np.sort(over[is_complete])
    median = int(slept[(len(slept) - 1) // 2]) if len(slept) else 0
    return Oversleep(len(slept), median, int(slept.max(initial=0)), int((~is_complete).sum()))
