# SPDX-License-Identifier: Apache-2.0
"""Keep the kernel callchains of context switches until the waits that begin with them are over. An ordinary user gets
them at kernel.perf_event_paranoid 1 and lower."""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.sample import SAMPLE, SampleShape
from perf_offcpu.binary.columnar import read_columns
from perf_offcpu.binary.gather import gather_rows, gather_u64
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.lookup import rows_at
from perf_offcpu.perfdata.scan import Chunk

_KEY: Final = np.dtype([("tid", "i4"), ("time", "i8")])  # of a callchain
_IDENTIFIER: Final = 8  # offset in a sample: the first field after the header


class KernelChains:
    """Find the kernel callchain of each switch-out. `ids`: of the event of context switches; none if it is refused."""

    def __init__(self, ids: Iterable[int] = (), shape: SampleShape | None = None) -> None:
        self._ids, self._shape = np.array(list(ids), np.uint64), shape
        self.clear()

    def clear(self) -> None:
        """Drop all chains: records were lost, so a chain may be of another wait."""
        self._keys, self._chains = np.zeros(0, _KEY), Ragged()  # in order of thread and time
        self._new: list[tuple[NDArray[Any], Ragged]] = []

    def take_from(self, chunk: Chunk, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Keep the samples of context switches among the rows `samples`; return those rows."""
        if not len(self._ids) or not len(samples):
            return samples[:0]
        rows = samples[np.isin(gather_u64(chunk.data, chunk.starts[samples] + _IDENTIFIER), self._ids)]
        ends = chunk.starts[rows] + chunk.sizes[rows]
        columns = read_columns(SAMPLE, chunk.data, chunk.starts[rows] + 8, ends, NATIVE, self._shape)
        chains = Ragged(*gather_rows(chunk.data, columns.arrays["callchain"]))
        keys = np.zeros(len(rows), _KEY)
        keys["tid"], keys["time"] = columns.scalars["tid"], columns.scalars["time"]
        self._new.append((keys[columns.ok], chains.take(np.flatnonzero(columns.ok))))
        return rows

    def _sort(self) -> None:
        """Merge the new chains into those sorted by thread and time."""
        keys = np.concatenate([self._keys, *(keys for keys, _ in self._new)])
        chains = Ragged.concat([self._chains, *(chains for _, chains in self._new)])
        order = np.lexsort((keys["time"], keys["tid"]))
        self._keys, self._chains, self._new = keys[order], chains.take(order), []

    def of_waits(self, waits: NDArray[Any]) -> Ragged:
        """Return the callchains with which waits (`switches.INTERVAL`) began, empty ones where they are not known. The
        kernel takes the sample just before the SWITCH record, so it lies between the thread's last switch-in
        (`ran_since`) and the begin of the wait."""
        if self._new:
            self._sort()
        keys = np.append(self._keys, np.zeros(1, _KEY))
        rows = rows_at(keys["tid"][:-1], keys["time"][:-1], waits["tid"].astype(np.int32), waits["begin"])
        times = keys["time"][rows]
        is_of_wait = (rows >= 0) & (times <= waits["begin"]) & (times >= waits["ran_since"])
        return self._chains.take(np.where(is_of_wait, rows, -1))

    def forget(self, last_switches: NDArray[Any]) -> None:
        """Drop chains older than `ran_since` of their thread in `last_switches` (`switches.EVENT`): of past waits."""
        self._sort()
        order = np.argsort(last_switches["tid"], kind="stable")
        tids = last_switches["tid"][order]
        since = np.append(last_switches["ran_since"][order], np.iinfo(np.int64).min)
        rows = np.searchsorted(tids, self._keys["tid"])
        is_known = np.append(tids, 0)[rows] == self._keys["tid"]
        kept = np.flatnonzero(self._keys["time"] >= since[np.where(is_known, rows, len(tids))])
        self._keys, self._chains = self._keys[kept], self._chains.take(kept)
