# SPDX-License-Identifier: Apache-2.0
"""Waits below code that was made at run time: its functions have the names that the runtime gave them."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from builders import program
from builders.examples import examples
from builders.profile import functions_of
from kernel.recorder import run

from perf_offcpu import losses
from perf_offcpu.collect.bpf.kernel.facts import has_may_goto
from perf_offcpu.collect.system import hotspot
from perf_offcpu.collect.system.as_owner import ask_as_owner
from perf_offcpu.model.recording import SampleFlag

pytestmark = pytest.mark.beside

HERE = Path(__file__).with_name("jit")
NOBODY = 65534
Stacks = dict[tuple[str, ...], int]

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="no node here (Debian: nodejs)")
needs_java = pytest.mark.skipif(shutil.which("javac") is None, reason="no javac here (Debian: default-jdk-headless)")


@cache
def pythons() -> dict[str, str]:
    """Pythons that know `-X perf` (3.12 and newer) by version: those of the PATH, and pyenv's."""
    places = {f"3.{minor}": shutil.which(f"python3.{minor}") or "" for minor in range(12, 16)}
    places |= {path.parts[-3]: str(path) for path in Path.home().glob(".pyenv/versions/3.1[2-9].*/bin/python3")}
    return {version: place for version, place in places.items() if place and ".pyenv/shims" not in place}


def folded(cwd: Path, name: str = "perf.data") -> Stacks:
    """ns by stack, root first."""
    done = program.run("convert", "--folded", "-i", name, "-o", "-", cwd=cwd)
    lines = (line.rpartition(" ") for line in done.stdout.splitlines())
    return {tuple(stack.split(";")): int(ns) for stack, _, ns in lines}


def recorded(cwd: Path, *command: str | Path) -> Stacks:
    """Record every wait of a command, in a file that `perf inject` reads."""
    run("-q", "-z0", "--off-cpu-thresh", "0", "--", *command, cwd=cwd)
    return folded(cwd)


def time_below(stacks: Stacks, *functions: str) -> int:
    """ns of the stacks that call these functions (regular expressions) in this order, others between."""
    wanted = re.compile(";(.*;)?".join(functions))
    return sum(ns for stack, ns in stacks.items() if wanted.search(";".join(stack)))


JAVASCRIPT = [rf"JS:[~^*+]?{name} \S*waits\.js:\d+:\d+" for name in ("main", "handleRequest", "waitForDisk")]


@needs_node
def test_javascript_with_a_map(tmp_path: Path) -> None:
    stacks = recorded(tmp_path, "node", "--perf-basic-prof", "--interpreted-frames-native-stack", HERE / "waits.js")
    assert time_below(stacks, "_start", *JAVASCRIPT, "futex_do_wait|futex_wait_queue") >= 480_000_000


@pytest.mark.long
@needs_node
def test_javascript_with_a_jitdump_that_perf_put_in(tmp_path: Path) -> None:
    """`perf inject --jit` makes an ELF file of each function, younger than the recording."""
    recorded(tmp_path, "node", "--perf-prof", "--interpreted-frames-native-stack", HERE / "waits.js")
    command = ["perf", "inject", "--jit", "-i", "perf.data", "-o", "jitted.data"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    stacks = folded(tmp_path, "jitted.data")
    assert time_below(stacks, "_start", *JAVASCRIPT, "futex_do_wait|futex_wait_queue") >= 480_000_000


OWN_TMP = (HERE / "own_tmp.sh").read_text()
"""Runs a command with a /tmp of its own, which holds the classes of a directory."""


@needs_java
@pytest.mark.parametrize(
    ("user", "inside"),
    [(NOBODY, False), *(pytest.param(*row, marks=pytest.mark.long) for row in ((0, False), (0, True), (NOBODY, True)))],
)
def test_a_jvm_is_asked_for_names_and_frames(tmp_path: Path, user: int, inside: bool) -> None:
    """Of a JVM without flags, of any user, also with a pid and a /tmp of its own, compiled functions have names."""
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory())  # all directories above tmp_path are root's alone
        subprocess.run(["javac", "-d", place, HERE / "Waits.java"], check=True, timeout=60)
        os.chmod(place, 0o755)
        java = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "java", "-cp"]
        java += ["/tmp" if inside else place, "Waits", "100000"]
        if inside:
            namespaces = ["--pid", "--fork", "--kill-child", "--mount", "--mount-proc"]
            java = ["unshare", *namespaces, "sh", "-c", OWN_TMP, place, *java]
        process = stack.enter_context(subprocess.Popen(java))
        stack.callback(process.kill)
        time.sleep(1.5)
        (pid,) = {*children(process.pid)} if inside else {process.pid}
        stack.callback(os.kill, pid, signal.SIGKILL)  # setpriv forgets --kill-child
        root = stack.enter_context(open_directory(f"/proc/{pid}/root/tmp"))
        for name in (f".attach_pid{pid}", f"perf-{pid}.map") if not inside else ():  # of an earlier JVM with this pid
            stale = Path("/tmp") / name
            stack.callback(stale.unlink, missing_ok=True)
            stale.touch()
            os.utime(stale, (0, 0))
            os.chown(stale, user, user)
        said = run("--off-cpu-thresh", "0", "-p", str(pid), "--duration", "2", cwd=tmp_path).stderr
        assert process.poll() is None and "JVM" not in said
        stacks = folded(tmp_path)
        assert (".java_pid1" if inside else f".java_pid{pid}") in os.listdir(root)
        Path(f"/tmp/.java_pid{pid}").unlink(missing_ok=True)
    sleeping = [thread for thread in stacks if thread[0] == "java" and "JVM_Sleep" in thread]
    names = ["JavaMain", r"long Waits\.handleRequest\(int\)", r"void java\.lang\.Thread\.sleep\(long\)", "JVM_Sleep"]
    assert time_below(stacks, *names) >= 1_500_000_000
    assert sleeping and not any("[truncated]" in thread for thread in sleeping)


@contextlib.contextmanager
def interpreted(directory: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a JVM whose threads wait in interpreted methods."""
    subprocess.run(["javac", "-d", directory, HERE / "Interpreted.java"], check=True, timeout=60)
    with subprocess.Popen(["java", *flags, "-cp", directory, "Interpreted"]) as process:
        try:
            time.sleep(2)
            yield process
        finally:
            process.kill()


@needs_java
@pytest.mark.long
@pytest.mark.parametrize("flags", [["-Xint"], ["-XX:+PreserveFramePointer"], []])
def test_interpreted_methods_are_those_of_the_jvms_own_dump(tmp_path: Path, flags: list[str]) -> None:
    with interpreted(tmp_path, *flags) as process:
        dump = subprocess.run(["jcmd", str(process.pid), "Thread.print"], capture_output=True, text=True, check=True)
        run("-p", str(process.pid), "--duration", "0.5", cwd=tmp_path)
    java = re.compile(r"\S+ (\S+\.[^.(]+)\(.*\)")
    functions = dict[str, list[str]]()
    for stack in folded(tmp_path):
        names = [match[1] for name in stack if (match := java.fullmatch(name))]
        functions[stack[0]] = max(functions.get(stack[0], []), names, key=len)
    for name in ("monitor", "parks", "sleeps", "waits"):
        (own,) = re.findall(rf'^"{name}" .*\n((?:[ \t].*\n)+)', dump.stdout, re.MULTILINE)
        expected = [line.replace("/0x", "+0x") for line in re.findall(r"^\tat ([^(\n]+)\(", own, re.MULTILINE)]
        assert functions[name] == expected[::-1] and len(expected) >= 8, name


@needs_java
@pytest.mark.skipif(not has_may_goto(), reason="the loop over a JVM's stack is left out before Linux 6.9")
def test_waits_in_two_interpreted_methods_are_told_apart(tmp_path: Path) -> None:
    """Both have the same return addresses, by which waits share copies of stacks; the methods are in the frames."""
    with interpreted(tmp_path, "-Xint") as process:
        profile = run("-p", str(process.pid), "--duration", "2", cwd=tmp_path).profile
    samples = profile.samples
    calls = dict[int, list[tuple[str, int]]]()  # tid → (method, number of its frames), in order
    is_wait = samples.has(SampleFlag.OFFCPU) & ~samples.has(SampleFlag.AGGREGATED | SampleFlag.STILL_BLOCKED)
    for row in np.flatnonzero(is_wait)[np.argsort(samples.time_ns[is_wait], kind="stable")].tolist():
        names = functions_of(profile, int(samples.stack[row]))
        depths = [(name, names.count(f"void Interpreted.{name}(int)")) for name in ("longer", "shorter")]
        turn = [depth for depth in depths if depth[1]]
        of_thread = calls.setdefault(int(samples.tid[row]), [])
        of_thread += turn if of_thread[-1:] != turn else []  # a thread may wait again, for a safepoint
    turns = [row for row in calls.values() if row]
    assert len(turns) == 2 and all(len(row) >= 40 for row in turns)
    for row in turns:
        first = 0 if row[0][0] == "longer" else 1
        for (one, depth), (other, same), (again, after) in zip(
            row[first::2], row[first + 1 :: 2], row[first + 2 :: 2], strict=False
        ):
            assert (one, other, again, same, after) == ("longer", "shorter", "longer", depth, (depth + 6) % 60 + 1)


@needs_java
@pytest.mark.long
def test_damaged_memory_of_a_jvm_gives_lines_of_the_known_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words are cleared, exchanged, made pointers to other pages, or have a wrong bit."""
    with interpreted(tmp_path) as process:
        maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
        base = min(int(line.split("-")[0], 16) for line in maps if line.endswith("/libjvm.so"))
        with open(f"/proc/{process.pid}/mem", "rb") as file:
            memory = hotspot._Memory(file.fileno())
            monkeypatch.setattr(hotspot, "_Memory", lambda _: memory)
            whole = hotspot.lines_of(file.fileno(), base)
            pages, random = memory._pages.copy(), np.random.default_rng(1)
            assert whole.count(b":method ") > 500 and len(hotspot.awaited_locks(process.pid)) == 1
            for _ in range(200):
                memory._pages = pages.copy()
                for number in random.choice([*pages], random.choice([1, 10, 300])).tolist():
                    page = np.frombuffer(pages[number], np.uint64).copy()
                    place, other = random.integers(0, len(page), 2)
                    words = np.array([0, page[other], number << 12, page[place] ^ np.uint64(1 << 40)], np.uint64)
                    page[place] = random.choice(words)
                    memory._pages[number] = page.tobytes()
                memory._until_s = time.thread_time() + 1
                lines = hotspot.lines_of(file.fileno(), base)
                assert all(line.startswith(b":method ") for line in lines.splitlines()) and len(lines) < 4 << 20
                locks = hotspot.awaited_locks(process.pid)
                assert all(tid > 0 < lock.owner for tid, lock in locks.items())


@needs_java
@pytest.mark.long
def test_memory_that_code_of_unloaded_classes_had_gives_no_wrong_name(tmp_path: Path) -> None:
    """What was compiled and discarded between two answers of the JVM has no name; nothing has that of another class."""
    subprocess.run(["javac", "-d", tmp_path, HERE / "Generations.java"], check=True, timeout=60)
    flags = ["-XX:TieredStopAtLevel=1", "-XX:-Inline", "-XX:ReservedCodeCacheSize=8m"]
    command: list[str | Path] = ["java", *flags, "-cp", tmp_path, "Generations", "5", "2500", tmp_path]
    done = run("-q", "--off-cpu-thresh", "1", "--", *command, cwd=tmp_path)
    profile, whole = done.profile, 0
    samples, waits = profile.samples, profile.is_offcpu()
    for line in done.stdout.splitlines():
        begin_ns, end_ns, generation = map(int, line.split())
        for row in np.flatnonzero(waits & (samples.time_ns > begin_ns) & (samples.time_ns < end_ns)).tolist():
            names = " ".join(functions_of(profile, int(samples.stack[row])))
            named = re.findall(r" G\d+\.f\d+x(\d+)\(", f" {names}")
            assert {*named} <= {str(generation)}, names
            whole += len(named) == 31
    assert whole > 50


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextlib.contextmanager
def open_directory(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


NO_JVM = """
import ctypes, mmap, os, signal, socket, sys
behaviour, directory, *libraries = sys.argv[1:]
if behaviour != "ignores":
    signal.signal(signal.SIGQUIT, lambda *_: None)
memory = None
for library in libraries:
    file = os.open(f"{directory}/{library}", os.O_RDWR | os.O_CREAT)
    os.truncate(file, 4096)
    memory = memory, mmap.mmap(file, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)
own, map_ = f"/tmp/.java_pid{os.getpid()}", f"/tmp/perf-{os.getpid()}.map"
listener = socket.socket(socket.AF_UNIX)
for path in (own, map_):  # of a JVM that was killed
    if os.path.lexists(path):
        os.unlink(path)
if behaviour == "link":
    os.symlink(f"{directory}/target", map_)
if behaviour in ("closed", "mute", "fifo", "sparse", "link", "linked", "answers"):
    listener.bind(own)
    if behaviour != "closed":
        listener.listen()
print("ready", flush=True)
while behaviour in ("fifo", "sparse", "linked", "answers"):
    connection = listener.accept()[0]
    assert connection.recv(4096) == b"1\\0jcmd\\0Compiler.perfmap\\0\\0\\0"
    if behaviour == "answers":
        open(map_, "w").write("1000 20 work\\n1020 20 cut")
    else:
        os.unlink(map_)
    if behaviour == "fifo":
        os.mkfifo(map_)
    elif behaviour == "linked":
        os.symlink("/etc/passwd", map_)
    elif behaviour == "sparse":
        os.truncate(os.open(map_, os.O_CREAT | os.O_WRONLY), 10 << 30)
    connection.sendall(b"0\\n")
    connection.close()
while True:
    signal.pause()
"""
JAVA = ["libjvm.so", "libjli.so"]


@contextlib.contextmanager
def no_jvm(directory: Path, behaviour: str, *libraries: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that maps files of these names, and remove what it leaves in /tmp."""
    words = [sys.executable, "-c", NO_JVM, behaviour, str(directory), *libraries]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout and process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()
            for name in (f".java_pid{process.pid}", f"perf-{process.pid}.map"):
                Path("/tmp", name).unlink(missing_ok=True)


JVMS = examples("kernel/sentences.txt", "JVMs")
SLOW = pytest.mark.long


@pytest.mark.parametrize(
    ("behaviour", "library", "answer"), [pytest.param(*row, marks=SLOW if row[0] == "mute" else ()) for row in JVMS]
)
def test_what_is_no_jvm_is_left_alone(tmp_path: Path, behaviour: str, library: str, answer: str) -> None:
    """A process whose files are called as Java's: SIGQUIT does not end it, and it does not hold the recorder up."""
    with no_jvm(tmp_path, behaviour, *([library] if library else JAVA)) as process:
        text = re.sub(r"^:at \d+ \?\n", "", ask_as_owner(process.pid).decode())  # time; no counters of a JVM
        said = text.replace(str(process.pid), "PID").replace("\n", " ⏎")
        assert said == answer and process.poll() is None
        assert not Path(f"/tmp/.attach_pid{process.pid}").exists()
        assert behaviour != "answers" or not Path(f"/tmp/perf-{process.pid}.map").exists()
    assert not (tmp_path / "target").exists()


def test_a_socket_of_another_process_is_not_asked(tmp_path: Path) -> None:
    with no_jvm(tmp_path, "handles", *JAVA) as process, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/tmp/.java_pid{process.pid}")
        listener.listen()
        assert ask_as_owner(process.pid) == b"!another process listens on its socket"


def test_a_jvm_without_names_is_told_and_counted_and_others_are_not_asked(tmp_path: Path) -> None:
    with no_jvm(tmp_path, "closed", *JAVA) as process, no_jvm(tmp_path, "closed", *JAVA) as other:
        done = run("-p", str(process.pid), "--duration", "200ms", cwd=tmp_path)
    assert f"JVM {process.pid} gives no names of compiled code: Connection refused" in done.stderr
    assert str(other.pid) not in done.stderr
    assert done.recording.losses[losses.JVM_UNASKED] == 1


needs_trampolines = pytest.mark.skipif(
    not pythons(), reason="no Python 3.12 or newer with perf trampolines here (Debian 13: python3)"
)


@needs_trampolines
@pytest.mark.long
@pytest.mark.parametrize("version", pythons() or ["none"])
def test_python_functions_between_c_functions_up_to_the_root(tmp_path: Path, version: str) -> None:
    """`-X perf`: an address for each function, whose frames no call frame information describes."""
    stacks = recorded(tmp_path, pythons()[version], "-X", "perf", str(HERE / "waits.py"))
    functions = [rf"{name} \(waits\.py\)" for name in ("main", "handle_request", "wait_for_disk")]
    for root in ("_start", r"_*(GI_+)?clone3?|\[libc\.so\.6\]"):  # the main thread, and the other
        assert time_below(stacks, f"^[^;]*;({root})", *functions, "hrtimer_nanosleep") >= 480_000_000
    waits = [stack for stack in stacks if "wait_for_disk (waits.py)" in stack]
    assert not any("[truncated]" in stack for stack in waits)
    for stack in waits:
        rows = [row for row, frame in enumerate(stack) if frame.endswith(".py)")]
        assert min(np.diff(rows)) > 1, "the interpreter lies between two of them"
        assert len({stack[row] for row in rows}) == len(rows), "each once, though the recorder reads them, too"
