# SPDX-License-Identifier: Apache-2.0
"""Parse /proc/PID/maps (proc_pid_maps(5)), whose content other programs decide, and read build-ids of mapped files. A
program may have a million mappings, and the path of a mapped file has no greatest length: lines are taken from the text
one by one, and only the first MOST_BYTES of a text are read. Mapped files are opened through /proc/PID/map_files, which
leads to the mapped file itself even if it was deleted or replaced, or lies in another mount namespace."""

import ctypes
import os
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from perf_offcpu import losses
from perf_offcpu.build_ids import build_id_of
from perf_offcpu.collect.existing.records import MOST_NAME
from perf_offcpu.collect.system.helper import Avoided
from perf_offcpu.files import descriptor, open_regular, read_kernel_begin
from perf_offcpu.losses import Losses

MOST_BYTES: Final = 32 << 20  # bytes that are read of one process: 300 000 ordinary mappings


@dataclass(frozen=True, slots=True)
class Mapping:
    """A parsed line of /proc/PID/maps; `device` is (major, minor), `name` b"" for an anonymous mapping."""

    start: int
    end: int
    permissions: bytes
    offset: int
    device: tuple[int, int]
    inode: int
    name: bytes


def read_maps(pid: int) -> bytes:
    """Return whole lines of /proc/PID/maps, at most `MOST_BYTES`; b"" for kernel threads, zombies. Raises OSError."""
    text = read_kernel_begin(f"/proc/{pid}/maps", MOST_BYTES)
    return text if len(text) < MOST_BYTES else text[: text.rfind(b"\n") + 1]


def parse_maps(text: bytes, skipped: Losses | None = None) -> Iterator[Mapping]:
    """Yield the mappings in the text of a /proc/PID/maps. `skipped`: counts malformed lines, which are left out."""
    begin = 0
    while begin < len(text):
        end = text.find(b"\n", begin)
        end = len(text) if end < 0 else end
        try:
            yield _mapping(text[begin:end])
        except ValueError:
            if skipped is not None:
                skipped.add(losses.KERNEL_TEXT)
        begin = end + 1


def mappings_at(text: bytes, address: int) -> tuple[Mapping | None, Mapping | None]:
    """Return (mapping that holds the address, mapping in the line before it or None); (None, None) if no mapping holds
    the address. `text`: of /proc/PID/maps, searched by bisection. Raises ValueError: a line is malformed."""
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
    """Parse a line of /proc/PID/maps. Only newlines are escaped in a name, other bytes are not. Raises ValueError."""
    place, permissions, offset, numbers, inode, *path = line.split(b" ", 5)
    start, _, end = place.partition(b"-")
    major, _, minor = numbers.partition(b":")
    device, name = (int(major, 16), int(minor, 16)), path[0].lstrip(b" ").replace(rb"\012", b"\n") if path else b""
    return Mapping(int(start, 16), int(end, 16), permissions, int(offset, 16), device, int(inode), name)


MOST_KNOWN = 1 << 16  # files that are remembered at once: a recording of weeks meets any number of them
_MOST_NAME_BYTES = 16 << 20  # bytes of the names of files that are remembered


class MappedBuildIds:
    """Remember build-ids of mapped files; each file is read once, however many tasks map it. `files`: path →
    build-id of each file that has one. `avoided`: devices whose files are not read, because one did not answer."""

    def __init__(self) -> None:
        self.files: dict[bytes, bytes] = {}
        self.avoided = Avoided()
        self._known: dict[bytes, bytes] = {}
        self._name_bytes = 0

    def get(self, key: bytes) -> bytes | None:
        """Return the build-id of a file; b"" if it has none, None if it was not read yet. `key`: from `key_of`."""
        return self._known.get(key)

    def learn(self, key: bytes, path: bytes, build_id: bytes) -> None:
        """Remember the build-id (b"" for none) of a file, and forget the oldest if too many. `key`: from `key_of`."""
        remember(self._known, key, build_id)
        if not build_id or len(path) > MOST_NAME:
            return
        self._name_bytes += 0 if path in self.files else len(path)
        while self.files and (self._name_bytes > _MOST_NAME_BYTES or len(self.files) >= MOST_KNOWN):
            oldest = next(iter(self.files))
            del self.files[oldest]
            self._name_bytes -= len(oldest)
        self.files[path] = build_id


def key_of(device: Hashable, inode: int, path: bytes) -> bytes:
    """Return the key of a mapped file in `MappedBuildIds`: a hash of 16 bytes, because paths may be long."""
    return blake2b(f"{device} {inode} ".encode() + path, digest_size=16).digest()


def read_build_id(pid: int, start: int, end: int, inode: int, path: bytes, *, maps: bool) -> bytes | None:
    """Read the build-id of a mapped file; b"" if it has none, None if the file is not found. The call may block for
    ever if a file system does not answer. `maps`: the mapping was just read from /proc/PID/maps, so the link in
    map_files leads to the same file, and the inode, which may differ (overlayfs), is not compared."""
    build_id = build_id_at(f"/proc/{pid}/map_files/{start:x}-{end:x}", None if maps else inode)
    if build_id is None and len(path) <= MOST_NAME:
        build_id = build_id_at(path, inode)
    return build_id


def path_here(pid: int, start: int, end: int, name: bytes) -> bytes:
    """Return the path of a mapped file as seen from the recorder's root directory; b"" if it equals `name`, is not
    found or does not end with `name`, the path as seen from the process, which may have another root directory."""
    try:
        # direct: a link of the kernel's, which is not followed
        path = os.readlink(b"/proc/%d/map_files/%x-%x" % (pid, start, end))
    except OSError:
        return b""
    return path if path != name and path.endswith(name) else b""


def remember(table: dict[Any, bytes], key: Hashable, value: bytes) -> None:
    """Add an entry to a table of at most MOST_KNOWN entries; if it is full, remove the oldest."""
    if len(table) >= MOST_KNOWN:
        del table[next(iter(table))]
    table[key] = value


def build_id_at(path: str | bytes, inode: int | None = None) -> bytes | None:
    """Return the build-id of a regular file; b"" if it has none, None if it is missing or has another inode."""
    try:
        fd = open_regular(os.fsdecode(path))
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None
    with descriptor(fd):
        return build_id_of(fd) if inode in (None, os.fstat(fd).st_ino) else None


def build_id_of_memory(address: int, size: int) -> bytes:
    """Return the build-id of an ELF image (the vDSO) in this process's own memory; b"" if it has none. `address`,
    `size`: a readable mapping, as /proc/self/maps shows it."""
    with descriptor(os.memfd_create("image", os.MFD_CLOEXEC)) as fd:
        os.write(fd, ctypes.string_at(address, size))
        return build_id_of(fd)
