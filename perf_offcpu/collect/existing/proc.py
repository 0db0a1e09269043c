# SPDX-License-Identifier: Apache-2.0
"""Scan the tasks that run when a recording begins, from /proc.

For each process: FORK and COMM of each thread, then, where wanted, NAMESPACES and one MMAP2 for each executable
mapping. The tracker events must be enabled first: what happens between their start and the scan then appears twice,
which is harmless, and nothing is missing.

Tasks come and go during the scan; a task that has ended is left out. Names are bytes: programs choose them, and they
need not be UTF-8. A process that cannot be read, or not in time, is recorded as far as possible, and counted as a loss.
"""

import os
import re
from collections.abc import Container, Hashable, Iterator

from perf_offcpu import losses
from perf_offcpu.collect.existing.maps import MappedBuildIds
from perf_offcpu.collect.existing.process import Description, Part, ProcessReader, device_of
from perf_offcpu.collect.system.helper import Answer, Helper
from perf_offcpu.collect.system.privileges import CAP_SYS_PTRACE, capabilities
from perf_offcpu.files import read_kernel
from perf_offcpu.losses import CAUSES, Losses

_HIDING = re.compile(rb"^[^\n]* /proc [^\n]*[ ,]hidepid=[^0o]", re.MULTILINE)  # not 0 or off
_MOST_STUCK = 100  # processes that do not answer in a scan; after these only threads and names are recorded


class KnownTasks:
    """Keep the records of the last scan, to use them again for processes that have not changed. `most_bytes`: largest
    size of the records of one scan that are kept."""

    def __init__(self, most_bytes: int = 16 << 20) -> None:
        self._most_bytes = most_bytes
        self._last: dict[Hashable, Part] = {}
        self._next: dict[Hashable, Part] = {}
        self._bytes = 0

    def begin(self) -> None:
        """Begin a scan; records that are not passed to `whole` in it are forgotten after it."""
        self._last, self._next, self._bytes = self._next, {}, 0

    def has(self, key: Hashable, content: bytes) -> bool:
        """Return True if the last scan had records of this key, made from content with this hash."""
        return key in self._last and self._last[key].content == content

    def whole(self, part: Part) -> Part:
        """Return `part`, or the last scan's part of this key if `part.records` is None; keep it for the next scan."""
        complete = self._last[part.key] if part.records is None else part
        size = len(complete.records or b"")
        if self._bytes + size <= self._most_bytes:
            self._next[part.key] = complete
            self._bytes += size
        return complete


class ProcScan:
    """Scan all processes, in a helper, and make the records of their tasks.

    Args:
        mapped: pids whose maps and namespaces are recorded, None for all; of other processes only threads and their
            names are recorded, because they may be parents or wakers.
        build_ids: gathers the build-ids of mapped files.
        data_maps: also record files mapped for reading.
        known: records of the last scan, with the same `data_maps`; replaced by the records of this one.

    Attributes:
        lost: counts of processes, threads and mappings that were left out, by cause.
    """

    def __init__(
        self,
        mapped: Container[object] | None,
        build_ids: MappedBuildIds,
        data_maps: bool = False,
        known: KnownTasks | None = None,
    ) -> None:
        self._known = known or KnownTasks()
        self._mapped, self._build_ids = mapped, build_ids
        self.lost = Losses()
        self._threads = 0
        self._helper = Helper(lambda item: self._reader.read(item[0], mapped=item[1]))
        self._reader = ProcessReader(build_ids, data_maps, self._known.has, self._helper.note)

    def map_all(self) -> None:
        """Record maps and namespaces of all processes from now on."""
        self._mapped = None

    def records(self) -> Iterator[bytes]:
        """Yield the records of one process at a time, by ascending pid; retry at the end a process that got stuck."""
        self._known.begin()
        self._reader.mapped_bytes = 0
        pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
        rest = [(pid, self._mapped is None or pid in self._mapped) for pid in pids]
        stuck = self._threads = 0
        try:
            while rest:
                again: list[tuple[int, bool]] = []
                answered = 0
                for answer in self._helper.each(rest):
                    pid, mapped = rest[answered]
                    answered += 1
                    if answer.is_stuck:
                        stuck += 1
                        again = self._after_hang(pid, mapped)
                    yield self._taken(answer)
                rest = [*rest[answered:], *again]
                if stuck == _MOST_STUCK:
                    self.lost.add(losses.PROCESSES_STUCK, sum(mapped for _, mapped in rest))
                    rest = [(pid, False) for pid, _ in rest]
            self._count_hidden()
        finally:
            self._helper.close()

    def _count_hidden(self) -> None:
        """Count in `lost` the threads that /proc does not show to this user (mount option hidepid)."""
        if CAP_SYS_PTRACE not in capabilities() and _HIDING.search(read_kernel("/proc/self/mountinfo")):
            threads = int(read_kernel("/proc/loadavg").split()[3].split(b"/")[1])
            self.lost.add(losses.THREADS_HIDDEN, max(threads - self._threads, 0))

    def _after_hang(self, pid: int, mapped: bool) -> list[tuple[int, bool]]:
        """Return items (pid, mapped) that retry a stuck process: the same item if a device hung, whose files are
        avoided from now on, else the item without maps; [] if it was without maps already."""
        if device := self._helper.noted:
            self._build_ids.avoided.add(device_of(device))
            return [(pid, mapped)]
        self.lost.add(losses.PROCESSES_STUCK)
        return [(pid, False)] if mapped else []

    def _taken(self, answer: Answer) -> bytes:
        """Return the records in a helper's answer, b"" if it has none; keep build-ids, counts and losses from it."""
        if answer.problem:
            self.lost.add(losses.PROCESSES_ODD)
        if answer.value is None:
            return b""
        described = Description(*answer.value)
        for key, path, build_id in described.files:
            self._build_ids.learn(key, path, build_id)
        self.lost.add(losses.PROCESSES_DENIED, described.is_denied)
        self._reader.mapped_bytes = described.mapped_bytes
        self._threads += described.threads
        parts = [self._known.whole(Part(*part)) for part in described.parts]
        for part in parts:
            self.lost.update({CAUSES[name]: count for name, count in part.lost.items()})
        return b"".join(part.records or b"" for part in parts)
