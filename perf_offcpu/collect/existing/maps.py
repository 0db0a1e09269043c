# SPDX-License-Identifier: Apache-2.0
"""Parse the text of /proc/PID/maps (proc_pid_maps(5)), which other programs shape.

A program may have a million mappings, and the path of a mapped file has no greatest length: lines are taken from the
text one by one, and of a text that is too long only the begin is read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from perf_offcpu import losses
from perf_offcpu.files import read_kernel_begin
from perf_offcpu.losses import Losses

MOST_BYTES: Final = 32 << 20
"""Bytes that are read of one process: 300 000 ordinary mappings."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """A line of /proc/PID/maps."""

    start: int
    end: int
    permissions: bytes
    offset: int
    device: tuple[int, int]
    inode: int
    name: bytes


def read_maps(pid: int) -> bytes:
    """Return whole lines of /proc/PID/maps, at most `MOST_BYTES`; b"" for a kernel thread or a zombie. Raises OSError:
    it cannot be read."""
    text = read_kernel_begin(f"/proc/{pid}/maps", MOST_BYTES)
    return text if len(text) < MOST_BYTES else text[: text.rfind(b"\n") + 1]


def parse_maps(text: bytes, skipped: Losses | None = None) -> Iterator[Mapping]:
    """Parse the text of a /proc/PID/maps. `skipped`: where lines of another form are counted; they are left out."""
    begin = 0
    while begin < len(text):
        end = text.find(b"\n", begin)
        end = len(text) if end < 0 else end
        try:
            yield _mapping(text[begin:end])
        except ValueError:
            if skipped is not None:
                skipped.add(losses.ODD_KERNEL_TEXT)
        begin = end + 1


def mappings_at(text: bytes, address: int) -> tuple[Mapping | None, Mapping | None]:
    """Return the mapping that an address is in and the one before it, None for none.

    Lines ascend by address, so that a search in halves finds it. Raises ValueError: a line has another form.
    """
    low, high, begin = 0, len(text), -1
    while low < high:
        middle = text.rfind(b"\n", low, (low + high) // 2) + 1 or low
        if int(text[middle : text.index(b"-", middle)], 16) <= address:
            begin = middle
            low = text.find(b"\n", middle) + 1 or len(text)
        else:
            high = middle
    if begin < 0:
        return None, None
    mapping = _mapping(text[begin:low].rstrip(b"\n"))
    if address >= mapping.end:
        return None, None
    before = text[text.rfind(b"\n", 0, max(begin - 1, 0)) + 1 : begin].rstrip(b"\n")
    return mapping, _mapping(before) if before else None


def _mapping(line: bytes) -> Mapping:
    """Parse one line. Only newlines are escaped in a name, which may hold any other byte. Raises ValueError: it has
    another form."""
    place, permissions, offset, device, inode, *name = line.split(b" ", 5)
    start, _, end = place.partition(b"-")
    major, _, minor = device.partition(b":")
    return Mapping(
        int(start, 16),
        int(end, 16),
        permissions,
        int(offset, 16),
        (int(major, 16), int(minor, 16)),
        int(inode),
        name[0].lstrip(b" ").replace(rb"\012", b"\n") if name else b"",
    )
