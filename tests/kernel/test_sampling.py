# SPDX-License-Identifier: Apache-2.0
"""`record --off-cpu-period`: samples of waits in proportion to their time, and exact totals beside them."""

import sys
from pathlib import Path

import numpy as np
import pytest
from builders.program import run as perf_offcpu
from builders.stock_perf import perf
from kernel.recorder import run

from perf_offcpu import losses
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import Recording, SampleFlag, Samples

pytestmark = pytest.mark.beside

MS = 1_000_000
PERIOD = 2 * MS
# A thread that waits for the interpreter's lock asks for 5 ms if not told otherwise, like a rest of 17 ms.
NAPS = """
import sys, threading, time
sys.setswitchinterval(1)
def nap(seconds, times):
    for _ in range(times):
        time.sleep(seconds)
threads = [threading.Thread(target=nap, args=args) for args in ((0.0002, 2000), (0.001, 400), (0.017, 30))]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def record(directory: Path, *options: str, program: str = NAPS) -> Recording:
    command = ("--off-cpu-period", str(PERIOD / MS), *options, "--", sys.executable, "-c", program)
    run("-e", "none", *command, cwd=directory)
    return load_recording(directory / "perf.data")


@pytest.fixture(scope="module")
def naps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record NAPS once; return the directory. No test changes the file."""
    directory = tmp_path_factory.mktemp("naps")
    record(directory)
    return directory


@pytest.fixture(scope="module")
def recording(naps: Path) -> Recording:
    return load_recording(naps / "perf.data")


def _asked_for_17_ms(samples: Samples) -> np.ndarray:
    # A thread that had to wait for a CPU before it slept asks for the rest.
    return (samples.asked_ns > 3 * MS) & (samples.asked_ns < 18 * MS)


def test_weights_are_periods_and_their_sum_is_the_time_of_all_waits(recording: Recording) -> None:
    samples, sampling = recording.samples, recording.meta.sampling
    drawn = samples.has(SampleFlag.SAMPLED)
    # A sample that finds its ring full, of a recorder that gets no CPU, is added to a sum.
    assert drawn.sum() > 300 and samples.has(SampleFlag.AGGREGATED).sum() < 0.1 * drawn.sum()
    assert (samples.period[drawn] % PERIOD == 0).all()
    assert (np.abs(samples.period[drawn] - samples.length_ns()[drawn]) <= PERIOD).all()
    assert sampling.period_ns == PERIOD
    assert abs(sampling.estimated_ns - sampling.waits_ns) < PERIOD * (len(np.unique(recording.samples.tid)) + 3)
    assert sampling.waits > 2400
    assert abs(sampling.estimated_waits - sampling.waits) < 0.2 * sampling.waits


def test_long_waits_are_all_there_with_their_length(recording: Recording) -> None:
    samples = recording.samples
    length, drawn = samples.length_ns(), samples.has(SampleFlag.SAMPLED)
    late = (samples.time_ns - samples.switch_out_ns - length)[drawn]  # the sample is written after the wait
    assert (late >= 0).all() and np.median(late) < 0.1 * MS
    naps = drawn & _asked_for_17_ms(samples)
    assert naps.sum() == 30 and (length >= samples.asked_ns - 0.1 * MS)[naps].all()


def test_the_kernel_tells_when_a_sleeper_was_woken(recording: Recording) -> None:
    samples = recording.samples
    naps = samples.has(SampleFlag.SAMPLED) & _asked_for_17_ms(samples) & (samples.wakeup_ns >= 0)
    out, wakeup, length = samples.switch_out_ns[naps], samples.wakeup_ns[naps], samples.length_ns()[naps]
    assert naps.sum() > 25 and (wakeup <= out + length).all()
    # A timer wakes after the time that is asked for, however long the thread then waits for a CPU.
    late = wakeup - out - samples.asked_ns[naps]
    assert late.min() > -0.1 * MS and np.median(late) < 0.5 * MS


def test_short_waits_are_blocked_as_long_as_the_budget_says(tmp_path: Path) -> None:
    program = "import time; [time.sleep(2e-5) for _ in range(30_000)]"
    command = ("chrt", "-f", "50", sys.executable, "-c", program)
    recording = run("-e", "none", "--off-cpu-period", "1", "--", *command, cwd=tmp_path).recording
    samples = recording.samples
    is_nap = (samples.state & 1 > 0) & (samples.runq_ns >= 0)
    blocked, budget = (samples.period - samples.runq_ns)[is_nap].sum(), recording.budget.interruptible_ns.sum()
    assert 0.95 < blocked / budget < 1.05, "20 % more if the kernel's delay alone counts"


def test_budgets_stay_exact(recording: Recording) -> None:
    budget = recording.budget
    modes = [name for name in budget.columns if name.endswith("_ns") and name not in ("begin_ns", "end_ns")]
    spent = sum(getattr(budget, name) for name in modes)
    assert (spent <= budget.end_ns - budget.begin_ns).all()
    assert len(budget) >= 4


def test_each_file_of_a_rotation_names_the_period(tmp_path: Path) -> None:
    # A thread that is preempted on its way to sleep may not sleep at all: the kernel counts how often it did.
    program = """
import resource, time
before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
end = time.monotonic() + 1.5
while time.monotonic() < end: time.sleep(0.001)
print(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before)
"""
    command = ("--off-cpu-period", "2", "--switch-output=1s", "--", sys.executable, "-c", program)
    done = run("-e", "none", *command, cwd=tmp_path)
    files = sorted(tmp_path.glob("perf.data.*"))
    assert len(files) >= 2
    samplings = [load_recording(path).meta.sampling for path in files]
    assert {sampling.period_ns for sampling in samplings} == {2 * MS}
    assert sum(sampling.waits for sampling in samplings) >= int(done.stdout) > 20
    for sampling in samplings:
        assert abs(sampling.estimated_ns - sampling.waits_ns) < 10 * MS


@pytest.mark.long
@pytest.mark.alone
def test_max_rate_is_used_and_kept_and_leaves_no_sample_out(tmp_path: Path) -> None:
    """Sixteen threads wait for 1.7 s, then one of them for 2.1 s: the period follows both ways."""
    limit, window = 100, 50
    program = """
import sys, threading, time
sys.setswitchinterval(1)
begin = time.monotonic()
def nap(seconds):
    while time.monotonic() < begin + seconds:
        time.sleep(0.001)
threads = [threading.Thread(target=nap, args=[1.7 if n else 3.8]) for n in range(16)]
for thread in threads: thread.start()
print(threads[0].native_id)
for thread in threads: thread.join()
"""
    options = ("-e", "none", "--off-cpu-period", "0.01", "--max-rate", str(limit))
    done = run(*options, "--", sys.executable, "-c", program, cwd=tmp_path)
    recording = done.recording
    samples, sampling = recording.samples, recording.meta.sampling
    assert recording.losses[losses.THRESHOLD_RAISED] > 0
    assert abs(sampling.estimated_ns - sampling.waits_ns) < 0.08 * sampling.waits_ns
    drawn = samples.has(SampleFlag.SAMPLED)
    seconds = (samples.time_ns - samples.time_ns.min())[drawn] / 1e9
    # At the begin the period is found, in steps of one window.
    assert len(seconds) < limit * 4 + 5 * window
    assert sampling.longest_period_ns > 10 * MS, "of 16 threads that wait, and 100 samples in a second"
    for begin in (0.8, 2.9):
        rate = ((seconds >= begin) & (seconds < begin + 0.9)).sum() / 0.9
        assert 0.5 * limit < rate < 1.4 * limit
    last = drawn & (samples.tid == int(done.stdout))
    # It waited nearly always; each period is off by less than itself, the first one for 160 ms.
    assert abs(samples.period[last].sum() - 3700 * MS) < 500 * MS


def test_stock_perf_shows_the_weights(recording: Recording, naps: Path, tmp_path: Path) -> None:
    perf_offcpu("inject", "-i", naps / "perf.data", "-o", "plain.data", cwd=tmp_path)
    text = perf("script", "-i", "plain.data", "-F", "event,period", cwd=tmp_path)
    weights = [int(line.split()[0]) for line in text.splitlines() if "offcpu-time" in line]
    assert sum(weights) == int(recording.samples.period.sum())
    again = load_recording(tmp_path / "plain.data").samples
    assert sorted(again.length_ns().tolist()) == sorted(recording.samples.length_ns().tolist())


def test_report_says_how_far_the_estimates_are(naps: Path) -> None:
    text = perf_offcpu("report", "--limit", "1", cwd=naps).stdout
    assert "One sample for each 2 ms of waiting of a thread" in text
    assert "All that ended, counted exactly" in text


@pytest.mark.parametrize("option", ["--critical-path", "--serial", "--bottlenecks"])
def test_what_needs_every_wait_refuses_samples_of_them(option: str, naps: Path) -> None:
    done = perf_offcpu("report", option, cwd=naps, status=129)
    assert done.stdout == ""
    assert f"{option} needs every wait" in done.stderr and done.stderr.count("\n") == 1


def test_wakers_are_those_of_all_waits_and_chains_of_them_are_refused(tmp_path: Path) -> None:
    program = """
import os, threading, time
(r, w), naps = os.pipe(), 600
def read():
    for _ in range(naps): os.read(r, 1)
thread = threading.Thread(target=read)
thread.start()
for _ in range(naps):
    time.sleep(0.0007)
    os.write(w, b"x")
thread.join()
"""
    samples = record(tmp_path, program=program).samples
    reader = samples.has(SampleFlag.SAMPLED) & (samples.tid != samples.pid)
    main = int(samples.pid[reader][0])
    woken = reader & (samples.waker_tid == main)
    # The others are waits for the interpreter's lock, which end with a timeout.
    assert reader.sum() > 60 and woken.sum() >= 0.75 * reader.sum()
    for form in ("--folded", "--flamegraph"):
        done = perf_offcpu("convert", form, "--wakers", "-o", "-", cwd=tmp_path, status=129)
        assert done.stdout == "" and done.stderr.count("\n") == 1
        assert "--wakers needs every wait" in done.stderr
    graph = perf_offcpu("convert", "--callgraph", "text", "--wakers", "-o", "-", cwd=tmp_path)
    assert "estimated from a sample for each 2 ms" in graph.stdout
