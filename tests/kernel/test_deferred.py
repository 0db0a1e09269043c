# SPDX-License-Identifier: Apache-2.0
"""User callchains that are walked later (`--call-graph fp,defer`): ours, perf's, and what each makes of both. The
kernel must be able to (Linux 7.0), and for perf's part perf as well: `scripts/vmtest 7` brings both."""

import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from builders.perf_text import parse
from builders.profile import functions_of
from builders.program import run as perf_offcpu
from builders.stock_perf import perf, version

from perf_offcpu.collect.events.evsels import probe_support, with_deferral
from perf_offcpu.collect.system.cpus import online_cpus
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import Recording, SampleFlag
from perf_offcpu.symbolize.symbolizer import symbolize

USER_DEFERRED = 2**64 - 640  # PERF_CONTEXT_USER_DEFERRED, include/uapi/linux/perf_event.h
DEPTH = 100  # depth of the recursion in which napper naps


@pytest.fixture(scope="module", autouse=True)
def deferral() -> None:
    cpu = online_cpus()[0]
    if with_deferral(probe_support(cpu), cpu) is None:
        pytest.skip(f"Linux {os.uname().release} does not defer user callchains (7.0 does)")


@pytest.fixture(scope="module")
def ours(napper: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Naps and spinning threads under our recorder."""
    path = tmp_path_factory.mktemp("ours") / "perf.data"
    command = ["sh", "-c", f"echo | {napper} 20"]
    perf_offcpu("record", "--call-graph", "fp,defer", "-F", "999", "-o", path, "--", *command)
    return path


@pytest.fixture(scope="module", params=[[], ["-e", "sched:sched_switch"]], ids=["samples", "switches"])
def perfs(request: pytest.FixtureRequest, napper: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """napper recorded by perf, without and with samples of its context switches."""
    if version() < (7, 0):
        pytest.skip(f"perf {version()} cannot ask for deferred callchains (7.0 can)")
    path = tmp_path_factory.mktemp("perfs") / "perf.data"
    options = ["--call-graph", "fp,defer", "-e", "cpu-clock", "-F", "999", *request.param]
    command = ["perf", "record", *options, "-o", path, "--", "sh", "-c", f"echo | {napper} 20"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return path


def rows_of(recording: Recording, event: str) -> list[int]:
    names = [evsel.name for evsel in recording.evsels]
    found: list[int] = np.flatnonzero(recording.samples.evsel == names.index(event)).tolist()
    return found


def chain(recording: Recording, row: int) -> list[int]:
    words: list[int] = recording.callchains.row(recording.samples.callchain[row]).tolist()
    return words


@pytest.mark.parametrize("event", ["cpu-clock", "offcpu-time"])
def test_user_parts_come_in_records_of_their_own(ours: Path, event: str) -> None:
    raw, merged = load_recording(ours, merge=False), load_recording(ours)
    waiting = [row for row in rows_of(raw, event) if USER_DEFERRED in chain(raw, row)]
    assert len(waiting) > 20
    rows = rows_of(merged, event)
    left = [row for row in rows if merged.samples.flags[row] & SampleFlag.UNMERGED]
    assert len(left) <= len(waiting) / 10, "but those whose threads ended before they came back"
    assert not [row for row in rows if row not in left and USER_DEFERRED in chain(merged, row)]


def test_stacks_of_waits_are_whole(ours: Path) -> None:
    profile = symbolize(load_recording(ours))
    depths: Counter[int] = Counter()
    for row in np.flatnonzero(profile.samples.flags & SampleFlag.OFFCPU).tolist():
        names = functions_of(profile, int(profile.samples.stack[row]))
        if "nap_thread" in names:
            assert names.index("nap_thread") < names.index("dig") < names.index("doze")
            assert any("nanosleep" in name for name in names[names.index("doze") + 1 :])
            depths[names.count("dig")] += 1
    assert depths[DEPTH + 1] >= 18, depths


def test_stacks_on_the_cpu_are_whole(ours: Path) -> None:
    profile = symbolize(load_recording(ours))
    stacks = profile.samples.stack[~profile.samples.has(SampleFlag.OFFCPU)].tolist()
    assert sum("spin_thread" in functions_of(profile, stack) for stack in stacks) > 20


KERNEL = "_[k]"
FIELDS = "comm,tid,time,period,event,ip,sym,symoff,dso"

Folded = Counter[tuple[str, ...]]


def without_strangers(names: list[str]) -> tuple[str, ...]:
    """A stack, root first, without what has no name at its root: cut off by us, a cookie for perf."""
    named = ["[unknown]" if name.startswith(("[", "(")) else name for name in names]
    while named and named[0] == "[unknown]":
        del named[0]
    return tuple(named)


def folded_by_perf(path: Path, event: str) -> Folded:
    """perf script's samples as stacks. Names of threads are left out: perf forgets them at EXIT, and gives a
    sample before an exec the name behind it."""
    folded: Folded = Counter()
    for sample in parse(perf("script", "--no-inline", "-F", FIELDS, "-i", path, quiet=True)):
        if sample.event == event:
            names = [
                re.sub(r"\+0x[0-9a-f]+$", "", frame.sym) + (KERNEL if frame.ip >> 63 else "")
                for frame in reversed(sample.frames)
            ]
            folded[without_strangers(names)] += sample.period or 0
    return folded


def folded_by_us(path: Path, event: str) -> Folded:
    options = ("--no-inline", "--kernel", "--event", event, "-o", "-")
    done = perf_offcpu("convert", "--folded", "-i", path, *options)
    folded: Folded = Counter()
    for line in done.stdout.splitlines():
        stack, _, weight = line.rpartition(" ")
        folded[without_strangers(stack.split(";")[1:])] += int(weight)
    return folded


def assert_same(ours: Folded, theirs: Folded) -> None:
    """Equal, but for samples whose user part perf leaves where it is: several of one return to user mode."""
    left = theirs - ours
    assert [stack for stack in left if not all(name.endswith(KERNEL) for name in stack)] == []
    expected: Folded = Counter()
    for stack, weight in (ours - theirs).items():
        expected[tuple(name for name in stack if name.endswith(KERNEL))] += weight
    assert expected == left
    assert left.total() <= theirs.total() / 20
    assert any("spin_thread" in stack or stack.count("dig") > DEPTH for stack in theirs)


def test_perfs_recordings_give_the_same_folded_stacks(perfs: Path) -> None:
    assert_same(folded_by_us(perfs, "cpu-clock"), folded_by_perf(perfs, "cpu-clock"))


@pytest.mark.parametrize("event", ["cpu-clock", "offcpu-time"])
def test_our_recordings_give_the_same_folded_stacks(ours: Path, event: str) -> None:
    if version() < (7, 0):
        pytest.skip(f"perf {version()} does not merge deferred callchains (7.0 does)")
    assert_same(folded_by_us(ours, event), folded_by_perf(ours, event))


@pytest.mark.parametrize("event", ["cpu-clock", "offcpu-time"])
def test_any_perf_shows_them_after_inject(ours: Path, tmp_path: Path, event: str) -> None:
    injected = tmp_path / "injected.data"
    perf_offcpu("inject", "-i", ours, "-o", injected)
    assert_same(folded_by_us(ours, event), folded_by_perf(injected, event))
