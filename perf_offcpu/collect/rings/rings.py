# SPDX-License-Identifier: Apache-2.0
"""The ring buffers through which the kernel hands over records, one per CPU.

A ring is a control page and 2^n data pages, mapped from the event that owns it. The kernel moves `head`
forward, the recorder `tail`; both only grow, and what lies between them are whole records in the form of
the file. So draining is copying: at most two pieces (a ring wraps) go to the file, no record is looked at.

Reading head before the data and storing tail after it needs no barriers on x86. Elsewhere the thousands of
instructions and the system call that CPython puts between them stand in for them; head and tail are
always moved as one aligned 8-byte access (memoryview items of format "Q").

Source: struct perf_event_mmap_page, include/uapi/linux/perf_event.h.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
from collections.abc import Callable, Iterable
from typing import Protocol

from perf_offcpu.abi.attr import Attr
from perf_offcpu.abi.records import RECORD_HEADER
from perf_offcpu.binary.layout import Buffer
from perf_offcpu.collect.events.evsels import CpuEvent
from perf_offcpu.collect.system.limits import too_many_files
from perf_offcpu.errors import CapabilityError, FileFullError, PerfOffcpuError, RecordingError, UsageError

MAX_COPIES_RING_BYTES = 16 << 20
"""Where samples hold copies of stacks. With 8 KB for every wait, on two CPUs that were busy besides, `perf
bench sched messaging` and the pipe benchmark lost some in 8 of 12 runs with 4 MB, in 1 of 12 with 16 MB and
in 2 of 12 with 64 MB; those three were on a disk."""

MAX_DEFAULT_RING_BYTES = 4 << 20
"""Per CPU. With every wait a sample, `perf bench sched messaging` and four pipe benchmarks at once on two
CPUs leave at most some 0.5 MB waiting in a ring; the rest is for disks that make the recorder wait."""

MIN_DEFAULT_RING_BYTES = 512 << 10  # as much as perf takes
DEFAULT_TOTAL_BYTES = 256 << 20
"""On machines with many CPUs the rings become smaller, so that all together stay below this."""

MAX_WAKEUP_BYTES = 1 << 20

AT_ONCE_BYTES = 4 << 20
"""At most so much goes to the sink before its room is given back."""

_SIZE_AT = RECORD_HEADER.offset("size")
_HEAD, _TAIL = 1024 // 8, 1032 // 8  # places in the control page, in u64 words


class Sink(Protocol):
    """Where drained bytes go: `perfdata.write.writer.FileWriter`."""

    def append(self, *pieces: Buffer) -> None:
        """Take over bytes that are whole records."""


class Ring:
    """One CPU's ring.

    Args:
        fd: the event that owns it.
        data_bytes: its size without the control page: a power of two of pages.

    Raises:
        OSError: it cannot be mapped.
    """

    def __init__(self, fd: int, data_bytes: int) -> None:
        self._map = mmap.mmap(fd, mmap.PAGESIZE + data_bytes)
        self._bytes = memoryview(self._map)
        self._control = self._bytes[: mmap.PAGESIZE].cast("Q")
        self._data = self._bytes[mmap.PAGESIZE :]
        self._mask = data_bytes - 1
        self.fullest = 0
        """Most bytes that were in it when the recorder came to look, or had been written by then."""
        self.recent = 0
        """The same since `Rings.recent_fill` was asked last."""
        self.last = 0
        """The same of the last time alone."""

    def drain(self, sink: Sink) -> int:
        """Move what is there to `sink`; returns how many bytes that were.

        Raises:
            RecordingError: the sink could not take them all; the others stay in the ring.
        """
        first = tail = self._control[_TAIL]
        head = self._control[_HEAD]
        self.last = head - tail
        while tail < head:
            # What comes while the sink takes its time finds the room that has been given back, no more.
            end, records = head, 0
            if head - tail > AT_ONCE_BYTES:
                end, records = self._last_record(tail, tail + AT_ONCE_BYTES)
            self._move(tail, end if records else head, sink)
            self.last = max(self.last, self._control[_HEAD] - tail)
            tail = self._control[_TAIL]
        self.fullest, self.recent = max(self.fullest, self.last), max(self.recent, self.last)
        return head - first

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
        """How many records wait."""
        return self._last_record(self._control[_TAIL], self._control[_HEAD])[1]

    def _last_record(self, begin: int, limit: int) -> tuple[int, int]:
        """(end of the last record that ends before a limit, number of records), from the begin of one on."""
        at, count = begin, 0
        with self._data.cast("H") as shorts:
            while at < limit and (size := shorts[((at & self._mask) + _SIZE_AT) // 2]) and at + size <= limit:
                at, count = at + size, count + 1
        return at, count

    def close(self) -> None:
        """Unmap."""
        for view in (self._data, self._control, self._bytes):
            view.release()
        # The traceback of a failed write may hold a piece of the ring: then the map goes when that does.
        with contextlib.suppress(BufferError):
            self._map.close()


class Rings:
    """The rings of all CPUs and the event that owns them.

    Args:
        owner: an event open on each CPU.
        data_bytes: size of each ring without its control page.

    Raises:
        OSError: one of them cannot be mapped.
    """

    def __init__(self, owner: CpuEvent, data_bytes: int) -> None:
        self.owner, self.data_bytes = owner, data_bytes
        self._by_cpu: dict[int, Ring] = {}
        try:
            for cpu, fd in owner.fds.items():
                self._by_cpu[cpu] = Ring(fd, data_bytes)
        except OSError:
            self._unmap()
            raise

    @property
    def _rings(self) -> list[Ring]:
        return list(self._by_cpu.values())

    def renew(self, cpu: int, sink: Sink) -> int:
        """A ring for a CPU that came online, in place of the one it had; gives the owner's descriptor there.

        Raises:
            OSError: the event cannot be opened, or its ring not be mapped.
        """
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

    def drain(self, sink: Sink) -> int:
        """Move everything that waits in any ring to `sink`; returns how many bytes."""
        return sum(ring.drain(sink) for ring in self._rings)

    @property
    def fullest(self) -> float:
        """The fullest that a ring was ever found, 0 to 1."""
        return max((ring.fullest for ring in self._rings), default=0) / self.data_bytes

    @property
    def last_fill(self) -> float:
        """How full the fullest ring was when they were emptied last, 0 to 1."""
        return max((ring.last for ring in self._rings), default=0) / self.data_bytes

    def waiting_records(self) -> int:
        """How many records wait in all rings."""
        return sum(ring.waiting_records() for ring in self._rings)

    def recent_fill(self) -> float:
        """The fullest that a ring was found since the last call, 0 to 1."""
        fullest = max((ring.recent for ring in self._rings), default=0)
        for ring in self._rings:
            ring.recent = 0
        return fullest / self.data_bytes

    def close(self) -> None:
        """Unmap the rings and close their owner."""
        self._unmap()
        self.owner.close()

    def _unmap(self) -> None:
        while self._by_cpu:
            self._by_cpu.popitem()[1].close()


def open_rings(
    name: str,
    attr_for: Callable[[int], Attr],
    cpus: Iterable[int],
    data_bytes: int,
    say: Callable[[str], None],
) -> Rings:
    """Open the event that owns the rings and map them, with smaller rings if the system allows no others.

    Args:
        name: of the owning event.
        attr_for: bytes at which a ring wakes the recorder → the owner's attr. The kernel takes the number
            when the ring is mapped, so a smaller ring needs the event anew.
        data_bytes: wanted size of each ring.
        say: is told when rings become smaller than wanted.

    Raises:
        CapabilityError, RecordingError: not even the smallest rings can be had.
    """
    wanted, cpus = data_bytes, tuple(cpus)
    while True:
        owner = CpuEvent(name, attr_for(wakeup_bytes(data_bytes)), cpus)
        try:
            rings = Rings(owner, data_bytes)
        except OSError as problem:
            owner.close()
            if problem.errno not in (errno.EPERM, errno.ENOMEM) or data_bytes <= mmap.PAGESIZE:
                raise _refusal(problem, data_bytes) from None
            data_bytes //= 2
            continue
        if data_bytes < wanted:
            say(f"ring buffers of {wanted >> 10} kB per CPU are not to be had, using {data_bytes >> 10} kB")
        return rings


def default_ring_bytes(cpus: int, copies: bool = False) -> int:
    """The size of each ring that is used unless the user asks for another.

    Args:
        copies: whether samples hold copies of stacks.
    """
    fair = 1 << (DEFAULT_TOTAL_BYTES // cpus).bit_length() - 1
    return min(MAX_COPIES_RING_BYTES if copies else MAX_DEFAULT_RING_BYTES, max(MIN_DEFAULT_RING_BYTES, fair))


def wakeup_bytes(data_bytes: int) -> int:
    """When a ring wakes the recorder: early enough that the rest of it bridges the time to answer."""
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
    """Bytes of a ring from perf's `-m`: pages, or a size with the suffix B, K, M or G.

    Returns:
        At least what was asked for, rounded up to a power of two of pages.

    Raises:
        UsageError: it is no such number, or beyond what can be mapped.
    """
    units = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    unit = units.get(text[-1:].upper())
    digits = text if unit is None else text[:-1]
    if not digits.isascii() or not digits.isdigit() or not int(digits):
        raise UsageError(f"-m {text}: not a number of pages, nor a size such as 512K or 4M")
    pages = -(-int(digits) * (unit or mmap.PAGESIZE) // mmap.PAGESIZE)
    data_bytes = (1 << (pages - 1).bit_length()) * mmap.PAGESIZE
    if data_bytes > 1 << 30:
        raise UsageError(f"-m {text}: at most 1G per CPU")
    return data_bytes
