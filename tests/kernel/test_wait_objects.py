# SPDX-License-Identifier: Apache-2.0
"""What threads wait for, against the log of a program that knows: locks, sockets, pipes, a file."""

import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from builders.compiled import build
from kernel.bpf_output import NOT_KNOWN
from kernel.napping import usual, waits_of, watched
from kernel.recorder import Run, run

from perf_offcpu import losses
from perf_offcpu.abi.syscalls import COMPAT_BIT, syscall_names
from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.columns import I64, Bool
from perf_offcpu.model.recording import Recording, SampleFlag

pytestmark = pytest.mark.beside

HUNG = Path(__file__).parent / "hung"
ROUNDS = 30  # all of them wait, however busy the machine, but for fsync() where the disk was done already
LATE = 2  # rounds in which a busy machine lets the holder release before the waiter asks
LOCKS = ("ledger", "journal", "heap", "pi", "rwlock")
FUTEXES = (*LOCKS, "cond", "sem")
CONDITION_BYTES = 48  # size of pthread_cond_t, inside of which threads wait
SYSCALLS = {"futex": 202, "read": 0, "fsync": 74}


class Round(NamedTuple):
    kind: str
    waiter: int
    holder: int
    begin_ns: int
    end_ns: int
    object: tuple[str, ...]


class Recorded(NamedTuple):
    recording: Recording
    rounds: list[Round]
    file: Path

    def waits(self, one: Round, syscall: str) -> I64:
        """Return the rows of the single waits in a system call that began in a round."""
        samples = self.recording.samples
        inside = (samples.switch_out_ns >= one.begin_ns) & (samples.switch_out_ns < one.end_ns)
        mine: Bool = (samples.tid == one.waiter) & (samples.syscall == SYSCALLS[syscall]) & inside
        return np.flatnonzero(mine & ~samples.has(SampleFlag.AGGREGATED))


def compiled(directory: Path) -> Path:
    return build("objects/objects.c", directory / "objects", "-O1", "-g")


def record(directory: Path, *options: str) -> Recorded:
    binary, file = compiled(directory), directory / "block"
    done = run("--off-cpu-thresh", "0", *options, "--", binary, file, str(ROUNDS), cwd=directory)
    rounds = []
    for line in done.stdout.splitlines():
        kind, waiter, holder, begin_ns, end_ns, *rest = line.split()
        rounds.append(Round(kind, int(waiter), int(holder), int(begin_ns), int(end_ns), tuple(rest)))
    assert Counter(one.kind for one in rounds) == dict.fromkeys([*FUTEXES, "tcp", "unix", "pipe", "fsync"], ROUNDS)
    return Recorded(load_recording(directory / "perf.data"), rounds, file)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(tmp_path_factory.mktemp("objects"), "--lock-owners")


def objects_of(recorded: Recorded, kind: str, syscall: str) -> list[tuple[Round, int]]:
    """Return the row of the object of each wait of the rounds of a kind."""
    recording, rows = recorded.recording, []
    for round_ in recorded.rounds:
        if round_.kind != kind:
            continue
        for row in recorded.waits(round_, syscall).tolist():
            (place,) = np.flatnonzero(recording.objects.id == recording.samples.object_id[row])
            rows.append((round_, int(place)))
    waited = len({round_ for round_, _ in rows})
    assert waited >= ROUNDS - LATE or (kind == "fsync" and waited)
    return rows


@pytest.mark.parametrize("kind", FUTEXES)
def test_each_wait_for_a_lock_has_its_address_and_memory(kind: str, recorded: Recorded) -> None:
    objects, strings = recorded.recording.objects, recorded.recording.strings
    for one, row in objects_of(recorded, kind, "futex"):
        assert objects.kind[row] == ObjectKind.FUTEX
        if kind == "cond" and objects.address[row] - int(one.object[0], 16) >= CONDITION_BYTES:
            continue  # for the mutex that belongs to it
        beyond = {"cond": CONDITION_BYTES, "rwlock": 16}.get(kind, 1)
        assert 0 <= int(objects.address[row]) - int(one.object[0], 16) < beyond
        place = strings[objects.place[row]]
        assert place == "heap" if kind == "heap" else place.endswith("/objects")


@pytest.mark.parametrize("kind", LOCKS)
def test_holder_when_the_wait_began_and_releaser(kind: str, recorded: Recorded) -> None:
    samples = recorded.recording.samples
    right, released, number = 0, 0, 0
    for one in recorded.rounds:
        if one.kind == kind:
            for row in recorded.waits(one, "futex").tolist():
                number += 1
                right += int(samples.holder_tid[row] == one.holder)
                released += int(samples.waker_tid[row] == one.holder)
                assert samples.holder_tid[row] in (one.holder, -1)
    assert number >= ROUNDS - LATE
    assert min(right, released) >= 0.99 * number - 1, "one preempted before it slept"


@pytest.mark.parametrize("kind", ["cond", "sem"])
def test_what_nobody_holds_has_no_holder(kind: str, recorded: Recorded) -> None:
    samples = recorded.recording.samples
    for one in recorded.rounds:
        if one.kind == kind:
            assert set(samples.holder_tid[recorded.waits(one, "futex")].tolist()) <= {-1, one.holder}
            for row in recorded.waits(one, "futex").tolist():
                objects = recorded.recording.objects
                (place,) = np.flatnonzero(objects.id == samples.object_id[row])
                if objects.address[place] - int(one.object[0], 16) < CONDITION_BYTES:
                    assert samples.holder_tid[row] == -1


DESCRIBED: dict[str, tuple[ObjectKind, tuple[str, ...], tuple[str, ...]]] = {
    "tcp": (ObjectKind.SOCKET, ("protocol", "local", "remote"), ("tcp",)),
    "unix": (ObjectKind.SOCKET, ("protocol", "peer_comm", "inode", "name"), ("unix", "server")),
    "pipe": (ObjectKind.PIPE, ("place", "peer_comm", "inode"), ("read end", "server")),
    "fsync": (ObjectKind.FILE, ("inode", "name"), ()),
}
"""Kind of wait → kind of its object, columns, and their first values; the others are in the log."""


@pytest.mark.parametrize("kind", DESCRIBED)
def test_each_wait_for_a_descriptor_names_what_it_refers_to(kind: str, recorded: Recorded) -> None:
    objects, strings = recorded.recording.objects, recorded.recording.strings
    object_kind, columns, values = DESCRIBED[kind]
    for one, row in objects_of(recorded, kind, "fsync" if kind == "fsync" else "read"):
        shown = [getattr(objects, name)[row] for name in columns]
        texts = [str(value) if name == "inode" else strings[value] for name, value in zip(columns, shown, strict=True)]
        assert (objects.kind[row], texts) == (object_kind, [*values, *one.object])


def test_everything_that_is_named_is_described_and_nothing_was_lost(recorded: Recorded) -> None:
    recording = recorded.recording
    ids = recording.samples.object_id
    assert np.isin(ids[ids != 0], recording.objects.id).all()
    unknown = (losses.OBJECTS_CLOSED, losses.OBJECTS_UNREADABLE, losses.OBJECTS_COMPAT, losses.OBJECTS_FULL)
    assert not set(unknown) & recording.losses.keys()


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return record(tmp_path_factory.mktemp("sparse"), "--no-object-names").recording


def test_holders_and_names_are_left_out_on_request(sparse: Recording) -> None:
    objects, samples = sparse.objects, sparse.samples
    is_lock = objects.kind == ObjectKind.KERNEL_LOCK  # the kernel knows who holds its locks
    others = ~np.isin(samples.object_id, objects.id[is_lock])
    objects = objects.take(~is_lock)
    assert (samples.holder_tid[others] == -1).all() and (samples.object_id != 0).any()
    assert len(objects) and not (objects.name.any() or objects.place.any() or objects.peer_comm.any())


IN_TURN = """
import os, sys, threading, time

there, to = os.pipe()
copy = os.dup(there)
threading.Timer(0.05, lambda: (os.close(there), time.sleep(0.05), os.write(to, b"x"))).start()
os.read(there, 1)

for _ in range(5): time.sleep(0.02)

there, to = os.pipe()
if os.fork() == 0:
    time.sleep(0.1)
    os.write(to, b"x")
    os._exit(0)
os.close(to)
os.read(there, 1)
os.execv(sys.executable, [sys.executable, "-c", "import os; os.open('/dev/null', 0)"])
"""
"""A descriptor is closed meanwhile; five sleeps; a fork and an exec replace the table of descriptors."""
CLOCK_NANOSLEEP = 230


def record_python(program: str, directory: Path, *options: str) -> tuple[Run, Recording]:
    done = run("--off-cpu-thresh", "1", *options, "--", sys.executable, "-c", program, cwd=directory)
    return done, load_recording(directory / "perf.data")


def test_a_descriptor_closed_meanwhile_lengths_of_sleeps_and_tables_after_fork_and_exec(tmp_path: Path) -> None:
    _, recording = record_python(IN_TURN, tmp_path)
    samples, objects = recording.samples, recording.objects
    rows = np.flatnonzero((samples.period > 80_000_000) & (samples.syscall == SYSCALLS["read"]))
    closed, read = rows[np.argsort(samples.time_ns[rows])].tolist()[-2:]  # Python may wait for its files before
    assert samples.object_id[closed] == 0 and recording.losses[losses.OBJECTS_CLOSED] == 1
    (row,) = np.flatnonzero(objects.id == samples.object_id[read])
    assert objects.kind[row] == ObjectKind.PIPE
    assert losses.OBJECTS_UNREADABLE not in recording.losses
    process = samples.tid == samples.tid[closed]
    rows = np.flatnonzero(process & (samples.syscall == CLOCK_NANOSLEEP) & (samples.period > 10_000_000))
    assert len(rows) == 5
    asked = samples.asked_ns[rows]
    assert (asked > 19_000_000).all() and (asked <= 20_000_000).all()
    assert (samples.period[rows] >= asked).all(), "a sleep never ends before its time"


KILLED_IN_READ = """
import ctypes, mmap, os, signal, time
NEWPID, PAGES = 0x20000000, 1 << 15
there, to = os.pipe()
ready, say = os.pipe()
if ctypes.CDLL(None).unshare(NEWPID):
    raise OSError
if (first := os.fork()) == 0:
    if os.fork() == 0:
        memory = mmap.mmap(-1, PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(PAGES):
            memory[page * mmap.PAGESIZE] = 1
        os.write(say, b"x")
        time.sleep(60)
    os.read(there, 1)
os.read(ready, 1)
os.kill(first, signal.SIGKILL)
os.waitpid(first, 0)
print(first)
"""
"""The first process of a pid namespace is killed while it reads, and then waits for the end of its child."""


def test_a_thread_that_was_killed_does_not_wait_for_its_descriptor_any_more(tmp_path: Path) -> None:
    done, recording = record_python(KILLED_IN_READ, tmp_path)
    samples = recording.samples
    mine = (samples.tid == int(done.stdout)) & (samples.syscall == SYSCALLS["read"])
    rows = np.flatnonzero(mine & samples.has(SampleFlag.OFFCPU) & ~samples.has(SampleFlag.PREEMPTED))
    objects = samples.object_id[rows[np.argsort(samples.switch_out_ns[rows])]].tolist()
    # It waits for both pipes, if the other process is late, and several times while it ends.
    assert objects[0] and not objects[-1] and not any(objects[objects.index(0) :])
    assert losses.OBJECTS_CLOSED not in recording.losses


@pytest.mark.parametrize("options", [(), ("--no-kernel-callchains",)])
def test_system_calls_of_32_bit_programs_have_names_but_no_objects(tmp_path: Path, options: tuple[str, ...]) -> None:
    binary = build("programs/compat.c", tmp_path / "compat", "-O1")
    recording = run(*options, "--off-cpu-thresh", "10", "--", binary, cwd=tmp_path).recording
    samples = recording.samples
    (read,) = np.flatnonzero((samples.syscall == COMPAT_READ) & (samples.period > 20_000_000))
    assert syscall_names("x86_64")[COMPAT_READ] == "read"
    assert samples.object_id[read] == 0
    assert recording.losses[losses.OBJECTS_COMPAT] == 1


COMPAT_READ = COMPAT_BIT | 3


@usual
def test_both_forms_find_the_same_kinds(napper: Path, in_switch: bool) -> None:
    with watched(napper, threshold_ns=0, in_switch=in_switch) as (one, program, rings):
        tallies = one.go()
        program.disable()
        kinds = {int(row["id"]): int(row["kind"]) for row in program.maps.take_objects()}
        waits = waits_of(rings)
    for kind, expected in {"futex": ObjectKind.FUTEX, "pipe": ObjectKind.PIPE, "nap": None}.items():
        (tally,) = [tally for tally in tallies if tally.kind == kind]
        mine = [wait for wait in waits if (wait.tid, wait.syscall) == (tally.tid, tally.syscall)]
        assert mine
        assert {kinds.get(wait.object_id) for wait in mine} == {expected}
        if kind == "nap":
            assert {wait.asked_ns == NOT_KNOWN for wait in mine} == {in_switch}, "memory of the sleeper"


def test_vfork_waits_for_the_child(tmp_path: Path) -> None:
    done = run("--off-cpu-thresh", "1", "--", build("programs/vfork.c", tmp_path / "vfork", "-O1"), cwd=tmp_path)
    samples, objects = done.recording.samples, done.recording.objects
    for line, is_over in zip(done.stdout.splitlines(), (True, False), strict=True):
        parent, child = map(int, line.split())
        mine = (samples.tid == parent) & (samples.period > 20_000_000) & (samples.syscall == VFORK)
        (wait,) = np.flatnonzero(mine)
        assert samples.has(SampleFlag.STILL_BLOCKED)[wait] != is_over
        (row,) = np.flatnonzero(objects.id == samples.object_id[wait])
        assert (objects.kind[row], objects.number[row]) == (ObjectKind.PROCESS, child)


VFORK = 58


further = pytest.param(("--off-cpu-thresh", "0"), marks=pytest.mark.long)


@pytest.mark.parametrize("options", [(), further, ("--call-graph", "fp"), ("--off-cpu-period", "1")])
def test_page_faults_of_a_mapped_file_name_it(tmp_path: Path, options: tuple[str, ...]) -> None:
    file = Path("/var/tmp") / tmp_path.name  # not in memory
    binary = build("programs/mapped.c", tmp_path / "mapped", "-O1")
    try:
        profile = run("-e", "none", *options, "--", binary, file, cwd=tmp_path).profile
    finally:
        file.unlink()
    samples, classes = profile.samples, classify(profile).wait_class
    fault = classes == WaitClass.FAULT
    is_named = np.append(profile.objects.name, 0)[samples.object] == profile.strings.find(str(file))
    assert int(samples.count[fault].sum()) > 1000, "a few waits are for disk blocks that say where the file is"
    assert samples.period[fault & is_named].sum() > 0.9 * samples.period[fault].sum()
    assert not is_named[~np.isin(classes, (WaitClass.FAULT, WaitClass.DISK))].any()


def test_wrong_addresses_are_counted_and_never_fatal(tmp_path: Path) -> None:
    binary = build("programs/wild.c", tmp_path / "wild", "-O1")
    recording = run("--off-cpu-thresh", "1", "--", binary, cwd=tmp_path).recording
    assert recording.losses[losses.OBJECTS_UNREADABLE] >= 1
