# SPDX-License-Identifier: Apache-2.0
"""The maps of the BPF program as user space sees them: switches, targets and outputs; sums and counters.

Sums can be taken while the program writes them. Entries are kept under a *generation*, a number that is part
of their key: taking the sums means to raise it, to wait until no program runs that still knows the old one,
and to remove what is kept under it. So every wait is in exactly one taking, however short the pauses.

That takes some 10 ms, in which nobody reads the rings. Where nothing is kept there is nothing to wait for:
what comes in the meantime is found by the next taking.
"""

from __future__ import annotations

import fcntl
import functools
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.collect.bpf import syscall as bpf_syscall
from perf_offcpu.collect.bpf.header import SharedHeader
from perf_offcpu.collect.bpf.syscall import GracePeriod
from perf_offcpu.collect.system.cpus import parse_cpu_list
from perf_offcpu.errors import RecordingError

MAP_NAMES = (
    "budgets", "comms", "control", "counters", "events", "groups", "rate", "stacks", "sums", "targets",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class UserStacks:
    """Stacks by hash: `hashes` ascend; stack i has the frames ips[offsets[i]:offsets[i + 1]], leaf first."""

    hashes: NDArray[np.uint64]
    offsets: NDArray[np.int64]
    ips: NDArray[np.uint64]

    @classmethod
    def pack(cls, hashes: NDArray[np.uint64], stacks: NDArray[Any]) -> UserStacks:
        """From map entries (`struct offcpu_stack`), which all have room for the longest stack."""
        order = np.argsort(hashes)
        lengths = stacks["nr"][order].astype(np.int64)
        used = np.arange(stacks.dtype["ips"].shape[0]) < lengths[:, None]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        return cls(hashes[order], offsets, stacks["ips"][order][used])

    def find(self, hashes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """The stacks of these hashes, in this order.

        Returns:
            offsets int64[n + 1] and ips uint64[offsets[n]]; a hash that is not there has no frames.
        """
        row = np.searchsorted(self.hashes, hashes)
        row[row == len(self.hashes)] = 0
        found = self.hashes[row] == hashes if len(self.hashes) else np.zeros(len(hashes), bool)
        first, end = (np.append(self.offsets, 0)[row + shift] for shift in (0, 1))
        length = np.where(found, end - first, 0)
        offsets = np.concatenate(([0], np.cumsum(length)))
        source = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], length)
        return offsets, self.ips[source]


_NO_STACKS = UserStacks(np.zeros(0, np.uint64), np.zeros(1, np.int64), np.zeros(0, np.uint64))


class ProgramMaps:
    """The maps, by descriptors of its own.

    Args:
        descriptors: of each map in MAP_NAMES; they are duplicated.
        header: what the entries look like.
        entries: sizes of the maps `sums`, `stacks` and `budgets`.
        control: the options, members of `struct offcpu_control`.
    """

    def __init__(
        self,
        descriptors: Mapping[str, int],
        header: SharedHeader,
        entries: Mapping[str, int],
        control: Mapping[str, int],
    ) -> None:
        self.user_stacks = _NO_STACKS
        self.header, self._entries = header, entries
        self._grace = GracePeriod()
        self._fds = {name: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for name, fd in descriptors.items()}
        self._control = np.zeros((), header.structs["control"])
        self.set_control(**control)

    def close(self) -> None:
        """Give the descriptors back."""
        while self._fds:
            os.close(self._fds.popitem()[1])
            if not self._fds:
                self._grace.close()

    @property
    def end_ns(self) -> int:
        """When recording ended; 0 if it has not."""
        return int(self._control["end_ns"])

    def set_control(self, **values: int) -> None:
        """Turn switches: members of `struct offcpu_control`."""
        for name, value in values.items():
            self._control[name] = value
        bpf_syscall.update(self._fds["control"], _u32(0), self._control.tobytes())

    def wait_for_programs(self) -> None:
        """Return when no program runs any more that has seen the switches in an earlier position."""
        self._grace.wait()

    def set_output(self, cpu: int, perf_event_fd: int) -> None:
        """Give the samples of a CPU a perf event to go to."""
        self._update("events", cpu, perf_event_fd)

    def set_target(self, kind: str, target: int, mode: str = "target_active") -> None:
        """Enter a target; `kind` and `mode` are enumerators of `offcpu_target_kind` and `offcpu_target`."""
        key = _u32(self.header.enums["target_kind"].index(kind)) + _u32(target)
        self._update_bytes("targets", key, self.header.enums["target"].index(mode))

    def set_comm(self, comm: bytes) -> None:
        """Enter a comm; it is cut to what the kernel keeps."""
        size = self.header.structs["comm"].itemsize
        self._update_bytes("comms", comm[: size - 1].ljust(size, b"\0"), 1)

    def set_group(self, group: int) -> None:
        """Enter a control group, by its id."""
        self._update_bytes("groups", group.to_bytes(8, sys.byteorder), 1)

    def _update(self, name: str, key: int, value: int) -> None:
        self._update_bytes(name, _u32(key), value)

    def _update_bytes(self, name: str, key: bytes, value: int) -> None:
        try:
            bpf_syscall.update(self._fds[name], key, _u32(value))
        except OSError as error:
            raise RecordingError(f"the BPF map {name} refuses an entry ({error.strerror})") from error

    def counters(self) -> dict[str, int]:
        """Each counter of `enum offcpu_counter` over all CPUs: events, and under `<name>_ns` their time."""
        totals: dict[str, int] = {}
        for name in self.header.enums["counter"][:-1]:
            per_cpu = self._counter(name)
            totals[name], totals[f"{name}_ns"] = int(per_cpu["events"].sum()), int(per_cpu["ns"].sum())
        return totals

    def by_cpu(self, counter: str) -> list[int]:
        """How often something happened, by CPU."""
        events: list[int] = self._counter(counter)["events"].tolist()
        return events

    def _counter(self, name: str) -> NDArray[np.void]:
        dtype, index = self.header.structs["count"], self.header.enums["counter"].index(name)
        raw = bpf_syscall.lookup(self._fds["counters"], _u32(index), dtype.itemsize * _possible_cpus())
        return np.frombuffer(raw, dtype)

    def rate(self) -> dict[str, int]:
        """The members of `struct offcpu_rate`."""
        dtype = self.header.structs["rate"]
        row = np.frombuffer(bpf_syscall.lookup(self._fds["rate"], _u32(0), dtype.itemsize), dtype)[0]
        return {name: int(row[name]) for name in dtype.names or ()}

    def drain_budgets(self) -> NDArray[np.void]:
        """Take out the budgets of threads that have ended."""
        if self._is_empty("budgets", "budget_key"):
            return np.empty(0, self.header.structs["budget"])
        return self._take("budgets", "budget_key", "budget", self._next_generation())[1]

    def _next_generation(self, epoch: bool = False) -> int:
        """Begin a new generation; gives the past one, which nobody writes to any more.

        Args:
            epoch: forget which callers were sent, too.
        """
        past = int(self._control["generation"])
        self.set_control(generation=past + 1, **({"epoch": past + 1} if epoch else {}))
        self.wait_for_programs()
        return past

    def drain_sums(self, epoch: bool = False) -> NDArray[np.void]:
        """Take out the sums; the stacks that they refer to are in `user_stacks` until the next call.

        Args:
            epoch: forget which callers were sent. Sums from here on are others than these.
        """
        if not epoch and self._is_empty("sums", "sum_key") and self._is_empty("stacks", "stack_key"):
            self.user_stacks = _NO_STACKS
            return _side_by_side(*(np.empty(0, self.header.structs[name]) for name in ("sum_key", "sum")))
        past = self._next_generation(epoch)
        keys, sums = self._take("sums", "sum_key", "sum", past)
        stack_keys, stacks = self._take("stacks", "stack_key", "stack", past)
        self.user_stacks = UserStacks.pack(stack_keys["hash"], stacks)
        return _side_by_side(keys, sums)

    def _is_empty(self, name: str, key: str) -> bool:
        return bpf_syscall.is_empty(self._fds[name], self.header.structs[key].itemsize)

    def _take(self, name: str, key: str, value: str, generation: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Remove and give the entries of a map up to a generation that is no longer written to."""
        fd, key_type, value_type = self._fds[name], self.header.structs[key], self.header.structs[value]
        sizes = key_type.itemsize, value_type.itemsize, self._entries[name]
        raw_keys, raw_values = bpf_syscall.lookup_batch(fd, *sizes)
        keys, values = np.frombuffer(raw_keys, key_type), np.frombuffer(raw_values, value_type)
        past = keys["generation"] <= generation
        bpf_syscall.delete_batch(fd, keys[past].tobytes(), int(past.sum()))
        return keys[past], values[past]


def _side_by_side(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.void]:
    """One structured array with the fields of both."""
    columns = [(part, name) for part in (left, right) for name in part.dtype.names or ()]
    joined = np.empty(len(left), [(name, part.dtype[name]) for part, name in columns])
    for part, name in columns:
        joined[name] = part[name]
    return joined


@functools.cache
def _possible_cpus() -> int:
    """How many values a per-CPU map holds for one key."""
    return len(parse_cpu_list(Path("/sys/devices/system/cpu/possible").read_text()))


def _u32(number: int) -> bytes:
    return number.to_bytes(4, sys.byteorder)
