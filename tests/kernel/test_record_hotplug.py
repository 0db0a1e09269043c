# SPDX-License-Identifier: Apache-2.0
"""`perf-offcpu record` while a CPU goes offline and comes back: what happens on it then is in the file."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from kernel.recorder import PROGRAM, perf
from kernel.test_record_control import controlled

from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import SampleFlag

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


@pytest.mark.skipif(not SWITCH.exists(), reason="this CPU cannot be taken offline")
def test_a_process_that_started_in_a_pause_on_a_cpu_that_came_back_has_its_name(tmp_path: Path) -> None:
    """Its CPU had no events by then. Without --switch-output no new file begins, with what runs already."""
    started: subprocess.Popen[bytes] | None = None
    options = "-a", "-o", "out", "--off-cpu-thresh", "0"
    try:
        with controlled(*options, cwd=tmp_path, several=False) as recorder:
            recorder.tell("disable")
            SWITCH.write_text("0")
            SWITCH.write_text("1")
            command = ["taskset", "-c", str(CPU), sys.executable, "-c", UNSEEN]
            started = subprocess.Popen(command, stdout=subprocess.PIPE)
            assert started.stdout is not None and started.stdout.readline()
            recorder.tell("enable")
            time.sleep(0.5)
            said = recorder.end()
    finally:
        SWITCH.write_text("1")
        if started is not None:
            started.kill()
            started.communicate()
    assert said.count(f"CPU {CPU} came online, and is recorded from here on") == 1
    recording = load_recording(tmp_path / "out")
    samples = recording.samples
    mine = np.flatnonzero(samples.pid == started.pid)
    assert len(mine) and (samples.space[mine] >= 0).all()
    assert {recording.strings[row] for row in samples.comm[mine].tolist()} == {"came-unseen"}
    lives = recording.tasks.take(recording.tasks.tid == os.getpid())
    assert lives.begin_ns.tolist() == [0], "who was there before is not born"
    assert f"came-unseen {started.pid}" in " ".join(perf("script", "-F", "comm,pid", "-i", tmp_path / "out").split())


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
