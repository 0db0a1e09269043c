# SPDX-License-Identifier: Apache-2.0
"""Programs that hang: threads still blocked at the end have the stacks that gdb shows, to their roots, and the
functions of Python, without flags and packages, and as an ordinary user."""

import json
import platform
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from builders import program
from builders.compiled import build
from kernel.gdb_stacks import stop
from kernel.others import AS_NOBODY
from kernel.recorder import Run, hanging, report, run, until
from kernel.test_python_names import python_stack
from kernel.test_unprivileged import nobody_records

from perf_offcpu import losses
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.symbolize.symbolizer import symbolize

pytestmark = pytest.mark.beside

HUNG = Path(__file__).parent / "hung"
KERNEL_HALF = 1 << 63
PAGE = 4096
LONG = pytest.mark.long
needs_java = pytest.mark.skipif(shutil.which("javac") is None, reason="no javac here (Debian: default-jdk-headless)")
Stack = tuple[int, ...]


class Hung(NamedTuple):
    pid: int
    stacks: Counter[Stack]


@pytest.fixture(scope="module")
def abba(tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = ["-O2", "-g", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"]
    return build(HUNG / "abba.c", tmp_path_factory.mktemp("hung") / "abba", *flags)


@pytest.fixture(scope="module")
def hung(abba: Path) -> Iterator[Hung]:
    with hanging(abba, threads=3) as pid:
        yield Hung(pid, gdb_stacks(pid))


def script(path: Path, *options: str) -> list[list[str]]:
    text = program.run("script", "-i", path, "--no-inline", "-F", "comm,tid,ip,sym", *options).stdout
    return [block.splitlines() for block in text.strip().split("\n\n")]


def user_stacks(path: Path, *options: str) -> Counter[Stack]:
    """Return the user addresses of each sample that script prints, leaf first; functions of Python have none."""
    found = Counter[Stack]()
    for _, *frames in script(path, *options):
        addresses = (int(line.split()[0], 16) for line in frames)
        found[tuple(address for address in addresses if 0 < address < KERNEL_HALF)] += 1
    return found


def gdb_stacks(pid: int) -> Counter[Stack]:
    """Count stacks of threads that wait in system calls. To a debugger arm64 shows these as to be called again, 4 bytes
    before (do_signal() in arch/arm64/kernel/signal.c)."""
    before = 4 * (platform.machine() == "aarch64")
    return Counter((one.gdb[0] + before, *one.gdb[1:]) for one in stop(pid))


def place_in_page(address: int) -> int:
    """Return what is the same wherever a file is mapped: libc's clone3 has no symbol in stripped ones."""
    return address % PAGE


def test_deadlock_in_c_without_frame_pointers_is_shown_as_by_gdb(hung: Hung, tmp_path: Path) -> None:
    run("-p", str(hung.pid), "--duration", "0.3", cwd=tmp_path)
    path = tmp_path / "perf.data"
    assert user_stacks(path) == hung.stacks and hung.stacks.total() == 3
    takes = sorted(sum("take" in line for line in frames) for frames in script(path))
    assert takes == [0, 3, 4], "three frames of the one thread, four of the other"
    assert losses.STACK_CUT not in load_recording(path, snapshots=True).losses


def test_a_circle_of_timed_waits_is_no_deadlock(tmp_path: Path) -> None:
    long, short = (build(HUNG / "abba.c", tmp_path / f"{s}", f"-DSECONDS={s}", "-O2", "-g") for s in (8, 2))
    with hanging(long, threads=3) as pid:
        run("-p", str(pid), "--duration", "0.5", cwd=tmp_path)
    run("-o", "end", "--lock-owners", "--", short, cwd=tmp_path)
    reports = [report("-i", name, cwd=tmp_path) for name in ("perf.data", "end")]
    assert [shown["deadlocks"] for shown in reports] == [[], []]
    assert [len(shown["timed_circles"]) for shown in reports] == [1, 1]
    assert all(1e9 < thread["asked_ns"] < 9e9 for thread in reports[0]["timed_circles"][0])
    assert [{thread["is_over"] for thread in shown["timed_circles"][0]} for shown in reports] == [{False}, {True}]


def test_every_file_of_a_recording_has_whole_stacks(hung: Hung, tmp_path: Path) -> None:
    run("--switch-output=1s", "-p", str(hung.pid), "--duration", "1.5", cwd=tmp_path)
    files = sorted(tmp_path.glob("perf.data.*"))
    assert len(files) >= 2
    for path in files:
        assert user_stacks(path) == hung.stacks


def test_recorded_from_the_start_and_by_system_wide_recordings(abba: Path, hung: Hung, tmp_path: Path) -> None:
    run("-a", "-e", "none", "--duration", "0.3", cwd=tmp_path)
    assert user_stacks(tmp_path / "perf.data", "--pid", str(hung.pid)) == hung.stacks
    started = tmp_path / "started.data"
    run("-o", started, "--", "timeout", "-s", "KILL", "1", abba, cwd=tmp_path, status=None)
    stacks = [frames for frames in script(started, "--comm", "abba") if "take" in "".join(frames)]
    roots = {place_in_page(int(frames[-1].split()[0], 16)) for frames in stacks}
    assert stacks and roots <= {place_in_page(stack[-1]) for stack in hung.stacks}, "clone3, as gdb found it"


def test_a_stack_that_frame_pointers_cannot_walk_stays_cut(hung: Hung, tmp_path: Path) -> None:
    run("-p", str(hung.pid), "--call-graph", "fp", "--duration", "0.3", cwd=tmp_path)
    assert not any("take" in line for frames in script(tmp_path / "perf.data") for line in frames[:-3])


def test_deadlock_in_python_is_shown_as_by_gdb(tmp_path: Path) -> None:
    with hanging("/usr/bin/python3", HUNG / "abba.py", threads=3) as pid:
        run("-p", str(pid), "--duration", "0.3", cwd=tmp_path)
        expected = gdb_stacks(pid)
    assert user_stacks(tmp_path / "perf.data") == expected and expected.total() == 3
    waiting = script(tmp_path / "perf.data", "--idle", "hide")
    assert len(waiting) == 3, "a lock that another thread holds is not idle"


@pytest.mark.long
@needs_java
@pytest.mark.parametrize("compiler", ["-XX:TieredStopAtLevel=1", pytest.param("-XX:-TieredCompilation", marks=LONG)])
def test_deadlock_in_java_is_shown_as_by_jstack(tmp_path: Path, compiler: str) -> None:
    """Compiled functions, without frame pointer, and interpreted ones have their names."""
    subprocess.run(["javac", "-d", tmp_path, HUNG / "Abba.java"], check=True)
    compiled = ["-Xcomp", "-XX:CompileCommand=quiet", "-XX:CompileCommand=compileonly,Abba::*"]
    flags = [compiler, "-XX:-Inline"]  # a frame of each function
    with hanging("java", *compiled, *flags, "-cp", tmp_path, "Abba", threads=12) as pid:
        until(lambda: "Found 1 deadlock" in jdk("jstack", pid))
        run("-p", str(pid), "--duration", "1", cwd=tmp_path)
        expected = {name: java_frames(jdk("jstack", pid), name) for name in ("one", "two")}
        samples = script(tmp_path / "perf.data", "--idle", "hide")
    said = program.run("report", cwd=tmp_path).stdout
    first = " ".join(said[:300].replace("\n#", "").split())
    lock = r"monitor of java.util.concurrent.locks.ReentrantLock at 0x\w+ \(\d+\)"
    assert re.match(rf"# Deadlock of 2 threads: one \d+ waits in Abba.take for {lock}, held by two", first), first
    # Some threads of the VM sleep for a second at a time: their waits may end in the recording.
    samples = [one for one in samples if one[0].split()[0] not in ("VM", "G1", "Monitor")]
    assert {head.split()[0] for head, *_ in samples} == {"one", "two"}, "without idle threads"
    assert expected["one"][:2] == ["Abba.take", "Abba.lambda$main$0"] and len(expected["two"]) >= 4
    # A thread may wake once while the recording begins, of a wait from before: the last one is still blocked.
    for head, frames in {head.split()[0]: (head, frames) for head, *frames in samples}.values():
        text = "\n".join(frames)
        java = re.findall(r"^.* (\w[\w.$+]*\.[\w$]+)\(", text, re.MULTILINE)
        assert java == expected[head.split()[0]], text
        assert re.search(r"ObjectMonitor::enter", text) and "JavaThread::thread_main_inner" in text, text
        assert re.search(r"start_thread\n.*\bclone3$", text), text


@needs_java
@pytest.mark.parametrize("record", [run, nobody_records])
def test_deadlock_of_reentrant_locks_in_java(place: Path, record: Callable[..., Run]) -> None:
    """By root and by an ordinary user; Java's functions that are interpreted have their names."""
    subprocess.run(["javac", "-d", place, HUNG / "Abba.java"], check=True)
    user = AS_NOBODY if record is nobody_records else []
    with hanging(*user, "java", "-cp", place, "Abba", "locks", threads=12) as pid:
        until(lambda: "Found 1 deadlock" in jdk(*user, "jstack", pid))
        record("-p", str(pid), "--duration", "0.5", cwd=place)
    said = program.run("report", "-f", cwd=place).stdout
    first = " ".join(said[:300].replace("\n#", "").split())
    lock = r"java.util.concurrent.locks.ReentrantLock at 0x\w+ \(\d+\)"
    assert re.match(rf"# Deadlock of 2 threads: one \d+ waits in Abba.lock for {lock}, held by two", first), first


@needs_java
def test_monitors_in_java_are_named_by_class(tmp_path: Path) -> None:
    """Threads that wait for one monitor have one object, also where a timer has divided their waits."""
    subprocess.run(["javac", "-d", tmp_path, HUNG / "Monitors.java"], check=True)
    with hanging("java", "-cp", tmp_path, "Monitors", threads=16) as pid:
        until(lambda: jdk("jstack", pid).count("waiting to lock") == 6)
        run("-p", str(pid), "--duration", "2.5", cwd=tmp_path)
    said = program.run("report", "--limit", "0", cwd=tmp_path).stdout
    row = re.compile(r"(?m)^ +\S+% +(\S+) +\d+ +\S+ +\S+ +(\d) +lock +monitor of (\S+(?: \w+)?).* held by holder ")
    waits = sorted((name, int(threads), float(ms) / int(threads)) for ms, threads, name in row.findall(said))
    assert [wait[:2] for wait in waits] == [
        *(("Monitors$Repo at", number) for number in (1, 2)),
        *(("class Monitors", 1), ("int[][]", 2)),
    ]
    # A part that ended before the stacks were told apart by interpreted methods has another stack, and no class.
    assert all(400 < ms < 2800 for *_, ms in waits) and sum(ms > 2300 for *_, ms in waits) >= 2, waits


def jdk(*command: str | int) -> str:
    words = [*map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stdout


def java_frames(text: str, thread: str) -> list[str]:
    (block,) = re.findall(rf'^"{thread}" #.*\n((?:[ \t].*\n)+)', text, re.MULTILINE)
    return [name.replace("/0x", "+0x") for name in re.findall(r"\tat ([^(]+)", block)]


@pytest.fixture
def place(place: Path) -> Path:
    shutil.copy(HUNG / "abba.py", place)
    return place


def test_functions_of_a_deadlock_stand_in_the_stacks_of_both_threads(place: Path, tmp_path: Path) -> None:
    with hanging(*AS_NOBODY, "/usr/bin/python3", place / "abba.py", threads=3) as pid:
        run("-p", str(pid), "--duration", "1", cwd=tmp_path)
    text = program.run("script", "-i", "perf.data", "-F", "tid,sym", cwd=tmp_path).stdout
    stacks = [block.splitlines()[1:] for block in text.strip().split("\n\n")]
    found = 0
    for stack in stacks:
        functions = [line.strip() for line in stack if line.endswith("y)")]
        if "take (abba.py)" not in functions:
            continue
        found += 1
        assert functions[0] == "take (abba.py)" and functions[-1].endswith("_bootstrap (threading.py)"), text
        names = [line.strip() for line in stack]
        take = names.index("take (abba.py)")
        # From Python 3.12 on, one call of the interpreter runs several functions.
        in_c = [name for name in names[take:] if not name.endswith("y)")]
        assert "_PyEval_EvalFrameDefault" in in_c[0], text
        assert any("acquire_lock" in name or "_PySemaphore" in name for name in names[:take]), text
    assert found == 2, text


def test_each_file_of_a_recording_has_the_functions_of_its_end(place: Path, tmp_path: Path) -> None:
    with hanging("/usr/bin/python3", place / "abba.py", threads=3) as pid:
        run("--switch-output=1s", "-p", str(pid), "--duration", "3", cwd=tmp_path)
    files = sorted(tmp_path.glob("perf.data*"))
    assert len(files) >= 2
    for path in files:
        text = program.run("script", "-i", path, "-F", "tid,sym", cwd=tmp_path).stdout
        assert text.count("take (abba.py)") == 2, text


TOLD = """
import json, sys, threading, time
def stack(frame):
    while frame:
        yield frame.f_code.co_qualname, frame.f_lineno
        frame = frame.f_back
def tell():
    print(json.dumps(list(stack(sys._getframe(1)))), file=told, flush=True)
def hangs(depth, event):
    if depth:
        return hangs(depth - 1, event)
    sorted([event], key=lambda event: tell() or event.wait(60))
told = open(sys.argv[1], "w")
for number in range(6):
    threading.Thread(target=hangs, args=(5 * number, threading.Event()), daemon=True).start()
time.sleep(60)
"""
"""Threads hang at several depths, in a function that a function in C calls; each tells its functions and lines."""


def test_all_functions_and_lines_are_those_that_the_program_tells(tmp_path: Path) -> None:
    with hanging("/usr/bin/python3", "-c", TOLD, tmp_path / "told", threads=7) as pid:
        run("-p", str(pid), "--duration", "0.5", cwd=tmp_path)
    told = [[(name, line) for name, line in json.loads(text)] for text in (tmp_path / "told").read_text().splitlines()]
    profile = symbolize(load_recording(tmp_path / "perf.data"))
    assert losses.PYTHON_MISSED not in profile.losses
    nodes = profile.samples.stack[profile.samples.has(SampleFlag.STILL_BLOCKED)].tolist()
    stacks = [[(name.partition(" (")[0], line) for name, line in python_stack(profile, node)] for node in nodes]
    assert len(told) == 6 and len(stacks) == 7
    for stack in told:
        assert stack[0][0] == "hangs.<locals>.<lambda>"
        assert sum(shown[-len(stack) :] == stack for shown in stacks) == 1, (stack, stacks)
