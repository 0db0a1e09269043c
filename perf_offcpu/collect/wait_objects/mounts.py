# SPDX-License-Identifier: Apache-2.0
"""Find the whole path of a file that is not open any more, from its names and its file system.

The BPF program reads the names from the file up to the root of its file system; /proc/self/mountinfo tells
where that is mounted (proc_pid_mountinfo(5)).
"""

from __future__ import annotations

import functools
import os
import re
from typing import NamedTuple

from perf_offcpu.files import kernel_lines, read_kernel

_ESCAPE = re.compile(rb"\\([0-7]{3})")


class Mount(NamedTuple):
    """A mount: the part `root` of a file system is seen at `point`."""

    root: bytes
    point: bytes


class Mounts:
    """The mounts that the recorder sees, read when the first path asks for them."""

    @functools.cached_property
    def _by_device(self) -> dict[tuple[int, int], list[Mount]]:
        found: dict[tuple[int, int], list[Mount]] = {}
        for line in kernel_lines(read_kernel("/proc/self/mountinfo")):
            words = line.split(b" ")
            try:
                major, _, minor = words[2].partition(b":")
                mount = Mount(_unescaped(words[3]), _unescaped(words[4]))
                found.setdefault((int(major), int(minor)), []).append(mount)
            except (IndexError, ValueError):
                continue
        return found

    def path(self, names: bytes, device: int) -> bytes:
        """Return the path of a file.

        Args:
            names: of the file, of its directory and so on, a NUL after each; "/" where the root was reached.
            device: of the file system: major << 20 | minor.

        Returns:
            The path from the recorder's root; that from the root of the file system where it is not mounted
            here; or the last names of a path that is too long or too deep.
        """
        parts = names.rstrip(b"\0").split(b"\0")
        if parts[-1] != b"/":
            return b"/".join(reversed(parts))
        path = b"/" + b"/".join(reversed(parts[:-1]))
        for mount in self._by_device.get((device >> 20, device & 0xFFFFF), []):
            inside = mount.root.rstrip(b"/")
            if path == inside or path.startswith(inside + b"/"):
                return os.path.join(mount.point, path[len(inside) :].lstrip(b"/"))
        return path


def _unescaped(text: bytes) -> bytes:
    return _ESCAPE.sub(lambda octal: bytes([int(octal[1], 8) & 0xFF]), text)
