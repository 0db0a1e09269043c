# SPDX-License-Identifier: Apache-2.0
"""Let the writer of a dataset keep its own files few and the dataset bounded, without a scan of all files: as its first
segment of an hour is written, its files of the hour before are merged, and hours past their age are removed.

Writers merge no files but their own, so that they need not know of each other, also in a store without locks. They do
so within 50 minutes; `fleet compact` merges what all hosts left in an hour, an hour after its end at the earliest."""

from perf_offcpu.dataset.compact import SETTLED_S, Compacted, Expired, compact_host, expire
from perf_offcpu.dataset.dataset import HOUR_NS, Dataset
from perf_offcpu.structs import mutable

_OWN_NS = (SETTLED_S - 600) * 10**9


@mutable
class Upkeep:
    """Merges the files of a host hour by hour. `keep_ns`: age at which hours of all hosts are removed; 0 never."""

    keep_ns: int = 0
    hour: int = -1  # the newest one, since 1970, after whose begin there was upkeep

    def after(
        self, dataset: Dataset, host: tuple[str, str], begin_ns: int, now_ns: int
    ) -> tuple[Compacted, Expired] | None:
        """Do what is due after a segment of `host` (host_id, boot_id) that begins at `begin_ns` was written; return
        what was done, None if nothing was due. Times are ns since 1970, UTC. Raise PerfOffcpuError or OSError if it
        cannot be done; then it is due after the next segment."""
        hour = begin_ns // HOUR_NS
        if hour <= self.hour:
            return None
        merged, removed = Compacted(), Expired()
        if now_ns - hour * HOUR_NS < _OWN_NS:
            merged = compact_host(dataset, hour - 1, *host)
        if self.keep_ns:
            removed = expire(dataset, now_ns - self.keep_ns)
        self.hour = hour
        return merged, removed
