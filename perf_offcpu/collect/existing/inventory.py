# SPDX-License-Identifier: Apache-2.0
"""Make the records with which a file begins, of kernel code, control groups and tasks that exist already. Their time
is 0, and they come in the order that perf expects: the kernel's own code, control groups, tasks with their maps, and
FINISHED_INIT."""

import os
from collections.abc import Iterator

from perf_offcpu import losses
from perf_offcpu.abi.records import CpuMode, RecordType
from perf_offcpu.collect.counters import Counter
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.existing.kernel_maps import KernelMaps, KnownKernel
from perf_offcpu.collect.existing.maps import MappedBuildIds
from perf_offcpu.collect.existing.proc import KnownTasks, ProcScan
from perf_offcpu.collect.existing.records import MOST_NAME, holding_from, synthesized
from perf_offcpu.collect.system.cgroups import MOUNTS, cgroup2_mount
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.targets import Target, process_of
from perf_offcpu.files import read_kernel
from perf_offcpu.losses import LossCause, Losses
from perf_offcpu.perfdata.compressed import joined
from perf_offcpu.perfdata.features import HOST_PID, BuildId
from perf_offcpu.perfdata.write.writer import frame_record

PIECE = 1 << 18  # bytes of records that are written at once: worth a system call, and made in some 20 ms


class Inventory:
    """Scan the kernel, control groups and all tasks, and make their records.

    Args:
        target: processes whose maps are recorded. Threads and their names are recorded of all processes, because they
            may be parents and wakers.
        build_ids: gathers the build-ids of mapped files.
        data_maps: also record files mapped for reading.
        known: records of tasks from the file before; updated.
        kernel: records of the kernel from the file before; updated.
    """

    def __init__(
        self,
        target: Target,
        build_ids: MappedBuildIds,
        data_maps: bool = False,
        known: KnownTasks | None = None,
        kernel: KnownKernel | None = None,
    ) -> None:
        self._kernel, self._build_ids = KernelMaps(kernel), build_ids
        mapped = None if target.is_system else {process_of(tid) for tid in target.ids}
        self._tasks = ProcScan(mapped, build_ids, data_maps, known)

    def records(self) -> Iterator[bytes]:
        """Yield all records, joined to pieces of about PIECE bytes. The tracker must be enabled by now: see `proc`."""
        for records in (self._kernel.records(), cgroup_records(self._tasks.lost), self._tasks.records()):
            yield from joined(records, PIECE)
        yield frame_record(RecordType.FINISHED_INIT, 0, b"", NATIVE)

    def later_records(self) -> Iterator[bytes]:
        """Yield records of control groups, tasks and maps that exist now, with the time of this scan instead of 0."""
        self._tasks.map_all()  # children of the target, too
        for records in (cgroup_records(self._tasks.lost), self._tasks.records()):
            since_ns = now_ns()  # a later time for tasks: some are born while groups are listed
            for piece in joined(records, PIECE):
                yield holding_from(piece, since_ns)

    def take_losses(self) -> dict[LossCause, Counter]:
        """Return cause → Counter of losses in `records` and `later_records` since the last call; begin again at 0."""
        lost = {cause: Counter(count) for cause, count in self._tasks.lost.items()}
        self._tasks.lost.clear()
        return lost

    def build_ids(self) -> list[BuildId]:
        """Return build-ids of the kernel, its modules (after `records`) and all files mapped so far."""
        files = ((CpuMode.KERNEL, self._kernel.files), (CpuMode.USER, self._build_ids.files))
        return [
            BuildId(HOST_PID, mode, build_id.hex(), name)
            for mode, build_ids in files
            for name, build_id in sorted(build_ids.items())
        ]


_MOST_GROUPS = 1 << 16
_MOST_LEVELS = 64


def cgroup_records(lost: Losses) -> Iterator[bytes]:
    """Yield a record for each group of the unified hierarchy, parents first; none if it is not mounted. Users to whom a
    group is delegated make groups in it, as many and as deep as they like, so groups near the root come first, and
    `lost` counts groups that are left out."""
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
    """Return (inode of a group's directory, names of the groups in it, ascending)."""
    with os.scandir(directory) as entries:  # direct: a directory of the kernel, without links
        names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    return os.stat(directory).st_ino, names  # direct: a directory of the kernel
