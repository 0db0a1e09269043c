# SPDX-License-Identifier: Apache-2.0
"""Rings: how long the recorder left them alone, and why; its priority; records of maps on their way into the file."""

import mmap
import os
import time
from types import SimpleNamespace

import pytest
from builders.examples import examples

from perf_offcpu.abi.records import CpuMode, Misc, RecordType
from perf_offcpu.binary.layout import Buffer
from perf_offcpu.collect.existing import maps
from perf_offcpu.collect.existing.kernel_maps import KernelMaps
from perf_offcpu.collect.existing.maps import MappedBuildIds
from perf_offcpu.collect.existing.records import mmap2, synthesized
from perf_offcpu.collect.rings.pressure import DrainPriority, Pressure, TimeSpent, remedy, run_delay
from perf_offcpu.collect.rings.rings import default_ring_bytes, parse_ring_size, wakeup_bytes
from perf_offcpu.collect.rings.side_band import SideBand
from perf_offcpu.losses import Losses


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Seconds: elapsed, on a CPU, and runnable without a CPU."""
    clocks = SimpleNamespace(wall=0.0, cpu=0.0, runnable=0.0)
    times = SimpleNamespace(monotonic=lambda: clocks.wall, thread_time=lambda: clocks.cpu)
    monkeypatch.setattr("perf_offcpu.collect.rings.pressure.time", times)
    return clocks


def test_the_time_before_a_full_ring_is_counted_with_the_writes_in_it(clocks: SimpleNamespace) -> None:
    pressure = Pressure()
    clocks.wall = clocks.cpu = 50.0
    pressure.begin()
    for number, fill in enumerate([0.2, 1.0, 0.95, 0.1]):
        clocks.wall += 1.0
        clocks.cpu += 0.125
        with pressure.draining(lambda fill=fill: fill), pressure.writing():  # type: ignore[misc]
            clocks.wall += 10.0 * number
            clocks.cpu += number
    # Ring 1 filled while 0 was written and a second of waiting, ring 2 while 1 was.
    assert pressure.full == TimeSpent(elapsed_s=1 + 11, file_s=9, cpu_s=0.125 + 1.125)
    assert pressure.longest == TimeSpent(elapsed_s=21, file_s=18, cpu_s=2.125)


def test_sleep_until_a_ring_wakes_does_not_count_but_the_way_to_a_cpu_does(clocks: SimpleNamespace) -> None:
    pressure = Pressure(lambda: clocks.runnable)
    with pressure.sleeping():
        clocks.wall += 7.0
        clocks.runnable += 2.0
    clocks.wall += 1.0
    with pressure.draining(lambda: 1.0):
        pass
    assert pressure.longest == pressure.full == TimeSpent(elapsed_s=3.0, runnable_s=2.0)
    assert str(pressure.longest) == "3000 ms (0 busy, 2000 without a CPU, 0 for the file, 1000 for the kernel)"


def test_a_thread_without_a_cpu_is_seen() -> None:
    """Two threads on one CPU: the measured one runs about half of the time."""
    cpus, begin = os.sched_getaffinity(0), time.monotonic()
    end = begin + 0.5
    os.sched_setaffinity(0, [min(cpus)])
    try:
        with run_delay() as delay:
            before, other = delay(), os.fork()
            if not other:
                while time.monotonic() < end:
                    pass
                os._exit(0)
            while time.monotonic() < end:
                pass
            os.waitpid(other, 0)
            assert 0.1 < delay() - before <= time.monotonic() - begin
    finally:
        os.sched_setaffinity(0, cpus)


def test_a_failed_write_counts_too(clocks: SimpleNamespace) -> None:
    pressure = Pressure()
    with pytest.raises(OSError), pressure.draining(lambda: 0.0), pressure.writing():
        clocks.wall += 3.0
        raise OSError
    with pressure.draining(lambda: 1.0):
        pass
    assert pressure.full.file_s == 3.0


@pytest.mark.parametrize(("seconds", "begin"), examples("unit/collect/examples.txt", "full rings"))
def test_the_cause_is_named_that_took_most_of_the_time(seconds: str, begin: str) -> None:
    assert remedy(TimeSpent(*map(float, seconds.split())), copies=False, compressed=False).startswith(begin)


def test_only_what_can_be_changed_is_proposed() -> None:
    disk, busy = TimeSpent(1.0, 1.0), TimeSpent(1.0, 0.0, 1.0)
    assert "(-z)" in remedy(disk, copies=False, compressed=False)
    assert "(-z)" not in remedy(disk, copies=False, compressed=True)
    assert "no -z" in remedy(busy, copies=False, compressed=True)
    assert "copies" in remedy(busy, copies=True, compressed=False)
    assert "copies" not in remedy(busy, copies=False, compressed=False)
    assert "-r 1" in remedy(TimeSpent(1.0, 0.0, 0.0, 1.0), copies=False, compressed=False)
    assert "-r 1" not in remedy(disk, copies=False, compressed=False)


PAGE = mmap.PAGESIZE
MB = 1 << 20


@pytest.mark.parametrize(("text", "size"), [
    ("1", PAGE), ("512", 512 * PAGE), ("513", 1024 * PAGE), ("4M", 4 * MB), ("3m", 4 * MB), ("1B", PAGE),
])  # fmt: skip
def test_pages_and_suffixes_round_up_to_powers_of_two(text: str, size: int) -> None:
    assert parse_ring_size(text) == max(size, PAGE)


def test_rings_stay_small_in_sum_those_of_copies_are_larger_and_wake_long_before_they_are_full() -> None:
    usual = {1: 4 * MB, 64: 4 * MB, 65: 2 * MB, 128: 2 * MB, 5000: MB // 2}
    assert {cpus: default_ring_bytes(cpus) for cpus in usual} == usual
    sizes = {2: 16 * MB, 16: 16 * MB, 17: 8 * MB, 64: 4 * MB, 128: 2 * MB}
    assert {cpus: default_ring_bytes(cpus, copies=True) for cpus in sizes} == sizes
    rates = {10: MB // 2, 100: MB, 1000: 8 * MB, 5000: 16 * MB}
    assert {rate: default_ring_bytes(2, copies=True, rate=rate) for rate in rates} == rates
    assert (default_ring_bytes(2, rate=1000), default_ring_bytes(64, copies=True, rate=1000)) == (MB, 4 * MB)
    assert (wakeup_bytes(PAGE), wakeup_bytes(64 * MB)) == (PAGE // 4, MB)


READ, WRITE, EXECUTE = 1, 2, 4
COMM = synthesized(RecordType.COMM, 0, {"pid": 7, "tid": 7, "comm": b"main"})


def mapped(name: bytes, prot: int) -> bytes:
    """A map of a process; the kernel marks those without code."""
    place = {"pid": 7, "tid": 7, "addr": 0x1000, "len": 0x1000, "pgoff": 0}
    values = {**place, "prot": prot, "flags": 2, "filename": name}
    return mmap2(CpuMode.USER, values, misc=0 if prot & EXECUTE else Misc.MMAP_DATA)


@pytest.mark.parametrize(("name", "prot", "stays"), examples("unit/collect/examples.txt", "maps of data"))
def test_maps_of_own_data_are_left_out(name: str, prot: str, stays: str) -> None:
    side_band, kept = SideBand(MappedBuildIds(), KernelMaps(), Losses()), list[Buffer]()
    side_band.sink = SimpleNamespace(append=lambda *pieces: kept.extend(pieces))
    record = mapped(name.encode(), sum({"r": READ, "w": WRITE, "x": EXECUTE}[letter] for letter in prot))
    side_band.append(COMM + record, record + COMM)
    assert b"".join(map(bytes, kept)) == COMM + 2 * bool(stays) * record + COMM
    side_band.close()


@pytest.mark.kernel  # map_files needs root
@pytest.mark.beside
def test_the_build_id_is_read_by_the_mapping_of_code() -> None:
    """The file has another path in its root directory; over the end of its last mapping the linker has mapped."""
    own = next(m for m in maps.parse_maps(maps.read_maps(os.getpid())) if m.inode and b"x" in m.permissions)
    place = {"pid": os.getpid(), "tid": 1, "addr": own.start, "len": own.end - own.start, "pgoff": 0, "flags": 2}
    values: dict[str, object] = {**place, "maj": 0, "min": 0, "ino": own.inode, "ino_generation": 0}
    values |= {"prot": READ | EXECUTE, "filename": b"/nowhere/file"}
    data = mmap2(CpuMode.USER, values | {"len": 1 << 40, "prot": READ}, misc=Misc.MMAP_DATA)
    side_band, kept = SideBand(MappedBuildIds(), KernelMaps(), Losses()), list[Buffer]()
    side_band.sink = SimpleNamespace(append=lambda *pieces: kept.extend(pieces))
    side_band.append(mmap2(CpuMode.USER, values) + data)
    build_id = maps.build_id_at(own.name)
    assert build_id and b"".join(map(bytes, kept)).count(build_id) == 2
    side_band.close()


def test_no_more_than_some_files_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "MOST_KNOWN", 2)
    build_ids = MappedBuildIds()
    for name in (b"a", b"b", b"c"):
        build_ids.learn(maps.key_of(1, 2, name), name, b"id")
    assert list(build_ids.files) == [b"b", b"c"] and build_ids.get(maps.key_of(1, 2, b"a")) is None


class Machine:
    """A kernel that sets policies or refuses them."""

    def __init__(self, clocks: SimpleNamespace) -> None:
        self.clocks, self.priority = clocks, DrainPriority()
        self.policies: list[int] = []
        self.refuses = False

    def set_policy(self, pid: int, policy: int, parameter: os.sched_param) -> None:
        assert pid == 0 and policy & os.SCHED_RESET_ON_FORK
        self.policies.append(policy & ~os.SCHED_RESET_ON_FORK)
        assert parameter.sched_priority == (1 if self.policies[-1] == os.SCHED_FIFO else 0)
        if self.refuses:
            raise PermissionError

    def run(self, wall_s: float, cpu_s: float) -> None:
        self.clocks.wall += wall_s
        self.clocks.cpu += cpu_s
        self.priority.adapt()


@pytest.fixture
def machine(clocks: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(clocks)
    monkeypatch.setattr(os, "sched_setscheduler", machine.set_policy)
    return machine


@pytest.mark.parametrize("share", [0.0, 0.2, 0.4, 1.0])
def test_a_thread_that_uses_much_time_is_an_ordinary_one_for_a_while(share: float, machine: Machine) -> None:
    with machine.priority.raised():
        assert machine.policies == [os.SCHED_FIFO]
        for _ in range(8):
            machine.run(0.125, 0.125 * share)
        assert machine.policies[1:] == ([os.SCHED_OTHER] if share > 0.3 else [])
        machine.run(0.6, 0.0)
        assert machine.policies[-1] == os.SCHED_FIFO
    assert machine.policies[-1] == os.SCHED_OTHER


def test_a_refusal_is_final_and_no_error(machine: Machine) -> None:
    machine.refuses = True
    with machine.priority.raised():
        machine.run(5.0, 5.0)
        machine.run(5.0, 0.0)
    assert machine.policies == [os.SCHED_FIFO]


def test_a_priority_that_is_not_wanted_is_left_alone(clocks: SimpleNamespace) -> None:
    before = os.sched_getscheduler(0)
    priority = DrainPriority(False)
    with priority.raised():
        clocks.wall += 1.0
        priority.adapt()
        assert os.sched_getscheduler(0) == before


def test_the_kernel_sets_the_thread_back() -> None:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:  # no privilege, or a control group without real-time budget
        expected = os.SCHED_OTHER
    else:
        expected = os.SCHED_FIFO
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
    with DrainPriority().raised():
        now = os.sched_getscheduler(0)
    assert now & ~os.SCHED_RESET_ON_FORK == expected
    assert os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_OTHER
