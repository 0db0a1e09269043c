# SPDX-License-Identifier: Apache-2.0
"""What a ring of io_uring is for, by the requests in its submission queue."""

import mmap
import os
import struct
from pathlib import Path

import pytest

from perf_offcpu.collect.wait_objects import names
from perf_offcpu.collect.wait_objects.names import requests_of

READ, SEND, TIMEOUT, FIXED = 22, 26, 11, 1


@pytest.mark.parametrize(("requests", "expected"), [
    ([(READ, 0, "a")], b"[io_uring] of {}/a"), ([(READ, 0, "a"), (READ, 0, "a"), (0, 0, "b")], b"[io_uring] of {}/a"),
    ([(READ, 0, "a"), (READ, 0, "b")], b"[io_uring] of 2 files"), ([(READ, 0, "a"), (SEND, 0, "b")], b""),
    ([(READ, 0, "a"), (TIMEOUT, 0, "b")], b""), ([(READ, FIXED, "a")], b""), ([(READ, 0, "pipe")], b""),
    ([(READ, 0, "gone")], b""), ([], b""),
])  # fmt: skip
def test_requests_for_files_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requests: list[tuple[int, int, str]], expected: bytes
) -> None:
    monkeypatch.setattr(names, "_SQES", 0)  # any file of a page stands for the queue
    queue = os.open(tmp_path / "queue", os.O_RDWR | os.O_CREAT)
    fds = {name: os.open(tmp_path / name, os.O_CREAT) for name in "ab"} | {"pipe": os.pipe()[0], "gone": 1 << 20}
    os.write(queue, b"".join(struct.pack("=BBHi56x", code, flags, 0, fds[name]) for code, flags, name in requests))
    os.truncate(queue, mmap.PAGESIZE)
    with mmap.mmap(queue, mmap.PAGESIZE):
        assert requests_of(os.getpid(), queue) == expected.replace(b"{}", bytes(tmp_path))
