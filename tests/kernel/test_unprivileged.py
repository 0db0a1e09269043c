# SPDX-License-Identifier: Apache-2.0
"""Recordings by an ordinary user: the same waits as BPF sees, stacks and objects of long ones, and clear refusals.
Recordings with capabilities instead of all of root's rights: what is missing without each, as `doctor` says it."""

import contextlib
import json
import os
import shlex
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from builders import program
from builders.examples import examples
from builders.profile import functions_of
from builders.program import PROGRAM
from kernel.others import AS_NOBODY, NOBODY, reachable
from kernel.recorder import MS, Run
from kernel.test_event_loops import TASKS
from workload.measured import Thread, parse

from perf_offcpu.collect.system.privileges import USES
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Recording, SampleFlag

NOT_WHOLE = SampleFlag.TRUNCATED | SampleFlag.NO_USER_STACK


def nobody_records(*arguments: str | Path, cwd: Path, before: str = "") -> Run:
    """Run `record` as nobody in a directory; `before`: words of a command that runs it."""
    words = shlex.join(map(str, [*program.PROGRAM, "record", *arguments]))
    shell = reachable(f"HOME={cwd} exec {before} setpriv {NOBODY} {words}")
    done = subprocess.run(["sh", "-c", shell], cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    return Run(cwd, done.returncode, done.stdout, done.stderr)


def long_waits(recording: Recording, tids: list[int], least_ns: int) -> dict[tuple[int, int], int]:
    """(tid, begin in ns) → length of the waits of some threads that began in the recording and ended in it."""
    samples = recording.samples
    left_out = SampleFlag.STILL_BLOCKED | SampleFlag.BEGAN_BEFORE | SampleFlag.PREEMPTED | SampleFlag.AGGREGATED
    rows = np.flatnonzero(
        (samples.flags & (SampleFlag.OFFCPU | left_out) == SampleFlag.OFFCPU)
        & np.isin(samples.tid, tids)
        & (samples.period >= least_ns)
    )
    columns = (samples.tid, samples.switch_out_ns, samples.period)
    return {(tid, begin): ns for tid, begin, ns in zip(*(column[rows].tolist() for column in columns), strict=True)}


def test_waits_of_the_known_workload_are_exact_and_long_ones_have_stacks(place: Path, waiter: Path) -> None:
    shutil.copy(waiter, place / "waiter")
    root = shlex.join(map(str, [*program.PROGRAM, "record", "-q", "-o", place / "root.data", "--"]))
    run = nobody_records("--", "./waiter", cwd=place, before=root)
    assert run.returncode == 0, run.stderr
    assert "recording by an ordinary user: no wakers" in run.stderr
    threads = parse(run.stdout)
    finished = [thread for thread in threads.values() if not thread.blocked_since_ns]
    profile = run.profile
    assert profile.meta.unprivileged

    # As many as the kernel counted, of any length.
    counted = {thread.comm: counted_waits(profile, thread) for thread in finished}
    assert counted == {thread.comm: thread.nvcsw for thread in finished}

    # Each as long as BPF measured it.
    from perf_offcpu.decode.load import load_recording

    tids = [thread.tid for thread in finished]
    exact = long_waits(load_recording(place / "root.data"), tids, 10 * MS)
    ours = long_waits(run.recording, tids, 9 * MS)
    assert len(exact) > 50
    begin_of = {thread.tid: thread.begin_ns for thread in finished}
    for (tid, begin), ns in exact.items():
        assert (
            begin < begin_of[tid]
            or min(abs(begin - at) + abs(ns - own) for (own_tid, at), own in ours.items() if own_tid == tid) < 100_000
        )

    assert_long_stacks(profile, threads)


def test_tasks_of_an_event_loop_are_those_of_the_program(place: Path) -> None:
    with program.started(*AS_NOBODY, "/usr/bin/python3", "-c", TASKS) as (child, line):
        run = nobody_records("-p", str(child.pid), "--duration", "0.5", cwd=place)
    (loop,), log = run.recording.loops, json.loads(line)
    assert (loop.pid, loop.tid) == (child.pid, child.pid) and loop.switch_out_ns > 0
    assert {*log} == {task.name for task in loop.tasks} and len(log) == 52
    assert all([*map(list, task.frames)] == log[task.name] for task in loop.tasks if task.name != "consumer")
    text = " ".join(program.run("report", "-f", cwd=place).stdout.replace("\n#", "").split())
    assert "10 tasks wait for asyncio.Lock in save, held by Holder" in text and "Idle besides" not in text


def counted_waits(profile: Profile, thread: Thread) -> int:
    samples = profile.samples
    rows = (samples.tid == thread.tid) & (samples.flags & SampleFlag.OFFCPU > 0)
    rows &= (samples.switch_out_ns >= thread.begin_ns) & (samples.switch_out_ns < thread.end_ns)
    return int(samples.count[rows].sum())


def assert_long_stacks(profile: Profile, threads: dict[str, Thread]) -> None:
    """Most of the time of waits over 20 ms has a whole stack, whose functions are those of a place where it waits."""
    samples, total, whole = profile.samples, 0, 0
    for thread in threads.values():
        rows = np.flatnonzero((samples.tid == thread.tid) & (samples.period >= 20 * MS))
        in_time = (samples.switch_out_ns[rows] >= thread.begin_ns) & (samples.switch_out_ns[rows] < thread.end_ns)
        for row in rows[in_time | (thread.blocked_since_ns > 0)].tolist():
            total += int(samples.period[row])
            if samples.flags[row] & NOT_WHOLE:
                continue
            whole += int(samples.period[row])
            names = functions_of(profile, int(samples.stack[row]))
            assert any(list(site.stack) == [name for name in names if name in site.stack] for site in thread.sites), (
                thread.comm,
                names,
            )
    assert whole > 0.5 * total > 0


PYTHON = """
import os, socket, threading, time
def hold(lock):
    with lock:
        time.sleep(0.3)
lock, (ours, other) = threading.Lock(), socket.socketpair()
server = socket.create_server(("127.0.0.1", 0))
threads = [threading.Thread(target=hold, args=[lock]) for _ in range(2)]
threads += [threading.Thread(target=ours.recv, args=[1]), threading.Thread(target=server.accept)]
for thread in threads:
    thread.start()
threads[0].join()
other.send(b"x")
socket.create_connection(server.getsockname()).close()
for _ in range(20):  # short-lived
    thread = threading.Thread(target=time.sleep, args=[0.001])
    thread.start()
    thread.join()
os.execvp("sleep", ["sleep", "0.2"])
"""


def test_a_program_in_python_that_execs_another(place: Path) -> None:
    (place / "p.py").write_text(PYTHON)
    run = nobody_records("--", "/usr/bin/python3", "p.py", cwd=place)
    assert run.returncode == 0, run.stderr
    shown = program.run("report", "-f", cwd=place).stdout
    assert "Recording by an ordinary user: no wakers" in " ".join(shown.replace("#", " ").split())
    assert "tcp listen 127.0.0.1:" in shown and "unix" in shown
    profile = run.profile
    samples = profile.samples
    long = np.flatnonzero((samples.flags & SampleFlag.OFFCPU > 0) & (samples.period >= 150 * MS))
    whole = long[(samples.flags[long] & NOT_WHOLE) == 0]
    assert samples.period[whole].sum() > 0.8 * samples.period[long].sum()
    # Not the innermost ones: in glibc 2.41 these have no name without debug symbols.
    functions = {name for stack in samples.stack[whole].tolist() for name in functions_of(profile, stack)}
    assert any("nanosleep" in name for name in functions), functions
    assert any("accept" in name for name in functions), functions
    assert {"hold (p.py)", "Thread.run (threading.py)"} <= functions
    assert {"python3", "sleep"} <= {profile.strings[comm] for comm in samples.comm[long].tolist()}


def test_a_running_process_of_the_same_user(place: Path) -> None:
    code = "import time; time.sleep(1.5); time.sleep(0.2); time.sleep(30)"
    with subprocess.Popen([*AS_NOBODY, "/usr/bin/python3", "-c", code]) as process:
        run = nobody_records("-p", str(process.pid), "--duration", "2.5", cwd=place)
        process.kill()
    assert run.returncode == 0, run.stderr
    samples = run.recording.samples
    own = samples.tid == process.pid
    kinds = samples.flags[own] & (SampleFlag.BEGAN_BEFORE | SampleFlag.STILL_BLOCKED)
    assert (kinds & SampleFlag.STILL_BLOCKED).any()
    assert samples.period[own & (samples.flags & SampleFlag.STILL_BLOCKED > 0)].max() > 100 * MS


def setuid_program() -> str:
    for name in ("su", "mount", "passwd"):
        path = shutil.which(name)
        if path and Path(path).stat().st_mode & stat.S_ISUID:
            return path
    pytest.skip("no set-user-ID program")


@pytest.mark.parametrize(("words", "sentence"), examples("kernel/sentences.txt", "unprivileged"))
def test_what_it_cannot_record_it_refuses(words: str, sentence: str, place: Path) -> None:
    arguments = ["--", setuid_program()] if words == "SETUID" else words.split()
    run = nobody_records(*arguments, cwd=place)
    assert run.returncode != 0 and sentence in run.stderr, run.stderr
    assert len(run.stderr.splitlines()) <= 2
    assert not (place / "perf.data").exists()


PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")


@contextlib.contextmanager
def paranoid(value: str) -> Iterator[None]:
    before = PARANOID.read_text()
    PARANOID.write_text(value)
    try:
        yield
    finally:
        PARANOID.write_text(before)


@pytest.fixture
def paranoid_one() -> Iterator[None]:
    with paranoid("1"):
        yield


# As Debian's kernels do at 3: perf_event_open(2) fails with EACCES (13), here by a filter of system calls.
REFUSING = """
import ctypes, os, struct, sys
number = {"x86_64": 298, "aarch64": 241}[os.uname().machine]
code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x50000 | 13), (6, 0, 0, 0x7FFF0000)]
program = b"".join(struct.pack("HBBI", *instruction) for instruction in code)
buffer = ctypes.create_string_buffer(program)
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer)))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, filter, 0, 0):
    sys.exit(os.strerror(ctypes.get_errno()))
os.execvp(sys.argv[1], sys.argv[1:])
"""


def test_paranoid_3_is_named_only_where_the_kernel_forbids_all_events(place: Path) -> None:
    (place / "refusing.py").write_text(REFUSING)
    with paranoid("3"):
        refused = nobody_records("--", "true", cwd=place, before="python3 refusing.py")
        # A kernel without Debian's patch takes 3 as 2.
        own, other = (nobody_records(*words, cwd=place) for words in (["--", "true"], ["-p", "1"]))
    assert refused.returncode != 0 and len(refused.stderr.splitlines()) == 1
    assert "kernel.perf_event_paranoid is 3: this kernel leaves all perf events to CAP_SYS_ADMIN" in refused.stderr
    assert own.returncode == 0, own.stderr
    assert "it is of another user" in other.stderr and "paranoid" not in other.stderr


@pytest.mark.usefixtures("paranoid_one")
def test_waits_have_kernel_stacks_where_the_kernel_may_be_seen(place: Path) -> None:
    code = "import os, time; [time.sleep(0.002) for _ in range(50)]; time.sleep(0.1); r, w = os.pipe(); os.read(r, 1)"
    command = ("timeout", "0.5", "/usr/bin/python3", "-c", code)
    run = nobody_records("--", *command, cwd=place)
    assert run.stderr and (place / "perf.data").exists(), run.stderr
    profile = run.profile
    samples = profile.samples
    waits = np.flatnonzero((samples.flags & SampleFlag.OFFCPU > 0) & (samples.flags & SampleFlag.PREEMPTED == 0))
    named = {row: functions_of(profile, int(samples.stack[row])) for row in waits.tolist()}
    sleeps = [names for row, names in named.items() if "do_nanosleep" in names]
    # Those of 2 ms were not looked at: only the kernel's part is known.
    assert len(sleeps) == 51, list(named.values())
    assert any("anon_pipe_read" in names or "pipe_read" in names for names in named.values())
    # The parts join: the sleep of 100 ms was looked at.
    assert any("do_nanosleep" in names and any("clock_nanosleep" in name for name in names[:-6]) for names in sleeps)
    # Samples of switches are no on-CPU samples.
    oncpu = samples.flags & SampleFlag.OFFCPU == 0
    assert not any("schedule" in functions_of(profile, stack)[-1:] for stack in samples.stack[oncpu].tolist())


ALL_TASKS = """
from perf_offcpu.abi.attr import Attr, PerfType, SoftwareConfig
from perf_offcpu.collect.events.perf_event import open_event
from perf_offcpu.collect.system.privileges import CAP_PERFMON, capabilities
attr = Attr(type=PerfType.SOFTWARE, config=SoftwareConfig.BPF_OUTPUT, sample_period=1)
try:
    print(CAP_PERFMON in capabilities(), open_event(attr, 0, -1) > 0)
except OSError as problem:
    print(CAP_PERFMON in capabilities(), problem.errno)
"""


def test_capabilities_of_a_user_namespace_open_no_rings() -> None:
    """Why BPF tokens do not help (Documentation/security.md)."""
    python = [program.PROGRAM[0], "-c", ALL_TASKS]
    inside = ["unshare", "--user", "--map-root-user", *python]
    said = [subprocess.run(words, capture_output=True, text=True, check=True).stdout for words in (python, inside)]
    assert said == ["True True\n", "True 13\n"]


ALL = [name.removeprefix("CAP_").lower() for name in USES]
FEATURES = ("recording", "maps of others", "closed files", "kernel map", "large rings", "priority")


@pytest.fixture
def napper(place: Path) -> Iterator[int]:
    """A process of nobody, of a file that only nobody may read, in a directory that is closed to others."""
    closed = place / "closed"
    closed.mkdir()
    shutil.copy("/bin/sleep", closed / "napper")
    for path in (closed / "napper", closed):
        os.chown(path, 65534, 65534)
        path.chmod(0o700)
    with subprocess.Popen([*AS_NOBODY, closed / "napper", "600"]) as process:
        yield process.pid
        process.kill()


def works(without: str, napper: int, cwd: Path) -> set[str]:
    """Record the whole system with all capabilities of USES but `without` and CAP_SYS_ADMIN; return what works."""
    kept = ",".join(f"+{name}" for name in ALL if name not in (without, "sys_admin"))
    words = ["setpriv", f"--bounding-set=-all,{kept}", "--inh-caps=-all", *PROGRAM, "record", "-a", "-m", "32M"]
    nice = 0
    with subprocess.Popen([*words, "--duration", "1"], cwd=cwd, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "recording ]" in line:
                nice = os.getpriority(os.PRIO_PROCESS, process.pid)
    if process.returncode:
        return set()
    recording = load_recording(cwd / "perf.data")
    dsos = recording.maps.dso[np.isin(recording.maps.space, np.flatnonzero(recording.spaces.pid == napper))]
    names = {recording.strings[path]: recording.strings[build_id] for path, build_id in zip(
        recording.dsos.path[dsos].tolist(), recording.dsos.build_id[dsos].tolist(), strict=True)}  # fmt: skip
    facts = {
        "recording": True,
        "maps of others": bool(names),
        "closed files": any(name.endswith("/napper") and build_id for name, build_id in names.items()),
        "kernel map": any("kernel.kallsyms" in name for name in kernel_names(recording)),
        "large rings": not any("per CPU are refused" in line for line in said),
        "priority": nice < 0,
    }
    return {feature for feature, is_there in facts.items() if is_there}


def kernel_names(recording: object) -> set[str]:
    maps, dsos, strings = recording.maps, recording.dsos, recording.strings  # type: ignore[attr-defined]
    return {strings[path] for path in dsos.path[maps.dso[maps.space < 0]].tolist()}


@pytest.mark.beside
@pytest.mark.long
@pytest.mark.parametrize(("without", "missing"), examples("kernel/examples.txt", "capabilities"))
def test_each_capability_is_needed_for_what_the_table_says(
    without: str, missing: str, napper: int, tmp_path: Path
) -> None:
    lost = set(FEATURES) if missing == "everything" else {*missing.split(", ")} - {""}
    assert works(without, napper, tmp_path) == set(FEATURES) - lost
