# SPDX-License-Identifier: Apache-2.0
"""Make outputs with a time axis fit: sum up the shortest waits, or write several files.

Viewers open files up to a size (`registry`). Waits cost the same, however short they are, so the shortest are
summed first: what is lost is seen least. The number is found by writing to a counter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import IO, TYPE_CHECKING, cast

import numpy as np

from perf_offcpu.analysis.short_waits import ShortWaits
from perf_offcpu.convert.options import Options
from perf_offcpu.convert.registry import Format
from perf_offcpu.errors import UsageError
from perf_offcpu.model.profile import Profile

if TYPE_CHECKING:
    from collections.abc import Iterable

_TRIES = 8
_MARGIN = 0.98


class _Counter:
    """A stream that counts the bytes written to it."""

    def __init__(self) -> None:
        self.bytes = 0

    def write(self, part: str | bytes) -> int:
        self.bytes += len(part.encode()) if isinstance(part, str) and not part.isascii() else len(part)
        return len(part)

    def writelines(self, parts: Iterable[str | bytes]) -> None:
        for part in parts:
            self.write(part)


def size_of(format_: Format, profile: Profile, options: Options) -> int:
    """Return the number of bytes of a profile in a format."""
    counter = _Counter()
    format_.write(profile, cast("IO[str]", counter), options)
    return counter.bytes


def fitted(format_: Format, profile: Profile, options: Options, most: int) -> tuple[Profile, Options]:
    """Sum up so many of the shortest waits that the output has at most a number of bytes.

    Returns:
        (profile, options): the options have a note that says what was summed.

    Raises:
        UsageError: it does not fit, even with all waits summed.
    """
    size = size_of(format_, profile, options)
    if size <= most:
        return profile, options
    waits, left = ShortWaits(profile), len(profile.samples)
    least = waits.samples_left(len(waits.rows))
    for _ in range(_TRIES):
        target = min(int(left * most / size * _MARGIN), left - 1)
        number = waits.number_for(max(target, least))
        left = waits.samples_left(number)
        made, noted = waits.summed(number), replace(options, note=_note(waits, number))
        size = size_of(format_, made, noted)
        if size <= most:
            return made, noted
        if target <= least:
            break
    raise UsageError(
        f"--max-size: with all single waits summed, --{format_.name} still takes {size} bytes: use --split, "
        "--time or a larger size"
    )


def _note(waits: ShortWaits, number: int) -> str:
    longest = waits.longest_ns(number)
    return f"the {number} shortest waits, of up to {longest / 1e6:.6g} ms, are summed to fit"


def parts_of(profile: Profile, length_ns: int) -> Iterator[tuple[Profile, int, int]]:
    """Split a profile by time; a wait belongs to the part in which it ends, as with `--time`.

    Samples without a time are in the first part; parts without samples are left out.

    Returns:
        (part, first, last): its samples, and the first and last ns of its time.
    """
    times = profile.samples.time_ns
    timed = times >= 0
    first = int(times.min(where=timed, initial=np.iinfo(np.int64).max)) if timed.any() else 0
    part = np.where(timed, (times - first) // length_ns, 0)
    for number in np.unique(part).tolist():
        begin = first + number * length_ns
        yield profile.select(part == number), begin, begin + length_ns - 1
