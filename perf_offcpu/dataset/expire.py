# SPDX-License-Identifier: Apache-2.0
"""Remove old hours of a dataset."""

from __future__ import annotations

from perf_offcpu.dataset.dataset import Dataset
from perf_offcpu.dataset.layout import HOUR_NS
from perf_offcpu.structs import mutable

_ORDER = ("samples", "budgets", "losses", "gaps", "hosts", "stacks", "frames")
"""Order of the tables: samples first, so that a crash leaves no samples without stacks."""


@mutable
class Expired:
    """Counts of removed files."""

    hours: int = 0  # partitions of the samples
    files: int = 0  # of all tables


def expire(dataset: Dataset, before_ns: int) -> Expired:
    """Remove the hours that ended at a given time or earlier.

    Args:
        before_ns: ns since 1970, UTC.

    Raises:
        PerfOffcpuError: another process compacts or expires.
        OSError: a file cannot be removed.
    """
    done, store = Expired(), dataset.store
    with store.locked():
        for table in _ORDER:
            for hour, folder in list(dataset.folders(table, None, before_ns)):
                if (hour + 1) * HOUR_NS > before_ns:
                    continue
                names = store.names(folder)
                for name in names:
                    store.remove(f"{folder}/{name}")
                store.remove_folder(folder)
                store.remove_folder(folder.rpartition("/")[0])
                done.files += len(names)
                done.hours += table == "samples"
    return done
