# SPDX-License-Identifier: Apache-2.0
"""The end of `perf-offcpu record`: by itself, by signals, on a full disk, before it begins; what is left. Where
something is missing, the sentence names it and the smallest remedy."""

import os
import platform
import shlex
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from builders import program
from builders.disk import small_disk
from builders.examples import examples
from builders.loaded_programs import program_ids
from kernel.others import NOBODY, reachable
from kernel.recorder import (
    INTERRUPTIBLE,
    PROGRAM,
    bpf_programs_of,
    lost,
    off_cpu,
    perf,
    recorder,
    run,
    two_threads,
    until,
    waits,
)

from perf_offcpu import losses
from perf_offcpu.abi.counters import COUNTERS, MAGIC
from perf_offcpu.collect.bpf import syscall as bpf_syscall
from perf_offcpu.collect.bpf.attr import ProgramType
from perf_offcpu.collect.output.file import RESERVE
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import Recording, SampleFlag

pytestmark = pytest.mark.beside


@pytest.mark.parametrize(("script", "status"), [("exit 9", 9), ("kill -ABRT $$", 134)])
def test_exit_status_is_the_commands(tmp_path: Path, script: str, status: int) -> None:
    assert lost(run("--", "sh", "-c", script, cwd=tmp_path, status=status).recording) == set()


@pytest.mark.parametrize("signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_signal_ends_the_recording_and_the_file_is_whole(tmp_path: Path, signum: signal.Signals) -> None:
    with recorder("-a", cwd=tmp_path) as process:
        programs = bpf_programs_of(process.pid)
        time.sleep(0.3)
        process.send_signal(signum)
        assert process.wait(10) == 128 + signum
    until(lambda: not programs & program_ids())
    recording = load_recording(tmp_path / "perf.data")
    assert lost(recording, of_others=True) == set() and off_cpu(recording).any()
    perf("report", "--header-only", "-i", tmp_path / "perf.data")


def test_signal_ends_the_command_too(tmp_path: Path) -> None:
    with recorder("--", "sh", "-c", "trap 'exit 3' TERM; while :; do sleep 0.05; done", cwd=tmp_path) as process:
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 3
    assert lost(load_recording(tmp_path / "perf.data")) == set()


def test_interrupt_from_the_terminal_reaches_both_and_the_command_may_take_its_time(tmp_path: Path) -> None:
    """The whole foreground group gets SIGINT: SIGTERM at once would cut off the summary of the command."""
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


@pytest.mark.long
def test_interrupt_before_the_recording_leaves_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    process = subprocess.Popen([*PROGRAM, "--", "touch", mark], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    until(lambda: Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    time.sleep(0.05)  # the command's child is made; the BPF program is being compiled
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGINT
    assert said.count("\n") == 1 and "nothing is written" in said
    assert list(tmp_path.iterdir()) == []


def test_duration_ends_recording_and_command(tmp_path: Path) -> None:
    begin = time.monotonic()
    run("--duration", "0.3", "--", "sleep", "30", cwd=tmp_path, status=128 + signal.SIGTERM)
    assert time.monotonic() - begin < 30, "the command's time"


def test_what_a_killed_recorder_had_written_can_be_read(tmp_path: Path) -> None:
    with two_threads() as (pid, tids), recorder("-p", str(pid), "--off-cpu-thresh", "0", cwd=tmp_path) as process:
        programs = bpf_programs_of(process.pid)
        assert len(programs) >= 5 and programs <= program_ids()
        time.sleep(1)
        process.kill()
        process.wait()
    until(lambda: not programs & program_ids())  # nothing stays in the kernel
    recording = load_recording(tmp_path / "perf.data")
    assert lost(recording) == {losses.NO_END}
    assert set(recording.samples.tid[off_cpu(recording)]) == set(tids)
    assert waits(recording, tids[0])[0] >= 20
    # Without the features of the file's end, too, copies of stacks are unwound and system calls have names.
    assert recording.meta.arch == platform.machine()
    # perf reads no file without the size of its data, its own either: inject gives it one.
    program.run("inject", "-i", "perf.data", "-o", "whole.data", cwd=tmp_path)
    assert "offcpu-time" in perf("report", "--stdio", "-i", tmp_path / "whole.data")


def test_two_recorders_at_once(tmp_path: Path) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    statuses: list[int] = []

    def one(directory: Path, pid: int) -> None:
        directory.mkdir()
        statuses.append(run("-p", str(pid), "--duration", "0.8", cwd=directory).returncode)

    with two_threads() as (first, first_tids), two_threads() as (second, second_tids):
        runs = [threading.Thread(target=one, args=pair) for pair in zip(directories, (first, second), strict=True)]
        for thread in runs:
            thread.start()
        for thread in runs:
            thread.join()
    assert statuses == [0, 0]
    for directory, tids in zip(directories, (first_tids, second_tids), strict=True):
        recording = load_recording(directory / "perf.data")
        assert set(recording.samples.tid[off_cpu(recording)]) == set(tids)


def test_older_file_is_kept_and_the_new_one_is_private(tmp_path: Path) -> None:
    (tmp_path / "perf.data").write_bytes(b"older")
    run("--", "true", cwd=tmp_path)
    assert (tmp_path / "perf.data.old").read_bytes() == b"older"
    assert stat.S_IMODE((tmp_path / "perf.data").stat().st_mode) == 0o600


@pytest.mark.parametrize(("words", "status", "sentence"), examples("kernel/sentences.txt", "record"))
def test_what_cannot_be_ends_in_a_sentence(tmp_path: Path, words: str, status: str, sentence: str) -> None:
    (tmp_path / "perf.data").write_bytes(b"older")
    done = program.run("record", *shlex.split(words), cwd=tmp_path, status=int(status))
    assert done.stdout == "" and done.stderr.startswith(f"perf-offcpu record: {sentence}")
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["perf.data"]
    assert (tmp_path / "perf.data").read_bytes() == b"older"


def counter(path: Path, name: bytes) -> int:
    """Return a counter of the recorder, from its own sample at the end of the file."""
    data = path.read_bytes()
    at = data.rindex(MAGIC.to_bytes(4, sys.byteorder))
    rows = COUNTERS.unpack(data[at : at + 60_000])["counters"]
    (events,) = (row["events"] for row in rows if row["name"].rstrip(b"\0") == name)
    return int(events)


DAMAGE = {
    losses.FILE_CUT, losses.NO_END, losses.BAD_SIZE, losses.BAD_RECORD, losses.BAD_SAMPLE,
    losses.BAD_FEATURE, losses.UNKNOWN_RECORD, losses.UNKNOWN_ID, losses.BAD_COMPRESSED,
}  # fmt: skip
DISK_BYTES = 768 << 10


NAPPING = [sys.executable, "-c", "import time\nwhile True: time.sleep(1e-5)"]
EVERY_NAP = ["-e", "none", "--off-cpu-thresh", "0", "--call-graph", "fp"]


def sent(recording: Recording) -> int:
    apart = recording.samples.flags & (SampleFlag.AGGREGATED | SampleFlag.STILL_BLOCKED) == 0
    return int((off_cpu(recording) & apart).sum())


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.parametrize("packed", [pytest.param(("-z0",), id="plain"), pytest.param((), id="compressed")])
def test_full_disk_is_told_and_what_was_written_can_be_read(tmp_path: Path, packed: tuple[str, ...]) -> None:
    with small_disk(tmp_path / "disk", str(DISK_BYTES)) as disk:
        done = run("-o", disk / "perf.data", *EVERY_NAP, *packed, "--", *NAPPING, cwd=tmp_path, status=1)
        assert done.stderr.startswith(f"perf-offcpu record: {disk}/perf.data: cannot write the recording: No space")
        assert done.stderr.count("\n") == 1
        recording = load_recording(disk / "perf.data")
        assert off_cpu(recording).sum() > 100
        unwritten = recording.losses[losses.RECORDS_UNWRITTEN]
        # What fits of a ring is kept, and behind it what stood in the kernel, in room held for the end.
        assert (disk / "perf.data").stat().st_size > DISK_BYTES - RESERVE
        assert len(recording.budget.tid) > 0
        missing = counter(disk / "perf.data", b"samples") - sent(recording)
        assert 0 < missing <= unwritten < missing + 5000  # and what else happened on the machine
        # Compressed, the file may end within a record: that is among the unwritten, and no damage besides.
        assert not DAMAGE & recording.losses.keys()
        assert "offcpu-time" in perf("report", "--header-only", "-i", disk / "perf.data")


@pytest.mark.alone
def test_full_disk_keeps_each_of_several_files(tmp_path: Path) -> None:
    """It may be full while a file is begun and the one before still lacks its sums, or at another time."""
    with small_disk(tmp_path / "disk", f"{4 << 20}") as disk:
        options = [*EVERY_NAP, "-z0", "--switch-output=300K"]
        done = run("-o", disk / "perf.data", *options, "--", *NAPPING, cwd=tmp_path, status=1)
        assert "cannot write the recording: No space" in done.stderr
        paths = sorted(disk.iterdir())
        recordings = [load_recording(path) for path in paths]
        assert len(paths) > 2
        assert [DAMAGE & recording.losses.keys() for recording in recordings] == [set()] * len(paths)
        *complete, last = (recording.losses.get(losses.RECORDS_UNWRITTEN, 0) for recording in recordings)
        assert complete == [0] * len(complete) and last > 0
        # A wait is counted in one file and may be in the next.
        missing = sum(counter(path, b"samples") for path in paths) - sum(map(sent, recordings))
        assert 0 <= missing <= last


def test_ready_is_said_when_everything_is_recorded(tmp_path: Path) -> None:
    """What begins after READY is in the recording."""
    readable, writable = os.pipe()
    process = subprocess.Popen(
        [*PROGRAM, "-a", "--ready-fd", str(writable)],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True, pass_fds=[writable],
    )  # fmt: skip
    os.close(writable)
    with open(readable, "rb") as pipe:
        assert pipe.read() == b"READY\n"  # to its end: the recorder has closed it
    with subprocess.Popen(["sleep", "0.05"]) as sleeper:
        pass
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert said.startswith("[ perf-offcpu record: recording ]\n")
    assert waits(load_recording(tmp_path / "perf.data"), sleeper.pid)[0] >= 1


RECORD = shlex.join(PROGRAM)
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}


def under(condition: str, directory: Path, options: str = "") -> subprocess.CompletedProcess[str]:
    """A recording of `true` under a command that takes something away."""
    command = condition.format(record=f"{RECORD} {options} -- true")
    directory.chmod(0o777)
    if NOBODY in command:
        command = reachable(command)
    return subprocess.run(
        ["sh", "-c", command], cwd=directory, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(("condition", "what", "remedy"), examples("kernel/sentences.txt", "conditions"))
def test_what_is_missing_is_named_with_the_least_change(tmp_path: Path, condition: str, what: str, remedy: str) -> None:
    done = under(condition.replace("NOBODY", NOBODY), tmp_path, "-a")
    assert done.returncode == 1
    assert what in done.stderr and remedy in done.stderr and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_two_capabilities_are_enough() -> None:
    caps = "--inh-caps=+bpf,+perfmon --ambient-caps=+bpf,+perfmon"
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:  # others may not enter pytest's
        done = under(f"setpriv {NOBODY} {caps} {{record}}", Path(directory))
    assert done.returncode == 0 and "Captured and wrote" in done.stderr


@pytest.mark.alone
def test_rings_are_smaller_where_memory_may_not_be_locked_and_that_is_said(tmp_path: Path) -> None:
    limits = "setpriv --bounding-set=-ipc_lock,-sys_admin,-sys_resource prlimit --memlock=65536:65536"
    done = under(f"{limits} {{record}}", tmp_path, "-m 64M")
    assert done.returncode == 0, done.stderr
    assert "ring buffers of 65536 kB per CPU are refused, using " in done.stderr
    load_recording(tmp_path / "perf.data")


def test_tracefs_is_mounted_where_it_is_not_and_may_be(tmp_path: Path) -> None:
    hide = "unshare -m sh -c 'umount -l /sys/kernel/tracing; umount -lR /sys/kernel/debug; "
    hide += "exec {before} {{record}}'"
    options = "-a -e sched:sched_process_exec"
    done = under(hide.format(before="setpriv --bounding-set=-sys_admin"), tmp_path, options)
    assert done.returncode == 1
    assert "mount -t tracefs nodev /sys/kernel/tracing" in done.stderr
    done = under(hide.format(before=""), tmp_path, options)
    assert done.returncode == 0, done.stderr
    shown = perf("script", "-F", "event,trace", "-i", tmp_path / "perf.data", allow="not valid for")
    assert "sched:sched_process_exec: filename=" in shown


@pytest.mark.parametrize(
    ("redirection", "sentence"), [(">/dev/full", "No space left on device"), (">&-", "standard output is closed")]
)
def test_standard_output_that_takes_nothing(tmp_path: Path, redirection: str, sentence: str) -> None:
    done = under(f"{{record}} {redirection}", tmp_path, "-o -")
    assert done.returncode in (1, 129)
    assert sentence in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.long
@pytest.mark.alone
def test_programs_loaded_beside_two_recorders_do_not_spoil_their_files(tmp_path: Path) -> None:
    """The kernel gives all but the first of them records of BPF programs that are too long."""
    directories = [tmp_path / "one", tmp_path / "two"]
    for directory in directories:
        directory.mkdir()
    options = ("-a", "-e", "none", "--off-cpu-thresh", "1000")
    with recorder(*options, cwd=directories[0]) as one, recorder(*options, cwd=directories[1]) as two:
        code = bytes.fromhex("b700000000000000 9500000000000000")
        for number in range(5):
            name = f"spoiler_{'x' * number}"
            subprocess.run(["true"], check=True)
            os.close(bpf_syscall.load_program(ProgramType.PERF_EVENT, name, code, "GPL"))
        for process in (one, two):
            process.terminate()
            process.wait(20)
    for directory in directories:
        shown = perf("script", "--show-bpf-events", "--no-inline", "-i", directory / "perf.data")
        assert shown.count("_spoiler_") >= 10  # each comes and goes
        assert load_recording(directory / "perf.data").losses.keys().isdisjoint({losses.UNKNOWN_ID})
