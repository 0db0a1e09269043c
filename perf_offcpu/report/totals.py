# SPDX-License-Identifier: Apache-2.0
"""Sum groups of samples: weight, number of waits, longest wait, as exact integers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.analysis.selection.states import STATES, state_codes
from perf_offcpu.callpaths.options import Name, NameKind
from perf_offcpu.model.columns import I64, Bool, group, max_by, sum_by
from perf_offcpu.model.profile import Profile, ProfileSamples
from perf_offcpu.model.recording import SUM_FLAGS, SampleFlag
from perf_offcpu.text import printable


@dataclass(frozen=True, slots=True)
class Total:
    """Samples in sum: weight, number, longest wait."""

    weight: int  # sum of periods, in the unit of the event (ns for time)
    count: int  # waits; of other events samples
    count_is_exact: bool = True  # False: it holds sums of unknown numbers of waits; `count` is a lower bound
    longest: int | None = None  # the longest single wait; None if a sum may hold a longer one

    @property
    def average(self) -> int | None:
        """Return weight / count, rounded; None if the count is 0 or not exact."""
        return (self.weight + self.count // 2) // self.count if self.count and self.count_is_exact else None


def totals_of(samples: ProfileSamples, group_of: I64, groups: int, rows: Bool | None = None) -> list[Total]:
    """Return the total of each group (`group_of`: int64[samples], -1 none), of the samples in `rows` (None: all)."""
    group_of = group_of if rows is None else np.where(rows, group_of, -1)
    is_sum, lengths = samples.has(SUM_FLAGS), samples.length_ns()
    if is_sum.any():
        has_longest = ~is_sum | (samples.longest_ns >= 0)
        longest = max_by(np.where(has_longest, group_of, -1), np.where(is_sum, samples.longest_ns, lengths), groups)
        unknown = max_by(group_of[~has_longest], samples.period[~has_longest], groups)  # bounds the waits within
    else:
        longest, unknown = max_by(group_of, lengths, groups), np.full(groups, -1)
    del lengths
    uncounted = group_of[samples.has(SampleFlag.UNTIMED)]
    columns = (
        sum_by(group_of, samples.period, groups),
        sum_by(group_of, samples.count, groups),
        np.bincount(uncounted + 1, minlength=groups + 1)[1:] == 0,
        np.where(longest >= unknown, longest, -1),
    )
    return [
        Total(weight, count, exact, None if most < 0 else most)
        for weight, count, exact, most in zip(*(column.tolist() for column in columns), strict=True)
    ]


def heaviest(weight: I64, limit: int | None, beside: I64 | None = None) -> tuple[I64, tuple[int, int]]:
    """Return (rows, cut): the heaviest rows in order, at most `limit`, and (number, weight) of the other rows. Of rows
    of equal weight, that with the larger `beside` comes first."""
    order = np.lexsort((np.zeros_like(weight) if beside is None else -beside, -weight))
    kept = order[:limit]
    return kept, (len(order) - len(kept), int(weight.sum()) - int(weight[kept].sum()))


def places_of(kept: I64, size: int) -> I64:
    """Return int64[size]: the index in `kept` of each number below `size`; -1 for numbers that are not in it."""
    place = np.full(size, -1, np.int64)
    place[kept] = np.arange(len(kept))
    return place


def sums_by_label(
    group_of: I64, codes: NDArray[np.integer], label: Callable[[int], str], values: I64, groups: int
) -> list[dict[str, int]]:
    """Return, for each group, label of a code → sum of `values`, the largest first. `group_of`, `codes`, `values`:
    integers[n]; group -1: none."""
    first, pair = group(group_of, codes)
    result: list[dict[str, int]] = [{} for _ in range(groups)]
    for row, weight in zip(first.tolist(), sum_by(pair, values, len(first)).tolist(), strict=True):
        if group_of[row] >= 0:
            sums, name = result[int(group_of[row])], label(int(codes[row]))
            sums[name] = sums.get(name, 0) + weight
    return [dict(sorted(sums.items(), key=lambda item: -item[1])) for sums in result]


def sums_by_state(samples: ProfileSamples, group_of: I64, values: I64, groups: int) -> list[dict[str, int]]:
    """Return, for each group, state letter ("" unknown) → sum of `values`, the largest first; see `sums_by_label`."""
    return sums_by_label(group_of, state_codes(samples), lambda code: STATES[code].letter, values, groups)


def fields(row: object, names: str) -> dict[str, Any]:
    """Return name → value of a row's fields, texts printable. `names`: FIELD or NAME=FIELD, separated by blanks."""
    named = [word.rpartition("=") for word in names.split()]
    values = {key or name: getattr(row, name) for key, _, name in named}
    return {key: printable(value) if isinstance(value, str) else value for key, value in values.items()}


def total_fields(total: Total) -> dict[str, Any]:
    """Return a total as a dict, for `--json`; sums of unknown numbers make `count` a lower bound, `average` None."""
    return fields(total, "weight count count_is_exact average longest")


def frame(name: Name) -> dict[str, str]:
    """Return a frame as a dict of its name, dso and kind, for `--json`."""
    return {"name": name.label, "dso": name.dso, "kind": NameKind(name.kind).name.lower()}


def cut_fields(more: tuple[int, int]) -> dict[str, int]:
    """Return the number and weight of rows over a limit as a dict, for `--json`."""
    return {"rows": more[0], "weight": more[1]}


def lost_fields(profile: Profile) -> dict[str, int]:
    """Return the losses of a recording, without notes: printable sentence of the cause → number."""
    return {printable(str(cause)): count for cause, count in losses.without_notes(profile.losses).items()}
