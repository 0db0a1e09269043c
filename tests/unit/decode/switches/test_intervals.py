# SPDX-License-Identifier: Apache-2.0
"""Waits out of switches: timelines drawn by hand, properties of random machines, raw data of old and new kernels.

A character of a timeline is a microsecond. Of the thread itself:

    O I   a SWITCH record, out and in          o i   the same seen by sched_switch, from and to idle
    p     sched_switch, preempted              z     sched_switch, as zombie
    S     a sample of context-switches         W w   sched_waking, sched_wakeup
    F X   fork and exit                        L     a LOST record of its CPU
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.examples import examples
from builders.switching import FORMAT, FORMATS, SwitchTable, write_switches
from hypothesis import given, settings
from hypothesis import strategies as st

from perf_offcpu import losses
from perf_offcpu.binary.layout import Order
from perf_offcpu.decode.load import load_recording
from perf_offcpu.decode.switches.events import Switches
from perf_offcpu.decode.switches.events import SwitchKind as Kind
from perf_offcpu.decode.switches.intervals import find_waits
from perf_offcpu.decode.switches.waits import wait_samples
from perf_offcpu.losses import LossCause, Losses
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.recording import Recording, SampleFlag, Samples, Tasks
from perf_offcpu.perfdata import reader

US = 1000
BEGIN = 5_000_000
SLEEPING, ZOMBIE = 1, 0x20


def at(place: int) -> int:
    return BEGIN + place * US


def row(kind: Kind, time_ns: int, tid: int, **columns: int) -> dict[str, int]:
    return {"kind": kind, "time_ns": time_ns, "tid": tid} | columns


def table(rows: list[dict[str, int]]) -> Switches:
    names = [name for name in Switches.columns if any(name in row for row in rows)]
    nothing = Switches.filled(1)
    columns = {name: [row.get(name, getattr(nothing, name)[0]) for row in rows] for name in names}
    return Switches.filled(len(rows), **columns)


def drawn(timelines: dict[int, str]) -> tuple[Switches, Tasks]:
    rows, tasks = [], list[tuple[int, int, int, int]]()
    for tid, line in timelines.items():
        for place, sign in enumerate(line):
            rows += _rows(sign, tid, at(place))
        tasks += _lives(tid, line)
    return table(rows), Tasks.from_rows(tasks)


def _rows(sign: str, tid: int, time_ns: int) -> list[dict[str, int]]:
    plain = {"O": Kind.OUT, "I": Kind.IN, "S": Kind.STACK, "W": Kind.WAKING, "w": Kind.WAKEUP}
    if sign in plain:
        return [row(plain[sign], time_ns, tid, cpu=0)]
    if sign in "opz":
        state = {"o": SLEEPING, "p": 0, "z": ZOMBIE}[sign]
        return [row(Kind.SWITCH, time_ns, tid, next_tid=0, state=state, preempted=int(sign == "p"), cpu=0)]
    if sign == "i":
        return [row(Kind.SWITCH, time_ns, 0, next_tid=tid, state=0, preempted=1, cpu=0)]
    return [row(Kind.LOST, time_ns, -1, cpu=0)] if sign == "L" else []


def _lives(tid: int, line: str) -> Iterator[tuple[int, int, int, int]]:
    """(tid, pid, begin, end) of each life: from a fork, or the beginning, to an exit, or the end."""
    for number, part in enumerate(line.split("F")):
        start = sum(len(before) + 1 for before in line.split("F")[:number])
        begin = at(start - 1) if number else 0
        end = at(start + part.index("X")) if "X" in part else -1
        if part or number:
            yield tid, 1, begin, end


def found(timelines: dict[int, str]) -> tuple[list[tuple[int, int, int]], Losses]:
    """([(tid, place of the out, place of the end)], what was counted)."""
    switches, tasks = drawn(timelines)
    waits, counters = told(switches, at(100), tasks)
    return sorted((tid, (begin - BEGIN) // US, (end - BEGIN) // US) for tid, begin, end in waits), counters


def told(switches: Switches, last_ns: int, tasks: Tasks) -> tuple[list[tuple[int, int, int]], Losses]:
    """([(tid, begin, end)], what was counted)."""
    counters = Losses()
    waits = find_waits(switches, tasks, last_ns, counters)
    waits.check()
    columns = (switches.tid[waits.out], switches.time_ns[waits.out], waits.end_ns)
    return list(zip(*(column.tolist() for column in columns), strict=True)), counters


@pytest.mark.parametrize(("line", "waits", "lost"), examples("unit/decode/switches/timelines.txt", "timelines"))
def test_timelines(line: str, waits: str, lost: str) -> None:
    places, counters = found({7: line})
    assert [f"{begin}-{end}" for _, begin, end in places] == waits.split()
    assert counters == dict.fromkeys((losses.CAUSES[name] for name in lost.split()), 1)


def test_threads_of_any_number_do_not_see_each_other() -> None:
    """Linux gives numbers up to 2^22."""
    places, counters = found({7: "-O--I", 7 + (1 << 16): "--O--I", 7 + (1 << 21): "I--O--I", 263: "-O-I", 9: "-----O"})
    assert places == [(7, 1, 4), (9, 5, 100), (263, 1, 3), (7 + (1 << 16), 2, 5), (7 + (1 << 21), 3, 6)]
    assert counters == {losses.BEGIN_UNKNOWN: 1}


def test_lasting_needs_a_recording_that_sees_every_end() -> None:
    """Only the switches away from a command's own threads: whether it is back nobody knows."""
    rows = [row(Kind.SWITCH, at(3), 7, next_tid=8, state=1), row(Kind.SWITCH, at(9), 8, next_tid=7, state=1)]
    waits, counters = told(table(rows), at(20), Tasks())
    assert waits == [(7, at(3), at(9))]
    assert counters == {losses.END_NOT_RECORDED: 1, losses.BEGIN_UNKNOWN: 1}


def test_some_threads_have_no_waits() -> None:
    """Idle ones, those without a number, and those that are never seen to go out: none of the recording's."""
    assert found({0: "-O---I--O", -1: "-O---I"}) == ([], Losses())
    places, counters = found({7: "-o-i", 8: "---i--i--i", 9: "--i"})
    assert places == [(7, 1, 3)]
    assert set(counters) == {losses.BROKEN_SWITCHES}


def test_a_loss_lasts_since_the_record_before_on_its_cpu() -> None:
    rows = [
        row(kind, at(place), tid, cpu=cpu) for kind, place, tid, cpu in (
            (Kind.OUT, 1, 7, 0), (Kind.OUT, 2, 8, 1), (Kind.OUT, 5, 6, 0), (Kind.IN, 6, 8, 1), (Kind.OUT, 7, 0, 1),
            (Kind.LOST, 9, -1, 1), (Kind.IN, 10, 7, 0),  # since 6: thread 8 had come back by then
        )
    ]  # fmt: skip
    assert told(table(rows), at(20), Tasks()) == ([(8, at(2), at(6))], {losses.IN_GAP: 2})
    rows[5]["cpu"] = -1  # of no known CPU: since any time
    assert not told(table(rows), at(20), Tasks())[0]


def samples_of(timelines: dict[int, str], last: int = 100, waker: int = -1) -> Samples:
    switches, tasks = drawn(timelines)
    switches.callchain = np.arange(len(switches), dtype=np.int32)
    waking = switches.kind == Kind.WAKING
    switches.current[waking] = switches.pid[waking] = waker
    samples = wait_samples(switches, tasks, at(last), 3, Losses())
    samples.check()
    return samples


def test_samples_say_what_is_known() -> None:
    one = samples_of({7: "--o---W--i"})
    expected = {
        "time_ns": at(9), "period": 7 * US, "switch_out_ns": at(2), "longest_ns": 7 * US, "wakeup_ns": at(6),
        "runq_ns": 3 * US, "state": SLEEPING, "evsel": 3, "count": 1, "flags": SampleFlag.OFFCPU, "syscall": -2,
        "tid": 7, "pid": 1,
    }  # fmt: skip
    assert {name: getattr(one, name).tolist() for name in expected} == {name: [it] for name, it in expected.items()}


def test_the_first_wake_up_counts_and_waking_is_better_than_wakeup() -> None:
    wake_ups = {"-o-w-w--i": [at(3)], "-o-w-W-Wi": [at(5)], "Wo------i": [-1], "-o--i-W-o--i": [-1, -1]}
    for line, expected in wake_ups.items():
        assert samples_of({7: line}).wakeup_ns.tolist() == expected, line
    assert samples_of({7: "-o--i-o", 8: "-------W-i"}).wakeup_ns.tolist() == [-1, -1]


@pytest.mark.parametrize("waker", [0, 5])
def test_the_stack_of_a_waker_is_that_of_its_sample(waker: int) -> None:
    """An interrupt has none of its own."""
    one = samples_of({7: "--o---W--i"}, waker=waker)
    assert (one.waker_tid.tolist(), one.waker_pid.tolist()) == ([waker], [waker])
    interrupt = SampleFlag.WAKER_INTERRUPT if waker == 0 else SampleFlag(0)
    assert one.flags.tolist() == [SampleFlag.OFFCPU | interrupt]
    assert one.waker_callchain.tolist() == ([-1] if waker == 0 else [1]), "that of the second row"


def test_who_could_have_gone_on_only_waits_for_a_cpu() -> None:
    one = samples_of({7: "-p--W--i"})
    assert one.flags.tolist() == [SampleFlag.OFFCPU | SampleFlag.PREEMPTED]
    assert one.runq_ns.tolist() == one.period.tolist() == [6 * US]
    assert one.wakeup_ns.tolist() == [-1] and one.waker_tid.tolist() == [-1]


def test_what_lasts_is_flagged_and_ends_with_the_recording() -> None:
    one = samples_of({7: "-o--W", 8: "i"}, last=50)
    assert one.flags.tolist() == [SampleFlag.OFFCPU | SampleFlag.STILL_BLOCKED]
    assert one.time_ns.tolist() == [at(50)] and one.period.tolist() == [49 * US]
    assert one.runq_ns.tolist() == [46 * US]


@pytest.mark.parametrize(("line", "rows"), examples("unit/decode/switches/timelines.txt", "stacks"))
def test_stacks_are_those_of_the_switch(line: str, rows: str) -> None:
    stacks = [int(row) for row in rows.split()]
    samples = samples_of({7: line, 8: "-S"})
    assert samples.callchain.tolist() == stacks
    none = int(SampleFlag.NO_USER_STACK | SampleFlag.NO_KERNEL_STACK)
    assert [int(flags) & none for flags in samples.flags] == [none * (stack < 0) for stack in stacks]


# Random machines.


@dataclass
class Machine:
    """CPUs that switch between threads; `rows` is what sched_switch tells, `waits` what really happened."""

    cpus: int
    threads: int
    running: list[int] = field(default_factory=list)
    rows: list[dict[str, int]] = field(default_factory=list)
    waits: set[tuple[int, int, int]] = field(default_factory=set)
    out_since: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.running = [0] * self.cpus

    def switch(self, cpu: int, tid: int, time_ns: int) -> None:
        """Thread `tid`, 0 for idle, runs on a CPU, if it does not on another."""
        before = self.running[cpu]
        if tid == before or (tid and tid in self.running):
            return
        self.rows.append(row(Kind.SWITCH, time_ns, before, next_tid=tid, cpu=cpu, state=SLEEPING, pid=1))
        if before:
            self.out_since[before] = time_ns
        if tid in self.out_since:
            self.waits.add((tid, self.out_since.pop(tid), time_ns))
        self.running[cpu] = tid

    @property
    def last_ns(self) -> int:
        return max((one["time_ns"] for one in self.rows), default=BEGIN)

    def lasting(self) -> set[tuple[int, int, int]]:
        return {(tid, since, self.last_ns) for tid, since in self.out_since.items()}


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    machine, now = Machine(draw(st.integers(1, 3)), draw(st.integers(1, 5))), BEGIN
    steps = st.tuples(st.integers(0, machine.cpus - 1), st.integers(0, machine.threads), st.integers(1, 9))
    for cpu, tid, pause in draw(st.lists(steps, max_size=60)):
        now += pause
        machine.switch(cpu, tid, now)
    return machine


@given(machines())
def test_what_was_seen_whole_is_found_whole(machine: Machine) -> None:
    waits, counters = told(table(machine.rows), machine.last_ns, Tasks())
    sees_ends = any(one["tid"] == 0 for one in machine.rows)
    lasting = machine.lasting() if sees_ends else set()
    assert len(waits) == len(set(waits))
    assert set(waits) == machine.waits | lasting
    assert not counters.keys() & {losses.BROKEN_SWITCHES, losses.BEGIN_NOT_RECORDED, losses.IN_GAP}


@given(machines())
def test_time_adds_up(machine: Machine) -> None:
    """Between the first and the last switch of a thread, it either waits or runs."""
    waits, _ = told(table(machine.rows), machine.last_ns, Tasks())
    for tid in range(1, machine.threads + 1):
        own = [one for one in machine.rows if tid in (one["tid"], one["next_tid"])]
        pairs = zip(own, own[1:], strict=False)
        ran = sum(after["time_ns"] - one["time_ns"] for one, after in pairs if one["next_tid"] == tid)
        ended = sum(end - begin for who, begin, end in waits if who == tid and (tid, begin, end) in machine.waits)
        assert not own or ran + ended == own[-1]["time_ns"] - own[0]["time_ns"]


@given(machines(), st.randoms(use_true_random=False))
def test_the_order_of_the_file_does_not_matter(machine: Machine, random: object) -> None:
    rows = list(machine.rows)
    random.shuffle(rows)  # type: ignore[attr-defined]
    assert told(table(rows), machine.last_ns, Tasks()) == told(table(machine.rows), machine.last_ns, Tasks())


@given(machines())
def test_a_switch_seen_twice_counts_once(machine: Machine) -> None:
    records = [
        row(what, one["time_ns"], one[name], cpu=one["cpu"])
        for one in machine.rows
        for what, name in ((Kind.OUT, "tid"), (Kind.IN, "next_tid"))
    ]
    waits, _ = told(table(machine.rows), machine.last_ns, Tasks())
    both, _ = told(table([*records, *machine.rows]), machine.last_ns, Tasks())
    alone, _ = told(table(records), machine.last_ns, Tasks())
    assert both == alone
    assert set(waits) <= set(both) == machine.waits | machine.lasting()


@given(machines(), st.data())
def test_only_own_switches_give_only_true_waits(machine: Machine, data: st.DataObject) -> None:
    """perf record COMMAND, without -a: switch-outs of the command's own threads, to whatever comes next."""
    own = data.draw(st.sets(st.integers(1, machine.threads)))
    waits, _ = told(table([one for one in machine.rows if one["tid"] in own]), machine.last_ns, Tasks())
    assert set(waits) <= machine.waits


@settings(max_examples=300)
@given(machines(), st.data())
def test_losses_give_only_true_waits(machine: Machine, data: st.DataObject) -> None:
    """Each ring loses runs of records, and says so in front of the next one."""
    rows = []
    for cpu in range(machine.cpus):
        ring = [one for one in machine.rows if one["cpu"] == cpu]
        kept = data.draw(st.lists(st.booleans(), min_size=len(ring), max_size=len(ring)))
        kept = [*kept[:-1], True][: len(ring)]
        for place, one in enumerate(ring):
            if kept[place] and place and not kept[place - 1]:
                rows.append(row(Kind.LOST, one["time_ns"], -1, cpu=cpu))
            rows += [one] if kept[place] else []
    waits, counters = told(table(rows), machine.last_ns, Tasks())
    assert all(end >= begin for _, begin, end in waits)
    assert set(waits) <= machine.waits | machine.lasting()
    if all("next_tid" in one for one in rows):
        assert not counters[losses.IN_GAP]


@given(machines(), st.data())
def test_whatever_is_missing_waits_do_not_overlap(machine: Machine, data: st.DataObject) -> None:
    """Even if nothing says that records are missing."""
    kept = data.draw(st.lists(st.booleans(), min_size=len(machine.rows), max_size=len(machine.rows)))
    rows = [one for one, keep in zip(machine.rows, kept, strict=True) if keep]
    waits, _ = told(table(rows), machine.last_ns, Tasks())
    for (tid, _, end), (next_tid, begin, next_end) in zip(waits, waits[1:], strict=False):
        assert tid < next_tid or (tid == next_tid and end <= begin <= next_end)


# Linux 3.16 on a 32-bit machine: longs of 4 bytes, other offsets, one letter for each bit of the mask.
NEW_STATES = {0: 0, 1: 1, 2: 2, 4: 4, 8: 8, 0x40: 0x40, 0x80: 0x402, 0x100: 0}
OLD_STATES = {0: 0, 1: 1, 2: 2, 2 | 128: 0x102, 4: 4, 8: 8, 512: 0x40, 1024: 0, 1 | 1024: 0}
MS = 1_000_000


def naps(states: list[int]) -> SwitchTable:
    """Thread 7 naps for 1 ms in each state, in turns with the idle thread."""
    rows = []
    for number, state in enumerate(states):
        begin = (10 + 2 * number) * MS
        rows += [(begin, 0, 7, 0, state), (begin + MS, 0, 0, 7, 0)]
    chains = Ragged.from_lists([[2**64 - 128, 2**63 + number] for number in range(len(rows))])
    return SwitchTable.of(zip(*rows, strict=True), chains)


def recorded(path: Path, states: list[int], **options: Any) -> Recording:
    write_switches(path / "perf.data", naps(states), **options)
    recording = load_recording(path / "perf.data")
    recording.check()
    return recording


def waits_of(recording: Recording) -> Samples:
    samples = recording.samples
    return samples.take(samples.has(SampleFlag.OFFCPU))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("text", "states"), [
    (FORMAT, NEW_STATES), ((FORMATS / "sched_switch-3.16.txt").read_text(), OLD_STATES),
    (re.sub(r"print fmt:.*", "print fmt: (none)", FORMAT, flags=re.DOTALL), NEW_STATES),
], ids=["new", "old", "no flags"])  # fmt: skip
def test_states_of_any_kernel(tmp_path: Path, text: str, states: dict[int, int], order: Order) -> None:
    waits = waits_of(recorded(tmp_path, list(states), order=order, text=text))
    assert waits.state.tolist() == list(states.values())
    assert waits.period.tolist() == [MS] * len(states)
    assert set(waits.tid.tolist()) == {7}
    assert waits.has(SampleFlag.PREEMPTED).tolist() == [state == 0 for state in states.values()]


def test_death_is_no_wait_and_stacks_are_those_of_the_thread_that_goes_out(tmp_path: Path) -> None:
    recording = recorded(tmp_path, [1, 0x10, 1, 0x20])
    assert not recording.losses
    assert (recording.meta.begin_ns, recording.meta.end_ns, recording.meta.threshold_ns) == (10 * MS, 17 * MS, 0)
    chains = [recording.callchains.row(row).tolist() for row in waits_of(recording).callchain.tolist()]
    assert chains == [[2**64 - 128, 2**63 + number] for number in (0, 4)]


def test_rows_of_many_chunks_keep_their_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PIECE", 1 << 20)
    recording = recorded(tmp_path, [1] * 40_000)
    assert (tmp_path / "perf.data").stat().st_size > 2 << 20, "the reader takes several chunks"
    last = recording.callchains.values[recording.callchains.offsets[waits_of(recording).callchain] + 1]
    assert last.tolist() == [2**63 + 2 * number for number in range(40_000)]


def test_a_tracepoint_that_was_asked_for_twice_counts_once(tmp_path: Path) -> None:
    recording = recorded(tmp_path, [1, 2], events=2)
    assert waits_of(recording).state.tolist() == [1, 2]
    assert len(recording.samples) == 2 * 4 + 2
    assert not recording.losses


@pytest.mark.parametrize(("old", "new", "causes"), [
    (b"prev_pid", b"prev_tid", {losses.BAD_TRACEPOINT: 4}), (b"offset:56", b"offset:99", {losses.BAD_TRACEPOINT: 4}),
    (b"offset:24;\tsize:4", b"offset:24;\tsize:3", {losses.BAD_TRACEPOINT: 4}), (b"ID: 310", b"ID: 311", {}),
    (b"header_page", b"header_cage", {losses.BAD_FEATURE: 1}),
])  # fmt: skip
def test_formats_that_do_not_fit(perf_data: Path, old: bytes, new: bytes, causes: dict[LossCause, int]) -> None:
    """No waits, no exception: samples stay what they are."""
    write_switches(perf_data, naps([1, 2]))
    sound = perf_data.read_bytes()
    assert old in sound
    perf_data.write_bytes(sound.replace(old, new))
    recording = load_recording(perf_data)
    assert len(recording.samples) == 4 and not len(waits_of(recording))
    assert recording.losses == causes
    assert not load_recording(perf_data, switches=False).losses
