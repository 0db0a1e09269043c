# SPDX-License-Identifier: Apache-2.0
"""Decoded recordings of perf 7.2: the waits of each thread, in every form; and the demo's stacks. Recordings made on
arm64, with copies of stacks, too, are read on any machine as there."""

import lzma
from pathlib import Path

import numpy as np
import pytest
from builders.perf_text import parse
from builders.refused import output

from perf_offcpu import losses
from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.cli import main
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import Recording, SampleFlag
from perf_offcpu.objects.search import Search
from perf_offcpu.symbolize.load import load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.unwind.unwinder import unwind

HERE = Path(__file__).parent
DATA = HERE.parent / "data" / "perf-7.2"
NAMES = ["direct", "atend", "hybrid", "deferred", "compressed", "pipe", "sched"]


def waits(recording: Recording) -> dict[str, tuple[int, int]]:
    """Return comm → (off-cpu samples, ns); "comm/tid" if several threads share a comm."""
    samples = recording.samples
    off = samples.take(samples.has(SampleFlag.OFFCPU))
    totals: dict[str, tuple[int, int]] = {}
    for comm, period in zip(off.comm.tolist(), off.period.tolist(), strict=True):
        count, total = totals.get(recording.strings[comm], (0, 0))
        totals[recording.strings[comm]] = (count + 1, total + period)
    return totals


@pytest.mark.parametrize("name", NAMES)
def test_every_form_is_read_whole(name: str) -> None:
    recording = load_recording(DATA / f"{name}.data", switches=False)
    recording.check()
    assert set(recording.losses) == {losses.WRONG_CALLERS}, "sound files: nothing but what frame pointers made up"
    # As many samples as perf 7.2 itself prints (`perf script | grep -c '^[^ \t]'`).
    expected = dict(direct=509, atend=17, hybrid=646, deferred=544, compressed=400, pipe=546, sched=271)
    assert len(recording.samples) == expected[name]


def test_direct_samples_go_to_the_thread_that_slept() -> None:
    """perf 7.2 attributes all of them to the main thread: it reads the swapped pair."""
    recording = load_recording(DATA / "direct.data")
    found = waits(recording)
    assert set(found) == {
        "perf-exec", "blocker", "sleeper", "deep", "locker", "reader", "writer", "poller", "syncer", "stuck",
    }  # fmt: skip
    # 10 rounds of a 10 ms sleep each, in emulation: at least that long, and not another thread's waits.
    assert 10 * 10_000_000 <= found["sleeper"][1] < 150_000_000
    assert 10 * 12_000_000 <= found["poller"][1] < 150_000_000
    samples = recording.samples
    threads = np.unique(samples.tid[samples.has(SampleFlag.REPAIRED_IDS)])
    assert len(threads) == 9
    assert set(samples.pid[samples.tid > 0].tolist()) <= {126}


def test_sums_have_no_time_but_a_thread_and_a_comm() -> None:
    recording = load_recording(DATA / "atend.data")
    samples = recording.samples
    both = np.uint32(SampleFlag.UNTIMED | SampleFlag.AGGREGATED)
    assert ((samples.flags & both) == both).all()
    assert (samples.time_ns == -1).all()
    assert waits(recording)["stuck"] == (1, 256586385)
    assert not any(comm.startswith(":") for comm in waits(recording))


def test_frames_are_capped_and_never_the_cgroup_id() -> None:
    recording = load_recording(DATA / "hybrid.data")
    samples = recording.samples
    off = samples.take(samples.has(SampleFlag.OFFCPU))
    assert recording.callchains.lengths[off.callchain].max() == 33
    chains = [recording.callchains.row(row) for row in off.callchain.tolist()]
    assert not any(int(cgroup) in chain.tolist() for cgroup, chain in zip(off.cgroup, chains, strict=True))
    assert (off.cgroup > 0).any()


def test_garbage_words_are_no_frames() -> None:
    """perf 7.2 shows up to 31 of them below the two real frames."""
    recording = load_recording(DATA / "direct.data")
    samples, maps = recording.samples, recording.maps
    sleeper = recording.strings.find("sleeper")
    off = samples.has(SampleFlag.OFFCPU)
    for row in np.flatnonzero((samples.comm == sleeper) & off).tolist():
        user = recording.callchains.row(samples.callchain[row])[1:]
        inside = [bool(((maps.start <= word) & (word < maps.end)).any()) for word in user]
        assert inside[-1] or len(user) == 1


def test_the_stored_recording_has_its_known_output(tmp_path: Path) -> None:
    out = tmp_path / "out.folded"
    demo = HERE.parent / "data"
    symbols = ["--symfs", str(demo / "demo.symfs"), "--kallsyms", str(demo / "demo.kallsyms")]
    assert main(["convert", "-f", "--folded", "-i", str(demo / "demo.data"), "-o", str(out), *symbols]) == 0
    assert out.read_text() == (HERE / "demo.folded").read_text()


ARM64 = Path(__file__).parents[1] / "data" / "arm64"
SYMBOLS = ["-f", "--symfs", str(ARM64 / "symfs"), "--kallsyms", str(ARM64 / "kallsyms")]
PROGRAM, KERNEL = "/results/waiter", "[kernel.kallsyms]"
ENTRY = "el0t_64_sync;el0t_64_sync_handler;el0_svc;do_el0_svc;el0_svc_common.constprop.0;invoke_syscall;"

# Thread: the functions in which it waits, of the program and of the kernel.
WAITS = {
    "sleeper": ("run_worker;sleep_worker;sleep_round;sleep_for", "__arm64_sys_clock_nanosleep;"),
    "pipe-reader": ("run_worker;pipe_reader_worker;receive_letter;read_byte", "__arm64_sys_read;"),
    "poller": ("run_worker;poll_worker;poll_round;poll_silence", "__arm64_sys_ppoll;"),
    "locker-b": ("run_worker;lock_worker_b;enter_ledger;wait_for_lock", "__arm64_sys_futex;"),
    "syncer": ("run_worker;sync_worker;commit_journal;sync_journal", "__arm64_sys_fsync"),
}


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    out = tmp_path_factory.mktemp("arm64") / "folded"
    assert main(["convert", "--folded", "-i", str(ARM64 / "own.data"), "-o", str(out), *SYMBOLS]) == 0
    lines = (line.rpartition(" ") for line in out.read_text().splitlines())
    return {stack: int(ns) for stack, _, ns in lines}


@pytest.mark.parametrize("comm", WAITS)
def test_a_wait_has_its_stack_from_the_program_into_the_kernel(folded: dict[str, int], comm: str) -> None:
    user, kernel = WAITS[comm]
    stacks = [stack for stack in folded if stack.startswith(f"{comm};") and f";{user};" in stack]
    assert any(f"{ENTRY}{kernel}" in f"{stack};" for stack in stacks)


def test_no_time_is_lost(folded: dict[str, int]) -> None:
    recording = load_recording(ARM64 / "own.data")
    offcpu = recording.samples.flags & SampleFlag.OFFCPU > 0
    assert sum(folded.values()) == recording.samples.period[offcpu].sum() > 10**9
    assert np.unique(recording.samples.pid[offcpu]).size == 1


def test_system_calls_have_their_names_on_arm64(capsys: pytest.CaptureFixture[str]) -> None:
    shown = output(capsys, "report", "-i", str(ARM64 / "own.data"), *SYMBOLS)
    assert "aarch64" in shown
    assert {"clock_nanosleep()", "futex()"} <= set(shown.split())


def test_names_are_perfs(capsys: pytest.CaptureFixture[str]) -> None:
    """Names of the kernel and the program; there is no copy of the machine's libc."""
    ours = parse(output(capsys, "script", "-i", str(ARM64 / "perf.data"), *SYMBOLS))
    theirs = parse(lzma.decompress((ARM64 / "perf.script.txt.xz").read_bytes()).decode())
    assert len(ours) == len(theirs) > 100
    for own, perf in zip(ours, theirs, strict=True):
        assert (own.tid, own.time, own.period) == (perf.tid, perf.time, perf.period)
    # By address: perf adds the caller of a leaf, which it takes from a register, to the frames of the chain.
    places = {(frame.ip, frame.dso): frame.sym for sample in theirs for frame in sample.frames}
    frames = [frame for sample in ours for frame in sample.frames if frame.dso in (PROGRAM, KERNEL)]
    assert all(frame.sym == places[frame.ip, frame.dso] for frame in frames)
    assert len([frame for frame in frames if frame.dso == KERNEL]) > 500
    assert len([frame for frame in frames if frame.dso == PROGRAM]) > 50


COPIES = Path(__file__).parents[1] / "data" / "arm64-copies"
FILES = {"waiter.xz": "tmp/w/waiter", "libc.so.6.xz": "usr/lib/aarch64-linux-gnu/libc.so.6"}


@pytest.fixture(scope="module")
def symfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the program had mapped, as far as the stacks need them."""
    root = tmp_path_factory.mktemp("symfs")
    for name, place in FILES.items():
        (root / place).parent.mkdir(parents=True)
        (root / place).write_bytes(lzma.decompress((COPIES / name).read_bytes()))
    return root


def test_stacks_are_those_of_the_machine_itself(symfs: Path, tmp_path: Path) -> None:
    out, kallsyms = tmp_path / "folded", str(COPIES / "kallsyms")
    files = ["-f", "--symfs", str(symfs), "--kallsyms", kallsyms]
    assert main(["convert", "--folded", "-i", str(COPIES / "own.data"), "-o", str(out), *files]) == 0
    theirs = lzma.decompress((COPIES / "folded.xz").read_bytes()).decode()
    assert sorted(out.read_text().splitlines()) == sorted(theirs.splitlines())
    assert "[truncated]" not in theirs


def test_every_wait_of_the_program_reaches_its_root(symfs: Path) -> None:
    recording = unwind(load_recording(COPIES / "own.data", snapshots=True), Search(symfs=str(symfs)))
    samples = recording.samples
    waits = (samples.flags & SampleFlag.OFFCPU > 0) & (samples.flags & SampleFlag.NO_USER_STACK == 0)
    cut = samples.flags[waits] & SampleFlag.TRUNCATED > 0
    assert np.count_nonzero(waits) > 70
    assert np.count_nonzero(cut) <= 0.02 * np.count_nonzero(waits)
    assert recording.losses.get(losses.OUTSIDE_MAPS, 0) == 0


def test_return_addresses_in_the_copies_are_signed() -> None:
    """Otherwise the tests above show less than they say."""
    recording = load_recording(COPIES / "own.data", snapshots=True)
    words = recording.snapshots.read_stacks(np.arange(len(recording.snapshots))).words
    user = recording.maps.end < np.uint64(1 << 63)
    bits = int(recording.maps.end[user].max() - np.uint64(1)).bit_length()
    code = words & np.uint64((1 << bits) - 1)
    start, end = recording.maps.start[user], recording.maps.end[user]
    in_code = ((code[:, None] >= start) & (code[:, None] < end)).any(axis=1)
    assert np.count_nonzero(in_code & (words != code)) > 20


def test_waits_are_as_many_as_the_threads_counted_themselves() -> None:
    """By thread: its own count of voluntary switches, at its end; that of the last one is still blocked."""
    samples = load_recording(COPIES / "own.data").samples
    waits = samples.flags & SampleFlag.OFFCPU > 0
    assert set(samples.pid[waits].tolist()) == {183}
    counted = {tid: int(samples.count[waits & (samples.tid == tid)].sum()) for tid in (183, *range(194, 207))}
    assert list(counted.values()) == [2, 8, 10, 4, 4, 4, 4, 3, 4, 7, 4, 50, 1, 1 + 1]


COMPAT = Path(__file__).parents[1] / "data" / "arm64-32bit"
CALLS = {"sleeper": "clock_nanosleep sleep", "locker-b": "clock_nanosleep sleep", "poller": "poll poll"}
CALLS |= {"pipe-reader": "read pipe", "syncer": "fsync disk"}
"""Besides the wait for the start."""


@pytest.mark.parametrize(("name", "of_read"), [("own", "pipe"), ("no-kernel-stacks", "other")])
def test_system_calls_of_32_bit_programs_are_arms(tmp_path: Path, name: str, of_read: str) -> None:
    """As numbers of arm64, they would be other calls. Without a kernel stack, read() may wait for anything."""
    (tmp_path / "data").write_bytes(lzma.decompress((COMPAT / f"{name}.data.xz").read_bytes()))
    profile = load_profile([str(tmp_path / "data")], SymbolizeOptions(kallsyms=str(COMPAT / "kallsyms"), force=True))
    waits, samples = classify(profile), profile.samples
    in_call = profile.is_offcpu() & (samples.syscall >= 0)
    for comm, call in CALLS.items():
        rows = np.flatnonzero(in_call & (samples.comm == profile.strings.find(comm)))
        pairs = zip(waits.syscall[rows], waits.wait_class[rows], strict=True)
        shown = {f"{waits.syscall_names[number]} {WaitClass(row).label}" for number, row in pairs}
        assert shown == {"futex lock", call.replace("read pipe", f"read {of_read}")}, comm
    assert profile.losses[losses.OBJECTS_COMPAT] > 60
