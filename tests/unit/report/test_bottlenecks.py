# SPDX-License-Identifier: Apache-2.0
"""Bottlenecks: who is named, in which stacks, and that nothing is lost between them."""

from builders.profile import ProfileBuilder
from builders.waits import Waits, random_waits, wait, with_waits
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.analysis.timeline import timeline_of
from perf_offcpu.causality.cascade import Held, cascade_of
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.report.bottlenecks import Bottlenecks, bottlenecks_of, document, render
from perf_offcpu.report.style import Style


def found_in(profile: Profile) -> Bottlenecks:
    timeline = timeline_of(profile)
    return bottlenecks_of(profile, timeline, cascade_of(profile, timeline))


def simple() -> Profile:
    """Two clients and a server wait for one that computes after it has slept."""
    builder = ProfileBuilder()
    wait(builder, 3, 100, 400, waker=9, flags=SampleFlag.WAKER_INTERRUPT, path=["main", "nap"])
    wait(builder, 2, 100, 1600, waker=3)
    wait(builder, 1, 100, 1700, waker=2)
    wait(builder, 4, 300, 1800, waker=2)
    for at, function in ((500, "sort"), (600, "sort"), (900, "sum")):
        builder.sample("disk", ["main", function], 1, event="cpu-clock", tid=3, pid=3, time_ns=at)
    return builder.build()


def test_who_holds_up_most_and_in_which_functions() -> None:
    found = found_in(simple())
    first, second = found.shown[:2]
    assert first.members == ("disk",) and second.members == ("[interrupt]",)
    assert first.held[Held.RUNNING] == 3 * 1200 and second.held_ns == 4 * 300 - 200
    assert [(stack.frames[-1].label, stack.weight) for stack in first.stacks] == [("sort", 2400), ("sum", 1200)]
    assert [(stack.frames[-1].label, stack.weight) for stack in second.stacks] == [("nap", 1000)]
    assert first.behind == [("server", first.held_ns + second.held_ns - 300)]
    assert first.passed_on == [("[interrupt]", 1000)]
    lines = "\n".join(render(found, Style(unit="ns")))
    assert "# 1. disk: 3600 ns, " in lines and "waited for by server" in lines
    assert "[interrupt]" in lines and "66.67%  disk  2400 ns  running" in lines
    assert document(found)["bottlenecks"][0]["stacks"][0]["frames"] == ["main", "sort"]
    profile = simple()
    unsampled = found_in(profile.select(profile.is_offcpu()))
    assert unsampled.shown[0].no_stack == unsampled.shown[0].held_ns == 3600
    assert any("running without a CPU sample" in line for line in render(unsampled, Style()))


@given(random_waits(60), st.lists(st.tuples(st.integers(1, 5), st.integers(0, 90)), max_size=10))
def test_stacks_sum_to_what_is_held(waits: Waits, moments: list[tuple[int, int]]) -> None:
    builder = with_waits(waits)
    for tid, at in moments:
        builder.sample("x", ["main", f"f{at % 3}"], 1, event="cpu-clock", tid=tid, pid=tid, time_ns=at)
    found = found_in(builder.build())
    assert sum(one.held_ns for one in found.shown) + found.other_ns == found.total_ns
    for one in found.shown:
        stacks = sum(stack.weight for stack in one.stacks) + one.other_stacks
        rest = sum(one.held[how] for how in (Held.RUNNABLE, Held.NOT_RECORDED, Held.CUT))
        assert stacks + one.no_stack + rest == one.held_ns
