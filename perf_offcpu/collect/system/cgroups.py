# SPDX-License-Identifier: Apache-2.0
"""Control groups: mounted hierarchies, and the groups of `-G`. BPF and perf report the id in the unified hierarchy
(cgroup2): the inode number of the directory. `-G` can name groups of v1 hierarchies, too."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from perf_offcpu.errors import TargetError, UsageError
from perf_offcpu.files import kernel_lines, read_kernel

MOUNTS = "/proc/self/mountinfo"
_CGROUP_MOUNT = re.compile(
    rb"\d+ \d+ \d+:\d+ [^ ]+ (?P<mount>[^ ]+) [^ ]+(?: [^ ]+)* - (?P<kind>cgroup2?) [^ ]* (?P<options>[^ ]*)"
)
_V1_NAMES = {"blkio": "io"}  # mount option → name in the kernel, where they differ
_NO_CONTROLLER = frozenset(("rw", "ro", "xattr", "noprefix", "clone_children", "all", "none"))


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A mounted hierarchy: mount point, and one of its controllers ("" for cgroup v2, None if it has none)."""

    mount: str
    controller: str | None


@dataclass(frozen=True, slots=True)
class Group:
    """A control group: `id` is the inode of its directory; `controller` that of its hierarchy, "" for cgroup v2."""

    path: str
    id: int
    controller: str = ""


def find_groups(names: Iterable[str]) -> tuple[Group, ...]:
    """Return the groups with these names: paths with a mount point, or below that of cgroup v2, else of a v1 hierarchy.
    Raises TargetError: there is no such group; UsageError: the hierarchies differ, or lack a controller."""
    mounted = hierarchies(read_kernel(MOUNTS))
    groups = tuple(_find_group(name, mounted) for name in names)
    if len({group.controller for group in groups}) > 1:
        raise UsageError(f"-G: {' and '.join(group.path for group in groups)} are of different hierarchies: choose one")
    return groups


def _find_group(name: str, mounted: tuple[Hierarchy, ...]) -> Group:
    for hierarchy in sorted(mounted, key=lambda candidate: (candidate.controller != "", -len(candidate.mount))):
        if name.startswith("/") and Path(name).is_relative_to(hierarchy.mount):
            path = Path(name)
        else:
            path = Path(hierarchy.mount, name.lstrip("/"))
        # direct: below the mount point of a hierarchy of the kernel
        if ".." in path.parts or not os.path.exists(path / "cgroup.procs"):
            continue
        if hierarchy.controller is None:
            raise UsageError(f"-G {name}: the hierarchy {hierarchy.mount} has no controller, and -G needs one")
        # direct: a directory of the kernel
        return Group(str(path), path.stat().st_ino, hierarchy.controller)
    places = ", ".join(hierarchy.mount for hierarchy in mounted) or "no hierarchy, because none is mounted"
    raise TargetError(f"-G {name}: there is no such control group in {places}")


def hierarchies(mountinfo: bytes) -> tuple[Hierarchy, ...]:
    """Return the cgroup hierarchies in the text of /proc/PID/mountinfo (proc(5)), in its order. Lines of other file
    systems, with names that any user may have chosen, are ignored."""
    mounted = []
    for line in kernel_lines(mountinfo):
        if not (match := _CGROUP_MOUNT.fullmatch(line)):
            continue
        options = os.fsdecode(match["options"]).split(",")
        names = [option for option in options if option not in _NO_CONTROLLER and "=" not in option]
        v1 = _V1_NAMES.get(names[0], names[0]) if names else None
        mount = os.fsdecode(unescaped(match["mount"]))
        mounted.append(Hierarchy(mount, "" if match["kind"] == b"cgroup2" else v1))
    return tuple(mounted)


def unescaped(name: bytes) -> bytes:
    """Decode a name of /proc/PID/mountinfo, in which spaces, tabs, newlines and backslashes are octal escapes."""
    return re.sub(rb"\\([0-3][0-7]{2})", lambda octal: bytes([int(octal[1], 8)]), name)


def cgroup2_mount(mountinfo: bytes) -> bytes | None:
    """Return the mount point of cgroup v2 from the text of /proc/PID/mountinfo (proc(5)); None if not mounted."""
    mounts = (os.fsencode(hierarchy.mount) for hierarchy in hierarchies(mountinfo) if hierarchy.controller == "")
    return next(mounts, None)
