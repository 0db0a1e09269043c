# SPDX-License-Identifier: Apache-2.0
"""`record --control`: pauses, and another period, while the programs stay loaded; CPUs go offline and come back."""

import contextlib
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from builders.disk import small_disk
from builders.program import PATIENCE, started
from kernel.recorder import MS, PROGRAM, bpf_programs_of, budget_of, lost, perf, until

from perf_offcpu import losses
from perf_offcpu.abi.features import Feature
from perf_offcpu.agent.delivery import read_segment
from perf_offcpu.decode.join import join_by_host
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.columns import Bool
from perf_offcpu.model.recording import Budget, Recording, SampleFlag, Samples
from perf_offcpu.perfdata.reader import PerfDataReader

pytestmark = pytest.mark.beside

THREADS = """
import os, sys, threading, time
sys.setswitchinterval(10)  # a wait for the interpreter's lock asks for a time, too: a longer one than a nap
end, _ = os.pipe()
def sleep():
    while True:
        time.sleep(0.004)
def compute():
    while True:
        sum(range(10000))
        time.sleep(0.001)
threads = [threading.Thread(target=os.read, args=(end, 1)), threading.Thread(target=sleep)]
for one in threads:
    one.start()
print(*(one.native_id for one in threads), flush=True)
compute()
"""


@contextmanager
def program() -> Iterator[tuple[int, int, int]]:
    """Yield (pid and thread that computes, thread that waits for ever, thread that sleeps 4 ms at a time)."""
    with started(sys.executable, "-c", THREADS) as (process, line):
        stuck, sleeper = map(int, line.split())
        yield process.pid, stuck, sleeper


def record_naps(pid: int, sleeper: int, naps: int = 30, least_s: float = 0.4) -> None:
    """Wait for `least_s`, and until the thread has slept so often: on a busy machine that takes longer."""

    def blocked() -> int:
        return int(re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", status.read_text(), re.MULTILINE)[0])

    status = Path(f"/proc/{pid}/task/{sleeper}/status")
    enough = blocked() + naps
    time.sleep(least_s)
    until(lambda: blocked() >= enough)


@dataclass
class Controlled:
    process: subprocess.Popen[str]
    commands: int
    acks: int

    def tell(self, text: str) -> None:
        os.write(self.commands, f"{text}\n".encode())
        assert os.read(self.acks, 100) == b"ack\n"

    def pause(self, seconds: float, *commands: str) -> None:
        for command in ("disable", *commands):
            self.tell(command)
        time.sleep(seconds)
        self.tell("enable")

    def end(self) -> str:
        os.write(self.commands, b"stop\n")
        _, said = self.process.communicate(timeout=60 * PATIENCE)
        assert self.process.returncode == 0, said
        return said


@contextmanager
def controlled(*options: str | Path, cwd: Path, several: bool = True) -> Iterator[Controlled]:
    (theirs, commands), (acks, answers) = os.pipe(), os.pipe()
    rotation = ["--switch-output"] if several else []
    words = [f"--control=fd:{theirs},{answers}", *rotation, "-e", "none", *options]
    process = subprocess.Popen(
        [*PROGRAM, *words], cwd=cwd, stderr=subprocess.PIPE, text=True, pass_fds=(theirs, answers)
    )
    os.close(theirs)
    os.close(answers)
    try:
        assert process.stderr is not None
        assert "recording" in process.stderr.readline()
        yield Controlled(process, commands, acks)
    finally:
        process.kill()
        process.communicate()
        os.close(commands)
        os.close(acks)


def files(directory: Path) -> list[Recording]:
    found = [load_recording(path) for path in sorted(directory.glob("perf.data.*"))]
    for recording in found:
        recording.check()
        assert lost(recording) <= {losses.STORAGE_FAILED}, "of another recorder that runs beside"
    return found


def known_ns(budget: Budget) -> int:
    names = [name for name in vars(budget) if name.endswith("_ns") and name not in ("begin_ns", "end_ns")]
    return sum(int(getattr(budget, name).sum()) for name in names)


def is_within(samples: Samples, begin_ns: int, end_ns: int) -> Bool:
    return (samples.time_ns >= begin_ns) & (samples.time_ns <= end_ns)


def check_part(recording: Recording, begin_ns: int, end_ns: int, told: tuple[int, int, int]) -> None:
    """Check what a time without pauses knows of the threads of `program`."""
    _, stuck, sleeper = told
    length_ns = end_ns - begin_ns
    samples = recording.samples.take(np.flatnonzero(is_within(recording.samples, begin_ns, end_ns)))
    for tid in told:
        budget = budget_of(recording, tid)
        budget = budget.take(np.flatnonzero((budget.begin_ns >= begin_ns) & (budget.end_ns <= end_ns)))
        assert len(budget) == 1
        length = int(budget.end_ns[0] - budget.begin_ns[0])
        assert 0.95 * length <= known_ns(budget) <= length and length >= 0.9 * length_ns
        if tid == stuck:
            assert int(budget.interruptible_ns[0]) >= 0.9 * length_ns
        if tid == sleeper:
            # A wake-up of before the pause would make a wait after it one for a CPU.
            is_nap = (samples.tid == tid) & (samples.asked_ns > 0) & (samples.asked_ns < 5 * MS)
            woken = is_nap & (samples.wakeup_ns >= 0)
            assert woken.any() and (samples.wakeup_ns > samples.switch_out_ns)[woken].all()
            assert int(budget.switches[0]) > 20
    (waits,) = np.flatnonzero((samples.tid == stuck) & samples.has(SampleFlag.STILL_BLOCKED))[None]
    assert len(waits) == 1 and 0.9 * length_ns <= int(samples.period[waits[0]]) <= length_ns


@pytest.mark.parametrize("options", [(), ("--off-cpu-period", "20")], ids=["threshold", "sampled"])
def test_pauses_are_in_the_file_without_waits(tmp_path: Path, options: tuple[str, ...]) -> None:
    with program() as told, controlled("-p", str(told[0]), *options, cwd=tmp_path) as recorder:
        programs = bpf_programs_of(recorder.process.pid)
        for pause_s in (0.3, 0.6):
            record_naps(told[0], told[2])
            recorder.pause(pause_s)
        record_naps(told[0], told[2])
        assert bpf_programs_of(recorder.process.pid) == programs
        said = recorder.end()
    assert said.count("Events disabled") == said.count("Events enabled") == 2 and " dump " not in said
    (recording,) = files(tmp_path)
    samples, meta = recording.samples, recording.meta
    gaps = [after[0] - before[1] for before, after in pairwise(meta.parts)]
    assert len(gaps) == 2 and gaps[0] > 300 * MS and gaps[1] > 600 * MS
    assert (meta.begin_ns, meta.end_ns) == (meta.parts[0][0], meta.parts[-1][1])
    with PerfDataReader.open(next(tmp_path.glob("perf.data.*"))) as reader:
        assert reader.features.values(Feature.SAMPLE_TIME) == {"first": meta.begin_ns, "last": meta.end_ns}
    known = np.zeros(len(samples), np.bool_)
    for begin, end in meta.parts:
        known |= is_within(samples, begin, end)
        check_part(recording, begin, end, told)
    assert known.all()
    blocked = samples.has(SampleFlag.STILL_BLOCKED) & ~samples.has(SampleFlag.AT_PAUSE)
    assert told[1] in samples.tid[blocked] and (samples.time_ns[blocked] >= meta.parts[-1][0]).all()
    if options:
        # Counts of all parts are added: the totals that samples are compared with, too.
        assert meta.sampling.period_ns == 20 * MS
        assert 0.5 < meta.sampling.estimated_ns / meta.sampling.waits_ns < 2


@pytest.mark.long
def test_file_ends_in_a_pause_if_another_is_asked_for(tmp_path: Path) -> None:
    with program() as told, controlled("-p", str(told[0]), cwd=tmp_path) as recorder:
        for pause_s in (0.3, 0.6):
            record_naps(told[0], told[2])
            recorder.pause(pause_s, "snapshot")
        record_naps(told[0], told[2])
        said = recorder.end()
    assert said.count("Events disabled") == said.count("Events enabled") == said.count(" dump ") == 2
    found = files(tmp_path)
    gaps = [after.meta.begin_ns - before.meta.end_ns for before, after in pairwise(found)]
    assert len(found) == 3 and gaps[0] > 300 * MS and gaps[1] > 600 * MS
    for recording in found:
        assert recording.meta.parts == ()
        check_part(recording, recording.meta.begin_ns, recording.meta.end_ns, told)
        assert is_within(recording.samples, recording.meta.begin_ns, recording.meta.end_ns).all()
    (whole,) = join_by_host(found)
    samples, meta = whole.recording.samples, whole.recording.meta
    assert meta.recorded == tuple((one.meta.begin_ns, one.meta.end_ns) for one in found)
    assert meta.paused_ns == sum(gaps)
    assert samples.period.sum() == sum(int(one.samples.period.sum()) for one in found)
    blocked = samples.has(SampleFlag.STILL_BLOCKED) & (samples.tid == told[1])
    assert samples.has(SampleFlag.AT_PAUSE)[blocked].tolist() == [True, True, False]


@pytest.mark.long
def test_commands_that_come_with_disable_are_carried_out_in_the_pause(tmp_path: Path) -> None:
    """As the agent sends them. A recorder that pauses looks again after a minute, if nothing wakes it."""
    with program() as told, controlled("-p", str(told[0]), cwd=tmp_path) as recorder:
        time.sleep(0.2)
        os.write(recorder.commands, b"disable\nsnapshot\n")
        answers = b""
        while answers.count(b"\n") < 2:
            assert select.select([recorder.acks], [], [], 30)[0], f"after {answers!r}"
            answers += os.read(recorder.acks, 100)
        recorder.tell("ping")  # the file has its end by the next answer
        (path,) = tmp_path.glob("perf.data.*")
        with PerfDataReader.open(path) as reader:
            assert reader.features.values(Feature.SAMPLE_TIME) is not None
        os.write(recorder.commands, b"enable\ndisable\nenable\n")
        said = recorder.end()
    assert said.count("Events disabled") == said.count("Events enabled") == 2 and said.count(" dump ") == 1
    assert [len(one.meta.parts) for one in files(tmp_path)] == [0, 2]


@pytest.mark.alone
def test_disk_that_is_full_in_a_pause_has_each_blocked_thread_once(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "16M") as disk:
        with (
            program() as told,
            controlled("-p", str(told[0]), "-o", disk / "perf.data", cwd=tmp_path, several=False) as recorder,
        ):
            time.sleep(0.3)
            recorder.tell("disable")
            with open(disk / "ballast", "wb", buffering=0) as ballast, contextlib.suppress(OSError):
                while True:
                    ballast.write(bytes(4096))
            for _ in range(200):  # side-band records, more than there is room for in the last block
                subprocess.run(["true"], check=True)
            with contextlib.suppress(BrokenPipeError):  # it may have ended by then
                os.write(recorder.commands, b"stop\n")
            _, said = recorder.process.communicate(timeout=60 * PATIENCE)
        assert recorder.process.returncode == 1 and "No space left" in said
        recording = load_recording(disk / "perf.data")
        samples = recording.samples
        blocked = samples.tid[samples.has(SampleFlag.STILL_BLOCKED)].tolist()
        assert told[1] in blocked and len(blocked) == len(set(blocked))
        assert recording.losses[losses.RECORDS_UNWRITTEN] > 0 and recording.meta.parts == ()


def test_process_that_starts_in_a_pause_is_known_after_it(tmp_path: Path) -> None:
    """The file takes names and maps of the pause: nothing is looked up again when recording goes on."""
    with controlled("-a", cwd=tmp_path) as recorder:
        recorder.tell("disable")
        with program() as told:
            recorder.tell("enable")
            record_naps(told[0], told[2], naps=12, least_s=0)
            recorder.tell("disable")
        recorder.end()
    recording = load_recording(next(tmp_path.glob("perf.data.*")))
    samples = recording.samples
    mine = np.flatnonzero(samples.tid == told[2])
    assert len(mine) > 5
    names = {recording.strings[row] for row in samples.comm[mine].tolist()}
    assert names == {Path(sys.executable).resolve().name[:15]} or names == {"python"}
    assert (samples.space[mine] >= 0).all()


def test_killed_recorder_leaves_the_times_between_pauses(tmp_path: Path) -> None:
    with program() as told, controlled("-p", str(told[0]), "--off-cpu-period", "2", cwd=tmp_path) as recorder:
        time.sleep(0.3)
        recorder.pause(0.3)
        time.sleep(1.5)  # longer than the time between two reads of the rings
        recorder.process.kill()
        recorder.process.wait()
    path = str(next(tmp_path.glob("perf.data.*")))
    profile = read_segment(path, of_this_boot=True, after_ns=0)
    assert not profile.is_still_blocked().any(), "when it paused, not at the end"
    meta = profile.meta
    (first, second), times = meta.parts, load_recording(path).samples.time_ns
    assert first[1] - first[0] > 300 * MS and second[0] - first[1] > 300 * MS
    assert second[1] == meta.end_ns == times.max() and second[1] - second[0] > 200 * MS


@pytest.mark.long
def test_recording_without_further_files_pauses_too(tmp_path: Path) -> None:
    with program() as told, controlled("-p", str(told[0]), cwd=tmp_path, several=False) as recorder:
        time.sleep(0.1)
        recorder.pause(0.1, "snapshot")
        time.sleep(0.1)
        said = recorder.end()
    assert "--control: snapshot: needs a new file, and there is no --switch-output" in said
    assert len(load_recording(tmp_path / "perf.data").meta.parts) == 2


def test_period_changes_with_a_new_file_and_nothing_is_between_them(tmp_path: Path) -> None:
    with program() as (pid, stuck, _), controlled("-p", str(pid), "--off-cpu-period", "2", cwd=tmp_path) as recorder:
        for period in ("7", "0.5"):
            time.sleep(0.4)
            recorder.tell(f"period {period}")
            time.sleep(0.4)
        recorder.tell("disable")
        recorder.tell("period 3")
        recorder.tell("enable")
        time.sleep(0.4)
        recorder.tell("period x")
        recorder.tell("ping")
        said = recorder.end()
    found = files(tmp_path)
    assert [one.meta.sampling.period_ns for one in found] == [2 * MS, 7 * MS, MS // 2, 3 * MS]
    assert [after.meta.begin_ns == before.meta.end_ns for before, after in pairwise(found)] == [True, True, False]
    told = [(int(one.begin_ns[0]), int(one.end_ns[0])) for one in (budget_of(each, stuck) for each in found)]
    assert [before[1] == after[0] for before, after in pairwise(told)] == [True, True, False]
    samples = 0
    for recording, period_ns in zip(found, (2 * MS, 7 * MS, MS // 2, 3 * MS), strict=True):
        drawn = recording.samples.period[recording.samples.has(SampleFlag.SAMPLED)]
        samples += len(drawn)
        # A wait that was drawn between two looks has the period before.
        assert (drawn % period_ns != 0).sum() <= max(2, 0.1 * len(drawn))
    assert samples > 20
    assert "--control: period x" in said


NAPS = """
import sys, threading, time
sys.setswitchinterval(1)
def nap():
    while True:
        time.sleep(0.001)
for _ in range(16):
    threading.Thread(target=nap).start()
print(flush=True)
"""


@pytest.mark.long
def test_a_pause_leaves_the_period_that_max_rate_has_chosen(tmp_path: Path) -> None:
    """It is no time without samples, nine windows long, after which the period would be a ninth."""
    with started(sys.executable, "-c", NAPS) as (process, _):
        options = "-p", str(process.pid), "--off-cpu-period", "0.01", "--max-rate", "500"
        with controlled(*options, cwd=tmp_path, several=False) as recorder:
            time.sleep(0.5)
            recorder.pause(0.9)
            time.sleep(0.2)
            recorder.end()
    recording = load_recording(tmp_path / "perf.data")
    samples = recording.samples.take(np.argsort(recording.samples.time_ns, kind="stable"))
    samples = samples.take(samples.has(SampleFlag.SAMPLED))
    before, after = (samples.take(is_within(samples, *part)) for part in recording.meta.parts)
    assert len(before) > 100 and len(after) > 10
    # Naps fill less than a period by then: each sample has the weight of one.
    assert before.period[-1] > 10 * before.period.min()
    assert after.period[0] > before.period[-1] / 3


def test_end_while_paused_is_the_end_of_the_last_file(tmp_path: Path) -> None:
    with program() as (pid, *_), controlled("-p", str(pid), cwd=tmp_path) as recorder:
        time.sleep(0.2)
        recorder.tell("disable")
        said = recorder.end()
    assert len(files(tmp_path)) == 1
    assert "Captured and wrote" in said and " dump " not in said


CPU = max(os.sched_getaffinity(0))
SWITCH = Path(f"/sys/devices/system/cpu/cpu{CPU}/online")

NAP_S = 0.2
AWAY = """
echo 0 > {switch}; sleep {away}; echo 1 > {switch}
sleep 0.5
taskset -c {cpu} sleep 0.01
sleep 0.5
exec taskset -c {cpu} python3 -c '
import time
open("/proc/self/comm", "w").write("came-back")
end = time.thread_time() + 0.3
while time.thread_time() < end: pass
time.sleep({nap})'
"""


UNSEEN = """
import time
open("/proc/self/comm", "w").write("came-unseen")
print(flush=True)
while True: time.sleep(0.02)
"""


@pytest.mark.alone
@pytest.mark.skipif(not SWITCH.exists(), reason="this CPU cannot be taken offline")
def test_a_process_that_started_in_a_pause_on_a_cpu_that_came_back_has_its_name(tmp_path: Path) -> None:
    """Its CPU had no events by then. Without --switch-output no new file begins, with what runs already."""
    options = "-a", "-o", "out", "--off-cpu-thresh", "0"
    try:
        with controlled(*options, cwd=tmp_path, several=False) as recorder:
            recorder.tell("disable")
            SWITCH.write_text("0")
            SWITCH.write_text("1")
            command = ["taskset", "-c", str(CPU), sys.executable, "-c", UNSEEN]
            with started(*command) as (unseen, _):
                recorder.tell("enable")
                time.sleep(0.5)
                said = recorder.end()
    finally:
        SWITCH.write_text("1")
    assert said.count(f"CPU {CPU} came online, and is recorded from here on") == 1
    recording = load_recording(tmp_path / "out")
    samples = recording.samples
    mine = np.flatnonzero(samples.pid == unseen.pid)
    assert len(mine) and (samples.space[mine] >= 0).all()
    assert {recording.strings[row] for row in samples.comm[mine].tolist()} == {"came-unseen"}
    lives = recording.tasks.take(recording.tasks.tid == os.getpid())
    assert lives.begin_ns.tolist() == [0], "who was there before is not born"
    assert f"came-unseen {unseen.pid}" in " ".join(perf("script", "-F", "comm,pid", "-i", tmp_path / "out").split())


@pytest.mark.alone
@pytest.mark.skipif(not SWITCH.exists(), reason="this CPU cannot be taken offline")
@pytest.mark.parametrize("away_s", [
    pytest.param(0.0, id="between two looks"), pytest.param(0.5, id="for some looks", marks=pytest.mark.long),
])  # fmt: skip
def test_a_cpu_that_comes_back_is_recorded(tmp_path: Path, away_s: float) -> None:
    script = AWAY.format(switch=SWITCH, away=away_s, cpu=CPU, nap=NAP_S)
    command = [*PROGRAM, "-e", "cpu-clock", "--off-cpu-thresh", "0", "-o", "out", "--", "sh", "-c", script]
    try:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    finally:
        SWITCH.write_text("1")
    assert f"CPU {CPU} came online, and is recorded from here on" in done.stderr
    recording = load_recording(tmp_path / "out")
    samples = recording.samples
    names = np.array([recording.strings[row] == "came-back" for row in samples.comm])
    mine = names & (samples.cpu == CPU)
    is_wait = samples.flags & SampleFlag.OFFCPU > 0
    assert int(samples.period[mine & is_wait].max()) >= 0.9 * NAP_S * 1e9, "less the way to the switch"
    assert int((mine & ~is_wait).sum()) > 10  # of 30 in the loop
    assert f"came-back [{CPU:03}]" in perf("script", "-F", "comm,cpu,event", "-i", tmp_path / "out")
