# SPDX-License-Identifier: Apache-2.0
"""Waits have the Python functions in which they were, without flags: as the program itself says. Other versions of
Python than the system's are tested if they are installed."""

import bisect
import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from builders.program import PATIENCE
from elftools.elf.elffile import ELFFile
from kernel.recorder import MS, run

from perf_offcpu import losses
from perf_offcpu.collect.bpf.kernel.facts import has_may_goto
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag

pytestmark = pytest.mark.beside

PROGRAMS = Path(__file__).parent / "python"
SYSTEM = "/usr/bin/python3"
LATE_NS = 2 * MS  # after its wait a thread waits for the GIL before it notes the end

Place = tuple[str, int]  # symbol and line


OTHERS = [pytest.param(f"python3.{minor}", id=f"3.{minor}", marks=pytest.mark.long) for minor in range(10, 15)]


def python_stack(profile: Profile, node: int) -> list[Place]:
    frames, places = profile.frames, list[Place]()
    while node >= 0:
        frame = int(profile.stacks.frame[node])
        if frames.file[frame] and not frames.dso[frame]:
            places.append((profile.strings[int(frames.symbol[frame])], int(frames.line[frame])))
        node = int(profile.stacks.parent[node])
    return places


def waits_of(profile: Profile) -> list[int]:
    """Return the samples that are single waits of 1 ms and more."""
    samples = profile.samples
    others = SampleFlag.AGGREGATED | SampleFlag.STILL_BLOCKED
    return np.flatnonzero(samples.has(SampleFlag.OFFCPU) & ~samples.has(others) & (samples.period >= MS)).tolist()


Log = dict[int, list[tuple[int, int, list[Place]]]]  # tid → (begin, end, functions) of each wait


def logged(text: str) -> Log:
    log = defaultdict(list)
    for line in text.splitlines():
        tid, begin, end, stack = json.loads(line)
        log[tid].append((begin, end, [(f"{name} ({file})", line) for name, file, line in stack]))
    return log


def judge(profile: Profile, log: Log) -> tuple[list[int], int, int, int]:
    """Return the samples of waits that a program has noted, and how many of them have the functions that it has noted,
    how many the functions and lines, and how many a wrong function."""
    samples, rows, counts = profile.samples, list[int](), np.zeros(3, int)
    for row in waits_of(profile):
        entries = log.get(int(samples.tid[row]), [])
        place = bisect.bisect(entries, (int(samples.switch_out_ns[row]), 2**63)) - 1
        begin_ns, end_ns = int(samples.switch_out_ns[row]), int(samples.time_ns[row])
        if place < 0 or begin_ns > entries[place][1] or end_ns > entries[place][1] + LATE_NS:
            continue  # a wait outside of those that are noted
        stack, truth = python_stack(profile, int(samples.stack[row])), entries[place][2]
        names, true_names = [symbol for symbol, _ in stack], [symbol for symbol, _ in truth]
        if any(name.endswith("profiled (python_waits.py)") for name in names):
            continue  # a wait of the profile function of benchmarks/python_waits.py
        is_part = names == true_names[: len(names)]  # memory that cannot be read cuts it
        rows.append(row)
        counts += (names == true_names, stack == truth, not is_part)
    return rows, *counts.tolist()


@pytest.mark.parametrize("python", [pytest.param(SYSTEM, id="system"), *OTHERS])
def test_waits_have_the_functions_and_lines_that_the_program_logs(python: str, tmp_path: Path) -> None:
    command = shutil.which(python)
    if not command or subprocess.run([command, "-c", ""], check=False, capture_output=True).returncode:
        pytest.skip(f"{python} is not installed")
    done = run("--", command, PROGRAMS / "waits.py", "1.5", cwd=tmp_path)
    rows, functions, lines, wrong = judge(done.profile, logged(done.stdout))
    assert len(rows) > 300 / PATIENCE
    assert wrong == 0
    assert functions >= 0.98 * len(rows)
    assert lines >= 0.95 * len(rows)
    assert done.profile.losses.get(losses.PYTHON_UNDESCRIBED, 0) == 0


SPINS = """
import functools, sys, time
def plain(depth): return plain(depth - 1) if depth else spin()
def spin():
    end = time.monotonic_ns() + 8_000_000
    while time.monotonic_ns() < end: pass
def through_c(depth):
    return functools.reduce(lambda depth, _: spin() or through_c(depth - 1), [depth, 0]) if depth else 0
def generated(depth): return sum(number * number for number in range(20_000 * depth + 50_000))
time.sleep(0.4)
for round in range(90):
    function, depth = [plain, through_c, generated][round % 3], round // 3 % 6
    begin = time.monotonic_ns()
    function(depth)
    print(begin, time.monotonic_ns(), function.__name__, depth)
"""


@pytest.mark.parametrize("python", [pytest.param(SYSTEM, id="system"), *OTHERS])
def test_on_cpu_samples_have_the_functions_that_run(python: str, tmp_path: Path) -> None:
    command = shutil.which(python)
    if not command or subprocess.run([command, "-c", ""], check=False, capture_output=True).returncode:
        pytest.skip(f"{python} is not installed")
    spins = SPINS.replace("0.4", f"{0.4 * PATIENCE}")  # until the program is known to run Python
    done = run("-F", "999", "--", command, "-c", spins, cwd=tmp_path)
    profile, said, edge = done.profile, list[tuple[str, str]](), MS * PATIENCE
    samples = profile.samples
    for line in done.stdout.splitlines():
        begin, end, function, depth = line.split()
        during = (samples.time_ns > int(begin) + edge) & (samples.time_ns < int(end) - edge)
        truth = {
            "plain": f"(spin )?(plain ){{1,{int(depth) + 1}}}",
            "through_c": "(spin )?(<lambda> )?(through_c <lambda> )*through_c ",
            "generated": "(<genexpr> )?generated ",
        }
        for row in np.flatnonzero(during & ~samples.has(SampleFlag.OFFCPU)).tolist():
            stack = python_stack(profile, int(samples.stack[row]))
            names = [name.removesuffix(" (<string>)").rpartition(".")[2] for name, _ in stack]
            said.append((" ".join(names), truth[function] + "<module>"))
    wrong = [names for names, expected in said if names and not re.fullmatch(expected, names)]
    assert len(said) > 300 / PATIENCE
    assert not wrong, wrong[0]
    named = sum(bool(names) for names, _ in said)
    assert named >= 0.98 * len(said) if has_may_goto() else not named


def test_functions_stand_at_the_calls_of_the_interpreter(tmp_path: Path) -> None:
    source = "import time, functools\ndef f(x, y): time.sleep(.02)\n"
    source += "def g():\n  functools.reduce(f, [1, 2])\ntime.sleep(.4)\nfor _ in range(5): g()"
    (tmp_path / "calls.py").write_text(source)
    profile = run("--", SYSTEM, tmp_path / "calls.py", cwd=tmp_path).profile
    names, stacks = profile.frames.symbol, set[tuple[str, ...]]()
    for row in waits_of(profile):
        node, stack = int(profile.samples.stack[row]), list[str]()
        while node >= 0:
            stack.append(profile.strings[int(names[profile.stacks.frame[node]])])
            node = int(profile.stacks.parent[node])
        stacks.add(tuple(name for name in stack if name.endswith("y)") or name == "_PyEval_EvalFrameDefault"))
    call = "_PyEval_EvalFrameDefault"
    assert ("f (calls.py)", call, "g (calls.py)", "<module> (calls.py)", call) in stacks, stacks


EDGE = """
import ctypes, mmap, os, time
def wait(): time.sleep(.02)
lines, memory = wait.__code__.co_linetable, mmap.mmap(-1, 2 * mmap.PAGESIZE)
size = bytes.__basicsize__ + len(lines) + 7 & -8
end = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + mmap.PAGESIZE
ctypes.CDLL(None).munmap(ctypes.c_void_p(end), ctypes.c_size_t(mmap.PAGESIZE))
ctypes.memmove(end - size, id(lines), size)
wait.__code__ = wait.__code__.replace(co_linetable=ctypes.cast(end - size, ctypes.py_object).value)
time.sleep(.4)
wait()
os._exit(0)
"""


def test_a_table_of_lines_at_the_end_of_a_mapping_is_read(tmp_path: Path) -> None:
    profile = run("--", SYSTEM, "-c", EDGE, cwd=tmp_path).profile
    stacks = [python_stack(profile, int(profile.samples.stack[row])) for row in waits_of(profile)]
    assert ("wait (<string>)", 3) in {place for stack in stacks for place in stack}


def test_forked_children_have_functions_from_their_begin(tmp_path: Path) -> None:
    source = "import os, time\ndef child():\n  time.sleep(.01)\n  os._exit(0)\n"
    source += f"time.sleep({0.4 * PATIENCE})\n"
    source += "for _ in range(20): os.fork() or child()\ntime.sleep(.1)"
    profile = run("--", SYSTEM, "-c", source, cwd=tmp_path).profile
    stacks = [python_stack(profile, int(profile.samples.stack[row])) for row in waits_of(profile)]
    assert sum(("child (<string>)", 3) in stack for stack in stacks) == 20


@pytest.mark.parametrize("minor", [8, pytest.param(9, marks=pytest.mark.long)])
def test_a_version_that_is_too_old_is_counted(minor: int, tmp_path: Path) -> None:
    """The program, which has no section with an interpreter's state, is only named like that version's."""
    path = tmp_path / f"python3.{minor}"
    path.write_bytes(Path("/bin/sleep").read_bytes())
    path.chmod(0o755)
    done = run("--", path, f"{0.5 * PATIENCE}", cwd=tmp_path)
    assert done.profile.losses[losses.PYTHON_UNKNOWN] == 1
    others = f"while sleep 0.1; do {path} 0.4; done"
    with subprocess.Popen(["sh", "-c", others]) as other, subprocess.Popen(["sleep", "60"]) as target:
        done = run("-p", f"{target.pid}", "--duration", "1", cwd=tmp_path)
        other.kill()
        target.kill()
    assert losses.PYTHON_UNKNOWN not in done.profile.losses, "of processes that are not recorded"
    path.rename(tmp_path / "python3.11")
    done = run("--", tmp_path / "python3.11", "0.5", cwd=tmp_path)
    assert losses.PYTHON_UNKNOWN not in done.profile.losses


HOLDER = """
import mmap, time, sys
file = open(sys.argv[1])
time.sleep(0.3)
mapping = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
time.sleep(0.1)
"""


def test_a_file_that_lies_about_the_place_of_the_interpreter_is_passed_over(tmp_path: Path) -> None:
    """The section's address is the last one of all."""
    path = tmp_path / "python3.11"
    path.write_bytes(Path(SYSTEM).resolve().read_bytes())
    with path.open("r+b") as file:
        section = ELFFile(file).get_section_by_name(".PyRuntime")
        head = ELFFile(file)["e_shoff"] + 64 * list(ELFFile(file).iter_sections()).index(section)
        file.seek(head + 16)
        file.write(b"\xff" * 8)
    done = run("--", SYSTEM, "-c", HOLDER, path, cwd=tmp_path)
    assert done.returncode == 0 and str(path) in done.profile.strings, done.stderr


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="it writes to structures of CPython 3.11")
def test_hostile_memory_changes_only_names_of_its_process(tmp_path: Path) -> None:
    command = f"{SYSTEM} {PROGRAMS / 'hostile.py'} & {SYSTEM} {PROGRAMS / 'waits.py'} 0.7; wait"
    done = run("--", "sh", "-c", command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    profile, log = done.profile, logged(done.stdout)
    samples, others = profile.samples, 0
    cycles = 0
    for row in waits_of(profile):
        stack = [symbol for symbol, _ in python_stack(profile, int(samples.stack[row]))]
        cycles += stack == ["sleeper (hostile.py)"] * 128
        others += int(samples.tid[row]) in log and bool(stack)
    assert cycles >= 1
    assert others > 50 / PATIENCE
