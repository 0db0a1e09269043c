# SPDX-License-Identifier: Apache-2.0
"""Keep the kernel callchains of context switches until the waits that begin with them are over. An ordinary user gets
them at kernel.perf_event_paranoid 1 and lower."""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.sample import SAMPLE, SampleShape
from perf_offcpu.binary.columnar import read_columns
from perf_offcpu.binary.gather import gather_u64
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.perfdata.scan import Chunk

_CHAIN: Final = np.dtype([("tid", "u4"), ("time", "i8"), ("words", "O")])
_IDENTIFIER: Final = 8  # offset in a sample: the first field after the header
_NO_WORDS: Final = np.empty(0, np.uint64)


class KernelChains:
    """Find the callchain of each switch-out. `ids`: of the event of context switches; none where it is refused."""

    def __init__(self, ids: Iterable[int] = (), shape: SampleShape | None = None) -> None:
        self._ids, self._shape = np.array(list(ids), np.uint64), shape
        self._chains = np.zeros(0, _CHAIN)  # in order of thread and time
        self._new: list[NDArray[Any]] = []

    def take_from(self, chunk: Chunk, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Keep the samples of context switches among the rows `samples`; return those rows."""
        if not len(self._ids) or not len(samples):
            return samples[:0]
        rows = samples[np.isin(gather_u64(chunk.data, chunk.starts[samples] + _IDENTIFIER), self._ids)]
        columns = read_columns(
            SAMPLE, chunk.data, chunk.starts[rows] + 8, chunk.starts[rows] + chunk.sizes[rows], NATIVE, self._shape
        )
        chains = np.zeros(len(rows), _CHAIN)
        chains["tid"], chains["time"] = columns.scalars["tid"], columns.scalars["time"]
        where = columns.arrays["callchain"]
        ends = where.starts + 8 * where.counts
        for row, (start, end) in enumerate(zip(where.starts.tolist(), ends.tolist(), strict=True)):
            chains["words"][row] = chunk.data[start:end].tobytes()
        self._new.append(chains[columns.ok])
        return rows

    def clear(self) -> None:
        """Forget all chains: records were lost."""
        self._chains, self._new = self._chains[:0], []

    def of_waits(self, waits: NDArray[Any]) -> list[NDArray[np.uint64]]:
        """Return the callchain with which each wait (`switches.INTERVAL`) began; an empty one where it is not known.
        The kernel takes the sample just before the SWITCH record, so it lies between the thread's last switch-in
        (`ran_since`) and the begin of the wait."""
        if self._new:
            chains = np.concatenate([self._chains, *self._new])
            self._chains, self._new = chains[np.lexsort((chains["time"], chains["tid"]))], []
        found: list[NDArray[np.uint64]] = []
        threads, times = self._chains["tid"], self._chains["time"]
        columns = [waits[name].tolist() for name in ("tid", "begin", "ran_since")]
        for tid, begin, ran_since in zip(*columns, strict=True):
            low, high = np.searchsorted(threads, tid), np.searchsorted(threads, tid, "right")
            row = low + int(np.searchsorted(times[low:high], begin, "right")) - 1
            is_of_wait = row >= low and times[row] >= ran_since
            found.append(np.frombuffer(self._chains["words"][row], np.uint64) if is_of_wait else _NO_WORDS)
        return found

    def forget(self, last_switches: NDArray[Any]) -> None:
        """Keep, of each thread, only what may belong to its last switch (`switches.EVENT`) or to later ones."""
        chains = np.concatenate([self._chains, *self._new])
        self._new = []
        order = np.argsort(last_switches["tid"], kind="stable")
        tids = last_switches["tid"][order]
        since = np.append(last_switches["ran_since"][order], np.iinfo(np.int64).min)
        rows = np.searchsorted(tids, chains["tid"])
        is_known = np.append(tids, 0)[rows] == chains["tid"]
        chains = chains[chains["time"] >= since[np.where(is_known, rows, len(tids))]]
        self._chains = chains[np.lexsort((chains["time"], chains["tid"]))]
