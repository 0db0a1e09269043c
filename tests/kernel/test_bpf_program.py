# SPDX-License-Identifier: Apache-2.0
"""The BPF program on the running kernel: samples and sums of known waits, in both of its forms."""

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE
from kernel import napping as naps
from kernel.bpf_output import Wait
from kernel.napping import ENDS_IN_SLEEPER, MS, NEVER, ROUNDS, Balance, Tally, is_in, record_napper, usual, watched

from perf_offcpu.abi.offcpu import WaitFlag
from perf_offcpu.collect.bpf.config import STACK_PERIOD_NS, OffCpuConfig, ShortWaits
from perf_offcpu.collect.bpf.kernel.facts import KernelFacts, kept_facts
from perf_offcpu.collect.bpf.maps import ProgramMaps
from perf_offcpu.collect.output.totals import DrawnStacks


@usual
def test_every_wait_is_a_sample_with_its_time_state_and_call(napper: Path, in_switch: bool) -> None:
    tallies, waits, sums, counters = record_napper(napper, threshold_ns=0, in_switch=in_switch)
    balance = Balance(counters, in_switch)
    for tally in tallies:
        own = [w for w in waits if (w.pid, w.tid, w.syscall) == (tally.pid, tally.tid, tally.syscall)]
        balance.check(tally, len(own), sum(w.ns for w in own))
        assert {w.state & 0xFF for w in own} <= {2 if tally.kind == "vfork" else 1}
    assert {t.kind for t in tallies} == {"nap", "blink", "futex", "pipe", "vfork", "spin", "child"}
    assert all(t.preemptions for t in tallies if t.kind == "spin")  # and none of them is a wait
    assert all((w.kind, w.flags & ~2, w.count) == (1, 0, 1) for w in waits)
    assert len({w.cgroup for w in waits}) == 1
    assert all(w.longest_ns == w.ns for w in waits)
    assert all(w.lost == (4 if len(w.user) == 127 else 0) for w in waits)
    assert len(sums) == 0
    assert counters["samples"] == len(waits)
    assert counters["samples_ns"] == sum(w.ns for w in waits)
    assert unexpected(counters) == {"samples", "samples_ns"}


UNTOLD = {f"{what}_missed{unit}" for what in ("ends", "begins", "wakeups") for unit in ("", "_ns")}


def unexpected(counters: dict[str, int]) -> set[str]:
    """The counters that something went into, apart from what the kernel does not always tell."""
    return {name for name, value in counters.items() if value} - UNTOLD


@usual
def test_a_sample_lies_where_the_wait_was(napper: Path, in_switch: bool) -> None:
    _, waits, _, _ = record_napper(napper, threshold_ns=MS, in_switch=in_switch)
    delays = [wait.time_ns - wait.switch_out_ns - wait.ns for wait in waits]
    assert min(delays) >= -1000
    # The host may take the CPU away between a switch and its sample.
    assert sum(delay >= MS * PATIENCE for delay in delays) <= 0.05 * len(waits)
    assert in_switch or all(wait.header_tid == wait.tid for wait in waits)
    by_tid: dict[int, list[Wait]] = {}
    for wait in sorted(waits, key=lambda w: w.switch_out_ns):
        by_tid.setdefault(wait.tid, []).append(wait)
    for own in by_tid.values():
        ends = [w.switch_out_ns + w.ns for w in own]
        assert all(end <= later.switch_out_ns for end, later in zip(ends, own[1:], strict=False))


OF_NAPS = [pytest.param(way, marks=() if way is ShortWaits.SAMPLED else pytest.mark.long) for way in ShortWaits]
"""Waits of a threshold's length have the same stacks, whatever shorter ones are: the others are further examples."""


@pytest.mark.beside
@usual
@pytest.mark.parametrize("short_waits", OF_NAPS)
def test_stacks_reach_from_the_wait_to_the_root(napper: Path, in_switch: bool, short_waits: ShortWaits) -> None:
    tallies, waits, _, _ = record_napper(napper, threshold_ns=MS, short_waits=short_waits, in_switch=in_switch)
    leaf = {
        "nap": {"hrtimer_nanosleep"}, "futex": {"futex_do_wait", "futex_wait_queue"},
        "pipe": {"anon_pipe_read", "pipe_read"}, "vfork": {"kernel_clone"},
    }  # fmt: skip
    for tally in tallies:
        own = [w for w in waits if (w.tid, w.syscall) == (tally.tid, tally.syscall)]
        if tally.kind in leaf:
            assert own
            assert {naps.kernel_name(w.kernel[0]) for w in own} <= leaf[tally.kind]
        for wait in own if tally.kind in ("nap", "child") else ():
            assert is_in(napper, "doze", wait.user[0])
            assert sum(is_in(napper, "dig", ip) for ip in wait.user) == 101
            assert is_in(napper, "nap", wait.user[102])


@pytest.mark.beside
@usual
def test_kernel_stacks_can_be_left_out(napper: Path, in_switch: bool) -> None:
    _, waits, _, counters = record_napper(napper, threshold_ns=MS, kernel_stacks=False, in_switch=in_switch)
    assert len(waits) > 4 * ROUNDS
    assert all(not w.kernel and w.user for w in waits)
    assert counters["kernel_stack_failed"] == 0


@pytest.mark.long
@pytest.mark.beside
def test_both_forms_show_the_same_frames(napper: Path) -> None:
    """Function by function; return addresses inside libc may differ between runs, functions may not."""
    seen = []
    # With every wait a sample, kernel stacks are taken before the switch, though the wait ends behind it.
    for in_switch, threshold_ns in ((False, MS), (True, MS), (False, 0)):
        tallies, waits, _, _ = record_napper(napper, threshold_ns=threshold_ns, in_switch=in_switch)
        kind_of = {(t.tid, t.syscall): t.kind for t in tallies}
        stacks = Counter(
            (kind, tuple(map(naps.kernel_name, w.kernel)), w.user[:-1])
            for w in waits
            if (kind := kind_of.get((w.tid, w.syscall))) not in (None, "blink") and w.ns >= MS
        )
        # A busy machine adds a wait for a lock of libc, once: the program waits several times in each place.
        seen.append({stack for stack, number in stacks.items() if number > 1})
    assert seen[0] == seen[1] == seen[2]
    assert {kind for kind, _, _ in seen[0]} == {"nap", "futex", "pipe", "vfork", "child"}


@pytest.mark.long
@pytest.mark.beside
@usual
def test_user_frames_are_those_the_kernel_walks(napper: Path, in_switch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_own_walk() -> KernelFacts:
        facts = kept_facts()
        assert facts.defines["OFFCPU_FRAME_POINTERS"]
        return replace(facts, defines={**facts.defines, "OFFCPU_FRAME_POINTERS": 0})

    seen = []
    for find in (kept_facts, without_own_walk):
        monkeypatch.setattr("perf_offcpu.collect.bpf.program.kept_facts", find)
        tallies, waits, _, counters = record_napper(napper, threshold_ns=0, kernel_stacks=False, in_switch=in_switch)
        assert not counters["user_stack_failed"]
        kind_of = {(t.tid, t.syscall): t.kind for t in tallies}
        measured = ((kind_of.get((w.tid, w.syscall)), w.user) for w in waits)
        # The stack may end in what is no frame: what a register without frame pointer holds by chance.
        seen.append({(kind, stack[:-1]) for kind, stack in measured if kind})
    assert seen[0] == seen[1]
    assert max(len(stack) for _, stack in seen[0]) > 100
    assert {kind for kind, _ in seen[0]} >= {"nap", "futex", "pipe", "child", "blink"}


@usual
def test_short_waits_are_summed_by_thread_state_and_stack(napper: Path, in_switch: bool) -> None:
    config = {"threshold_ns": NEVER, "short_waits": ShortWaits.STACKS, "in_switch": in_switch}
    with watched(napper, **config) as (one, program, rings):
        tallies = one.go()
        program.disable()
        (sums, stacks, _), counters = program.maps.drain(), program.counters()
        user_stacks = stacks.find(sums["stack"])
        assert naps.waits_of(rings) == []
        assert len(program.maps.drain().sums) == 0
    assert unexpected(counters) <= {"samples", "samples_ns"}
    assert np.all(sums["first_switch_out_ns"] >= one.watched_ns)
    assert np.all(sums["last_switch_in_ns"] - sums["first_switch_out_ns"] >= sums["total_ns"])
    assert np.all(sums["longest_ns"] * sums["count"] >= sums["total_ns"])
    assert np.all(sums["longest_ns"] <= sums["total_ns"])
    keys = sums[["pid", "tid", "state", "syscall", "flags", "stack"]]
    assert len(np.unique(keys)) == len(keys)
    balance = Balance(counters, in_switch)
    for tally in tallies:
        mine = [i for i, row in enumerate(sums) if row["tid"] == tally.tid and is_of(napper, tally, user_stacks.row(i))]
        balance.check(tally, *(sum(int(sums[name][i]) for i in mine) for name in ("count", "total_ns")))
        assert {int(sums["state"][i]) & 0xFF for i in mine} <= {2 if tally.kind == "vfork" else 1}
        assert {int(sums["syscall"][i]) for i in mine} <= {tally.syscall}
    frames = user_stacks.lengths
    assert np.all((sums["stack"] != 0) & (frames > 0))
    assert np.all(sums["lost"] == np.where(frames == 127, 4, 0))  # libc without frame pointers leads astray


def is_of(program: Path, tally: Tally, stack: Any) -> bool:
    """Return whether the stack of a sum is that of the measured waits, not of calls around them."""
    frames = stack.tolist()
    if tally.kind in ("nap", "child", "blink"):
        levels = 11 if tally.kind == "blink" else 101
        return is_in(program, "doze", frames[0]) and sum(is_in(program, "dig", ip) for ip in frames) == levels
    if tally.kind == "vfork":  # libc's vfork takes its return address off the stack
        return is_in(program, "vfork", frames[0])
    own = f"{tally.kind}_thread"
    return own in naps.program_symbols(program) and is_in(program, own, frames[0])


@pytest.mark.skipif(not ENDS_IN_SLEEPER, reason="stacks are drawn where waits end in the sleeper: Linux 6.16")
def test_sums_are_exact_and_stacks_of_drawn_waits_are_theirs(napper: Path) -> None:
    with watched(napper, threshold_ns=NEVER) as (one, program, _):
        tallies = one.go()
        program.disable()
        (drained, stacks, _), counters = program.maps.drain(), program.counters()
    assert unexpected(counters) <= {"samples", "samples_ns"}
    drawn = (drained["flags"] & WaitFlag.DRAWN) != 0
    assert set(drained["stack"][~drawn]) == {0}
    weight, number = (int(drained[name][drawn].sum()) for name in ("total_ns", "count"))
    assert weight % (STACK_PERIOD_NS / 32) == 0
    sums = DrawnStacks().share(drained, end_of_file=True)
    assert abs(weight - int(sums["total_ns"].sum())) <= STACK_PERIOD_NS * len(np.unique(sums["tid"]))
    assert sums["count"].sum() / 2 < number < 2 * sums["count"].sum()
    for name in ("total_ns", "count"):
        assert sums[name].sum() == drained[name][~drawn].sum()
    user_stacks = stacks.find(sums["stack"])
    balance = Balance(counters, False)
    for tally in (t for t in tallies if t.waits and t.kind not in ("vfork", "child")):
        mine = np.flatnonzero((sums["tid"] == tally.tid) & (sums["syscall"] == tally.syscall))
        balance.check(tally, *(int(sums[name][mine].sum()) for name in ("count", "total_ns")), around=2)
        right = [i for i in mine if is_of(napper, tally, user_stacks.row(i))]
        assert sums["total_ns"][right].sum() > 0.9 * sums["total_ns"][mine].sum()


@pytest.mark.long
@usual
def test_sums_without_stacks(napper: Path, in_switch: bool) -> None:
    tallies, waits, sums, counters = record_napper(
        napper, threshold_ns=NEVER, short_waits=ShortWaits.THREADS, in_switch=in_switch
    )
    assert waits == [] and not unexpected(counters)
    balance = Balance(counters, in_switch)
    assert set(sums["stack"]) == {0}
    assert len(np.unique(sums[["tid", "state", "syscall"]])) == len(sums)
    for tally in (t for t in tallies if t.waits and t.kind not in ("vfork", "child")):
        mine = sums[(sums["tid"] == tally.tid) & (sums["syscall"] == tally.syscall)]
        balance.check(tally, int(mine["count"].sum()), int(mine["total_ns"].sum()), around=2)


@usual
def test_threshold_parts_samples_from_sums(napper: Path, in_switch: bool) -> None:
    tallies, waits, sums, counters = record_napper(napper, threshold_ns=MS, in_switch=in_switch)
    assert min(w.ns for w in waits) >= MS > sums["longest_ns"].max()
    (blink,) = [t for t in tallies if t.kind == "blink"]
    counted = int(sums["count"][sums["tid"] == blink.tid].sum()) + sum(w.tid == blink.tid for w in waits)
    Balance(counters, in_switch).check(blink, counted, around=2)


@pytest.mark.beside
def test_the_threshold_can_be_moved_while_recording(napper: Path) -> None:
    with watched(napper, threshold_ns=NEVER) as (one, program, rings):
        program.maps.set_control(threshold_ns=MS)
        one.go()
        assert len(naps.waits_of(rings)) > ROUNDS


@pytest.mark.beside
def test_where_nothing_is_kept_draining_waits_for_no_program(napper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all waits are samples that is for nothing."""
    waited: list[str] = []
    with watched(napper, threshold_ns=0) as (one, program, _):
        wait = program.maps.wait_for_programs
        monkeypatch.setattr(ProgramMaps, "wait_for_programs", lambda _: (waited.append("once"), wait()))
        assert len(program.maps.drain().sums) == 0 and waited == []
        program.maps.set_control(threshold_ns=NEVER)
        one.go()
        sums, _, budgets = program.maps.drain()
        assert len(sums) > 0 and len(budgets) > 0 and waited == ["once"]


def test_draining_while_recording_loses_and_doubles_nothing(napper: Path) -> None:
    parts, finished = [], threading.Event()
    config = {"threshold_ns": NEVER, "short_waits": ShortWaits.STACKS}
    with watched(napper, rounds=100, **config) as (one, program, _):
        tallies: list[Tally] = []
        thread = threading.Thread(target=lambda: (tallies.extend(one.go()), finished.set()))
        thread.start()
        while not finished.is_set():
            sums, stacks, _ = program.maps.drain()
            assert np.all(stacks.find(sums["stack"]).lengths > 0)
            parts.append(sums)
        thread.join()
        program.disable()
        parts.append(program.maps.drain().sums)
    assert len(parts) > 10
    sums = np.concatenate(parts)
    (nap,) = [t for t in tallies if t.kind == "nap"]
    mine = sums[sums["tid"] == nap.tid]
    assert nap.waits <= mine["count"].sum() <= nap.waits + 2
    assert 0.9 * nap.ns <= mine["total_ns"].sum() <= 1.1 * nap.ns


# Full maps, full rings: nothing goes silently


@pytest.mark.long
@pytest.mark.beside
def test_a_full_map_of_sums_sends_waits_as_samples(napper: Path) -> None:
    tallies, waits, sums, counters = record_napper(napper, threshold_ns=NEVER, sum_entries=4)
    assert 0 < len(sums) <= 4
    assert min(w.flags & ~2 for w in waits) == max(w.flags & ~2 for w in waits) == 0
    assert len(waits) == counters["sum_map_full"] == counters["samples"] > 0
    assert counters["sum_map_full_ns"] == sum(w.ns for w in waits)
    assert counters["waits_lost"] == 0
    Balance(counters, not ENDS_IN_SLEEPER).check_all(tallies, sums, waits)


@pytest.mark.long
@pytest.mark.beside
@pytest.mark.parametrize("short_waits", [ShortWaits.SAMPLED, ShortWaits.STACKS])
def test_a_full_map_of_stacks_leaves_the_sums_whole(napper: Path, short_waits: ShortWaits) -> None:
    tallies, _, sums, counters = record_napper(napper, threshold_ns=NEVER, stack_entries=2, short_waits=short_waits)
    is_exact = short_waits is ShortWaits.STACKS or not ENDS_IN_SLEEPER
    without = sums[(sums["stack"] == 0) & (is_exact | ((sums["flags"] & WaitFlag.DRAWN) != 0))]
    number = counters["stack_map_full"]
    assert number == without["count"].sum() > 0 if is_exact else number >= len(without) > 0
    assert np.all(without["lost"] == 1)
    Balance(counters, not ENDS_IN_SLEEPER).check_all(tallies, sums, [])


@usual
def test_a_full_ring_sends_waits_to_the_sums(napper: Path, in_switch: bool) -> None:
    tallies, waits, sums, counters = record_napper(napper, threshold_ns=0, in_switch=in_switch, pages=1)
    assert counters["ring_full"] == sums["count"].sum() > 0
    assert counters["ring_full_ns"] == sums["total_ns"].sum()
    assert counters["samples"] == len(waits) > 0
    assert set(sums["stack"]) == {0} and set(sums["lost"]) == {1}
    Balance(counters, in_switch).check_all(tallies, sums, waits)


@pytest.mark.long
@pytest.mark.beside
@pytest.mark.parametrize("room", [OffCpuConfig().sum_entries, 1])
def test_a_cpu_without_event_sends_waits_to_the_sums_and_what_finds_no_room_is_counted(napper: Path, room: int) -> None:
    tallies, _, sums, counters = record_napper(napper, threshold_ns=0, sum_entries=room, pages=0)
    assert counters["output_failed"] >= sum(t.waits for t in tallies) and counters["samples"] == 0
    assert counters["waits_lost"] + sums["count"].sum() == counters["output_failed"]
    assert counters["waits_lost_ns"] + sums["total_ns"].sum() == counters["output_failed_ns"]
    assert (counters["waits_lost"] > 0) == (len(sums) == 1) == (room == 1)
