# SPDX-License-Identifier: Apache-2.0
"""Cascades: known chains, wPerf's own recursion as reference, and conservation of weight."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from builders.profile import ProfileBuilder
from builders.waits import Waits, random_waits, wait, waits_of, with_waits
from hypothesis import given

from perf_offcpu.analysis.timeline import timeline_of
from perf_offcpu.causality import cascade
from perf_offcpu.causality.cascade import DEVICES, Cascade, Held, cascade_of
from perf_offcpu.errors import PerfOffcpuError
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.symbolize.load import load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions

DATA = Path(__file__).parents[2] / "data"


def cascade_of_all(profile: Profile, tid: int | None = None) -> Cascade:
    chosen = None if tid is None else profile.samples.tid == tid
    found = cascade_of(profile, timeline_of(profile), chosen)
    found.check()
    return found


def edges(found: Cascade) -> dict[tuple[str, str], int]:
    """(waiter, target) → weight."""
    names = [*(str(track.tid) for track in found.tracks), *DEVICES]
    weights: Counter[tuple[str, str]] = Counter()
    rows = zip(found.waiter.tolist(), found.target.tolist(), found.carried_ns.tolist(), strict=True)
    for waiter, target, carried in rows:
        if target >= 0:
            weights[names[waiter], names[target]] += carried
    return dict(weights)


def held(found: Cascade) -> dict[tuple[str, str], int]:
    """(node, state) → weight, without zeros."""
    names = [*(str(track.tid) for track in found.tracks), *DEVICES]
    return {(names[node], Held(how).name): int(found.held_ns[node, how]) for node, how in np.argwhere(found.held_ns)}


def test_what_the_last_one_does_weighs_as_much_as_all_who_wait_for_it() -> None:
    """1 and 4 wait for 2, which waits for 3, which waits for a disk and then computes."""
    builder, fsync = ProfileBuilder(meta={"arch": "x86_64"}), 74
    wait(builder, 3, 100, 1100, waker=9, flags=SampleFlag.WAKER_INTERRUPT, path=["main", "fsync"], syscall=fsync)
    wait(builder, 2, 100, 1600, waker=3)
    wait(builder, 1, 200, 1900, waker=2, queued=50)
    wait(builder, 4, 300, 1800, waker=2)
    for tid, time in ((3, 1500), (2, 1700), (2, 2700)):
        builder.sample("c", ["spin"], 10, event="cpu-clock", tid=tid, pid=tid, time_ns=time)
    found = cascade_of_all(builder.build())
    to_3 = 1500 + (1600 - 200) + (1600 - 300)
    to_disk = 1000 + 1000 + (1100 - 200) + (1100 - 300)
    assert edges(found) == {
        ("1", "2"): 1650, ("4", "2"): 1500, ("2", "3"): to_3, ("3", "[disk]"): to_disk,
    }  # fmt: skip
    assert held(found) == {("[disk]", "WAITING"): to_disk, ("3", "RUNNING"): 3 * 500, ("2", "RUNNING"): 250 + 200}
    assert found.total_ns == 1000 + 1500 + 1650 + 1500
    assert found.held_up[-3:].tolist() == [3, 2, 0] and found.depth == 3


def test_only_chosen_waits_are_passed_on() -> None:
    found = cascade_of_all(waits_of((2, 100, 1600, -1), (1, 200, 1900, 2)).build(), 1)
    assert held(found) == {("2", "WAITING"): 1400, ("2", "RUNNING"): 300}


def test_a_thousand_waits_behind_one_are_one_step() -> None:
    """The number of parts is that of waits, not the number of pairs of waits that overlap."""
    builder = ProfileBuilder()
    for number in range(300):
        wait(builder, 1, 10 * number, 10 * number + 5, waker=9, flags=SampleFlag.WAKER_INTERRUPT)
    for tid in range(10, 310):
        wait(builder, tid, 0, 3000, waker=1)
    assert edges(cascade_of_all(builder.build()))["1", "[interrupt]"] == 300 * 5 * 301


def test_deep_chains_are_cut_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = waits_of(*((tid, 0, 1000 - 10 * tid, tid + 1) for tid in range(1, 8))).build()
    monkeypatch.setattr(cascade, "MAX_DEPTH", 3)
    assert "CUT" in {how for _, how in held(cascade_of_all(profile))}
    monkeypatch.setattr(cascade, "MAX_PARTS", 1)
    assert {how for _, how in held(cascade_of_all(profile))} == {"CUT"}


def test_damaged_times_are_said() -> None:
    with pytest.raises(PerfOffcpuError, match="damaged"):
        cascade_of_all(waits_of((1, 0, 2**61 - 1, 2), (2, 0, 2**61 - 2, 3)).build())


def test_sums_and_still_blocked_threads() -> None:
    builder = ProfileBuilder()
    wait(builder, 1, 100, 300, waker=2, flags=SampleFlag.AGGREGATED)
    wait(builder, 1, 400, 900, waker=2, flags=SampleFlag.STILL_BLOCKED)
    wait(builder, 2, 400, 900, waker=0)
    found = cascade_of_all(builder.build())
    assert found.unplaced_ns == 200
    assert held(found) == {("1", "WAITING"): 500, ("[interrupt]", "WAITING"): 500}


def test_a_waker_that_sleeps_soon_after_it_woke_another_one() -> None:
    """The sleeper becomes runnable on another CPU only when the waker waits again."""
    builder = ProfileBuilder()
    wait(builder, 2, 195, 400, waker=9, flags=SampleFlag.WAKER_INTERRUPT)
    wait(builder, 1, 100, 200, waker=2)
    assert held(cascade_of_all(builder.build(), 1)) == {("2", "RUNNING"): 95, ("1", "WAITING"): 5}


@given(random_waits(shortest=0))
def test_edges_are_those_of_wperf_and_weight_is_conserved(waits: Waits) -> None:
    """Against a recursion over single waits; waits that overlap and wakers that sleep are damage."""
    profile = with_waits(waits).build()
    timeline = timeline_of(profile)
    found = cascade_of(profile, timeline)
    found.check()
    # The same waits as the cascade has them: (thread, begin, end), clipped to lie apart, with targets.
    steps = cascade._Steps(profile, timeline)
    begin_to_target = (steps.track, steps.begin, steps.times[steps.awake], steps.target)
    table = list(zip(*(column.tolist() for column in begin_to_target), strict=True))
    expected: Counter[tuple[int, int]] = Counter()

    def redistribute(row: int, begin: int, end: int) -> None:
        track, _, _, target = table[row]
        if target < 0:
            return
        expected[track, target] += end - begin
        for other, (thread, since, until, _) in enumerate(table):
            if thread == target and max(begin, since) < min(end, until):
                redistribute(other, max(begin, since), min(end, until))

    for row, (_, begin, end, _) in enumerate(table):
        redistribute(row, begin, end)
    shown: Counter[tuple[int, int]] = Counter()
    columns = (found.waiter, found.target, found.carried_ns)
    for waiter, target, weight in zip(*(column.tolist() for column in columns), strict=True):
        if target >= 0:
            shown[waiter, target] += weight
    assert +shown == +expected


@pytest.mark.parametrize(
    "path", [DATA / "demo.data", *sorted((DATA / "perf-7.2").glob("*.data"))], ids=lambda path: path.name
)
def test_cascades_of_recordings_conserve_weight(path: Path) -> None:
    profile = load_profile([str(path)], SymbolizeOptions())
    found = cascade_of_all(profile)
    timeline = timeline_of(profile)
    assert found.total_ns <= int(profile.samples.period[timeline.waits].sum())
    assert bool(np.isin(found.row, np.flatnonzero(timeline.waits)).all())
