# SPDX-License-Identifier: Apache-2.0
"""Make the records at the begin of a file: kernel code, control groups and tasks that exist already. Their time is 0,
their order as perf expects: the kernel's own code, control groups, tasks with maps, FINISHED_INIT.

Tasks are read from /proc, for each process: FORK and COMM of each thread, then, where wanted, NAMESPACES and one MMAP2
for each executable mapping. The tracker events must be enabled first: what happens between their start and the scan
then appears twice, which is harmless, and nothing is missing.

Tasks come and go during the scan; a task that has ended is left out. Names are bytes: programs choose them, and they
need not be UTF-8. A process that cannot be read, or not in time, is recorded in part, and counted as a loss."""

import os
import re
from collections.abc import Hashable, Iterator

from perf_offcpu import losses
from perf_offcpu.abi.records import CpuMode, RecordType
from perf_offcpu.collect.counters import Counter
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.existing.kernel_maps import KernelMaps
from perf_offcpu.collect.existing.maps import MappedBuildIds
from perf_offcpu.collect.existing.process import Description, Part, ProcessReader, device_of
from perf_offcpu.collect.existing.records import MOST_NAME, synthesized, with_time
from perf_offcpu.collect.system.cgroups import MOUNTS, cgroup2_mount
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.system.helper import Answer, Helper
from perf_offcpu.collect.system.privileges import CAP_SYS_PTRACE, capabilities
from perf_offcpu.collect.targets import Target, process_of
from perf_offcpu.files import read_kernel
from perf_offcpu.losses import CAUSES, LossCause, Losses
from perf_offcpu.perfdata.compressed import joined
from perf_offcpu.perfdata.features import HOST_PID, BuildId
from perf_offcpu.perfdata.write.writer import frame_record

_HIDING = re.compile(rb"^[^\n]* /proc [^\n]*[ ,]hidepid=[^0o]", re.MULTILINE)  # not 0 or off
_MOST_KEPT = 16 << 20  # bytes of the records of one scan
_MOST_STUCK = 100  # processes that do not answer in a scan; after these only threads and names are recorded


class KnownTasks:
    """Keep the records of the last scan, to use them again for processes that have not changed."""

    def __init__(self) -> None:
        self._last: dict[Hashable, Part] = {}
        self._next: dict[Hashable, Part] = {}
        self._bytes = 0

    def begin(self) -> None:
        """Begin a scan. Records that `complete` did not return during a scan are dropped at the begin of the next."""
        self._last, self._next, self._bytes = self._next, {}, 0

    def has(self, key: Hashable, content: bytes) -> bool:
        """Return True if the last scan has a `Part` with this key and this hash (`content`)."""
        return key in self._last and self._last[key].content == content

    def complete(self, part: Part) -> Part:
        """Return `part`, or, if its records are None, the last scan's part with its key; keep the returned part."""
        complete = self._last[part.key] if part.records is None else part
        size = len(complete.records or b"")
        if self._bytes + size <= _MOST_KEPT:
            self._next[part.key] = complete
            self._bytes += size
        return complete


PIECE = 1 << 18  # bytes of records that are written at once: worth a system call, and made in some 20 ms


class Inventory:
    """Scan the kernel, control groups and, in a helper, all processes, and make their records. Of processes that do not
    belong to `target` only threads and their names are recorded, because they may be parents or wakers. `build_ids`:
    gathers the build-ids of mapped files. `data_maps`: also record files mapped for reading. `known`: records of tasks
    from the last scan, with the same `data_maps`; updated. `kernel`: makes the records of kernel code."""

    def __init__(
        self, target: Target, build_ids: MappedBuildIds, data_maps: bool, known: KnownTasks, kernel: KernelMaps
    ) -> None:
        self._known, self._build_ids = known, build_ids
        self._kernel, self._kernel_files = kernel, dict[bytes, bytes]()
        # Pids whose maps and namespaces are recorded; None: of all.
        self._mapped = None if target.is_system else {process_of(tid) for tid in target.ids}
        self._lost = Losses()  # processes, threads, mappings and groups that were left out
        self._threads = 0
        self._helper = Helper(lambda item: self._reader.read(item[0], mapped=item[1]))
        self._reader = ProcessReader(build_ids, data_maps, known.has, self._helper.note)

    def records(self) -> Iterator[bytes]:
        """Yield records of kernel, control groups, tasks and mappings that exist now, joined to pieces of about PIECE
        bytes, then FINISHED_INIT. Side-band events must be enabled already, so that no task is missed."""
        kernel = self._kernel.records()
        self._kernel_files = self._kernel.files
        for records in (kernel, cgroup_records(self._lost), self._tasks()):
            yield from joined(records, PIECE)
        yield frame_record(RecordType.FINISHED_INIT, 0, b"", NATIVE)

    def later_records(self) -> Iterator[bytes]:
        """Yield records of control groups, tasks and mappings of all processes, with the time of this scan, not 0."""
        self._mapped = None  # children of the target, too
        for records in (cgroup_records(self._lost), self._tasks()):
            since_ns = now_ns()  # a later time for tasks: some are born while groups are listed
            for piece in joined(records, PIECE):
                yield with_time(piece, since_ns)

    def take_losses(self) -> dict[LossCause, Counter]:
        """Return cause → Counter of losses in `records` and `later_records` since the last call; begin again at 0."""
        lost = {cause: Counter(count) for cause, count in self._lost.items()}
        self._lost.clear()
        return lost

    def build_ids(self) -> list[BuildId]:
        """Return build-ids of the kernel and its modules, which `records` finds, and of all files mapped so far."""
        files = ((CpuMode.KERNEL, self._kernel_files), (CpuMode.USER, self._build_ids.files))
        return [
            BuildId(HOST_PID, mode, build_id.hex(), name)
            for mode, build_ids in files
            for name, build_id in sorted(build_ids.items())
        ]

    def _tasks(self) -> Iterator[bytes]:
        """Yield the records of one process at a time, by ascending pid; retry at the end a process that got stuck."""
        self._known.begin()
        self._reader.mapped_bytes = 0
        pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
        rest = [(pid, self._mapped is None or pid in self._mapped) for pid in pids]
        stuck = self._threads = 0
        try:
            while rest:
                again: list[tuple[int, bool]] = []
                answered = 0
                for answer in self._helper.each(rest):
                    pid, mapped = rest[answered]
                    answered += 1
                    if answer.is_stuck:
                        stuck += 1
                        again = self._after_hang(pid, mapped)
                    yield self._records_in(answer)
                rest = [*rest[answered:], *again]
                if stuck == _MOST_STUCK:
                    self._lost.add(losses.PROCESSES_STUCK, sum(mapped for _, mapped in rest))
                    rest = [(pid, False) for pid, _ in rest]
            self._count_hidden()
        finally:
            self._helper.close()

    def _count_hidden(self) -> None:
        """Count in `lost` the threads that /proc does not show to this user (mount option hidepid)."""
        if CAP_SYS_PTRACE not in capabilities() and _HIDING.search(read_kernel("/proc/self/mountinfo")):
            threads = int(read_kernel("/proc/loadavg").split()[3].split(b"/")[1])
            self._lost.add(losses.THREADS_HIDDEN, max(threads - self._threads, 0))

    def _after_hang(self, pid: int, mapped: bool) -> list[tuple[int, bool]]:
        """Return items (pid, mapped) that retry a stuck process. If the device of a file hung, avoid this device and
        retry the same item; else retry without maps, or, if it was without maps already, return []."""
        if device := self._helper.noted:
            self._build_ids.avoided.add(device_of(device))
            return [(pid, mapped)]
        self._lost.add(losses.PROCESSES_STUCK)
        return [(pid, False)] if mapped else []

    def _records_in(self, answer: Answer) -> bytes:
        """Return the records in a helper's answer, b"" if it has none; keep build-ids, counts and losses from it."""
        if answer.problem:
            self._lost.add(losses.PROCESSES_ODD)
        if answer.value is None:
            return b""
        described = Description(*answer.value)
        for key, path, build_id in described.files:
            self._build_ids.learn(key, path, build_id)
        self._lost.add(losses.PROCESSES_DENIED, described.is_denied)
        self._reader.mapped_bytes = described.mapped_bytes
        self._threads += described.threads
        parts = [self._known.complete(Part(*part)) for part in described.parts]
        for part in parts:
            self._lost.update({CAUSES[name]: count for name, count in part.lost.items()})
        return b"".join(part.records or b"" for part in parts)


_MOST_GROUPS = 1 << 16
_MOST_LEVELS = 64


def cgroup_records(lost: Losses) -> Iterator[bytes]:
    """Yield a CGROUP record for each group of the unified hierarchy, parents first; none if it is not mounted. A user
    to whom a group is delegated can make any number of groups in it, at any depth, so groups near the root come first,
    and groups beyond the limits are counted in `lost`."""
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
    """Return (inode of a control group's directory, sorted names of its child groups)."""
    with os.scandir(directory) as entries:  # direct: a directory of the kernel, without links
        names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    return os.stat(directory).st_ino, names  # direct: a directory of the kernel
