# SPDX-License-Identifier: Apache-2.0
"""The ring buffers through which the kernel passes records, one per CPU.

A ring is a control page and 2^n data pages, mapped from the event that owns it. The kernel moves `head` forward, the
recorder `tail`; both only grow, and the bytes between them are whole records in the form of the file. So draining is
copying: at most two pieces (a ring wraps) go to the file, and no record is looked at.

Reading head before the data and storing tail after it needs no barriers on x86. Elsewhere the thousands of instructions
and the system call that CPython executes between them have the effect of barriers; head and tail are always read and
written as one aligned 8-byte access (memoryview items of format "Q").

Source: struct perf_event_mmap_page, include/uapi/linux/perf_event.h."""

import contextlib
import errno
import mmap
from collections.abc import Callable, Iterable
from typing import Protocol

from perf_offcpu.abi.attr import Attr
from perf_offcpu.abi.records import RECORD_HEADER
from perf_offcpu.binary.layout import Buffer
from perf_offcpu.collect.events.evsels import CpuEvent
from perf_offcpu.collect.system.privileges import too_many_files
from perf_offcpu.errors import CapabilityError, FileFullError, PerfOffcpuError, RecordingError
from perf_offcpu.text import Say
from perf_offcpu.units import parse_size

MAX_COPIES_RING_BYTES = 16 << 20
"""Largest default where samples hold copies of stacks. With 8 KB for each wait, on two CPUs that were busy besides,
`perf bench sched messaging` and the pipe benchmark lost samples in 8 of 12 runs with 4 MB, in 1 of 12 with 16 MB and in
2 of 12 with 64 MB; in the last three runs the file was on a disk."""

MAX_DEFAULT_RING_BYTES = 4 << 20
"""Largest default otherwise. With a sample for each wait, `perf bench sched messaging` and four pipe benchmarks at once
on two CPUs leave at most some 0.5 MB in a ring; the rest is for disks that are slow to write."""

MIN_DEFAULT_RING_BYTES = 512 << 10  # as much as perf takes
DEFAULT_TOTAL_BYTES = 256 << 20  # bytes of all rings: on machines with many CPUs each becomes smaller
MAX_WAKEUP_BYTES = 1 << 20
AT_ONCE_BYTES = 4 << 20  # most bytes that go to the sink before their room in the ring is free again
_SIZE_AT = RECORD_HEADER.offset("size")
_HEAD, _TAIL = 1024 // 8, 1032 // 8  # offsets in the control page, in u64 words


class Sink(Protocol):
    """Receiver of drained bytes, such as `perfdata.write.writer.FileWriter`."""

    def append(self, *pieces: Buffer) -> None:
        """Append complete records; pieces are adjacent, and a record may reach from one into the next."""


class Ring:
    """Map and drain the ring of one CPU. `fd`: the event that owns it. `data_bytes`: its size without the control page:
    a power of two of pages. Raises OSError: it cannot be mapped. `last`: most bytes that were in the ring during the
    last drain. `recent`, `fullest`: likewise, for the drains since `Rings.recent_fill` was called, and for all."""

    def __init__(self, fd: int, data_bytes: int) -> None:
        self._map = mmap.mmap(fd, mmap.PAGESIZE + data_bytes)
        self._bytes = memoryview(self._map)
        self._control = self._bytes[: mmap.PAGESIZE].cast("Q")
        self._data = self._bytes[mmap.PAGESIZE :]
        self._mask = data_bytes - 1
        self.fullest = self.recent = self.last = 0

    def drain(self, sink: Sink) -> None:
        """Move the content to `sink`. Raises RecordingError: the sink took a part only; the rest stays in the ring."""
        tail = self._control[_TAIL]
        head = self._control[_HEAD]
        self.last = head - tail
        while tail < head:
            # Records that come while the sink is slow find only the room that is free again.
            end, records = head, 0
            if head - tail > AT_ONCE_BYTES:
                end, records = self._last_record(tail, tail + AT_ONCE_BYTES)
            self._move(tail, end if records else head, sink)
            self.last = max(self.last, self._control[_HEAD] - tail)
            tail = self._control[_TAIL]
        self.fullest, self.recent = max(self.fullest, self.last), max(self.recent, self.last)

    def _move(self, tail: int, head: int, sink: Sink) -> None:
        begin, end = tail & self._mask, head & self._mask
        try:
            if begin < end:
                sink.append(self._data[begin:end])
            else:
                sink.append(self._data[begin:], self._data[:end])
        except FileFullError as problem:
            self._control[_TAIL] = tail + problem.taken
            raise
        self._control[_TAIL] = head

    def waiting_records(self) -> int:
        """Return the number of records in the ring."""
        return self._last_record(self._control[_TAIL], self._control[_HEAD])[1]

    def _last_record(self, begin: int, limit: int) -> tuple[int, int]:
        """Return (end of the last record that ends at `limit` or before, number of records from `begin` to there).
        Positions are bytes, as head and tail."""
        end, count = begin, 0
        with self._data.cast("H") as shorts:
            while end < limit and (size := shorts[((end & self._mask) + _SIZE_AT) // 2]) and end + size <= limit:
                end, count = end + size, count + 1
        return end, count

    def close(self) -> None:
        """Unmap the ring."""
        for view in (self._data, self._control, self._bytes):
            view.release()
        # The traceback of a failed write may hold a piece of the ring: then the map is closed with it.
        with contextlib.suppress(BufferError):
            self._map.close()


class Rings:
    """Open an event and map its rings on CPUs, smaller ones than wanted if the system allows no larger ones.

    Raises CapabilityError, RecordingError: not even the smallest rings can be mapped.

    Args:
        name: name of the event.
        attr_for: returns the event's attr, given the bytes at which a ring wakes the recorder. The kernel takes this
            number when the ring is mapped, so a smaller ring needs another event.
        data_bytes: wanted size of each ring without its control page.
        say: is called with a sentence when rings become smaller than wanted.
        tid: the thread of the event; -1 for all tasks.

    Attributes:
        owner: the event, open on each CPU.
        data_bytes: size of each ring.
    """

    def __init__(
        self, name: str, attr_for: Callable[[int], Attr], cpus: Iterable[int], data_bytes: int, say: Say, tid: int = -1
    ) -> None:
        self.data_bytes = data_bytes
        self._by_cpu: dict[int, Ring] = {}
        while not self._map(CpuEvent(name, attr_for(wakeup_bytes(self.data_bytes)), cpus, tid)):
            self.data_bytes //= 2
        if self.data_bytes < data_bytes:
            say(f"ring buffers of {data_bytes >> 10} kB per CPU are refused, using {self.data_bytes >> 10} kB")

    def _map(self, owner: CpuEvent) -> bool:
        """Map a ring of `data_bytes` for each CPU; return False if the kernel refuses, but may accept smaller rings."""
        self.owner = owner
        try:
            for cpu, fd in owner.fds.items():
                self._by_cpu[cpu] = Ring(fd, self.data_bytes)
        except OSError as problem:
            self.close()
            if problem.errno not in (errno.EPERM, errno.ENOMEM) or self.data_bytes <= mmap.PAGESIZE:
                raise _refusal(problem, self.data_bytes) from None
            return False
        return True

    def renew(self, cpu: int, sink: Sink) -> int:
        """Map a ring for a CPU that came online; drain its former ring, if any, to `sink`; return the event's
        descriptor. Raises OSError: the event cannot be opened, or its ring cannot be mapped."""
        fd = self.owner.reopen(cpu)
        ring = Ring(fd, self.data_bytes)
        former = self._by_cpu.pop(cpu, None)
        self._by_cpu[cpu] = ring
        if former is not None:
            ring.fullest = former.fullest
            try:
                former.drain(sink)
            finally:
                former.close()
        return fd

    def drain(self, sink: Sink) -> None:
        """Move the content of all rings to `sink`."""
        for ring in self._by_cpu.values():
            ring.drain(sink)

    @property
    def fullest(self) -> float:
        """Largest fill of any ring since recording began, 0 to 1."""
        return max((ring.fullest for ring in self._by_cpu.values()), default=0) / self.data_bytes

    @property
    def last_fill(self) -> float:
        """Fill of the fullest ring at the last drain, 0 to 1."""
        return max((ring.last for ring in self._by_cpu.values()), default=0) / self.data_bytes

    def recent_fill(self) -> float:
        """Return the largest fill of any ring since the last call, 0 to 1."""
        fullest = max((ring.recent for ring in self._by_cpu.values()), default=0)
        for ring in self._by_cpu.values():
            ring.recent = 0
        return fullest / self.data_bytes

    def waiting_records(self) -> int:
        """Return the number of records in all rings."""
        return sum(ring.waiting_records() for ring in self._by_cpu.values())

    def close(self) -> None:
        """Unmap the rings and close their owner."""
        while self._by_cpu:
            self._by_cpu.popitem()[1].close()
        self.owner.close()


def default_ring_bytes(cpus: int, copies: bool = False, rate: int = 0) -> int:
    """Return the default size of each ring, bytes. `cpus`: number of CPUs. `copies`: samples hold copies of stacks.
    `rate`: limit of samples a second (more room is not needed); 0 for no limit."""
    fair = 1 << (DEFAULT_TOTAL_BYTES // cpus).bit_length() - 1
    if rate:
        fair = min(fair, 1 << (rate * (8 << 10 if copies else 1 << 10)).bit_length())
    return min(MAX_COPIES_RING_BYTES if copies else MAX_DEFAULT_RING_BYTES, max(MIN_DEFAULT_RING_BYTES, fair))


def wakeup_bytes(data_bytes: int) -> int:
    """Return the number of bytes at which a ring of `data_bytes` wakes the recorder; later ones go into the rest."""
    return min(data_bytes // 4, MAX_WAKEUP_BYTES)


def _refusal(problem: OSError, data_bytes: int) -> PerfOffcpuError:
    if problem.errno == errno.EPERM:
        return CapabilityError(
            f"ring buffers of {data_bytes >> 10} kB per CPU exceed kernel.perf_event_mlock_kb",
            "raise it, or have CAP_IPC_LOCK",
        )
    if problem.errno in (errno.EMFILE, errno.ENFILE):  # a mapping keeps a descriptor of its own
        return too_many_files()
    return RecordingError(f"ring buffers cannot be mapped: {problem.strerror}: try a smaller -m")


def parse_ring_size(text: str) -> int:
    """Parse perf's `-m`, a number of pages or a size with a suffix; return the bytes of the ring of one CPU, rounded up
    to a power of two of pages. Raises UsageError: the text is neither, or the size is out of range."""
    size = parse_size("-m", text, ("pages", mmap.PAGESIZE), least="1B", most="1G")
    pages = -(-size // mmap.PAGESIZE)
    return (1 << (pages - 1).bit_length()) * mmap.PAGESIZE
