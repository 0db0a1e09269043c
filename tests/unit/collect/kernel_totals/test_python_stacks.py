# SPDX-License-Identifier: Apache-2.0
"""Python functions from a process that runs pystack: a hostile program decides what it prints."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from builders.accounts import told
from builders.recording import write
from builders.wait_objects import COUNTERS

from perf_offcpu import losses
from perf_offcpu.collect.kernel_totals.python_stacks import functions_of, python_payload
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import Recording

TASK = {"pid": 7, "tid": 8, "switch_out_ns": 5}
THREAD = """
from types import SimpleNamespace as Any

def thread(tid, *names):
    place = Any(lineno=-4)
    return Any(tid=tid, all_frames=[
        Any(is_entry=not at, is_shim=False, code=Any(scope=name, filename="/srv/app.py", location=place))
        for at, name in enumerate(names)
    ])
"""


def read(directory: Path, body: str, patience_s: float = 20) -> dict[int, list[tuple[Any, ...]]]:
    """Read the functions of this process by a pystack of our own."""
    (directory / "pystack").mkdir()
    function = f"def get_process_threads(pid, stop_process):\n    import os, time\n    {body}\n"
    (directory / "pystack" / "engine.py").write_text(THREAD + function)
    (directory / "pystack" / "__init__.py").write_text("")
    return functions_of(os.getpid(), str(directory), patience_s)


def test_functions_have_a_bounded_form(tmp_path: Path) -> None:
    found = read(tmp_path, "return [thread(8, 'a\\tb\\n\\x1b[2J', 'x' * 5000), thread(9)]")
    assert found == {8: [("a?b??[2J", "/srv/app.py", 0, 1), ("x" * 1000, "/srv/app.py", 0, 1)]}


def test_a_process_that_hangs_is_killed(tmp_path: Path) -> None:
    begin = time.monotonic()
    assert set(read(tmp_path, "yield thread(8, 'f'); time.sleep(1000)", 1)) <= {8}
    assert time.monotonic() - begin < 500


@pytest.mark.parametrize("line", [
    b"[8", b"8", b"[8, [[1, 2, 3, 4]]]", b'[8, [["f", "g", "x", 1]]]', b"[" * 9999, b"\\xff", b'[8, [["f"]]]',
])  # fmt: skip
def test_lines_of_another_form_are_passed_over_and_those_before_a_death_count(tmp_path: Path, line: bytes) -> None:
    die = "os.kill(os.getpid(), 11)"
    assert read(tmp_path, f"os.write(1, {line!r} + b'\\n'); yield thread(9, 'f'); {die}").keys() == {9}


def test_output_is_bounded(tmp_path: Path) -> None:
    """The kernel ends the process at the limit, so that neither it nor we hold more."""
    assert 500 < len(read(tmp_path, "yield from (thread(tid, 'f' * 900) for tid in range(100_000))")) < 1200


def loaded(path: Path, *payloads: bytes) -> Recording:
    return load_recording(write(path / "in.data", [COUNTERS], map(told, payloads)))


def test_functions_arrive_in_a_recording_leaf_first(tmp_path: Path) -> None:
    recording = loaded(tmp_path, python_payload(TASK, [("start", "/a.py", 3, 1), ("t\u2028äke", "/b.py", 4, 2)]))
    recording.check()
    python, strings = recording.python, recording.strings
    assert [strings[row] for row in python.name.tolist()] == ["t\u2028äke", "start"]
    assert [strings[row] for row in python.file.tolist()] == ["/b.py", "/a.py"]
    assert (python.line.tolist(), python.call.tolist()) == ([4, 3], [2, 1])
    assert (python.tid.tolist(), python.switch_out_ns.tolist()) == ([8, 8], [5, 5]) and not recording.losses


def test_functions_next_to_the_leaf_are_kept_and_damaged_payloads_counted(tmp_path: Path) -> None:
    frames = [(f"{number:0900}", "/a.py", 1, 1) for number in range(1000)]
    assert 40 < len(loaded(tmp_path, python_payload(TASK, frames)).python) < 60
    payload = python_payload(TASK, [("start", "/a.py", 3, 1)])
    damaged = [payload[:20], payload.replace(b"\t", b" "), payload.replace(b"\t3", b"\t-3")]
    recording = loaded(tmp_path, *damaged)
    assert recording.losses == {losses.BAD_SAMPLE: 3} and not len(recording.python)
