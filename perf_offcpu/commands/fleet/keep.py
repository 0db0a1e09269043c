# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu fleet compact, expire: merge the small files of a dataset, and remove what is old."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from perf_offcpu.commands.shared.option_tables import add_options
from perf_offcpu.errors import UsageError
from perf_offcpu.text import printable
from perf_offcpu.units import parse_time

if TYPE_CHECKING:
    from perf_offcpu.dataset.dataset import Dataset

_SETTLED_S = 3600
"""Time after the end of an hour in which delayed agents may still deliver its segments."""
_GIGA = 10**9


def add_verbs(verbs: Any) -> None:
    """Add the two verbs to those of fleet."""
    compact = verbs.add_parser("compact", help="merge the small files of each past hour")
    compact.add_argument("dataset", metavar="DATASET", help="folder of the dataset, or s3://…, gs://…")
    compact.set_defaults(fleet_run=_compact)
    expire = verbs.add_parser("expire", help="remove the recordings of old hours")
    expire.add_argument("dataset", metavar="DATASET", help="folder of the dataset, or s3://…, gs://…")
    age = "remove hours that ended this long ago: 30d, 12h, 8w"
    add_options(expire, f"--older-than AGE: {age}", older_than={"required": True})
    expire.set_defaults(fleet_run=_expire)


def _opened(path: str) -> Dataset:
    """Open a dataset; raise UsageError for a directory without one, so that a wrong path is noticed."""
    from perf_offcpu.dataset.dataset import open_dataset
    from perf_offcpu.dataset.schema import TABLES

    dataset = open_dataset(path)
    if not {*TABLES} & {*dataset.store.names("")}:
        raise UsageError(f"{printable(path)}: no dataset: it has no folder samples")
    return dataset


def _compact(args: argparse.Namespace) -> int:
    from perf_offcpu.dataset.compact import Compacted, compact

    total, status = Compacted(), 0
    for folder, done in compact(_opened(args.dataset), time.time_ns() - _SETTLED_S * _GIGA):
        if isinstance(done, Compacted):
            total.add(done)
            continue
        print(
            f"perf-offcpu fleet: {printable(folder)} is left as it is: {printable(str(done))}",
            file=sys.stderr,
        )
        status = 1
    if not total.hours and not status:
        print("nothing to merge: no hour that ended more than an hour ago has several files")
        return status
    before, after = f"{total.bytes_before:,} bytes", f"{total.bytes_after:,}"
    print(f"{total.files:,} files became {total.hours:,}; {before} became {after}")
    return status


def _expire(args: argparse.Namespace) -> int:
    from perf_offcpu.dataset.expire import expire

    age_ns = parse_time("--older-than", args.older_than, "", least="1h")
    done = expire(_opened(args.dataset), time.time_ns() - age_ns)
    hours = "hour" if done.hours == 1 else "hours"
    print(f"{done.hours:,} {hours} removed, {done.files:,} files")
    return 0
