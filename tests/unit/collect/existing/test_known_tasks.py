# SPDX-License-Identifier: Apache-2.0
"""A scan that knows the last one gives the records of one that does not."""

import ctypes
import mmap
import os
import tempfile
import threading

from perf_offcpu.collect.existing.maps import MappedBuildIds
from perf_offcpu.collect.existing.proc import KnownTasks
from perf_offcpu.collect.existing.process import Description, Part, ProcessReader


def scan(known: KnownTasks | None) -> bytes:
    """Return the records of this process."""
    known = known or KnownTasks()
    known.begin()
    reader = ProcessReader(MappedBuildIds(), True, known.has, lambda device: None)
    described = Description(*reader.read(os.getpid(), mapped=True))
    return b"".join(known.whole(Part(*one)).records or b"" for one in described.parts)


def rename(name: bytes) -> None:
    ctypes.CDLL(None).prctl(15, name, 0, 0, 0)


def test_what_changed_is_read_again() -> None:
    known = KnownTasks()
    assert scan(known) == scan(known) == scan(None)
    rename(b"other-name")
    assert b"other-name" in scan(known) and scan(known) == scan(None)
    rename(b"python")
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    assert scan(known) == scan(None)
    go.set()
    while os.path.exists(f"/proc/self/task/{thread.native_id}"):  # join() returns a little earlier
        thread.join()
    assert scan(known) == scan(None)
    with tempfile.NamedTemporaryFile(prefix="mapped-") as file:
        file.write(bytes(mmap.PAGESIZE))
        file.flush()
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC):
            assert b"mapped-" in scan(known)
    assert b"mapped-" not in scan(known)


def test_what_is_kept_is_bounded() -> None:
    known, made = KnownTasks(most_bytes=10), list[int]()

    def records(number: int) -> bytes | None:
        key = "threads", number
        if is_new := not known.has(key, b"same"):
            made.append(number)
        return known.whole(Part(key, b"same", bytes(4) if is_new else None, {})).records

    for _ in range(2):
        known.begin()
        assert [records(one) for one in range(4)] == [bytes(4)] * 4
    assert made == [0, 1, 2, 3, 2, 3], "the first two fit"
    known.begin()
    known.begin()
    records(0)
    assert made[-1] == 0, "what a scan does not meet is forgotten"
