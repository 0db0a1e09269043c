# SPDX-License-Identifier: Apache-2.0
"""Write a segment, the recording of one host in some time, into the tables of a dataset. A segment is a file for each
table and hour. Its name comes from host, boot and time, so that writing it again replaces it. Files appear whole, and
frames and stacks before their samples, so that a killed writer leaves samples of whole hours, with their stacks."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from perf_offcpu.dataset import rows as dataset_rows
from perf_offcpu.dataset.content import content_of, taken
from perf_offcpu.dataset.dataset import HOUR_NS, Dataset, folder_of, segment_name
from perf_offcpu.dataset.parquet import to_parquet
from perf_offcpu.dataset.store import put
from perf_offcpu.errors import FormatError
from perf_offcpu.model.columns import distinct
from perf_offcpu.model.profile import Profile
from perf_offcpu.structs import frozen

_MOST_HOURS = 24 * 400


@frozen
class Segment:
    """Result of `write_segment`: name, size and number of the files that it wrote."""

    name: str  # of its files
    rows: int  # number of samples
    bytes: int  # size of all files written
    files: int  # number of files written
    skipped: int  # number of files not written again, as they were merged into a compacted file


def write_segment(
    dataset: Dataset, profile: Profile, host: dataset_rows.Host, gaps: Sequence[dataset_rows.Gap] = ()
) -> Segment:
    """Write a profile of one host, with all events, into the tables of a dataset. `gaps`: times not recorded, before
    this segment and within it. Raise UsageError if the recording has no wall-clock time, FormatError if its times are
    damaged, OSError or PerfOffcpuError if a file cannot be written."""
    span = dataset_rows.span_of(profile)
    name = segment_name(host.host_id, host.boot_id, span.begin_ns, span.end_ns)
    size = files = skipped = 0
    for table, hour, columns in _parts(profile, host, span, gaps):
        folder = f"{table}/{folder_of(hour)}"
        if dataset.is_compacted(folder, name):
            skipped += 1
            continue
        data = to_parquet(table, columns)
        put(dataset.store, f"{folder}/{name}", data)
        size, files = size + len(data), files + 1
    return Segment(name, len(profile.samples), size, files, skipped)


def _parts(
    profile: Profile, host: dataset_rows.Host, span: dataset_rows.Span, gaps: Sequence[dataset_rows.Gap]
) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield (table, hour since 1970, columns) of each file, in the order of writing."""
    content = content_of(profile)
    samples = dataset_rows.sample_columns(profile, content, host, span)
    hours = samples["time_ns"] // HOUR_NS
    if len(hours) and hours[-1] - hours[0] > _MOST_HOURS:
        raise FormatError(profile.meta.source, "times of samples", "they are more than a year apart")
    bounds = [(hour, slice(*np.searchsorted(hours, (hour, hour + 1)).tolist())) for hour in distinct(hours).tolist()]
    for hour, rows in bounds:
        ids = np.concatenate([samples["stack_id"][rows], samples["waker_stack_id"][rows]])
        stacks, frames = content.of_stacks(ids)
        if len(stacks["stack_id"]):
            yield "frames", hour, frames
            yield "stacks", hour, stacks
    for hour, parts in groupby(span.parts, lambda part: part[0] // HOUR_NS):
        yield "hosts", hour, dataset_rows.host_columns(profile, host, span.offset_ns, tuple(parts))
    yield from _by_hour("gaps", "end_ns", dataset_rows.gap_columns(gaps, host))
    if profile.losses:
        yield "losses", span.begin_ns // HOUR_NS, dataset_rows.loss_columns(profile, host, span)
    yield from _by_hour("budgets", "begin_ns", dataset_rows.budget_columns(profile, host, span))
    for hour, rows in bounds:
        yield "samples", hour, {key: taken(column, rows) for key, column in samples.items()}


def _by_hour(table: str, time: str, columns: dict[str, Any]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Split the columns of a table by the hour of column `time` (ns); yield (table, hour, columns)."""
    hours = columns[time] // HOUR_NS
    for hour in distinct(hours).tolist():
        chosen = hours == hour
        yield table, hour, {key: taken(column, chosen) for key, column in columns.items()}
