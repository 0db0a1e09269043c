# SPDX-License-Identifier: Apache-2.0
"""Which recordings are of one machine, on which clock they meet, and by how much their numbers move.

A *machine* here is a host from one boot to the next: process ids, event ids, cgroup ids, CPU numbers and
kernel addresses mean something only within one. Two recordings are of the same one if host name, kernel and
place of the kernel in memory (KASLR moves it at each boot) agree, and if clocks that both put down against
the wall clock do not contradict.

*Clock*: recordings of one machine and one clock need no change. Others meet on CLOCK_REALTIME, by their
CLOCK_DATA (`perf record -k mono`, and all of this project's), or by will of the user all at the begin of the
first.

*Numbers* of the first machine stay. Those of machine k = 1, 2, … become

    pid, tid          10 000 000 k + pid         pid 1234 of the second machine reads 10001234
    CPU               + the CPUs of all machines before
    cgroup id         + k 2^48
    kernel addresses  those of maps that the first machine has, too (same name and build) move there, so that
                      one kernel's symbols name them all; others get 2^48 k off, where no kernel has code

and event ids of recording i become id + i 2^48. What is 0 or -1 for "none" stays.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.features import Feature
from perf_offcpu.errors import UsageError
from perf_offcpu.merge.merge_facts import Facts, KernelMap, is_kernel

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

PID_STEP = 10_000_000
"""More than any pid: Linux ends at 4 194 304. In decimal, so that people can read the old pid in the new."""

ID_STEP = 1 << 48
MAX_MACHINES = (2**31 - 1) // PID_STEP

CLOCK_REALTIME = 0
_SAME_BOOT_NS = 10 * 10**9
"""How far the wall clock may have been set between two recordings of the same boot."""

_KERNEL_HALF = np.uint64(1 << 63)
_MARKERS = np.uint64(2**64 - 4095)
"""From here on, words of a callchain are context markers."""


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """How recordings are put together.

    Args:
        apart: every recording is taken to be of a machine of its own.
        from_start: all recordings begin at the same moment, whatever their clocks say; implies `apart`,
            for a process that is in two of them would be in two places at once.
        prefix: comms and cgroups begin with the host's name, if there are several.
        pipe: the pipe form is written.
    """

    apart: bool = False
    from_start: bool = False
    prefix: bool = True
    pipe: bool = False


@dataclass(frozen=True, slots=True)
class KernelShift:
    """Where kernel addresses go.

    Args:
        starts, ends: uint64[n], ranges that move by `deltas` (modulo 2^64), in ascending order.
        default: by how much all other kernel addresses move.
        names: new names of maps; b"" for maps that are there already.
    """

    starts: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    ends: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    deltas: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    default: int = 0
    names: dict[bytes, bytes] = field(default_factory=dict)

    def apply(self, addresses: U64) -> U64:
        """uint64[n]: kernel addresses moved; user addresses and context markers stay."""
        slot = np.searchsorted(self.starts, addresses, side="right") - 1
        inside = slot >= 0
        if len(self.starts):
            inside &= addresses < self.ends[slot]
        known = self.deltas[slot] if len(self.deltas) else np.uint64(0)
        delta = np.where(inside, known, np.uint64(self.default % 2**64))
        moves = (addresses >= _KERNEL_HALF) & (addresses < _MARKERS)
        with np.errstate(over="ignore"):
            return np.where(moves, addresses + delta, addresses)


@dataclass(frozen=True, slots=True)
class Shift:
    """By how much the numbers of one recording move.

    Args:
        start_ns: the time (moved already) that records without one get; 0: they keep none.
        prefix: in front of comms and cgroups.
        kernel: None where kernel addresses stay.
    """

    machine: int = 0
    pid: int = 0
    cpu: int = 0
    ids: int = 0
    cgroup: int = 0
    time_ns: int = 0
    start_ns: int = 0
    prefix: bytes = b""
    kernel: KernelShift | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """How recordings become one.

    Args:
        shifts: one for each.
        machines: recordings (their rows) of each machine.
        clockid: of the result.
    """

    shifts: tuple[Shift, ...]
    machines: tuple[tuple[int, ...], ...]
    clockid: int


def plan(inputs: Sequence[Facts], options: MergeOptions) -> Plan:
    """Decide on everything.

    Raises:
        UsageError: the recordings cannot be put together: byte orders or architectures differ, a clock is
            not known, there are tracepoints of several machines.
    """
    _check_alike(inputs)
    machines = _machines(inputs, options.apart or options.from_start)
    clockid, times = _clock(inputs, machines, options.from_start)
    labels = [_label(inputs[rows[0]]) for rows in machines]
    with_prefix = options.prefix and len(set(labels)) > 1
    shifts: list[Shift] = [Shift()] * len(inputs)
    first_cpu = 0
    for number, rows in enumerate(machines):
        begins = sorted(inputs[row].begin_ns + times[row] for row in rows)
        kernel = _kernel_shift(inputs, machines[0], rows, number, labels[number])
        for row in rows:
            begin = inputs[row].begin_ns + times[row]
            shifts[row] = Shift(
                number,
                PID_STEP * number,
                first_cpu,
                ID_STEP * row,
                ID_STEP * number,
                times[row],
                begin - 1 if begin > begins[0] else 0,
                f"{labels[number]}:".encode("utf-8", "surrogateescape") if with_prefix else b"",
                kernel,
            )
        first_cpu += max(inputs[row].cpus for row in rows)
    return Plan(tuple(shifts), machines, clockid)


def _check_alike(inputs: Sequence[Facts]) -> None:
    first = inputs[0]
    for one in inputs[1:]:
        if one.order != first.order:
            raise UsageError(f"{first.name} and {one.name} are of machines of different byte order")
        archs = {one.features.text(Feature.ARCH), first.features.text(Feature.ARCH)} - {""}
        if len(archs) > 1:
            raise UsageError(f"{first.name} and {one.name} are of {' and '.join(sorted(archs))} machines")


def _machines(inputs: Sequence[Facts], apart: bool) -> tuple[tuple[int, ...], ...]:
    found: list[list[int]] = []
    for row, one in enumerate(inputs):
        known = None if apart else next((m for m in found if _same_boot(inputs[m[0]], one)), None)
        if known is None:
            found.append([row])
        else:
            known.append(row)
    if len(found) > MAX_MACHINES:
        raise UsageError(f"{len(found)} machines: their process ids have room for {MAX_MACHINES}")
    return tuple(map(tuple, found))


def _same_boot(one: Facts, other: Facts) -> bool:
    for feature in (Feature.HOSTNAME, Feature.OSRELEASE):  # missing in those of killed recorders
        if len({one.features.text(feature), other.features.text(feature)} - {""}) > 1:
            return False
    texts = one.kernel_text, other.kernel_text
    if texts[0] and texts[1]:
        if texts[0].pgoff != texts[1].pgoff:
            return False
    elif not (one.hostname and other.hostname):
        return False  # nothing speaks for it
    walls = one.wall_offset_ns, other.wall_offset_ns
    if one.clockid == other.clockid and walls[0] is not None and walls[1] is not None:
        return abs(walls[0] - walls[1]) < _SAME_BOOT_NS
    return True


def _clock(
    inputs: Sequence[Facts], machines: tuple[tuple[int, ...], ...], from_start: bool
) -> tuple[int, list[int]]:
    """(the clock of the result, by how much the times of each recording move)."""
    first = inputs[0]
    if from_start:
        return first.clockid, [first.begin_ns - one.begin_ns for one in inputs]
    if len(machines) == 1 and len({one.clockid for one in inputs}) == 1:
        return first.clockid, [0] * len(inputs)
    walls = [one.wall_offset_ns for one in inputs]
    for one, wall in zip(inputs, walls, strict=True):
        if wall is None:
            raise UsageError(
                f"{one.name}: its times cannot be put beside those of another clock or machine, for it does "
                "not say what time it was (perf record -k mono, outside of time namespaces): "
                "use --from-start to let all begin at once"
            )
    return CLOCK_REALTIME, [wall or 0 for wall in walls]


def _label(one: Facts) -> str:
    return one.hostname or os.path.basename(one.name)


def _kernel_shift(
    inputs: Sequence[Facts], home: tuple[int, ...], rows: tuple[int, ...], number: int, label: str
) -> KernelShift | None:
    """Where the kernel addresses of machine `number`, whose recordings are `rows`, go."""
    if not number:
        return None
    there = _kernel_maps(inputs, home)
    release = {inputs[row].features.text(Feature.OSRELEASE) for row in (home[0], rows[0])}
    default = -number * ID_STEP
    ranges, names = [], {}
    for name, one in _kernel_maps(inputs, rows).items():
        twin = there.get(name)
        if twin is not None and _same_build(one, twin, same_release=len(release) == 1):
            origin = (twin.pgoff, one.pgoff) if is_kernel(name) else (twin.start, one.start)
            ranges.append((one.start, one.start + one.size, (origin[0] - origin[1]) % 2**64))
            names[name] = b""
        else:
            short = b"kernel" if is_kernel(name) else os.path.basename(name).strip(b"[]")
            names[name] = b"[%s:%s]" % (label.encode("utf-8", "surrogateescape"), short)
    ranges.sort()
    starts, ends, deltas = (np.array([one[at] for one in ranges], np.uint64) for at in range(3))
    return KernelShift(starts, ends, deltas, default, names)


def _kernel_maps(inputs: Sequence[Facts], rows: tuple[int, ...]) -> dict[bytes, KernelMap]:
    found: dict[bytes, KernelMap] = {}
    for row in rows:
        for name, one in inputs[row].kernel.items():
            found.setdefault(name, one)
    return found


def _same_build(one: KernelMap, other: KernelMap, same_release: bool) -> bool:
    if one.build_id and other.build_id:
        return one.build_id == other.build_id
    return same_release and (one.size == other.size or is_kernel(one.name))
