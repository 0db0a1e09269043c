# SPDX-License-Identifier: Apache-2.0
"""`perf-offcpu record` on the running kernel: targets, ends of every kind, and what stock perf says."""

from __future__ import annotations

import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from conftest import PATIENCE
from kernel.others import CHECKOUT, NOBODY, reachable
from workload.measured import Thread, parse

from perf_offcpu.abi.attr import AttrFlag
from perf_offcpu.abi.counters import COUNTERS, MAGIC
from perf_offcpu.abi.features import Feature
from perf_offcpu.cli import main
from perf_offcpu.collect import bpf_syscall
from perf_offcpu.collect.part import RESERVE
from perf_offcpu.decode.garbage import GARBAGE
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import Recording, SampleFlag
from perf_offcpu.perfdata import losses
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.reader import PerfDataReader

pytestmark = pytest.mark.beside

PROGRAM = [sys.executable, "-m", "perf_offcpu", "record"]
INTERRUPTIBLE = ["env", "--default-signal=INT"]
"""What a shell runs in the background ignores SIGINT, and so does what it starts: these tests, too."""
MS = 1_000_000
TWO_SLEEPS = "import time; time.sleep(0.05); time.sleep(0.03)"
CHILDREN = f"""
import subprocess, sys
for _ in range(3):
    subprocess.run([sys.executable, "-c", {TWO_SLEEPS!r}])
"""


@dataclass(frozen=True)
class Run:
    """A recorder that has ended."""

    status: int
    stdout: str
    stderr: str


def run(*arguments: str | Path, cwd: Path) -> Run:
    done = subprocess.run(
        [*PROGRAM, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
    return Run(done.returncode, done.stdout, done.stderr)


@contextmanager
def recorder(*arguments: str | Path, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A recorder that is recording by now: its file has its name."""
    process = subprocess.Popen(
        [*PROGRAM, *arguments], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        until(lambda: (cwd / "perf.data").exists() or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        yield process
    finally:
        process.kill()
        process.communicate()


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds * PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def perf(*arguments: str | Path, allow: str = "") -> str:
    """Stock perf's output; a single word on stderr is a failure, but for lines that hold `allow`."""
    done = subprocess.run(["perf", *arguments], capture_output=True, timeout=60, check=True)
    said = done.stderr.decode(errors="replace").splitlines()
    assert [line for line in said if not allow or allow not in line] == []
    return done.stdout.decode(errors="replace")


def waits(recording: Recording, tid: int) -> tuple[int, int]:
    """(number, total ns) of a thread's waits."""
    samples = recording.samples
    mine = (samples.tid == tid) & (samples.flags & SampleFlag.OFFCPU > 0)
    return int(samples.count[mine].sum()), int(samples.period[mine].sum())


def comms(recording: Recording, mask: np.ndarray) -> set[str]:
    return {recording.strings[row] for row in np.unique(recording.samples.comm[mask])}


def lost(recording: Recording) -> set[str]:
    """What the recording lacks, apart from garbage words that walks by frame pointer end in.

    And from what kernels do not tell: there are some that keep quiet while certain tasks run, so that a
    wake-up from an interrupt that hits these is not seen (by perf's own sched:sched_waking neither).
    """
    untold = {cause for cause in recording.losses if "the kernel did not tell" in cause}
    return set(recording.losses) - {GARBAGE} - untold


def off_cpu(recording: Recording) -> np.ndarray:
    """The waits that began in the recording."""
    return recording.samples.flags & (SampleFlag.OFFCPU | SampleFlag.BEGAN_BEFORE) == SampleFlag.OFFCPU


def event(recording: Recording, name: str) -> np.ndarray:
    rows = [row for row, evsel in enumerate(recording.evsels) if evsel.name == name]
    return np.isin(recording.samples.evsel, rows)


# The known workload


@pytest.fixture(scope="module")
def known(waiter: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """The workload, recorded as a command with every option at its default."""
    directory = tmp_path_factory.mktemp("known")
    return directory / "perf.data", run("--", waiter, "--rounds", "10", cwd=directory)


@pytest.fixture(scope="module")
def threads(known: tuple[Path, Run]) -> dict[str, Thread]:
    return parse(known[1].stdout)


def test_each_thread_has_its_own_name_and_process(
    known: tuple[Path, Run], threads: dict[str, Thread]
) -> None:
    recording = load_recording(known[0])
    for thread in threads.values():
        mine = recording.samples.tid == thread.tid
        # A thread waits, for locks of its address space, before it names itself.
        assert thread.comm in comms(recording, mine) <= {thread.comm, "waiter"}
        assert set(recording.samples.pid[mine]) == {thread.pid}


@pytest.mark.alone
def test_short_waits_are_sums_and_long_ones_are_not(
    known: tuple[Path, Run], threads: dict[str, Thread]
) -> None:
    samples = load_recording(known[0]).samples
    summed = samples.flags & SampleFlag.AGGREGATED > 0
    short, sleeper = threads["short-sleeper"], threads["sleeper"]
    # On a busy machine some of the 0.2 ms naps last longer than the threshold.
    assert (
        samples.count[(samples.tid == short.tid) & summed].sum() >= short.site("short-sleep").short_switches
    )
    assert not (summed & (samples.tid == sleeper.tid)).any()
    assert (samples.period[off_cpu(load_recording(known[0])) & ~summed] >= 1 * MS).all()


def test_samples_lie_in_the_recorded_time(known: tuple[Path, Run], threads: dict[str, Thread]) -> None:
    recording = load_recording(known[0])
    times = recording.samples.time_ns
    assert (times >= 0).all()
    with PerfDataReader.open(known[0]) as reader:
        span = reader.features.values(Feature.SAMPLE_TIME)
    assert span is not None
    assert span["first"] <= times.min() and times.max() <= span["last"]
    assert span["first"] < threads["waiter"].begin_ns < threads["waiter"].end_ns < span["last"]


def test_on_cpu_samples_are_of_the_target_and_have_stacks(
    known: tuple[Path, Run], threads: dict[str, Thread]
) -> None:
    recording = load_recording(known[0])
    on_cpu = event(recording, "cpu-clock")
    assert on_cpu.sum() >= 3
    assert set(recording.samples.pid[on_cpu]) == {threads["waiter"].pid}
    assert (recording.samples.callchain[on_cpu] >= 0).all()


def test_last_line_is_perfs_with_our_numbers(known: tuple[Path, Run]) -> None:
    recording = load_recording(known[0])
    samples, on_cpu = recording.samples, event(recording, "cpu-clock").sum()
    summed = samples.flags & SampleFlag.AGGREGATED > 0
    single = (samples.flags & SampleFlag.OFFCPU > 0) & ~summed
    assert re.fullmatch(
        rf"\[ perf-offcpu record: Captured and wrote \d+\.\d{{3}} MB perf\.data "
        rf"\({single.sum()} off-cpu samples, {summed.sum()} sums, {on_cpu} on-CPU samples\) \]\n",
        known[1].stderr,
    )


def test_nothing_was_lost(known: tuple[Path, Run]) -> None:
    assert lost(load_recording(known[0])) == set()


# Stock perf


def test_stock_perf_opens_it_without_a_word(known: tuple[Path, Run], threads: dict[str, Thread]) -> None:
    header = perf("report", "--header-only", "-i", known[0])
    for wanted in (
        "# hostname : ",
        "# nrcpus online : ",
        "# cmdline : ",
        "name = offcpu-time",
        "# sample duration : ",
        "# clockid: monotonic (1)",
        f"# os release : {os.uname().release}",
    ):
        assert wanted in header
    shown = perf("script", "-F", "comm,tid,event", "-i", known[0])
    assert re.search(rf"^ *waiter +{threads['waiter'].tid} +offcpu-time:", shown, re.MULTILINE)
    assert "Samples: " in perf("report", "--stdio", "-i", known[0])


def test_stock_perf_finds_symbols_of_kernel_and_program(tmp_path: Path) -> None:
    run("-F", "997", "--", "dd", "if=/dev/zero", "of=/dev/null", "bs=1", "count=300000", cwd=tmp_path)
    shown = perf("script", "-F", "comm,event,ip,sym,dso", "-i", tmp_path / "perf.data")
    samples = [part for part in shown.split("\n\n") if "cpu-clock" in part]
    assert any("entry_SYSCALL_64_after_hwframe ([kernel.kallsyms])" in part for part in samples)
    assert any("/libc.so.6)" in part for part in samples)


def test_build_ids_of_kernel_and_mapped_files(tmp_path: Path) -> None:
    run("-a", "--duration", "0.2", cwd=tmp_path)
    listed = perf("buildid-list", "-i", tmp_path / "perf.data")
    python = Path(sys.executable).resolve()
    notes = subprocess.run(["readelf", "-n", python], capture_output=True, text=True, check=True).stdout
    build_id = re.search(r"Build ID: (\w+)", notes)
    assert build_id is not None
    assert f"{build_id[1]} {python}" in listed
    assert re.search(r"^[0-9a-f]{40} \[kernel\.kallsyms\]$", listed, re.MULTILINE)


def test_clocks_of_the_file_agree(known: tuple[Path, Run]) -> None:
    meta = load_recording(known[0]).meta
    wall_ns = meta.wall_clock_ns - meta.wall_clock_at_ns + time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    assert abs(wall_ns - time.time_ns()) < 50 * MS


# Targets


@pytest.mark.alone
def test_children_of_a_command_are_recorded_and_others_are_not(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(0.02)"])
    try:
        done = run("--", sys.executable, "-c", CHILDREN, cwd=tmp_path)
    finally:
        other.kill()
        other.wait()
    assert done.status == 0
    recording = load_recording(tmp_path / "perf.data")
    periods = recording.samples.period[off_cpu(recording)]
    assert ((periods > 50 * MS) & (periods < 79 * MS)).sum() == 3
    assert ((periods > 30 * MS) & (periods < 49 * MS)).sum() == 3
    assert len(set(recording.samples.pid[off_cpu(recording)])) == 4
    assert other.pid not in recording.samples.pid
    assert {spec.pid for spec in recording_tasks(recording) if spec.tid == other.pid} == {other.pid}


@dataclass(frozen=True)
class Task:
    """A row of Recording.tasks."""

    tid: int
    pid: int


def recording_tasks(recording: Recording) -> list[Task]:
    return [
        Task(int(tid), int(pid)) for tid, pid in zip(recording.tasks.tid, recording.tasks.pid, strict=True)
    ]


@contextmanager
def two_threads() -> Iterator[tuple[int, list[int]]]:
    """A process whose two threads sleep 20 ms at a time: (pid, tids)."""
    script = """
import os, threading, time
def work():
    os.write(1, b"%d\\n" % threading.get_native_id())
    while True:
        time.sleep(0.02)
threading.Thread(target=work, daemon=True).start()
threading.Thread(target=work, daemon=True).start()
time.sleep(100)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.pid, [int(process.stdout.readline()) for _ in range(2)]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_pid(tmp_path: Path) -> None:
    with two_threads() as (pid, tids):
        assert run("-p", str(pid), "--duration", "0.5", cwd=tmp_path).status == 0
    recording = load_recording(tmp_path / "perf.data")
    off = off_cpu(recording)
    assert set(recording.samples.tid[off]) == set(tids)
    for tid in tids:
        # Some 25 naps; where the two threads meet at Python's lock, a few short waits more.
        assert 10 <= waits(recording, tid)[0] <= 60
    python = os.fsencode(Path(sys.executable).resolve()).decode()
    assert any(recording.strings[path] == python for path in recording.dsos.path)


def test_tid(tmp_path: Path) -> None:
    with two_threads() as (_, tids):
        assert run("-t", str(tids[1]), "--duration", "0.4", cwd=tmp_path).status == 0
    recording = load_recording(tmp_path / "perf.data")
    assert set(recording.samples.tid[off_cpu(recording)]) == {tids[1]}


def test_everybody(tmp_path: Path) -> None:
    with two_threads() as (_, tids), two_threads() as (_, others):
        assert run("-a", "--duration", "0.4", cwd=tmp_path).status == 0
    recording = load_recording(tmp_path / "perf.data")
    assert {*tids, *others} <= set(recording.samples.tid[off_cpu(recording)])


def test_command_beside_a_target_only_sets_the_time(tmp_path: Path) -> None:
    with two_threads() as (pid, tids):
        assert run("-p", str(pid), "--", "sh", "-c", "sleep 0.3; exit 5", cwd=tmp_path).status == 5
    recording = load_recording(tmp_path / "perf.data")
    assert set(recording.samples.tid[off_cpu(recording)]) == set(tids)


def test_recording_ends_with_its_last_target(tmp_path: Path) -> None:
    with two_threads() as (pid, _), recorder("-p", str(pid), cwd=tmp_path) as process:
        os.kill(pid, signal.SIGKILL)
        assert process.wait(10) == 0
    assert lost(load_recording(tmp_path / "perf.data")) == set()


# Events


def test_no_event_is_off_cpu_time_alone(tmp_path: Path) -> None:
    assert run("-e", "none", "--", sys.executable, "-c", TWO_SLEEPS, cwd=tmp_path).status == 0
    recording = load_recording(tmp_path / "perf.data")
    assert [evsel.name for evsel in recording.evsels][:2] == ["offcpu-time", "dummy"]
    assert off_cpu(recording).all()
    assert "Samples: " in perf("report", "--stdio", "-i", tmp_path / "perf.data")


def test_events_by_name_with_period_and_modifier(tmp_path: Path) -> None:
    script = "b = bytearray(4 << 20)\nfor at in range(0, len(b), 4096): b[at] = 1"
    done = run("-e", "page-faults,cs", "-c", "1", "--", sys.executable, "-c", script, cwd=tmp_path)
    assert done.status == 0
    recording = load_recording(tmp_path / "perf.data")
    faults = event(recording, "page-faults")
    assert faults.sum() >= 512
    assert (recording.samples.period[faults] == 1).all()
    run("-e", "cpu-clock:u", "-F", "1999", "--", sys.executable, "-c", "sum(range(10**7))", cwd=tmp_path)
    user = load_recording(tmp_path / "perf.data")
    assert event(user, "cpu-clock:u").sum() > 20
    assert (user.samples.ip[event(user, "cpu-clock:u")] < 2**63).all()


def test_threshold_0_samples_every_wait(waiter: Path, tmp_path: Path) -> None:
    done = run("--off-cpu-thresh", "0", "--", waiter, "--rounds", "3", cwd=tmp_path)
    threads = parse(done.stdout)
    samples = load_recording(tmp_path / "perf.data").samples
    short = samples.tid == threads["short-sleeper"].tid
    assert (samples.flags & SampleFlag.AGGREGATED == 0).all()
    assert (short & (samples.flags & SampleFlag.OFFCPU > 0)).sum() == threads["short-sleeper"].nvcsw


def test_kernel_callchains_can_be_left_out(tmp_path: Path) -> None:
    run("--no-kernel-callchains", "-F", "999", "--", sys.executable, "-c", TWO_SLEEPS, cwd=tmp_path)
    recording = load_recording(tmp_path / "perf.data")
    assert off_cpu(recording).sum() >= 2
    assert not (recording.callchains.values == 2**64 - 128).any()


# Ends


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 9", 9), ("kill -ABRT $$", 134)])
def test_exit_status_is_the_commands(tmp_path: Path, script: str, status: int) -> None:
    assert run("--", "sh", "-c", script, cwd=tmp_path).status == status
    assert lost(load_recording(tmp_path / "perf.data")) == set()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_recording_and_the_file_is_whole(tmp_path: Path, signum: signal.Signals) -> None:
    with recorder("-a", cwd=tmp_path) as process:
        time.sleep(0.3)
        process.send_signal(signum)
        assert process.wait(10) == 128 + signum
    recording = load_recording(tmp_path / "perf.data")
    assert lost(recording) == set() and off_cpu(recording).any()
    perf("report", "--header-only", "-i", tmp_path / "perf.data")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_command_too(tmp_path: Path, signum: signal.Signals) -> None:
    with recorder(
        "--", "sh", "-c", "trap 'exit 3' TERM; while :; do sleep 0.05; done", cwd=tmp_path
    ) as process:
        time.sleep(0.3)
        process.send_signal(signum)
        assert process.wait(10) == 3
    assert lost(load_recording(tmp_path / "perf.data")) == set()


def test_interrupt_from_the_terminal_reaches_both(tmp_path: Path) -> None:
    """The terminal sends SIGINT to the whole foreground group."""
    script = "trap 'exit 4' INT; echo go; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        [*INTERRUPTIBLE, *PROGRAM, "-q", "--", "sh", "-c", script],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "go\n"
    until((tmp_path / "perf.data").exists)
    os.killpg(process.pid, signal.SIGINT)
    assert (process.communicate(timeout=10)[0], process.returncode) == ("", 4)
    assert lost(load_recording(tmp_path / "perf.data")) == set()


def test_a_command_may_take_its_time_after_an_interrupt(tmp_path: Path) -> None:
    """It also got the terminal's SIGINT: SIGTERM at once would cut off the summary that it prints."""
    script = "trap 'sleep 0.4; echo summary; exit 4' INT; echo go; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        [*INTERRUPTIBLE, *PROGRAM, "-q", "--", "sh", "-c", script],
        cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "go\n"
    until((tmp_path / "perf.data").exists)
    os.killpg(process.pid, signal.SIGINT)
    assert (process.communicate(timeout=10)[0], process.returncode) == ("summary\n", 4)
    assert lost(load_recording(tmp_path / "perf.data")) == set()


def test_interrupt_before_the_recording_leaves_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    process = subprocess.Popen(
        [*PROGRAM, "--", "touch", mark], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    until(lambda: Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    time.sleep(0.05)  # the command's child is made; the BPF program is being compiled
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGINT
    assert said.count("\n") == 1 and "nothing is written" in said
    assert list(tmp_path.iterdir()) == []


def test_duration_ends_recording_and_command(tmp_path: Path) -> None:
    begin = time.monotonic()
    assert run("--duration", "0.3", "--", "sleep", "30", cwd=tmp_path).status == 128 + signal.SIGTERM
    assert time.monotonic() - begin < 10


def test_what_a_killed_recorder_had_written_can_be_read(tmp_path: Path) -> None:
    with (
        two_threads() as (pid, tids),
        recorder("-p", str(pid), "--off-cpu-thresh", "0", cwd=tmp_path) as process,
    ):
        time.sleep(1)
        process.kill()
        process.wait()
    recording = load_recording(tmp_path / "perf.data")
    assert lost(recording) == {losses.NO_END}
    assert set(recording.samples.tid[off_cpu(recording)]) == set(tids)
    assert waits(recording, tids[0])[0] >= 20


def bpf_programs_of(pid: int) -> set[int]:
    """Ids of the BPF programs that a process holds."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/fdinfo").iterdir()]
    return {
        int(found[1]) for text in texts if (found := re.search(r"^prog_id:\s*(\d+)$", text, re.MULTILINE))
    }


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_nothing_stays_in_the_kernel(tmp_path: Path, signum: signal.Signals) -> None:
    with recorder("-a", cwd=tmp_path) as process:
        programs = bpf_programs_of(process.pid)
        assert programs and programs <= set(bpf_syscall.program_ids())
        process.send_signal(signum)
        process.wait(10)
    until(lambda: not programs & set(bpf_syscall.program_ids()), 5)


def test_two_recorders_at_once(tmp_path: Path) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    statuses: list[int] = []

    def one(directory: Path, pid: int) -> None:
        directory.mkdir()
        statuses.append(run("-p", str(pid), "--duration", "0.8", cwd=directory).status)

    with two_threads() as (first, first_tids), two_threads() as (second, second_tids):
        runs = [
            threading.Thread(target=one, args=pair) for pair in zip(directories, (first, second), strict=True)
        ]
        for thread in runs:
            thread.start()
        for thread in runs:
            thread.join()
    assert statuses == [0, 0]
    for directory, tids in zip(directories, (first_tids, second_tids), strict=True):
        recording = load_recording(directory / "perf.data")
        assert set(recording.samples.tid[off_cpu(recording)]) == set(tids)


# The file


def test_older_file_is_kept_and_the_new_one_is_private(tmp_path: Path) -> None:
    (tmp_path / "perf.data").write_bytes(b"older")
    run("--", "true", cwd=tmp_path)
    assert (tmp_path / "perf.data.old").read_bytes() == b"older"
    assert stat.S_IMODE((tmp_path / "perf.data").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["--", "/nonexistent/command"], 127, "cannot run /nonexistent/command: No such file or directory"),
        (["--", ""], 127, "cannot run '': No such file or directory"),
        (["--max-rate", "9" * 20, "--", "true"], 129, f"--max-rate {'9' * 20}: at most 1000000000, or 0 for"),
        (["-p", "4194303"], 1, "there is no process 4194303"),
        (["-p", "99999999"], 1, "there is no process 99999999"),
        (["-C", "999"], 1, "-C 999: CPU 999 is not online; 0"),
        (["-u", "nosuchuser"], 1, "-u nosuchuser: there is no such user"),
        (["-G", "nosuchgroup"], 1, "-G nosuchgroup: there is no such control group in /"),
        (["-a", "-p", "1"], 129, "-a is everybody, -p is not: choose one"),
        (["-t", "4194303"], 1, "there is no thread 4194303"),
        (["-p", "x"], 129, "-p x: not a list of ids such as 17 or 17,18"),
        (["-e", "nosuch", "--", "true"], 129, "-e nosuch: unknown event; known are cpu-clock"),
        (["-o", "nowhere/out", "--", "true"], 1, "nowhere/out: cannot be written: No such file or directory"),
        (["-o", "-", "-z", "--", "true"], 129, "-z is for files; compress the pipe itself: -o - | zstd"),
        (["-o", "-", "--switch-output=1s", "--", "true"], 129, "--switch-output needs files, -o - is a pipe"),
        (
            ["--switch-output", "true"],
            129,
            "--switch-output true: not a size (100M), a time (30s, 5m) or signal",
        ),
        (["-F", "999999999", "--", "true"], 129, "-F 999999999: more than the kernel allows"),
        (["-m", "x", "--", "true"], 129, "-m x: not a number of pages"),
        (["--off-cpu-thresh", "-1", "--", "true"], 129, "--off-cpu-thresh -1: not a number of milliseconds"),
        (["--duration", "0", "--", "true"], 129, "--duration 0: not a time in seconds, more than 0"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_no_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    sentence: str,
) -> None:
    (tmp_path / "perf.data").write_bytes(b"older")
    monkeypatch.chdir(tmp_path)
    assert main(["record", *arguments]) == status
    out, said = capfd.readouterr()
    assert out == "" and said.startswith(f"perf-offcpu record: {sentence}")
    assert said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["perf.data"]
    assert (tmp_path / "perf.data").read_bytes() == b"older"


def counter(path: Path, name: bytes) -> int:
    """What the recorder counted, from its own sample at the end of the file."""
    data = path.read_bytes()
    at = data.rindex(MAGIC.to_bytes(4, sys.byteorder))
    rows = COUNTERS.unpack(data[at : at + 60_000])["counters"]
    (events,) = (row["events"] for row in rows if row["name"].rstrip(b"\0") == name)
    return int(events)


DAMAGE = {
    losses.TRUNCATED, losses.NO_END, losses.BAD_SIZE, losses.BAD_RECORD, losses.BAD_SAMPLE,
    losses.BAD_FEATURE, losses.UNKNOWN_RECORD, losses.UNKNOWN_ID, losses.BAD_COMPRESSED,
}  # fmt: skip


@pytest.mark.alone
@pytest.mark.parametrize("packed", [(), ("-z",)], ids=["plain", "compressed"])
def test_full_disk_is_told_and_what_was_written_can_be_read(tmp_path: Path, packed: tuple[str, ...]) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4M", "none", disk], check=True)
    try:
        napping = [sys.executable, "-c", "import time\nwhile True: time.sleep(1e-5)"]
        options = ["-e", "none", "--off-cpu-thresh", "0", "--call-graph", "fp", *packed]
        done = run("-o", disk / "perf.data", *options, "--", *napping, cwd=tmp_path)
        assert done.status == 1
        assert done.stderr.startswith(
            f"perf-offcpu record: {disk}/perf.data: cannot write the recording: No space"
        )
        assert done.stderr.count("\n") == 1
        recording = load_recording(disk / "perf.data")
        assert off_cpu(recording).sum() > 100
        unwritten = recording.losses["records not written because the file took no more (disk full)"]
        # What fits of a ring is kept, and behind it what stood in the kernel, in room held for the end.
        assert (disk / "perf.data").stat().st_size > (4 << 20) - RESERVE
        assert len(recording.budget.tid) > 0
        flags = recording.samples.flags
        sent = off_cpu(recording) & (flags & (SampleFlag.AGGREGATED | SampleFlag.STILL_BLOCKED) == 0)
        missing = counter(disk / "perf.data", b"samples") - sent.sum()
        assert 0 < missing <= unwritten < missing + 5000  # and what else happened on the machine
        # Compressed, the file may end within a record: that is among the unwritten, and no damage besides.
        assert not DAMAGE & recording.losses.keys()
        assert "offcpu-time" in perf("report", "--header-only", "-i", disk / "perf.data")
    finally:
        subprocess.run(["umount", disk], check=True)


def test_cycles_are_counted_or_replaced_by_the_clock_and_that_is_said_once(tmp_path: Path) -> None:
    done = run("-e", "cycles:u", "-F", "999", "--", sys.executable, "-c", "sum(range(10**7))", cwd=tmp_path)
    assert done.status == 0
    recording = load_recording(tmp_path / "perf.data")
    if any(Path("/sys/bus/event_source/devices").glob("cpu*")):
        assert event(recording, "cycles:u").any()
    else:
        assert done.stderr.count("using cpu-clock:u instead\n") == 1
        assert event(recording, "cpu-clock:u").sum() > 10


def test_an_event_without_counter_is_an_error_that_names_a_way_out(tmp_path: Path) -> None:
    if not any(Path("/sys/bus/event_source/devices").glob("cpu*")):
        done = run("-e", "instructions", "--", "true", cwd=tmp_path)
        assert done.status == 1 and "no hardware counter" in done.stderr and "use -e cpu-clock" in done.stderr


def test_tracepoints_of_everybody_with_what_perf_needs_to_print_them(tmp_path: Path) -> None:
    options = ("-e", "sched:sched_process_exec,cpu-clock", "--all-cgroups", "-a")
    done = run(*options, "--", "sh", "-c", "/bin/true; /bin/true; :", cwd=tmp_path)
    recording = load_recording(tmp_path / "perf.data")
    assert lost(recording) == set()
    shown = perf("script", "-F", "comm,event,trace", "-i", tmp_path / "perf.data", allow="not valid for")
    assert len(re.findall(r"sched:sched_process_exec: filename=/bin/true pid=\d+", shown)) >= 2
    assert f"{(off_cpu(recording)).sum()}" and event(recording, "sched:sched_process_exec").sum() >= 3
    samples = int(event(recording, "sched:sched_process_exec").sum() + event(recording, "cpu-clock").sum())
    assert f"{samples} on-CPU samples" in done.stderr
    assert (recording.samples.cgroup[event(recording, "cpu-clock")] > 0).all()
    refused = run("-e", "sched:sched_switch", "--", "true", cwd=tmp_path)
    assert refused.status == 129 and "tracepoints are recorded of everybody only: use -a" in refused.stderr


def test_deferred_callchains_or_the_word_that_there_are_none(tmp_path: Path) -> None:
    done = run(
        "--call-graph", "fp,defer", "-F", "999", "--", sys.executable, "-c", "sum(range(10**7))", cwd=tmp_path
    )
    assert done.status == 0
    recording = load_recording(tmp_path / "perf.data")
    assert (recording.samples.callchain[event(recording, "cpu-clock")] >= 0).all()
    deferring = any(evsel.attr.flags & AttrFlag.DEFER_CALLCHAIN for evsel in evsels(tmp_path / "perf.data"))
    assert deferring != ("this kernel does not defer user callchains" in done.stderr)


def evsels(path: Path) -> list[EventSpec]:
    with PerfDataReader.open(path) as reader:
        return list(reader.events.specs)


def test_without_privileges_the_remedy_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    command = reachable(f"setpriv {NOBODY} {shlex.join(PROGRAM)} -- true")
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert re.fullmatch(r"perf-offcpu record: .*: run as root.*\n", done.stderr)
    assert list(tmp_path.iterdir()) == []
