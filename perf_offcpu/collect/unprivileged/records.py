# SPDX-License-Identifier: Apache-2.0
"""Write waits as samples of offcpu-time, with the payload of the BPF programs: single waits with stack and object as a
look at the sleeping thread found them, sums of shorter waits by thread, and budgets of threads."""

import functools
import os
import platform
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.machine import MACHINES
from perf_offcpu.abi.offcpu import SYSCALL_UNKNOWN, UNKNOWN_U32, UNKNOWN_U64, Kind, Lost, WaitFlag
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.binary.columnar import offsets_of
from perf_offcpu.collect.bpf.header import SharedHeader, read_header
from perf_offcpu.collect.kernel_totals.budgets import budget_samples
from perf_offcpu.collect.kernel_totals.waits import copy_columns, wait_samples, with_marker
from perf_offcpu.collect.system.cgroups import MOUNTS, cgroup2_mount
from perf_offcpu.collect.unprivileged.looks import Look
from perf_offcpu.collect.unprivileged.objects import WaitObject
from perf_offcpu.collect.unprivileged.switches import BEFORE, IN
from perf_offcpu.files import kernel_lines, read_kernel, read_kernel_if_any
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.resources import bpf_dir

AT_ONCE: Final = 512  # waits whose samples are packed at once: some MB of copies
SUM: Final = np.dtype(
    [("pid", "u4"), ("tid", "u4"), ("flags", "u4"), ("lost", "u4"), ("state", "u4"), ("syscall", "i4")]
    + [(name, "u8") for name in ("cgroup", "total_ns", "count", "longest_ns", "first_switch_out_ns")]
    + [(name, "u8") for name in ("last_switch_in_ns", "runq_ns", "woken", "caller", "object_id")]
)
_NOTHING: Final = Look(0, 0, UNKNOWN_U32, SYSCALL_UNKNOWN, 0, 0, b"", WaitObject())


def register_mask() -> int:
    """Return the sample_regs_user of waits: only stack pointer and program counter of a sleeper are known."""
    registers = MACHINES[platform.machine()].registers
    return sum(1 << registers.of_sample.index(number) for number in (registers.sp, registers.pc))


def wait_records(
    event: EventSpec, waits: NDArray[Any], looks: Sequence[Look | None], kernel_chains: Ragged, *, over: bool = True
) -> bytes:
    """Return a sample record of `event` for each wait (`switches.INTERVAL`). `looks`: the look at the thread of each
    wait, None if there was none. `kernel_chains`: of each wait, may be empty. `over`: False for unfinished waits."""
    seen = [look or _NOTHING for look in looks]
    objects = [look.found for look in seen]
    rows = _rows_of(waits)
    rows["cgroup"] = [cgroup_of(pid) for pid in waits["pid"].tolist()]
    rows["flags"] |= np.where(waits["kind"] == BEFORE, int(WaitFlag.BEGAN_BEFORE), 0).astype(np.uint32)
    has_stack = np.array([look.pc != 0 for look in seen], np.bool_)
    rows["lost"] = np.where(has_stack, 0, int(Lost.USER_STACK))
    rows["state"], rows["syscall"] = [look.state for look in seen], [look.syscall for look in seen]
    lengths = (waits["end"] - waits["begin"]).astype(np.uint64)
    kinds = np.where(waits["kind"] == BEFORE, int(Kind.BEGAN_BEFORE), int(Kind.WAIT))
    columns = {name: np.array([getattr(thing, name) for thing in objects], np.uint64) for name in WaitObject._fields}
    payload: dict[str, Any] = {
        "offcpu_ns": lengths,
        "kind": kinds if over else np.full(len(waits), int(Kind.STILL_BLOCKED)),
        "switch_out_ns": waits["begin"],
        "longest_ns": lengths,
        "runq_ns": np.where(waits["preempted"], lengths, np.uint64(UNKNOWN_U64)),
        **columns,
    }
    leaves = Ragged(offsets_of(has_stack.astype(np.int64)), np.array([look.pc for look in seen if look.pc], np.uint64))
    chains = Ragged.hstack([kernel_chains, with_marker(CallchainContext.USER, leaves)])
    copies = _copies(seen) | {"cpu": waits["cpu"]}
    return wait_samples(event, CpuMode.USER, rows, waits["end"], chains, payload, copies)


def _rows_of(waits: NDArray[Any]) -> NDArray[Any]:
    rows = np.zeros(len(waits), SUM)
    rows["pid"], rows["tid"] = waits["pid"], waits["tid"]
    rows["flags"] = np.where(waits["preempted"], int(WaitFlag.PREEMPTED), 0)
    return rows


def short_sums(waits: NDArray[Any]) -> NDArray[Any]:
    """Return rows of SUM, one for each wait (`switches.INTERVAL`), which `kernel_totals.waits.united` adds up by
    thread, and by whether the thread was preempted."""
    rows = _rows_of(waits)
    rows["state"], rows["syscall"], rows["lost"] = UNKNOWN_U32, SYSCALL_UNKNOWN, int(Lost.USER_STACK)
    rows["total_ns"] = rows["longest_ns"] = waits["end"] - waits["begin"]
    rows["count"], rows["woken"] = 1, waits["preempted"]
    rows["runq_ns"] = np.where(waits["preempted"], rows["total_ns"], np.uint64(0))
    rows["first_switch_out_ns"], rows["last_switch_in_ns"] = waits["begin"], waits["end"]
    return rows


def _copies(looks: Sequence[Look]) -> dict[str, Any]:
    registers = MACHINES[platform.machine()].registers
    in_order = registers.of_sample.index(registers.sp) < registers.of_sample.index(registers.pc)
    words = [((look.sp, look.pc) if in_order else (look.pc, look.sp)) for look in looks]
    stacks = [look.stack[: len(look.stack) // 8 * 8] for look in looks]
    return copy_columns(np.array(words, np.uint64).reshape(-1, 2), stacks)


@functools.lru_cache(1 << 12)
def cgroup_of(pid: int) -> int:
    """Return the id of the control group of a process in the unified hierarchy; 0 if unknown."""
    mount = _cgroup_mount()
    lines = kernel_lines(read_kernel_if_any(f"/proc/{pid}/cgroup", 1 << 16))
    path = next((line[3:] for line in lines if line.startswith(b"0::")), None)
    try:
        return 0 if mount is None or path is None else os.stat(mount + path).st_ino  # direct: a directory of the kernel
    except OSError:
        return 0


@functools.cache
def _cgroup_mount() -> bytes | None:
    return cgroup2_mount(read_kernel(MOUNTS))


_MOST_READ: Final = 256  # threads whose schedstat is read at once
_MODE_OF_STATE: Final = {0x1: "interruptible", 0x2: "uninterruptible", 0x4: "stopped", 0x8: "traced"}


class Budgets:
    """Sum the time of threads by state (running, preempted, …), from switch to switch. The time that a thread waited
    for a CPU after wake-ups is known only as a sum, from /proc/TID/schedstat; it is subtracted from the time for which
    the thread slept. `tasks`: tid → pid of the threads at the start."""

    def __init__(self, tasks: dict[int, int]) -> None:
        header: SharedHeader = read_header(bpf_dir() / "off_cpu.h")
        self._dtype = header.structs["budget"]
        self._modes = {mode: number for number, mode in enumerate(header.enums["mode"])}
        self._rows: dict[tuple[int, int], NDArray[Any]] = {}
        self._before_ns = {tid: _queued_ns(pid, tid) for tid, pid in tasks.items()}
        self._queued_ns = dict(self._before_ns)

    def add(self, intervals: NDArray[Any], looks: dict[int, Look | None]) -> None:
        """Add the time of each interval (`switches.INTERVAL`) to its thread's state. `looks`: row of `intervals` → the
        look that shows the state, or None."""
        modes = np.full(len(intervals), self._modes["other"])
        modes[intervals["preempted"] != 0] = self._modes["preempted"]
        modes[intervals["kind"] == IN] = self._modes["running"]
        modes[intervals["kind"] == BEFORE] = self._modes["unknown"]
        for place, look in looks.items():
            if look is not None and look.state in _MODE_OF_STATE:
                modes[place] = self._modes[_MODE_OF_STATE[look.state]]
        lengths = intervals["end"] - intervals["begin"]
        order = np.lexsort((intervals["tid"], intervals["pid"]))
        keys = intervals[["pid", "tid"]][order]
        firsts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(order)])
        for part in np.split(order, firsts[1:]) if len(order) else ():
            first = intervals[part[0]]
            key = int(first["pid"]), int(first["tid"])
            if key not in self._rows:
                self._rows[key] = np.zeros((), self._dtype)
                self._rows[key]["pid"], self._rows[key]["tid"] = key
                self._rows[key]["begin_ns"] = intervals["begin"][part].min()
            row = self._rows[key]
            row["ns"] += np.bincount(modes[part], lengths[part], row["ns"].size).astype(np.uint64)
            row["switches"] += np.uint64((intervals["kind"][part] == IN).sum())
            row["end_ns"] = max(int(row["end_ns"]), int(intervals["end"][part].max()))

    def read_delays(self) -> None:
        """Read the run-queue delays of the newest _MOST_READ threads; they cannot be read once a thread has ended."""
        for pid, tid in list(self._rows)[-_MOST_READ:]:
            if delay_ns := _queued_ns(pid, tid):
                self._queued_ns[tid] = delay_ns

    def records(self, event: EventSpec, time_ns: int) -> Iterator[bytes]:
        """Yield sample records of `event` with the budgets of all threads. `time_ns`: time of the samples."""
        rows = np.array(list(self._rows.values()), self._dtype)
        ns, number = rows["ns"].view(np.int64), self._modes
        queued = [self._queued_ns.get(tid, 0) - self._before_ns.get(tid, 0) for tid in rows["tid"].tolist()]
        undivided = np.maximum(np.array(queued, np.int64) - ns[:, number["preempted"]], 0)
        for mode in ("other", "interruptible"):
            moved = np.minimum(undivided, ns[:, number[mode]])
            ns[:, number[mode]] -= moved
            ns[:, number["runnable"]] += moved
            undivided -= moved
        rows["ns"][:, number["unknown"]] += rows["end_ns"] - rows["begin_ns"] - rows["ns"].sum(axis=1)
        yield from (record for _, record in budget_samples(event, rows, list(number), time_ns))


def _queued_ns(pid: int, tid: int) -> int:
    """Return the run-queue delay of a thread since its birth, ns; 0 if unknown."""
    words = read_kernel_if_any(f"/proc/{pid}/task/{tid}/schedstat", 128).split()
    return int(words[1]) if len(words) > 1 else 0


def threads_of(pid: int) -> list[int]:
    """Return the ascending tids of a process; [] if it has ended."""
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))  # direct: of the kernel
    except OSError:
        return []
