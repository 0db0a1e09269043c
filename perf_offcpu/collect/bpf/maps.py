# SPDX-License-Identifier: Apache-2.0
"""The maps of the BPF program as user space sees them: options, targets and outputs; sums and counters.

Sums can be drained while the program adds to them. The key of an entry holds a *generation*: draining raises the
number, blocks until no program runs that has read the former one, and removes the entries of the former one. So every
recorded wait is in exactly one drain, however soon another drain follows. If the maps are empty, draining does not
block: entries that are added meanwhile are in the next drain.

Draining blocks for an RCU grace period: some 10 ms, on a busy machine many seconds. A thread of its own does that and
empties the maps, so that the caller can go on emptying the rings."""

import contextlib
import fcntl
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.binary.columnar import offsets_of
from perf_offcpu.collect.bpf import syscall as bpf_syscall
from perf_offcpu.collect.bpf.attr import MapInfo
from perf_offcpu.collect.bpf.header import SharedHeader
from perf_offcpu.collect.bpf.syscall import GracePeriod
from perf_offcpu.collect.system.background import Future, in_background
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.system.cpus import possible_cpus
from perf_offcpu.errors import RecordingError
from perf_offcpu.model.callchains import Ragged

MAP_NAMES = (
    "budgets", "calls", "comms", "control", "counters", "events", "events_bare", "events_double",
    "events_fourfold", "events_python", "events_quarter", "groups", "jvms", "new_codes", "new_objects",
    "polled", "python_program", "pythons", "rate", "stacks", "sums", "targets",
)  # fmt: skip

_SETTLED_NS = 1_000_000  # after it no program runs that has missed an entry of a map
_MOST_OBJECTS = 1 << 14  # items that are taken at once: several times the size of a queue


@dataclass(frozen=True, slots=True)
class UserStacks:
    """User stacks by hash: row i of `ips`, leaf first, is the stack with the hash hashes[i]; `hashes` ascend."""

    hashes: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    ips: Ragged = field(default_factory=Ragged)

    @classmethod
    def pack(cls, hashes: NDArray[np.uint64], stacks: NDArray[Any]) -> "UserStacks":
        """Build from n map entries. `hashes`: uint64[n] in any order. `stacks`: rows of `struct offcpu_stack`."""
        order = np.argsort(hashes)
        lengths = stacks["nr"][order].astype(np.int64)
        used = np.arange(stacks.dtype["ips"].shape[0]) < lengths[:, None]
        return cls(hashes[order], Ragged(offsets_of(lengths), stacks["ips"][order][used]))

    def find(self, hashes: NDArray[np.uint64]) -> Ragged:
        """Return the stack with each hash, leaf first, without context markers; empty if the hash is unknown."""
        row = np.searchsorted(self.hashes, hashes)
        is_there = (row < len(self.hashes)) & (np.append(self.hashes, np.uint64(0))[row] == hashes)
        return self.ips.take(np.where(is_there, row, -1))


class Drained(NamedTuple):
    """Entries that a drain removed from the BPF maps."""

    sums: NDArray[np.void]
    """Rows, one per thread, state, system call, cgroup, stack and caller, with the members of `struct offcpu_sum_key`
    and `struct offcpu_sum`. `stack` is a hash in `stacks`, 0 for none."""
    stacks: UserStacks
    budgets: NDArray[np.void]
    """Rows of `struct offcpu_budget` of threads that have ended; `ns` is indexed by `enum offcpu_mode`."""


class ProgramMaps:
    """Read, write and drain the maps of the BPF program. `descriptors`: map name (all MAP_NAMES) → descriptor, which is
    duplicated. `header`: layouts of the entries. `control`: options, members of `struct offcpu_control`."""

    def __init__(self, descriptors: Mapping[str, int], header: SharedHeader, control: Mapping[str, int]) -> None:
        self.header = header
        self._grace = GracePeriod()
        self._stopped = False
        self._fds = {name: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for name, fd in descriptors.items()}
        self._control = np.zeros((), header.structs["control"])
        # Other users must not know the hash_key: with it they could choose the hashes of their stacks.
        self.set_control(hash_key=int.from_bytes(os.urandom(8)), **control)

    def close(self) -> None:
        """Close the descriptors."""
        while self._fds:
            os.close(self._fds.popitem()[1])
            if not self._fds:
                self._grace.close()

    @property
    def end_ns(self) -> int:
        """Time at which recording ended or paused, ns of CLOCK_MONOTONIC; 0 while it goes on."""
        return int(self._control["end_ns"])

    def set_control(self, **values: int) -> None:
        """Set members of `struct offcpu_control`, which the programs read as they run."""
        for name, value in values.items():
            self._control[name] = value
        bpf_syscall.update(self._fds["control"], _u32(0), self._control.tobytes())

    def start(self) -> None:
        """Begin to record, or go on after `stop`; states of tasks that the program noted before `stop` are ignored."""
        self._stopped = False
        begin_ns = now_ns()
        paused_ns = begin_ns - self.end_ns if self.end_ns else 0
        # Set first, so that each program that finds `enabled` has it: the copy into the map is not atomic.
        self.set_control(paused_ns=int(self._control["paused_ns"]) + paused_ns)
        self.set_control(enabled=1, begin_ns=begin_ns, end_ns=0)

    def stop(self) -> None:
        """Stop recording; return when no program runs any more that has read `enabled` as 1."""
        if self._control["enabled"]:
            self.set_control(enabled=0, end_ns=now_ns())
        self.wait_for_programs()
        self._stopped = True

    def wait_for_programs(self) -> None:
        """Return when no program runs any more that has read an earlier `struct offcpu_control`."""
        self._grace.wait()

    def set_output(self, cpu: int, perf_event_fd: int, name: str = "events") -> None:
        """Send the samples of waits that end on `cpu` to this perf event (bpf-output, of the same CPU). `name`: the
        BPF map of events; each size of stack copies has a map (`collect.sampling.copy_sizes`)."""
        self._set(name, _u32(cpu), perf_event_fd)

    def add_target(self, target: int, kind: str = "process", mode: str = "target_active") -> None:
        """Record a target, if the config chooses tasks by its kind. `target`: pid or tid in the recorder's own pid
        namespace, uid or CPU. `kind`: `process`, `thread`, `user` (effective uid) or `cpu` (`enum offcpu_target_kind`).
        `mode`: `target_active`, or `target_armed` to record a process from its next exec on (`enum offcpu_target`)."""
        if self._control["all_found"]:
            self.set_control(all_found=0)
        key = _u32(self.header.enums["target_kind"].index(kind)) + _u32(target)
        self._set("targets", key, self.header.enums["target"].index(mode))

    def add_comm(self, comm: bytes) -> None:
        """Record threads with this comm (config: `by_comm`), cut to the length that the kernel keeps."""
        size = self.header.structs["comm"].itemsize
        self._set("comms", comm[: size - 1].ljust(size, b"\0"), 1)

    def add_group(self, group: int) -> None:
        """Record tasks in a control group or below (config: `by_group`). `group`: inode of its directory."""
        self._set("groups", group.to_bytes(8, sys.byteorder), 1)

    def describe_calls(self, calls: Mapping[int, tuple[str, str]]) -> None:
        """Fill the BPF map `calls`: object and timeout argument of system calls. `calls`: from `call_numbers`."""
        kinds, timeouts = self.header.enums["call_kind"], self.header.enums["timeout"]
        row = np.zeros((), self.header.structs["call"])
        for number, (object_form, timeout) in calls.items():
            row["what"], row["timeout"] = kinds.index(f"call_{object_form}"), timeouts.index(f"timeout_{timeout}")
            bpf_syscall.update(self._fds["calls"], _u32(number), row.tobytes())

    def set_polled(self, waits: NDArray[Any], descriptors: Sequence[int]) -> None:
        """Tell the program, in the BPF map `polled`, for which descriptor threads are still blocked in poll() or
        select(). `waits`: rows of `struct offcpu_last`. `descriptors`: the only descriptor of each row's call."""
        keys = np.zeros(len(waits), self.header.structs["polled"])
        for name in keys.dtype.names or ():
            keys[name] = waits[name]
        for key, descriptor in zip(keys, descriptors, strict=True):
            with contextlib.suppress(RecordingError):  # the kernel has no memory for it
                self._set("polled", key.tobytes(), descriptor)

    def set_python(self, pid: int, values: Mapping[str, int], *, forked: bool = False) -> None:
        """Write into the BPF map `pythons`, if it has room, where a process keeps the state of CPython. `values`:
        members of `struct offcpu_python`. `forked`: `values` are those of the parent; an existing entry is kept."""
        row = np.zeros((), self.header.structs["python"])
        if forked:  # by the program that is attached to forks, unless all tasks are recorded
            with contextlib.suppress(OSError):
                bpf_syscall.lookup(self._fds["pythons"], _u32(pid), row.itemsize)
                return
        for name, value in values.items():
            row[name] = value
        with contextlib.suppress(OSError):
            bpf_syscall.update(self._fds["pythons"], _u32(pid), row.tobytes())

    def forget_python(self, pid: int) -> None:
        """Remove the entry of a process that `set_python` made."""
        self._forget("pythons", pid)

    def set_jvm(self, pid: int) -> int:
        """Let the BPF program give stacks of a JVM with different interpreted methods different numbers. Return the
        time from which this holds, ns of CLOCK_MONOTONIC; 0 if the map has no room."""
        try:
            bpf_syscall.update(self._fds["jvms"], _u32(pid), _u32(0))
        except OSError:
            return 0
        return now_ns() + _SETTLED_NS

    def forget_jvm(self, pid: int) -> None:
        """Remove the entry of a process that `set_jvm` made."""
        self._forget("jvms", pid)

    def _forget(self, name: str, pid: int) -> None:
        with contextlib.suppress(OSError):  # there is no entry
            bpf_syscall.delete_batch(self._fds[name], np.array([pid], np.uint32))

    def set_python_program(self, fd: int) -> None:
        """Set the program that reads Python functions, which the other programs call. `fd`: its descriptor."""
        self._set("python_program", _u32(0), fd)

    def take_codes(self) -> NDArray[np.void]:
        """Remove and return the queued descriptions of Python functions: rows of `struct offcpu_code`."""
        return self._take_queued("new_codes", self.header.structs["code"])

    def take_objects(self) -> NDArray[np.void]:
        """Remove and return the queued descriptions of new wait objects: rows of `struct offcpu_object`. An object is
        queued before the first sample that names it is in a ring."""
        return self._take_queued("new_objects", self.header.structs["object"])

    def _take_queued(self, name: str, dtype: np.dtype[Any]) -> NDArray[np.void]:
        rows = iter(lambda: bpf_syscall.pop(self._fds[name], dtype.itemsize), None)
        # Programs that find new objects all the time must not keep the recorder here.
        return np.frombuffer(b"".join(itertools.islice(rows, _MOST_OBJECTS)), dtype)

    def _set(self, name: str, key: bytes, value: int) -> None:
        try:
            bpf_syscall.update(self._fds[name], key, _u32(value))
        except OSError as error:
            raise RecordingError(f"the BPF map {name} refuses an entry ({error.strerror})") from error

    def counters(self) -> dict[str, int]:
        """Return name of `enum offcpu_counter` → number of events on all CPUs, and NAME_ns → their off-cpu time."""
        totals: dict[str, int] = {}
        for name in self.header.enums["counter"][:-1]:
            per_cpu = self._counter(name)
            totals[name], totals[f"{name}_ns"] = int(per_cpu["events"].sum()), int(per_cpu["ns"].sum())
        return totals

    def output_failures(self) -> list[int]:
        """Return the number of samples that found no perf event on their CPU, for each possible CPU."""
        events: list[int] = self._counter("output_failed")["events"].tolist()
        return events

    def _counter(self, name: str) -> NDArray[np.void]:
        dtype, index = self.header.structs["count"], self.header.enums["counter"].index(name)
        raw = bpf_syscall.lookup(self._fds["counters"], _u32(index), dtype.itemsize * len(possible_cpus()))
        return np.frombuffer(raw, dtype)

    def rate(self) -> dict[str, int]:
        """Return name → value of the members of `struct offcpu_rate`, the state of the limit of samples a second."""
        dtype = self.header.structs["rate"]
        row = np.frombuffer(bpf_syscall.lookup(self._fds["rate"], _u32(0), dtype.itemsize), dtype)[0]
        return {name: int(row[name]) for name in dtype.names or ()}

    def drain(self) -> Drained:
        """Remove and return sums, stacks and budgets, also while recording: each wait is in exactly one drain."""
        return self.start_drain().result()

    def copy_all(self) -> None:
        """Make each sample hold a copy of its stack, instead of the number of an earlier copy, until a new file begins
        (`start_drain` with `end_of_file`)."""
        self.set_control(copy_all=1)

    def start_drain(self, *, end_of_file: bool = False) -> Future[Drained]:
        """Begin to remove the entries added up to now; the future returns them. An earlier drain must have ended.
        `end_of_file`: the drained sums go to a file that ends here; for the next file the program copies each stack
        once more. Then the rings must have been emptied just before, after `copy_all`."""
        structs, keys = self.header.structs, {"sums": "sum_key", "stacks": "stack_key", "budgets": "budget_key"}
        is_empty = all(bpf_syscall.is_empty(self._fds[name], structs[key].itemsize) for name, key in keys.items())
        if not end_of_file and is_empty:
            done: Future[Drained] = Future()
            sums = _side_by_side(np.empty(0, structs["sum_key"]), np.empty(0, structs["sum"]))
            done.set_result(Drained(sums, UserStacks(), np.empty(0, structs["budget"])))
            return done
        past = int(self._control["generation"])
        changes = {"epoch": past + 1, "copy_all": 0} if end_of_file else {}
        self.set_control(generation=past + 1, **changes)
        return in_background(lambda: self._drain_generation(past))

    def _drain_generation(self, past: int) -> Drained:
        """Wait until programs add no entries of generation `past` (number of a drain); then remove and return them."""
        if self._control["enabled"] or not self._stopped:
            self.wait_for_programs()
        sums = _side_by_side(*self._take("sums", "sum_key", "sum", past))
        stack_keys, stacks = self._take("stacks", "stack_key", "stack", past)
        budgets = self._take("budgets", "budget_key", "budget", past)[1]
        return Drained(sums, UserStacks.pack(stack_keys["hash"], stacks), budgets)

    def _take(self, name: str, key: str, value: str, generation: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Remove and return (keys, values) of the entries of the map `name` up to `generation` (number of a drain), to
        which no program writes any more. `key`, `value`: names of their structures in the header."""
        fd = self._fds[name]
        size = bpf_syscall.read_info(fd, MapInfo()).max_entries
        keys, values = (np.empty(size, self.header.structs[struct]) for struct in (key, value))
        count = bpf_syscall.lookup_batch(fd, keys, values)
        past = np.flatnonzero(keys["generation"][:count] <= generation)
        bpf_syscall.delete_batch(fd, keys[past])
        return keys[past], values[past]


def _side_by_side(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.void]:
    """Return a structured array with the fields of both arrays, row by row; they have the same length."""
    columns = [(part, name) for part in (left, right) for name in part.dtype.names or ()]
    joined = np.empty(len(left), [(name, part.dtype[name]) for part, name in columns])
    for part, name in columns:
        joined[name] = part[name]
    return joined


def _u32(number: int) -> bytes:
    return number.to_bytes(4, sys.byteorder)
