# SPDX-License-Identifier: Apache-2.0
"""Python functions of programs that hang, without flags and packages, and as an ordinary user."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import program
from kernel.others import AS_NOBODY
from kernel.recorder import hanging, run
from kernel.test_python_names import python_stack

from perf_offcpu import losses
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.symbolize.symbolizer import symbolize

pytestmark = pytest.mark.beside

HUNG = Path(__file__).parent / "hung"


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody can reach."""
    path = Path(tempfile.mkdtemp(prefix="python.", dir="/tmp"))
    path.chmod(0o755)
    shutil.copy(HUNG / "abba.py", path)
    yield path
    shutil.rmtree(path)


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
