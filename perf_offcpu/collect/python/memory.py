# SPDX-License-Identifier: Apache-2.0
"""Read the memory of a process in which a thread stands still. Memory may hold anything: reads are bounded in number
and time. The caller uses the result only if the thread had no context switch meanwhile (`switches_of`)."""

import os
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from perf_offcpu.files import read_kernel

_PAGE: Final = 4096
_MOST_READS, _COSTS_A_READ = 100_000, 512  # bytes
_CODECS: Final = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}


class UnreadableError(Exception):
    """Memory cannot be read, or its content makes no sense, or the limits of one thread are reached."""


def switches_of(pid: int, tid: int) -> tuple[int, int]:
    """Return (number of context switches of a thread, -1 if it is running; its tid in its own PID namespace). Raises
    OSError: the thread has ended."""
    lines = read_kernel(f"/proc/{pid}/task/{tid}/status").split(b"\n")
    fields = dict(line.split(b":\t", 1) for line in lines if b":\t" in line)
    count = int(fields[b"voluntary_ctxt_switches"]) + int(fields[b"nonvoluntary_ctxt_switches"])
    return -1 if fields[b"State"].startswith(b"R") else count, int(fields[b"NSpid"].split()[-1])


class Memory:
    """Reader of memory that copies each page once. `fd`: descriptor of /proc/PID/mem. `until_s`: `time.process_time`
    after which nothing is read. `pages`: page numbers to copy first. `has_missed`: other pages were needed, too."""

    def __init__(self, fd: int, until_s: float, pages: Collection[int] = ()) -> None:
        self._fd, self._left, self._until_s = fd, _MOST_READS, until_s
        self.pages, self.has_missed = {number: self._copy(number) for number in pages}, False

    def _copy(self, number: int) -> bytes:
        with suppress(OSError, OverflowError):
            return os.pread(self._fd, _PAGE, number * _PAGE)
        return b""

    def read(self, address: int, size: int) -> bytes:
        """Return `size` bytes from an address on. Raises UnreadableError."""
        self._left -= 1 + size // _COSTS_A_READ
        number, offset = divmod(address, _PAGE)
        content = self._page(number)[offset : offset + size]
        while len(content) < size:
            number += 1
            content += self._page(number)[: size - len(content)]
        return content

    def _page(self, number: int) -> bytes:
        page = self.pages.get(number)
        if page is None:
            self.has_missed = True
            page = self.pages[number] = self._copy(number) if time.process_time() < self._until_s else b""
        if len(page) != _PAGE or self._left <= 0:
            raise UnreadableError
        return page

    def number(self, address: int, size: int = 8, *, signed: bool = False) -> int:
        """Return the little-endian integer of `size` bytes at an address. Raises UnreadableError."""
        return int.from_bytes(self.read(address, size), "little", signed=signed)

    def text(self, address: int, compact: int, ascii_less: int, most: int) -> str:
        """Return up to `most` characters of the str object at an address. `compact`: size of its head, which is
        `ascii_less` bytes smaller for ASCII. Raises UnreadableError."""
        state = self.number(address + 32, 4)
        kind = state >> 2 & 7
        begin = address + compact - (ascii_less if state & 64 else 0)
        content = self.read(begin, min(self.number(address + 16), most) * kind)
        return content.decode(_CODECS.get(kind, "latin-1"), "replace")
