# SPDX-License-Identifier: Apache-2.0
"""Is a recording of everybody complete while every kind of hostile name is made (`hostile_names.py`)?"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import Recording

pytestmark = pytest.mark.beside

HERE = Path(__file__).parent
SECONDS = float(os.environ.get("PERF_OFFCPU_HOSTILE_SECONDS", "1"))
PROGRAM = Path(sys.executable).with_name("perf-offcpu")


class Made(NamedTuple):
    """The account of hostile_names.py, and the recording."""

    path: Path
    made: dict[str, int]
    naps: dict[int, list[tuple[int, int, str]]]
    recording: Recording


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Made:
    path = tmp_path_factory.mktemp("hostile") / "x.data"
    record = [PROGRAM, *"record -a --off-cpu-thresh 0 -m 8M -o".split(), path, "--duration", str(SECONDS)]
    words = ["unshare", "-m", sys.executable, HERE / "hostile_names.py", str(SECONDS), "--", *record]
    done = subprocess.run(words, capture_output=True, timeout=240 + 3 * SECONDS, check=False)
    said = done.stderr.decode(errors="replace")
    assert done.returncode == 0 and "Traceback" not in said, said
    account = json.loads(done.stdout)
    naps = {int(tid): [(begin, end, name) for begin, end, name in one] for tid, one in account["naps"].items()}
    recording = load_recording(path)
    recording.check()
    print(f"{said}{account['made']}, {sum(map(len, naps.values()))} naps, {len(recording.samples)} samples")
    print({cause.name: count for cause, count in recording.losses.items()})
    return Made(path, account["made"], naps, recording)


def test_every_kind_of_name_was_made(hostile: Made) -> None:
    assert min(hostile.made.values()) > 3 * SECONDS, hostile.made


def test_no_nap_is_lost_without_being_counted(hostile: Made) -> None:
    samples = hostile.recording.samples
    first, last = int(samples.time_ns.min()), int(samples.time_ns.max())
    inside, missing = 0, 0
    for tid, naps in hostile.naps.items():
        ends = samples.time_ns[samples.tid == tid]
        for begin, end, _ in naps:
            if first < begin and end < last:
                inside += 1
                missing += int(np.searchsorted(ends, end)) - int(np.searchsorted(ends, begin)) < 1
    print(f"{inside} naps while it was recorded, {missing} of them missing")
    assert inside > 50 * SECONDS
    assert missing <= sum(hostile.recording.losses.values())


def test_each_nap_has_the_name_that_the_thread_had(hostile: Made) -> None:
    comms, strings = hostile.recording.comms, hostile.recording.strings
    samples = hostile.recording.samples
    first, last = int(samples.time_ns.min()), int(samples.time_ns.max())
    wrong = []
    for tid, naps in hostile.naps.items():
        rows = np.flatnonzero(comms.tid == tid)
        rows = rows[np.argsort(comms.begin_ns[rows], kind="stable")]
        for begin, end, name in naps:
            if first < begin and end < last:
                row = rows[int(np.searchsorted(comms.begin_ns[rows], begin, "right")) - 1]
                if strings[int(comms.comm[row])] != name:
                    wrong.append((name, strings[int(comms.comm[row])]))
    print(f"{len(wrong)} naps with another name")
    assert len(wrong) <= sum(hostile.recording.losses.values()), wrong[:5]


FLAMEGRAPH = pytest.param("convert --flamegraph -o -", marks=pytest.mark.long)


@pytest.mark.parametrize("command", ["report", "script", "convert --folded -o -", FLAMEGRAPH, "perf"])
def test_it_is_readable(command: str, hostile: Made) -> None:
    words = [PROGRAM, *command.split()]
    if command == "perf":
        words = "perf script -F comm,tid,time,event".split()  # symbols take long
    done = subprocess.run([*words, "-i", hostile.path], capture_output=True, timeout=300, check=False)
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr.decode()[-2000:]
    assert len(done.stdout) > 1000
    if command != "perf":  # perf prints what it finds
        done.stdout.decode()
        assert b"\x1b" not in done.stdout
