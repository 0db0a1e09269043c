# SPDX-License-Identifier: Apache-2.0
"""Perf bpf-output events with rings, and the off-cpu payload read word by word. Deliberately written apart from
perf_offcpu's own rings, layouts and reader, so that the tests of the BPF program hold its output against the
description of the format and not against another part of the project."""

import ctypes
import mmap
import os
import platform
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

_LIBC = ctypes.CDLL(None, use_errno=True)
_PERF_EVENT_OPEN = {"x86_64": 298}.get(platform.machine(), 241)
_PAGE = mmap.PAGESIZE
_DATA_HEAD = 1024  # in struct perf_event_mmap_page; data_tail follows

_SAMPLE_BPF = 0x10587  # IDENTIFIER | IP | TID | TIME | CPU | PERIOD | RAW
_SAMPLE_CPU_CLOCK = 0x86  # TID | TIME | CPU
_RECORD_LOST, _RECORD_SAMPLE = 2, 9
NOT_KNOWN, NO_ID = 2**64 - 1, 2**32 - 1
_CONTEXT_KERNEL, _CONTEXT_USER = 2**64 - 128, 2**64 - 512


def open_event(kind: int, config: int, sample_type: int, period: int, cpu: int) -> int:
    """perf_event_open(2) for all tasks on a CPU, on CLOCK_MONOTONIC; a period above 1 is a frequency."""
    use_clockid, freq = 1 << 25, 1 << 10 if period > 1 else 0
    attr = struct.pack("=IIQQQQQII", kind, 136, config, period, sample_type, 0, use_clockid | freq, 1, 0)
    attr += bytes(92 - len(attr)) + struct.pack("=i", 1) + bytes(136 - 96)
    fd = _LIBC.syscall(_PERF_EVENT_OPEN, ctypes.c_char_p(attr), -1, cpu, -1, 8)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(fd)


class Ring:
    def __init__(self, fd: int, pages: int) -> None:
        self.fd, self._size = fd, pages * _PAGE
        self._map = mmap.mmap(fd, _PAGE + self._size)

    def records(self) -> Iterator[tuple[int, bytes]]:
        """(type, body) of everything written since the last call."""
        head, tail = struct.unpack_from("=QQ", self._map, _DATA_HEAD)
        while tail < head:
            kind, _misc, size = struct.unpack("=IHH", self._bytes(tail, 8))
            yield kind, self._bytes(tail + 8, size - 8)
            tail += size
            struct.pack_into("=Q", self._map, _DATA_HEAD + 8, tail)

    def _bytes(self, position: int, size: int) -> bytes:
        start = position % self._size
        part = self._map[_PAGE + start : _PAGE + min(start + size, self._size)]
        return part + self._map[_PAGE : _PAGE + size - len(part)]

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)


class Rings:
    """One event with a ring on each online CPU."""

    kind, config, sample_type, period = 1, 10, _SAMPLE_BPF, 1  # software, bpf-output

    def __init__(self, pages: int = 256) -> None:
        cpus = sorted(os.sched_getaffinity(0)) if pages else []
        self.rings = {
            cpu: Ring(open_event(self.kind, self.config, self.sample_type, self.period, cpu), pages) for cpu in cpus
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for ring in self.rings.values():
            ring.close()

    def bodies(self) -> list[bytes]:
        """Sample records of all rings. A LOST record is an error unless `lost` is asked."""
        return [body for ring in self.rings.values() for kind, body in ring.records() if kind == _RECORD_SAMPLE]


class CpuClock(Rings):
    config, sample_type, period = 0, _SAMPLE_CPU_CLOCK, 1999

    def tids(self) -> list[int]:
        return [struct.unpack_from("=II", body)[1] for body in self.bodies()]


@dataclass(frozen=True)
class Wait:
    header_tid: int
    time_ns: int
    pid: int
    tid: int
    ns: int
    kernel: tuple[int, ...]
    user: tuple[int, ...]
    cgroup: int
    kind: int
    flags: int
    lost: int
    state: int
    syscall: int
    wakeup_ns: int
    waker: tuple[int, int]
    count: int
    switch_out_ns: int
    longest_ns: int
    runq_ns: int
    object_id: int
    asked_ns: int
    waker_kernel: tuple[int, ...] = ()
    waker_user: tuple[int, ...] = ()


def parse(body: bytes) -> Wait:
    _id, _ip, _pid, header_tid, time_ns, _cpu, _, _period, raw_size = struct.unpack_from("=QQIIQIIQI", body)
    raw = body[52 : 52 + raw_size]
    assert len(raw) == raw_size
    pid, tid, ns, nr = struct.unpack_from("=IIQQ", raw)
    chain = struct.unpack_from(f"={nr}Q", raw, 24)
    (cgroup,) = struct.unpack_from("=Q", raw, 24 + 8 * nr)
    at = 24 + 8 * nr + 8
    magic, version, size = struct.unpack_from("=4sHH", raw, at)
    assert (magic, version, size) == (b"OFCP", 2, 128)
    (
        kind, waker_at, waker_nr, flags, lost, state, syscall, waker_pid, waker_tid,
        wakeup, out, count, longest, runq, _caller, object_id, asked, _holder, _object_lost, tcp_at, tcp_nr,
        _, python_nr,
    ) = struct.unpack_from("=IHHIIIiIIQQQQQQQQIIIIII", raw, at + 8)  # fmt: skip
    assert waker_at == (size if waker_nr else 0)
    end = at + size + 8 * waker_nr + 4 * tcp_nr + 8 * python_nr
    assert tcp_at in (0, size + 8 * waker_nr) and tcp_nr in ((0, 12) if tcp_at else (0,))
    assert end <= raw_size < end + 8  # perf pads the field
    waker_chain = struct.unpack_from(f"={waker_nr}Q", raw, at + size)
    kernel, user = split(chain)
    waker = waker_pid, waker_tid
    return Wait(
        header_tid, time_ns, pid, tid, ns, kernel, user, cgroup,
        kind, flags, lost, state, syscall, wakeup, waker, count, out, longest, runq,
        object_id, asked, *split(waker_chain),
    )  # fmt: skip


def split(chain: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Kernel and user frames of a callchain; the kernel's come first, each part behind its marker."""
    if not chain:
        return (), ()
    assert chain[0] in (_CONTEXT_KERNEL, _CONTEXT_USER)
    border = chain.index(_CONTEXT_USER) if _CONTEXT_USER in chain else len(chain)
    return chain[1:border], chain[border + 1 :]
