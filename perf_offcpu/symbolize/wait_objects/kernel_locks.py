# SPDX-License-Identifier: Apache-2.0
"""Name locks inside the kernel: i_rwsem of /srv/file, mmap_lock of mysqld (812), rtnl_mutex, rwsem in lock_rename.

The recorder knows what a lock protects if it is part of the waiting process, or of the file of its descriptor,
and the name of a lock that is a variable of the kernel. Others are named after the function that takes them.
"""

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from perf_offcpu.abi.wait_objects import LockRole
from perf_offcpu.model.columns import I32
from perf_offcpu.model.profile import Profile
from perf_offcpu.symbolize.wait_objects.rows import ObjectRow

_MEMBERS: Final[dict[int, str]] = {
    LockRole.MMAP: "mmap_lock of",
    LockRole.INODE: "i_rwsem of",
    LockRole.MAPPING: "invalidate_lock of",
    LockRole.SUPER: "s_umount of the file system of",
    LockRole.RENAME: "s_vfs_rename_mutex of the file system of",
    LockRole.PIPE: "mutex of pipe",
}
_TYPES: Final = ("mutex", "semaphore", "rwsem", "rwsem")
_TAKES: Final = re.compile(
    r"_*(ww_)?mutex_lock.*|_*down(_.*)?|rwsem_down_.*|_*percpu_down_.*|_*rt_mutex_.*|rtlock_.*|.*schedule.*"
)
"""Functions that wait for any lock; their caller takes it."""


def lock_name(lock: ObjectRow, taker: str) -> tuple[str, str, str]:
    """Return the name of a lock, the name that another run gives it, too, and a mark that tells it from others.
    `taker`: the function of the kernel that takes it; "" unknown."""
    member, mark = _MEMBERS.get(lock.operation, ""), ""
    if lock.operation == LockRole.MMAP:
        return f"{member} {lock.name or 'a process'} ({lock.pid})", f"{member} {lock.name or 'a process'}", mark
    if member:
        text = f"{member} {lock.name or f'inode {lock.inode}'}"
    elif lock.place:
        text = lock.place
    else:
        kind = _TYPES[lock.number] if 0 <= lock.number < len(_TYPES) else "lock"
        text, mark = f"{kind} in {taker}" if taker else f"kernel {kind}", f"at {lock.address:#x}"
    return text, text, mark


def lock_takers(profile: Profile, row: I32, locks: Sequence[int]) -> dict[int, str]:
    """Return lock → the function of the kernel that takes it in one of its waits; others are left out. `row`:
    int32[samples], the object of each sample; -1 for none."""
    samples, stacks, frames = profile.samples, profile.stacks, profile.frames
    takers, is_kernel = dict[int, str](), frames.is_kernel()
    for lock in locks:
        rows = np.flatnonzero((row == lock) & (samples.stack >= 0))
        node = int(samples.stack[rows[0]]) if len(rows) else -1
        while node >= 0 and is_kernel[frame := int(stacks.frame[node])]:
            name = profile.strings[int(frames.symbol[frame])]
            if name and not _TAKES.fullmatch(name):
                takers[lock] = name
                break
            node = int(stacks.parent[node])
    return takers
