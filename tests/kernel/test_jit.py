# SPDX-License-Identifier: Apache-2.0
"""Waits below code that was made at run time: its functions have the names that the runtime gave them."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from builders import program
from kernel.recorder import run

from perf_offcpu.collect.system.as_owner import ask_as_owner

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


def folded(cwd: Path, name: str = "perf.data", *, force: bool = False) -> Stacks:
    """ns by stack, root first."""
    done = program.run("convert", "--folded", "-i", name, "-o", "-", *(["-f"] if force else []), cwd=cwd)
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
    options = ["--perf-basic-prof", "--interpreted-frames-native-stack"]
    stacks = recorded(tmp_path, "node", *options, HERE / "waits.js")
    assert time_below(stacks, "_start", *JAVASCRIPT, "futex_do_wait|futex_wait_queue") >= 480_000_000


@needs_node
def test_javascript_with_a_jitdump_that_perf_put_in(tmp_path: Path) -> None:
    """`perf inject --jit` makes an ELF file of each function, younger than the recording."""
    options = ["--perf-prof", "--interpreted-frames-native-stack"]
    recorded(tmp_path, "node", *options, HERE / "waits.js")
    command = ["perf", "inject", "--jit", "-i", "perf.data", "-o", "jitted.data"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    stacks = folded(tmp_path, "jitted.data")
    assert time_below(stacks, "_start", *JAVASCRIPT, "futex_do_wait|futex_wait_queue") >= 480_000_000


@needs_java
def test_java(tmp_path: Path) -> None:
    """Once compiled, a method has its name; before that it is a frame of the interpreter."""
    subprocess.run(["javac", "-d", tmp_path, HERE / "Waits.java"], check=True, timeout=60)
    options = ["-XX:+PreserveFramePointer", "-XX:+UnlockDiagnosticVMOptions", "-XX:+DumpPerfMapAtExit"]
    stacks = recorded(tmp_path, "java", *options, "Waits")
    main = ["start_thread", "JavaMain", "jni_CallStaticVoidMethod"]
    assert time_below(stacks, *main, "JVM_Sleep") >= 880_000_000
    assert time_below(stacks, *main, r"long Waits\.handleRequest\(int\)", "JVM_Sleep") >= 300_000_000


@needs_java
@pytest.mark.parametrize("user", [0, NOBODY], ids=["root", "nobody"])
def test_a_jvm_is_asked_for_names(tmp_path: Path, user: int) -> None:
    """A JVM without a flag for names, of any user, as root records it."""
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory())  # all directories above tmp_path are root's alone
        subprocess.run(["javac", "-d", place, HERE / "Waits.java"], check=True, timeout=60)
        os.chmod(place, 0o755)
        words = ["java", "-XX:+PreserveFramePointer", "-cp", place, "Waits", "100000"]
        java = stack.enter_context(subprocess.Popen(words, user=user, group=user, extra_groups=[]))
        try:
            time.sleep(1)
            said = run("-q", "--off-cpu-thresh", "0", "-p", str(java.pid), "--duration", "2", cwd=tmp_path).stderr
            assert java.poll() is None and "JVM" not in said
            stacks = folded(tmp_path, force=True)
        finally:
            java.kill()
            Path(f"/tmp/.java_pid{java.pid}").unlink(missing_ok=True)
            Path(f"/tmp/perf-{java.pid}.map").unlink(missing_ok=True)
    assert time_below(stacks, "JavaMain", r"long Waits\.handleRequest\(int\)", "JVM_Sleep") >= 1_500_000_000
    assert not Path(f"/tmp/.attach_pid{java.pid}").exists()


NO_JVM = """
import ctypes, mmap, os, signal, sys
handles, library = sys.argv[1:]
if handles == "handles":
    signal.signal(signal.SIGQUIT, lambda *_: None)
file = os.open(library, os.O_RDWR | os.O_CREAT)
os.truncate(file, 4096)
memory = mmap.mmap(file, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.parametrize(
    ("handles", "library", "expected"),
    [
        ("ignores", "libjvm.so", "it does not handle SIGQUIT (-Xrs?)"),
        ("handles", "libjvm.so", "No such file or directory"),
        ("handles", "other.so", "it is no JVM"),
        ("handles", "libjvm.so link", "another user's /tmp/perf-PID.map is in the way"),
        ("handles", "libjvm.so socket", "Connection refused"),
        ("handles", "libjvm.so mute", ""),
    ],
)
def test_what_is_no_jvm_is_left_alone(tmp_path: Path, handles: str, library: str, expected: str) -> None:
    """A process whose file is called libjvm.so: SIGQUIT does not end it, and it does not hold the recorder up."""
    library, _, trap = library.partition(" ")
    words = [sys.executable, "-c", NO_JVM, handles, str(tmp_path / library)]
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE))
        stack.callback(process.kill)
        assert process.stdout and process.stdout.readline() == b"ready\n"
        own, map_ = Path(f"/tmp/.java_pid{process.pid}"), Path(f"/tmp/perf-{process.pid}.map")
        stack.callback(own.unlink, missing_ok=True)
        stack.callback(map_.unlink, missing_ok=True)
        if trap == "link":
            map_.symlink_to(tmp_path / "target")
        elif trap:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(own))
            if trap == "mute":
                listener.listen()
        begin = time.monotonic()
        answer = ask_as_owner("perf-map", process.pid).decode().replace(str(process.pid), "PID")
        assert (answer == expected or (trap == "mute" and answer)) and time.monotonic() - begin < 10
        assert process.poll() is None
    assert not (tmp_path / "target").exists() and not Path(f"/tmp/.attach_pid{process.pid}").exists()


needs_trampolines = pytest.mark.skipif(
    not pythons(), reason="no Python 3.12 or newer with perf trampolines here (Debian 13: python3)"
)


@needs_trampolines
@pytest.mark.parametrize("version", pythons() or ["none"])
def test_python_functions_between_c_functions_up_to_the_root(tmp_path: Path, version: str) -> None:
    """`-X perf`: an address for each function, whose frames no call frame information describes."""
    command = [pythons()[version], "-X", "perf", str(HERE / "waits.py")]
    stacks = recorded(tmp_path, *command)
    functions = [rf"{name} \(waits\.py\)" for name in ("main", "handle_request", "wait_for_disk")]
    for root in ("_start", r"_*(GI_+)?clone3?|\[libc\.so\.6\]"):  # the main thread, and the other
        assert time_below(stacks, f"^[^;]*;({root})", *functions, "hrtimer_nanosleep") >= 480_000_000
    waits = [stack for stack in stacks if "wait_for_disk (waits.py)" in stack]
    assert not any("[truncated]" in stack for stack in waits)
    for stack in waits:
        rows = [row for row, frame in enumerate(stack) if frame.endswith(".py)")]
        assert min(np.diff(rows)) > 1, "the interpreter lies between two of them"
        assert len({stack[row] for row in rows}) == len(rows), "each once, though the recorder reads them, too"
