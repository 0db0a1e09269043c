# SPDX-License-Identifier: Apache-2.0
"""CGROUP records of the control groups that exist when a recording begins.

The tracker has records of groups that are made later.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from perf_offcpu import losses
from perf_offcpu.abi.records import RecordType
from perf_offcpu.collect.existing.records import MOST_NAME, synthesized
from perf_offcpu.collect.system.cgroups import MOUNTS, cgroup2_mount
from perf_offcpu.files import read_kernel
from perf_offcpu.losses import Losses

_MOST_GROUPS = 1 << 16
_MOST_LEVELS = 64


def cgroup_records(lost: Losses) -> Iterator[bytes]:
    """Yield a record for each group of the unified hierarchy, parents first; none if it is not mounted.

    Users to whom a group is delegated make groups in it, as many and as deep as they like: groups near the
    root come first.

    Args:
        lost: where groups are counted that are left out.
    """
    mount = cgroup2_mount(read_kernel(MOUNTS))
    if mount is None:
        return
    level, depth, number = [b""], 0, 0
    while level:
        below: list[bytes] = []
        for path in level:
            number += 1
            if number > _MOST_GROUPS or depth > _MOST_LEVELS or len(path) > MOST_NAME:
                lost.add(losses.GROUPS_LEFT_OUT)
                continue
            try:
                inode, names = _look_into(mount + path)
            except FileNotFoundError:
                continue
            except OSError:  # the path is too long, or it is closed to this user
                lost.add(losses.GROUPS_LEFT_OUT)
                continue
            yield synthesized(RecordType.CGROUP, 0, {"id": inode, "path": path or b"/"})
            below += [path + b"/" + name for name in names]
        level, depth = below, depth + 1


def _look_into(directory: bytes) -> tuple[int, list[bytes]]:
    """Return the inode of a group and the names of those in it, ascending."""
    with os.scandir(directory) as entries:  # direct: a directory of the kernel, without links
        names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    return os.stat(directory).st_ino, names  # direct: a directory of the kernel
