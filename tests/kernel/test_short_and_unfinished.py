# SPDX-License-Identifier: Apache-2.0
"""Waits that are left out, limited, or have not ended when the recording does."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from builders.program import run as perf_offcpu
from kernel.bpf_output import NOT_KNOWN
from kernel.napping import MS, NEVER, drained_sums, kernel_name, parted, record_napper, usual, waits_of, watched

from perf_offcpu.collect.bpf.config import ShortWaits
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.callchains import frames_of
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.symbolize.symbolizer import symbolize


@usual
def test_short_waits_can_be_dropped_and_are_counted(napper: Path, in_switch: bool) -> None:
    tallies, waits, sums, counters = record_napper(
        napper, threshold_ns=NEVER, short_waits=ShortWaits.DROP, in_switch=in_switch
    )
    assert waits == [] and len(sums) == 0
    assert counters["dropped"] >= sum(t.waits for t in tallies if t.kind in ("nap", "blink", "pipe")) - 3
    assert counters["dropped_ns"] > 100 * MS


@usual
def test_waits_shorter_than_asked_for_are_left_out_and_counted(napper: Path, in_switch: bool) -> None:
    tallies, waits, sums, counters = record_napper(napper, threshold_ns=0, min_block_ns=MS, in_switch=in_switch)
    assert min(w.ns for w in waits) >= MS and len(sums) == 0
    assert counters["too_short"] > 0 and counters["too_short_ns"] < MS * counters["too_short"]
    (nap,) = [t for t in tallies if t.kind == "nap"]
    # The end of one may not be told in sched_switch; a nap is none where its timer fires before the switch.
    assert len([w for w in waits if w.tid == nap.tid]) >= nap.waits - 2


@usual
def test_the_rate_of_samples_is_limited_and_nothing_goes_missing(napper: Path, in_switch: bool) -> None:
    with watched(napper, threshold_ns=0, max_rate=100, in_switch=in_switch, rounds=60) as (one, program, rings):
        begin = time.monotonic()
        tallies = one.go()
        program.disable()
        seconds = time.monotonic() - begin
        waits, sums = waits_of(rings), drained_sums(program)
        counters, rate = program.counters(), program.maps.rate()
    assert len(waits) <= 100 * (seconds + 0.2) + 20
    assert counters["rate_limited"] == sums["count"].sum() > 0
    assert counters["rate_limited_ns"] == sums["total_ns"].sum()
    assert rate["raised"] > 0 and rate["highest_ns"] >= 1000
    if not in_switch:
        for tally in (t for t in tallies if t.kind in ("nap", "blink", "futex", "pipe")):
            counted = sum(w.tid == tally.tid for w in waits)
            counted += int(sums["count"][sums["tid"] == tally.tid].sum())
            assert tally.waits <= counted <= tally.waits + 2


@usual
def test_preempted_threads_are_waits_if_asked_for(napper: Path, in_switch: bool) -> None:
    tallies, waits, _, _ = record_napper(napper, threshold_ns=0, states="SDR", in_switch=in_switch)
    spinners = {t.tid for t in tallies if t.kind == "spin"}
    mine = [w for w in waits if w.tid in spinners and w.flags & 1]
    assert len(mine) >= 4
    assert all(w.syscall == -1 and w.runq_ns == w.ns and w.wakeup_ns == NOT_KNOWN for w in mine)


@usual
def test_a_wait_from_before_is_flagged_when_it_ends(napper: Path, in_switch: bool) -> None:
    with watched(napper, threshold_ns=MS, in_switch=in_switch, rounds=2) as (one, program, rings):
        time.sleep(0.05)
        one.go()
        program.disable()
        _, (before,) = parted(rings)
    assert (before.tid, before.flags & 8) == (one.pid, 8)
    assert one.watched_ns <= before.switch_out_ns <= one.watched_ns + 20 * MS
    assert before.ns >= 40 * MS
    assert {"anon_pipe_read", "pipe_read"} & {kernel_name(ip) for ip in before.kernel}
    assert bool(before.user) != in_switch  # its memory cannot be reached from sched_switch


@pytest.fixture
def stuck() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "10000"])
    time.sleep(0.1)
    yield process
    process.kill()
    process.wait()


@pytest.mark.beside
@pytest.mark.parametrize("short_waits", [ShortWaits.STACKS, pytest.param(ShortWaits.DROP, marks=pytest.mark.long)])
def test_who_never_comes_back_is_there(stuck: subprocess.Popen[bytes], tmp_path: Path, short_waits: ShortWaits) -> None:
    """One that slept before the recording began, and one that goes to sleep in it; both sleep on."""
    options = ["-a", "-e", "none", "--short-waits", short_waits.value]
    command = "sleep 1000 >/dev/null 2>&1 & echo $!; sleep 0.3"
    done = perf_offcpu("record", *options, "--", "sh", "-c", command, cwd=tmp_path)
    recording_ = load_recording(tmp_path / "perf.data")
    recording_.check()
    profile = symbolize(recording_)
    samples = profile.samples
    rows = np.flatnonzero((samples.flags & np.uint32(SampleFlag.STILL_BLOCKED)) != 0)
    old = [row for row in rows.tolist() if samples.tid[row] == stuck.pid]
    new = [row for row in rows.tolist() if samples.tid[row] == int(done.stdout)]
    assert len(old) == 1 and len(new) == 1
    assert all(recording_.strings[int(samples.comm[row])] == "sleep" for row in old + new)
    assert samples.flags[old[0]] & np.uint32(SampleFlag.BEGAN_BEFORE)
    assert samples.period[old[0]] >= 300 * MS
    assert not samples.flags[new[0]] & np.uint32(SampleFlag.BEGAN_BEFORE)
    for row in old + new:
        frames = frames_of(profile.stacks.parent, profile.stacks.frame, int(samples.stack[row]))
        names = [profile.strings[name] for name in profile.frames.symbol[frames].tolist()]
        assert "hrtimer_nanosleep" in names, names
        # glibc 2.41 calls in a function that only its debug file names.
        dsos = [profile.strings[dso] for dso in profile.frames.dso[frames].tolist()]
        in_libc = [name for name, dso in zip(names, dsos, strict=True) if "/libc.so" in dso]
        assert in_libc and (re.fullmatch(r".*nanosleep.*|__internal_syscall_cancel|", in_libc[-1])), (names, dsos)
        assert samples.syscall[row] == 230
    os.kill(int(done.stdout), signal.SIGKILL)  # not every Debian has a program for that
