# SPDX-License-Identifier: Apache-2.0
"""Recordings made here and now, given to one command: the whole is the sum of its parts."""

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from builders.program import run as perf_offcpu
from kernel.recorder import report

from perf_offcpu import api, losses
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.columns import I64
from perf_offcpu.model.join import PID_STEP
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Recording

pytestmark = pytest.mark.beside

Totals = Counter[tuple[str, str, int]]
PROGRAM = Path(sys.executable).with_name("perf-offcpu")
SHIFTED = ("unshare", "--uts", "--time", "--fork", "--monotonic", "1000", "--boottime", "1000")
"""Another host, as far as one kernel can be two: a name of its own, and a clock for programs that differs."""


@pytest.fixture(scope="module")
def recordings(waiter: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Two runs of ours, the second in half the rounds, and one of perf on the same clock."""
    directory = tmp_path_factory.mktemp("runs")
    ours = (directory / "first.data", directory / "second.data")
    for path, rounds in zip(ours, ("6", "3"), strict=True):
        perf_offcpu("record", "-o", path, "--", waiter, "--rounds", rounds, cwd=directory)
    theirs = directory / "perf.data"
    command = [*"perf record -q -B -k mono -g -e cpu-clock -o".split(), str(theirs), "--", str(waiter)]
    subprocess.run([*command, "--rounds", "2"], check=True, cwd=directory, capture_output=True, timeout=60)
    return *ours, theirs


def totals(recording: Recording | Profile) -> Totals:
    samples, found = recording.samples, Totals()
    for evsel, comm, tid, period in zip(
        samples.evsel.tolist(), samples.comm.tolist(), samples.tid.tolist(), samples.period.tolist(), strict=True
    ):
        found[recording.evsels[evsel].name, recording.strings[comm], tid] += period
    return found


def inputs(*paths: Path) -> list[str | Path]:
    return [word for path in paths for word in ("-i", path)]


def test_the_whole_is_the_sum_of_its_parts(recordings: tuple[Path, ...]) -> None:
    parts = [load_recording(path) for path in recordings]
    expected = sum((totals(part) for part in parts), Totals())
    joined = load(*recordings)
    joined.check()
    assert totals(joined) == expected
    assert len(joined.samples) == sum(len(part.samples) for part in parts)
    assert joined.meta.begin_ns == parts[0].meta.begin_ns
    assert joined.meta.end_ns == parts[1].meta.end_ns
    names = [evsel.name for evsel in joined.evsels]
    assert names == [
        *("cpu-clock", "offcpu-time", "dummy", "offcpu-python", "offcpu-counters", "offcpu-task"), "cpu-clock",
    ]  # fmt: skip
    # Code of BPF programs has names as long as they are loaded, and other tests load some.
    parts_lost = {cause for path in recordings for cause in load(path).losses}
    assert set(joined.losses) <= parts_lost | {losses.NO_KERNEL_SYMBOL}

    events, sums = Counter[str](), Counter[str]()
    for one in report(*inputs(*recordings), "--limit", "0", cwd=Path())[
        "events"
    ]:  # the two cpu-clocks are sampled in different ways
        events[one["name"]] += one["weight"]
    for (event, _, _), total in expected.items():
        sums[event] += total
    assert events == sums
    folded = perf_offcpu("convert", "--folded", "-o", "-", *inputs(*recordings))
    total = sum(int(line.rpartition(" ")[2]) for line in folded.stdout.splitlines())
    assert total == sums["offcpu-time"]
    script = perf_offcpu("script", *inputs(*recordings), "-F", "comm,tid,period,event", "-G")
    printed: Totals = Totals()
    for line in script.stdout.splitlines():
        comm, tid, period, event = line.rsplit(maxsplit=3)
        printed[event.rstrip(":"), comm.strip(), int(tid)] += int(period)
    assert +printed == +expected


def load(*paths: Path, **options: Any) -> Profile:
    return api.load(*paths, **options)


def test_recordings_of_hosts_apart(recordings: tuple[Path, ...]) -> None:
    """Hosts cannot be had here: the recordings are taken apart by will."""
    parts: Totals = Totals()
    for number, path in enumerate(recordings):
        for (event, comm, tid), total in totals(load_recording(path)).items():
            of_host = tid + PID_STEP * number if tid >= 0 else tid  # -1: a thread that has ended
            parts[event, comm, of_host] += total
    whole = load(*recordings, apart=True)
    assert totals(whole) == parts
    together = load(*recordings)  # each is named by the kernel and the files that are here
    shares = [(part.frames.symbol[part.stacks.frame] > 0).mean() for part in (whole, together)]
    assert abs(shares[0] - shares[1]) < 0.02 < shares[0]


def test_standard_input(recordings: tuple[Path, ...]) -> None:
    """One of them may come through a pipe."""
    command: list[str | Path] = [PROGRAM, "convert", "--folded", "-o", "-", "-i", recordings[0], "-i"]
    with open(recordings[1], "rb") as piped:
        stdin = subprocess.run([*command, "-"], stdin=piped, capture_output=True, check=True, timeout=60)
    files = subprocess.run([*command, recordings[1]], capture_output=True, check=True, timeout=60)
    assert stdin.stdout == files.stdout and stdin.stdout


def on_another_host(*command: str | Path) -> None:
    """Run a command on the host `web2`, whose CLOCK_MONOTONIC is 1000 s ahead."""
    shell = 'hostname web2; exec "$@"'
    subprocess.run([*SHIFTED, "sh", "-c", shell, "sh", *command], check=True, capture_output=True, timeout=60)


def timed(profile: Profile, host: str) -> I64:
    samples, strings = profile.samples, profile.strings
    mine = [strings[comm].startswith(f"{host}:") for comm in samples.comm.tolist()]
    found: I64 = samples.time_ns[mine]
    return found[found > 0]


def test_recording_in_a_time_namespace(tmp_path: Path) -> None:
    """The kernel's times are not shifted there, so nothing that the recorder notes may be."""
    path = tmp_path / "perf.data"
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    on_another_host(PROGRAM, "record", "-o", path, "--", "sleep", "0.3")
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    recording = load_recording(path)
    assert recording.meta.hostname == "web2"
    waits = recording.samples.take(recording.samples.time_ns > 0)
    assert len(waits)
    assert before < waits.time_ns.min() and waits.time_ns.max() < after
    assert before < recording.meta.begin_ns < recording.meta.end_ns < after
    assert before < recording.meta.wall_clock_at_ns < after
    assert recording.samples.period.max() > 290_000_000
    lives = recording.budget
    assert len(lives) and (lives.begin_ns > before).all() and (lives.end_ns < after).all()


def test_two_hosts_meet_on_the_wall_clock(tmp_path: Path) -> None:
    """The one here records on CLOCK_REALTIME: without CLOCK_DATA the two lie decades apart."""
    here, there = (tmp_path / name for name in ("here.data", "there.data"))
    moments = [time.time_ns()]
    command = [*"perf record -q -k CLOCK_REALTIME -e cpu-clock -F 4000 -o".split(), str(here)]
    subprocess.run([*command, "--", "ls", "-R", "/etc"], check=True, capture_output=True, timeout=60)
    moments.append(time.time_ns())
    on_another_host(PROGRAM, "record", "-o", there, "--", "sleep", "0.3")
    moments.append(time.time_ns())
    whole = load(here, there)
    host = load_recording(here).meta.hostname
    assert whole.meta.hostname == f"{host},web2"
    first, second = timed(whole, host), timed(whole, "web2")
    assert len(first) > 3 and len(second) > 0
    assert moments[0] < first.min() and first.max() < moments[1]
    assert moments[1] < second.min() and second.max() < moments[2]
    assert {pid // PID_STEP for pid in whole.samples.pid[whole.samples.pid > 0].tolist()} == {0, 1}

    # Every way out keeps them apart.
    for options, comm in (((), "web2:sleep"), (("--no-prefix",), "sleep")):
        assert comm in {one["comm"] for one in report(*options, *inputs(here, there), cwd=tmp_path)["threads"]}
    formats = [["convert", form, "-o", "-"] for form in ("--folded", "--speedscope", "--chrome-trace")]
    for verb in (["script"], ["report"], *formats):
        assert "web2:sleep" in perf_offcpu(*verb, *inputs(here, there)).stdout, verb


def test_a_shifted_clock_that_perf_believes_in_is_refused(tmp_path: Path) -> None:
    """perf notes the clock of the namespace: times of day would be wrong by its shift."""
    ours, theirs = tmp_path / "ours.data", tmp_path / "theirs.data"
    perf_offcpu("record", "-o", ours, "--", "sleep", "0.1")
    command = ["perf", "record", "-q", "-k", "CLOCK_MONOTONIC", "-e", "cpu-clock", "-F", "4000"]
    on_another_host(*command, "-o", theirs, "--", "ls", "-R", "/etc")
    done = perf_offcpu("report", *inputs(ours, theirs), status=129)
    assert "time namespaces" in done.stderr and done.stderr.count("\n") == 1
    done = perf_offcpu("report", "--from-start", *inputs(ours, theirs))
