# SPDX-License-Identifier: Apache-2.0
"""Seeded damage to recordings, and what must hold of whatever is made of them.

    mutated(data, random.Random(seed))     a damaged copy, the same for the same seed
    survive(data)                          reads, dumps, injects, shows it; raises if not our own errors
    content(path)                          the same for files that are the same to all behind the reader

Half of the mutations know the format: they strike the headers of records, counts and sizes, ids, and the
numbers at which readers stumble; the others strike anywhere."""

import hashlib
import os
import random
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from builders.shown import show
from builders.zoo import as_file

from perf_offcpu.decode.load import load_recording
from perf_offcpu.errors import PerfOffcpuError
from perf_offcpu.inject.header import RewriteOptions
from perf_offcpu.inject.rewrite import rewrite
from perf_offcpu.perfdata.dump import dump
from perf_offcpu.perfdata.reader import PerfDataReader

EVIL = (
    *(0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFF8, 0xFFFF, 1 << 16),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**60, 2**61, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1),
    *(2**64 - 128, 2**64 - 512, 2**64 - 640, 2**64 - 4095, 0xFFFFFFFF << 32),
)
"""Numbers at which sums overflow, counts lie and times are none."""

HEADER = 104


def mutated(data: bytes, rng: random.Random) -> bytes:
    copy = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if copy:
            rng.choice(_MUTATIONS)(copy, rng)
    return bytes(copy)


def _flip(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _number(data: bytearray, rng: random.Random) -> None:
    _put(data, rng.randrange(len(data)) & -rng.choice((2, 4, 8)), rng.choice((1, 2, 4, 8, 8)), rng)


def _head(data: bytearray, rng: random.Random) -> None:
    _put(data, rng.randrange(0, min(len(data), HEADER + 600)) & -4, rng.choice((4, 8)), rng)


def _tail(data: bytearray, rng: random.Random) -> None:
    """A number in the feature table or the features."""
    _put(data, max(0, len(data) - 1 - rng.randrange(0, 4000)) & -4, rng.choice((4, 8)), rng)


def _put(data: bytearray, at: int, size: int, rng: random.Random) -> None:
    value = rng.choice((*EVIL, rng.getrandbits(64), rng.randrange(len(data) + 1)))
    data[at : at + size] = (value & (1 << 8 * size) - 1).to_bytes(size, rng.choice(("little", "big")))


def _record(data: bytearray, rng: random.Random) -> None:
    records = _records(bytes(data))
    if not records:
        return
    at = rng.choice(records)
    field, size = rng.choice(((0, 4), (4, 2), (6, 2), (8, 8), (16, 8), (24, 8), (56, 8), (64, 4)))
    if field == 0 and rng.random() < 0.8:
        data[at : at + 4] = rng.choice((*range(24), *range(60, 90))).to_bytes(4, "little")
    else:
        _put(data, at + field, size, rng)


def _records(data: bytes) -> list[int]:
    """Where some of the records are: a little-endian file's, as far as they can be walked."""
    offset = int.from_bytes(data[40:48], "little") if data[8:9] == b"h" else 16
    offsets: list[int] = []
    while offset + 8 <= len(data) and len(offsets) < 5000:
        size = int.from_bytes(data[offset + 6 : offset + 8], "little")
        if size < 8:
            break
        offsets.append(offset)
        offset += size
    return offsets


def _cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def _remove(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data)) & -rng.choice((1, 8))
    del data[at : at + rng.choice((1, 4, 8, 64, 500))]


def _repeat(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data)) & -rng.choice((1, 8))
    piece, to = data[at : at + rng.choice((1, 8, 48, 128, 4000))], rng.randrange(len(data)) & -8
    data[to:to] = piece


_MUTATIONS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip, _flip, _number, _number, _head, _head, _tail, _record, _record, _record, _record, _cut, _remove, _repeat,
)  # fmt: skip


def content(path: str) -> bytes:
    """A digest of what the reader gives of a file: its records, events and features, or why there are none. Prefixes of
    one recording with the same places of records have the same records."""
    digest = hashlib.blake2b()
    try:
        with PerfDataReader.open(path) as reader:
            for chunk in reader.chunks():
                for column in (chunk.starts, chunk.types, chunk.miscs, chunk.sizes):
                    digest.update(column.tobytes())
                digest.update(f"{chunk.origin} {chunk.file_offset};".encode())
            causes = sorted(reader.counters)  # how much is lost differs with each byte
            what = (causes, reader.head.events, reader.events.specs, sorted(reader.features.bodies.items()))
            digest.update(repr(what).encode())
    except PerfOffcpuError as problem:
        digest.update(str(problem).encode())
    return digest.digest()


def survive(data: bytes, *, rewriting: bool = True, showing: bool = True) -> float:
    """Read and dump a recording, as a user does, and return the longest time that one of it took, s. Own errors are
    answers, too: raises whatever is no `PerfOffcpuError`, and AssertionError for a Recording that is not well-formed.
    `rewriting` injects it, too; `showing` prints it (`builders.shown`)."""
    with as_file(data) as path:
        work: list[Callable[[], object]] = [lambda: load_recording(path).check(), lambda: _dump(str(path))]
        if rewriting:
            work.append(lambda: _inject(str(path)))
        if showing:
            work += [lambda: show(str(path)), lambda: show(str(path), merge=False)]
        return max(timed(partial(_answer, one)) for one in work)


def timed(work: Callable[[], object]) -> float:
    """Return the CPU time of some work, s."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def _answer(work: Callable[[], object]) -> None:
    try:
        work()
    except PerfOffcpuError as problem:
        assert str(problem)


def _dump(path: str) -> None:
    with PerfDataReader.open(path) as reader:
        deque(dump(reader), maxlen=0)


def _inject(path: str) -> None:
    """Rewrite it; what comes out must be readable without any loss but those that were not its own."""
    with open(os.memfd_create("out"), "w+b") as out:
        rewrite(path, out.fileno(), "out", RewriteOptions())
        load_recording(f"/proc/self/fd/{out.fileno()}").check()
