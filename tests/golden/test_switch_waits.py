# SPDX-License-Identifier: Apache-2.0
"""Waits derived from tracepoints, compared with perf 7.2's text of the same recording. The expected waits come from the
text alone, by a loop over its lines; perf's symbols show wake-ups by interrupts."""

import lzma
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.converted import inject
from builders.perf_text import Printed, parse
from builders.stock_perf import perf, with_names

from perf_offcpu import losses
from perf_offcpu.decode.load import load_recording
from perf_offcpu.losses import LossCause
from perf_offcpu.model.recording import Recording, SampleFlag, Samples

DATA = Path(__file__).parent.parent / "data" / "perf-7.2"
NS_OF_US = 1000

SWITCH = re.compile(r"prev_pid=(\d+) .*prev_state=(\S+) ==> next_comm=(.*) next_pid=(\d+)")
WAKEUP = re.compile(r"comm=.* pid=(\d+) prio=")
INTERRUPT = re.compile(r"softirq|sysvec|asm_common_interrupt|asm_exc_nmi")
STATES = {"S": 0x1, "D": 0x2, "T": 0x4, "t": 0x8, "P": 0x40, "I": 0x402, "R": 0, "R+": 0}
MARKERS = 2**64 - 4095


@dataclass
class Wait:
    """A wait of the text; times in microseconds, as printed. `end` is None during the wait."""

    tid: int
    out: int
    state: str
    stack: list[int]
    end: int | None = None
    comm: str = ""
    wakeup: int | None = None
    waker: int | None = None
    waker_stack: list[int] = field(default_factory=list)


@dataclass
class Expected:
    waits: list[Wait] = field(default_factory=list)
    losses: Counter[LossCause] = field(default_factory=Counter)


def microseconds(time: str) -> int:
    seconds, _, fraction = time.partition(".")
    return int(seconds) * 1_000_000 + int(fraction)


def expected_waits(samples: list[Printed], born: set[int]) -> Expected:
    """Pair each thread's switch-outs and switch-ins in the order of the lines."""
    result = Expected()
    away: dict[int, Wait | None] = {}  # None: running
    for sample in samples:
        if sample.event == "sched:sched_wakeup":
            _wake(sample, away)
            continue
        match = SWITCH.search(sample.rest)
        assert match
        _go_out(sample, int(match[1]), match[2], away, result)
        _come_in(sample, int(match[4]), match[3], away, result, born)
    result.waits += [wait for tid, wait in away.items() if wait is not None]
    return result


def _wake(sample: Printed, away: dict[int, Wait | None]) -> None:
    match = WAKEUP.search(sample.rest)
    assert match
    wait = away.get(int(match[1]))
    if wait is not None and wait.wakeup is None:
        interrupt = any(INTERRUPT.search(frame.sym) for frame in sample.frames)
        wait.wakeup, wait.waker = microseconds(sample.time), 0 if interrupt else sample.tid
        wait.waker_stack = [] if interrupt else [frame.ip for frame in sample.frames]


def _go_out(sample: Printed, tid: int, state: str, away: dict[int, Wait | None], result: Expected) -> None:
    if away.get(tid) is not None:
        result.losses[losses.END_NOT_RECORDED] += 1
    if state in ("Z", "X"):
        away.pop(tid, None)
    elif tid:
        stack = [frame.ip for frame in sample.frames]
        away[tid] = Wait(tid, microseconds(sample.time), state, stack)


def _come_in(
    sample: Printed, tid: int, comm: str, away: dict[int, Wait | None], result: Expected, born: set[int]
) -> None:
    if not tid:
        return
    if tid not in away:
        result.losses[losses.BEGIN_UNKNOWN] += tid not in born
    elif (wait := away[tid]) is None:
        result.losses[losses.BEGIN_NOT_RECORDED] += 1
    else:
        wait.end, wait.comm = microseconds(sample.time), comm
        result.waits.append(wait)
    away[tid] = None


@pytest.fixture(scope="module")
def recording() -> Recording:
    return load_recording(DATA / "sched.data")


@pytest.fixture(scope="module")
def text() -> list[Printed]:
    return parse(lzma.decompress((DATA / "sched.script.txt.xz").read_bytes()).decode())


@pytest.fixture(scope="module")
def expected(text: list[Printed], recording: Recording) -> Expected:
    tasks = recording.tasks
    return expected_waits(text, set(tasks.tid[tasks.begin_ns > 0].tolist()))


def waits_of(recording: Recording) -> Samples:
    samples = recording.samples
    found = samples.take(samples.has(SampleFlag.OFFCPU))
    return found.take(np.lexsort((found.time_ns, found.tid)))


def addresses(recording: Recording, row: int) -> list[int]:
    """Return the addresses of a callchain without context markers; none for row -1."""
    words = recording.callchains.row(row).tolist() if row >= 0 else []
    return [word for word in words if word < MARKERS]


@pytest.fixture(scope="module")
def pairs(recording: Recording, expected: Expected) -> list[tuple[dict[str, Any], Wait]]:
    """Return all (our sample as a dict, perf's wait) with equal thread and begin."""
    samples = waits_of(recording)
    columns = (getattr(samples, name).tolist() for name in samples.columns)
    rows = [dict(zip(samples.columns, values, strict=True)) for values in zip(*columns, strict=True)]
    rows.sort(key=lambda row: (row["tid"], row["switch_out_ns"]))
    waits = sorted(expected.waits, key=lambda wait: (wait.tid, wait.out))
    assert [(row["tid"], row["switch_out_ns"] // NS_OF_US) for row in rows] == [(wait.tid, wait.out) for wait in waits]
    return list(zip(rows, waits, strict=True))


def test_they_are_as_many_as_in_the_text_and_end_at_the_switch_in(pairs: list[tuple[dict[str, Any], Wait]]) -> None:
    assert len(pairs) == 145
    assert sum(wait.end is None for _, wait in pairs) == 13
    last = max(row["time_ns"] for row, _ in pairs)
    for row, wait in pairs:
        lasts = bool(row["flags"] & SampleFlag.STILL_BLOCKED)
        assert lasts == (wait.end is None)
        assert row["time_ns"] == last if lasts else row["time_ns"] // NS_OF_US == wait.end
        assert row["period"] == row["longest_ns"] == row["time_ns"] - row["switch_out_ns"] >= 0
        assert row["count"] == 1


def test_states(pairs: list[tuple[dict[str, Any], Wait]]) -> None:
    assert {wait.state for _, wait in pairs} == {"S", "D", "I", "R", "R+"}
    for row, wait in pairs:
        assert row["state"] == STATES[wait.state]
        assert bool(row["flags"] & SampleFlag.PREEMPTED) == wait.state.startswith("R")
    runnable = [row for row, wait in pairs if wait.state.startswith("R")]
    assert len(runnable) >= 10
    assert all(row["runq_ns"] == row["period"] for row in runnable), "preempted threads waited for a CPU only"


def test_stacks_are_perfs_but_for_garbage_roots(pairs: list[tuple[dict[str, Any], Wait]], recording: Recording) -> None:
    for row, wait in pairs:
        found = addresses(recording, row["callchain"])
        assert found == wait.stack[: len(found)]
        kernel = [address for address in wait.stack if address >= 2**63]
        assert len(found) >= max(1, len(kernel))
        assert row["ip"] == wait.stack[0]


def test_threads_have_their_names(pairs: list[tuple[dict[str, Any], Wait]], recording: Recording) -> None:
    for row, wait in pairs:
        if wait.end is None:
            continue
        comm = recording.strings[row["comm"]]
        # /proc, where perf reads comms of running threads, appends a kworker's work item.
        assert comm == wait.comm or (comm.startswith(wait.comm) and comm.startswith("kworker/"))


def test_wake_ups_and_wakers(pairs: list[tuple[dict[str, Any], Wait]], recording: Recording) -> None:
    wakers: Counter[str] = Counter()
    for row, wait in pairs:
        if wait.wakeup is None or wait.state.startswith("R"):
            assert (row["wakeup_ns"], row["waker_tid"], row["waker_pid"]) == (-1, -1, -1)
            continue
        assert row["wakeup_ns"] // NS_OF_US == wait.wakeup
        assert row["runq_ns"] == row["time_ns"] - row["wakeup_ns"] >= 0
        assert row["waker_tid"] == wait.waker
        assert bool(row["flags"] & SampleFlag.WAKER_INTERRUPT) == (wait.waker == 0)
        stack = addresses(recording, row["waker_callchain"])
        assert stack == wait.waker_stack[: len(stack)] and bool(stack) == bool(wait.waker)
        wakers["thread" if wait.waker else "interrupt"] += 1
    assert wakers["thread"] >= 10 and wakers["interrupt"] >= 10


def test_switches_without_a_wait_are_counted(recording: Recording, expected: Expected) -> None:
    assert expected.losses
    for cause in (losses.END_NOT_RECORDED, losses.BEGIN_NOT_RECORDED, losses.BEGIN_UNKNOWN):
        assert recording.losses.get(cause, 0) == expected.losses[cause], cause


def test_the_event_is_an_ordinary_off_cpu_event(recording: Recording) -> None:
    event = recording.evsels[-1]
    assert (event.name, event.unit) == ("offcpu-time", "ns")
    assert {evsel.name for evsel in recording.evsels[:-1]} == {"sched:sched_switch", "sched:sched_wakeup", "dummy:u"}
    assert set(waits_of(recording).evsel.tolist()) == {len(recording.evsels) - 1}


def test_recorded_samples_stay(recording: Recording) -> None:
    as_recorded = load_recording(DATA / "sched.data", switches=False)
    kept = recording.samples.take(recording.samples.evsel < len(as_recorded.evsels))
    assert len(as_recorded.evsels) == len(recording.evsels) - 1
    for name in set(kept.columns) - {"comm", "callchain"}:
        assert np.array_equal(getattr(kept, name), getattr(as_recorded.samples, name)), name
    recording.check()


def test_perf_shows_what_inject_adds(recording: Recording, tmp_path: Path) -> None:
    injected = tmp_path / "out.data"
    inject(DATA / "sched.data", injected, switches=True)
    shown: Counter[tuple[str, ...]] = Counter()
    for line in perf("script", "-G", "-F", "comm,tid,event,period", "-i", injected).splitlines():
        match = re.match(r"^ *(.+?) +\d+ +(\d+) +offcpu-time:", line)
        if match:
            shown[match[1],] += int(match[2])
    samples = waits_of(recording)
    expected: Counter[tuple[str, ...]] = Counter()
    for comm, period in zip(samples.comm.tolist(), samples.period.tolist(), strict=True):
        expected[recording.strings[comm],] += period
    assert with_names(shown, recording, 0) == +expected


@pytest.mark.parametrize("name", ["direct", "atend", "hybrid", "deferred", "compressed", "pipe"])
def test_recordings_without_switches_get_no_event(name: str) -> None:
    names = [evsel.name for evsel in load_recording(DATA / f"{name}.data").evsels]
    assert names == [evsel.name for evsel in load_recording(DATA / f"{name}.data", switches=False).evsels]
