# SPDX-License-Identifier: Apache-2.0
"""Compare the waits of two recordings: by class or sort keys, by function, by comm, by stack. Recordings differ in
length, so weights are compared per second of recorded time, per unit of work, or, for one run each, unchanged. A row
whose change is small enough to be chance is noise (`report.diff.noise`)."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from perf_offcpu.callpaths.options import Name
from perf_offcpu.model.columns import I64, Bool, group, sum_by
from perf_offcpu.report.diff import sides
from perf_offcpu.report.diff.noise import ERRORS, F64, errors_needed, variance_between_slices, variance_by_length
from perf_offcpu.report.diff.sides import FUNCTION_KEYS, OBJECT, Groups, Per, Side
from perf_offcpu.report.totals import Total, places_of, totals_of
from perf_offcpu.structs import frozen

_CLOCK_ERROR = 1e-3  # relative error of each weight because of waits at begin and end of the recording
_FOR_VERDICT = 25


@frozen
class Row:
    """Samples of both recordings with equal keys, in sum; `before`, `after`: weights per second, unit or run."""

    values: tuple[str, ...]  # in the order of the table's keys
    frames: tuple[Name, ...]  # of a stack, root first
    old: Total
    new: Total
    threads: tuple[int, int]  # number, old and new
    before: float
    after: float
    busy_change: float  # the part of `change` by threads that are not idle
    noise: float  # absolute changes up to this one are noise
    number: int  # of its group in `Table.groups`

    @property
    def change(self) -> float:
        """Return `after` - `before`."""
        return self.after - self.before

    @property
    def is_noise(self) -> bool:
        """Return True if the change is so small that it may be chance."""
        return abs(self.change) <= self.noise


@frozen
class Cut:
    """Sums of rows that a table does not show; weights are per second, unit or run."""

    rows: int
    before: float  # their weight
    after: float
    grown: float  # sum of the changes above 0
    shrunk: float  # sum of the changes below 0
    largest: float  # largest absolute change


@frozen
class Table:
    """Rows of a comparison, the largest absolute change first; rows that are noise come last, or are left out."""

    keys: tuple[str, ...]
    rows: list[Row]
    more: Cut  # over the limit, not noise
    noise: Cut
    errors: float  # largest change that is noise, in its standard errors
    groups: Groups


@frozen
class Comparison:
    """Tables of the comparison of two recordings."""

    old: Side
    new: Side
    per: Per
    unit: str  # of weights: "ns", or "" for occurrences
    total: Row
    groups: Table
    causes: Table | None  # classes and functions, for the verdict; of waits only
    functions: Table | None  # as `causes`, but cut to the limit of rows
    objects: Table | None  # what was waited for; None if neither recording has objects, or `groups` has them
    threads: Table
    stacks: Table


def compare(
    old: Side, new: Side, per: Per, *, keys: Sequence[str], limits: tuple[int | None, int | None]
) -> Comparison:
    """Compare two recordings. `per`: what weights are divided by. `keys`: sort keys (`callpaths.keys`) of the first
    table. `limits`: most rows of a table, most stacks; None: all, noise included. Raise UsageError as `common_unit`."""
    unit = sides.common_unit(old, new)
    rows_limit, stacks_limit = limits
    comparer = _Comparer(old, new, per)
    causes = objects = None
    if new.is_offcpu:
        limit = rows_limit and max(rows_limit, _FOR_VERDICT)
        causes = comparer.table(FUNCTION_KEYS, sides.by_function(old, new), limit)
    if OBJECT not in keys and any((side.subject.samples.object >= 0).any() for side in (old, new)):
        objects = comparer.table((OBJECT,), sides.by_keys(old, new, (OBJECT,)), rows_limit)
    return Comparison(
        old=old,
        new=new,
        per=per,
        unit=unit,
        total=comparer.table((), sides.everything(old, new), None).rows[0],
        groups=comparer.table(tuple(keys), sides.by_keys(old, new, keys), rows_limit),
        causes=causes,
        functions=causes and comparer.table(FUNCTION_KEYS, causes.groups, rows_limit),
        objects=objects,
        threads=comparer.table(("comm",), sides.by_keys(old, new, ("comm",)), rows_limit),
        stacks=comparer.table(("comm",), sides.by_stack(old, new), stacks_limit),
    )


class _Comparer:
    def __init__(self, old: Side, new: Side, per: Per) -> None:
        self.sides, self.per = (old, new), per

    def table(self, keys: tuple[str, ...], groups: Groups, limit: int | None) -> Table:
        """Return the table of groups: at most `limit` rows and no noise; if None, all rows, those of noise last."""
        group_of_side = groups.old, groups.new
        both_sides = zip(group_of_side, self.sides, strict=True)
        sums = ((sum_by(part, side.subject.samples.period, groups.number), side.scale) for part, side in both_sides)
        before, after = (weight.astype(np.float64) * scale for weight, scale in sums)
        change, both = after - before, before + after
        error = self._error(group_of_side, groups.number, before, after)
        errors = errors_needed(int((both >= ERRORS * error).sum()))
        error = np.maximum(error, self._error_of_slices(group_of_side, np.abs(change) > errors * error))
        noise = errors * error
        is_noise = np.abs(change) <= noise
        order = np.lexsort((-both, -np.abs(change), is_noise))
        real = int((~is_noise).sum())
        shown = order if limit is None else order[: min(limit, real)]
        rows = self._rows(groups, shown, before, after, noise)
        more, left_out = (_cut(before, after, cut) for cut in (order[len(shown) : real], np.flatnonzero(is_noise)))
        return Table(keys, rows, more, left_out, errors, groups)

    def _error(self, group_of_side: tuple[I64, I64], groups: int, before: F64, after: F64) -> F64:
        """Return float64[groups]: standard error of each group's change, by the lengths of its waits. `group_of_side`:
        group of each sample of the older recording, then of the newer one. `before`, `after`: scaled weights."""
        variance, doubtful = (before**2 + after**2) * _CLOCK_ERROR**2, np.zeros(groups)
        for part, side, sign in zip(group_of_side, self.sides, (-1, 1), strict=True):
            steady = self.per.is_steady and side.is_offcpu
            proven, unproven = variance_by_length(
                side.subject.samples,
                part,
                groups,
                threshold_ns=side.profile.meta.threshold_ns,
                stack_period_ns=side.profile.meta.sampling.stack_period_ns,
                whole_ns=max(side.recorded.total_ns, 1.0) if steady else np.inf,
            )
            variance += side.scale**2 * proven
            doubtful += side.scale**2 * unproven * sign
        return np.sqrt(variance + np.abs(doubtful))

    def _error_of_slices(self, group_of_side: tuple[I64, I64], wanted: Bool) -> F64:
        """Return float64[groups]: standard error of each change, by slices of time; 0 if not `wanted`. See `_error`."""
        error = np.zeros(len(wanted))
        if not self.per.is_steady or not wanted.any():
            return error
        rank = np.where(wanted, np.cumsum(wanted) - 1, -1)
        for part, side in zip(group_of_side, self.sides, strict=True):
            if side.recorded.total_ns:
                error[wanted] += side.scale**2 * variance_between_slices(
                    side.subject.samples, rank[part], int(wanted.sum()), side.recorded
                )
        return np.sqrt(error)

    def _rows(self, groups: Groups, shown: I64, before: F64, after: F64, noise: F64) -> list[Row]:
        rank = places_of(shown, groups.number)
        totals, threads, busy = [], [], []
        for part, side in zip((groups.old, groups.new), self.sides, strict=True):
            samples, rank_of_sample = side.subject.samples, rank[part]
            totals.append(totals_of(samples, rank_of_sample, len(shown)))
            first, _ = group(rank_of_sample, samples.pid, samples.tid)
            threads.append(np.bincount(rank_of_sample[first] + 1, minlength=len(shown) + 1)[1:].tolist())
            busy.append(sum_by(np.where(side.idle, -1, rank_of_sample), samples.period, len(shown)) * side.scale)
        numbers: list[int] = shown.tolist()
        weights = before[shown].tolist(), after[shown].tolist(), (busy[1] - busy[0]).tolist(), noise[shown].tolist()
        columns: Iterable[tuple[Any, ...]] = zip(*totals, zip(*threads, strict=True), *weights, numbers, strict=True)
        return [Row(*values, *rest) for values, rest in zip(groups.values(numbers), columns, strict=True)]


def _cut(before: F64, after: F64, rows: I64) -> Cut:
    change = (after - before)[rows]
    grown, shrunk = float(change[change > 0].sum()), float(change[change < 0].sum())
    largest = float(np.abs(change).max(initial=0))
    return Cut(len(rows), float(before[rows].sum()), float(after[rows].sum()), grown, shrunk, largest)
