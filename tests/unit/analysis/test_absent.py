# SPDX-License-Identifier: Apache-2.0
"""A selection that finds nothing is answered with what there is."""

import pytest
from builders.profile import ProfileBuilder, kernel

from perf_offcpu.analysis.absent import absent_values
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.select import Selection


@pytest.mark.parametrize(("selection", "sentences"), [
    (Selection(), []), (Selection(comms=("postgres", "x")), []),
    (Selection(comms=("x", "y\n")), [r"no comm x or y\n in the recording, which has postgres, bad\nname"]),
    (Selection(comms=("burner",)), [r"no comm burner in the recording, which has postgres, bad\nname"]),
    (Selection(pids=(1,), tids=(8,)), ["no pid 1 in the recording, which has 7"]), (Selection(cpus=(3,)), []),
    (Selection(states=("T",)), ["no state T in the recording, which has S, D"]),
    (Selection(pids=(7,), cpus=(3,), states=("S",)), ["no sample matches --pid, --cpu and --state at once"]),
    (Selection(classes=(WaitClass.POLL,)), ["no class poll in the recording, which has lock, disk"]),
])  # fmt: skip
def test_absent_values(selection: Selection, sentences: list[str]) -> None:
    builder = ProfileBuilder()
    for _ in range(2):
        builder.sample("postgres", ["main", kernel("futex_wait")], 5, tid=7, pid=7, state=1)
    builder.sample("bad\nname", ["main", kernel("ext4_sync_file")], 500, tid=8, pid=7, state=2, cpu=3)
    builder.sample("burner", ["main"], 5, event="cpu-clock", tid=9)
    assert list(absent_values(builder.build(), selection)) == sentences


@pytest.mark.parametrize(("selection", "sentences"), [
    (Selection(objects=("m in",)), []),
    (Selection(objects=("m\n", "q*")), [r"no object m\n or q* in the recording, which has m in a, n in a"]),
    (Selection(locks=(0x40,)), []),
    (Selection(locks=(0x41, 2**64)), ["no lock 0x41 or 0x10000000000000000 in the recording, which has 0x40"]),
])  # fmt: skip
def test_absent_objects(selection: Selection, sentences: list[str]) -> None:
    builder = ProfileBuilder()
    one, other = builder.thing("m in a", address=0x40), builder.thing("n in a")
    for thing in (one, one, other):
        builder.sample("a", [], 1, object=thing)
    assert list(absent_values(builder.build(), selection)) == sentences
    without = list(absent_values(ProfileBuilder().sample("a", [], 1).build(), selection))
    assert without == ["no wait in the recording has an object"]


def test_the_most_frequent_are_named() -> None:
    builder = ProfileBuilder()
    assert not list(absent_values(builder.build(), Selection(comms=("x",))))
    for tid in range(20):
        for _ in range(tid):
            builder.sample("a", [], 1, tid=tid)
    (sentence,) = absent_values(builder.build(), Selection(tids=(99,)))
    assert sentence.endswith("which has 19, 18, 17, 16, 15, 14, 13, 12 and 11 more")
