# SPDX-License-Identifier: Apache-2.0
"""Select the waits of a profile that are pushed, and cut them into parts that servers accept. A value is off-CPU time
in ns of one stack and set of labels. Labels of samples become labels of series in Pyroscope (5000 series by default)
and columns in Parca, so samples have two labels only: comm and class of the wait. Threads, objects and other details
stay in recordings and datasets."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.group import group, sum_by
from perf_offcpu.analysis.interpreters import fold_interpreters
from perf_offcpu.convert.pprof import Content, utc_ns
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Profile
from perf_offcpu.push.labels import THREAD, WAIT_CLASS
from perf_offcpu.structs import frozen
from perf_offcpu.text import UNKNOWN, printable

TYPE, UNIT = "off_cpu", "nanoseconds"
"""Sample type and unit that Pyroscope's converter of OTLP recognises (pkg/ingester/otlp/convert.go)."""
MOST_COMMS = 60
OTHERS = "(others)"  # label of comms with little off-CPU time: thread pools number their threads
MOST_BYTES = 3 << 20
"""Size of a part before compression: gRPC servers and Pyroscope take 4 MiB by default, labels included."""
MOST_SAMPLES = 15_000  # number of samples of a part: Pyroscope accepts 16 000 per profile by default


@frozen
class Waits:
    """Waits of a profile with their label sets; they become one message, or several if that would be too large."""

    profile: Profile
    content: Content  # one type; label sets in OpenTelemetry's spelling

    def take(self, rows: I64) -> Waits:
        """Return the waits of some samples, in the order of `rows`."""
        content, label_set = self.content, self.content.label_set[rows]
        first, group_of = group(label_set)
        sets = [content.label_sets[number] for number in label_set[first].tolist()]
        values = [column[rows] for column in content.values]
        return Waits(self.profile.select(rows), Content(content.types, values, sets, group_of))


def waits_of(profile: Profile) -> Waits:
    """Return the waits of a profile that have a weight, with the labels of each."""
    classes = classify(profile).wait_class  # of all: sums are classified like single waits of other rows
    names, name = _thread_names(profile)
    first, group_of = group(name, classes)
    labels = {kind: "" if kind == WaitClass.OTHER else kind.label for kind in WaitClass}
    rows = zip(name[first].tolist(), classes[first].tolist(), strict=True)
    sets: list[dict[str, str | int]] = [{THREAD: names[row], WAIT_CLASS: labels[kind]} for row, kind in rows]
    shown = _without_kernel_addresses(_with_time(fold_interpreters(profile)))
    waits = Waits(shown, Content([(TYPE, UNIT)], [profile.samples.period], sets, group_of))
    return waits.take(np.flatnonzero(profile.is_offcpu() & (profile.samples.period > 0)))


def _thread_names(profile: Profile) -> tuple[list[str], I64]:
    """Return (names of threads, the last OTHERS if there are too many; int64[samples], index of each sample's name)."""
    first, group_of = group(profile.samples.comm)
    weights = sum_by(group_of, np.where(profile.is_offcpu(), profile.samples.period, 0), len(first)).tolist()
    comms = [printable(profile.strings[row]).strip() or UNKNOWN for row in profile.samples.comm[first].tolist()]
    by_name: Counter[str] = Counter()
    for comm, weight in zip(comms, weights, strict=True):
        by_name[comm] += weight
    names = sorted(by_name, key=lambda comm: (-by_name[comm], comm))
    kept = names if len(names) <= MOST_COMMS else [*names[: MOST_COMMS - 1], OTHERS]
    numbers = {comm: min(number, len(kept) - 1) for number, comm in enumerate(names)}
    return kept, np.array([numbers[comm] for comm in comms], np.int64)[group_of]


def encode_parts(waits: Waits, encode: Callable[[Waits], bytes]) -> Iterator[tuple[Waits, bytes]]:
    """Cut waits into parts of at most MOST_SAMPLES pairs (stack, labels) and MOST_BYTES encoded (a single pair may
    exceed it); yield (part, encoded). `encode` returns bytes before compression. Without waits, yield nothing."""
    pending = [waits] if len(waits.profile.samples) else []
    while pending:
        part = pending.pop()
        _, group_of = group(part.profile.samples.stack, part.content.label_set)
        groups = int(group_of.max()) + 1
        pieces = -(-groups // MOST_SAMPLES)
        encoded = encode(part) if pieces == 1 else b""
        pieces = min(max(pieces, -(-len(encoded) // MOST_BYTES)), groups)
        if pieces == 1:
            yield part, encoded
            continue
        piece_of = group_of * pieces // groups
        pending += [part.take(np.flatnonzero(piece_of == piece)) for piece in reversed(range(pieces))]


def _without_kernel_addresses(profile: Profile) -> Profile:
    frames = profile.frames
    address = np.where(frames.is_kernel(), np.uint64(0), frames.address)
    return replace(profile, frames=frames.with_columns(address=address))


def _with_time(profile: Profile) -> Profile:
    """Return the profile with a wall-clock time; if its recording has none, as if it ended now."""
    if utc_ns(profile):
        return profile
    meta = profile.meta
    first = max(meta.first_ns, 0)
    last = max(meta.last_ns, first)
    now = replace(meta, wall_clock_ns=time.time_ns(), wall_clock_at_ns=last, first_ns=first, last_ns=last)
    return replace(profile, meta=now)
