# SPDX-License-Identifier: Apache-2.0
"""Waits below code that was made at run time: its functions have the names that the runtime gave them."""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from builders import program
from kernel.recorder import run

pytestmark = pytest.mark.beside

HERE = Path(__file__).with_name("jit")
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
