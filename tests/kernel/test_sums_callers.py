# SPDX-License-Identifier: Apache-2.0
"""Sums of short waits by caller, of programs without frame pointers: whole stacks, and right times."""

from collections import Counter
from pathlib import Path

import pytest
from builders.program import run
from builders.stock_perf import perf
from conftest import Command
from kernel.whole_stacks import ROOTS, STACKS, blocks_of_perf, compiled, record, sum_wholeness, sums_by_stack

from perf_offcpu import losses
from perf_offcpu.abi.attr import SampleType
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.perfdata.reader import PerfDataReader

pytestmark = pytest.mark.beside

ENOUGH = 0.99
ALL_SHORT = ("--off-cpu-thresh", "10000")
BASH = "for i in 1 2 3 4 5; do sleep 0.01 | cat; read -t 0.01 x; done; (sleep 0.02); wait"
FUNCTIONS = ("from_one", "from_two")


@pytest.fixture(scope="module")
def callers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/workload/stacks/callers.c, optimized and without frame pointers."""
    return compiled("callers.c", tmp_path_factory.mktemp("callers"))


def recorded(output: Path, *command: str | Path, options: tuple[str, ...] = ()) -> str:
    """Record a command, all of whose waits are short, and return what it printed."""
    how = ("-q", "-e", "none", *ALL_SHORT, *options, "-o", str(output))
    done = run("record", *how, "--", *command, timeout_s=120)
    assert done.stderr == ""
    return done.stdout


@pytest.fixture(scope="module")
def summed(callers: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """A recording of the program, and the ns that each of its two functions measured."""
    path = tmp_path_factory.mktemp("summed") / "x.data"
    return path, dict(zip(FUNCTIONS, map(int, recorded(path, callers).split()), strict=True))


@pytest.fixture(scope="module")
def python_waits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("python") / "x.data"
    record(path, "/usr/bin/python3", STACKS / "waits.py", options=ALL_SHORT)
    return path


@pytest.fixture(scope="module")
def bash_waits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bash") / "x.data"
    record(path, "bash", "-c", BASH, options=ALL_SHORT)
    return path


def by_function(path: Path) -> tuple[Counter[str], Counter[str]]:
    """(waits, ns) of the two functions, of sums that also reach their thread's root."""
    waits: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for stack, (count, total_ns) in sums_by_stack(path).items():
        for name in FUNCTIONS:
            if name in stack and stack[-1] in ROOTS and "in_turn" in stack:
                waits[name] += count
                times[name] += total_ns
    return waits, times


def nearly_all(waits: Counter[str]) -> bool:
    """Return whether both have their 400 naps, but for those whose timer fires before the switch."""
    return waits.keys() == set(FUNCTIONS) and all(390 <= count <= 400 for count in waits.values())


@pytest.mark.alone
def test_sums_tell_two_callers_apart_that_frame_pointers_do_not(
    callers: Path, summed: tuple[Path, dict[str, int]], tmp_path: Path
) -> None:
    path, spent = summed
    waits, times = by_function(path)
    assert nearly_all(waits)
    for name, each_ns in zip(FUNCTIONS, (100_000, 300_000), strict=True):
        assert waits[name] * each_ns <= times[name] <= spent[name]
    recorded(tmp_path / "fp.data", callers, options=("--call-graph", "fp"))
    assert by_function(tmp_path / "fp.data") == (Counter(), Counter())


def test_without_stack_bytes_sums_end_where_frame_pointers_do(callers: Path, tmp_path: Path) -> None:
    recorded(tmp_path / "x.data", callers, options=("--no-stack-bytes",))
    assert by_function(tmp_path / "x.data") == (Counter(), Counter())
    recording = load_recording(tmp_path / "x.data", snapshots=True)
    assert len(recording.snapshots) == 0
    assert int(recording.samples.count.sum()) >= 780  # of 800 naps: the timer of some fires before the switch


@pytest.mark.parametrize("path", ["python_waits", "bash_waits"])
def test_sums_of_programs_as_debian_ships_them_reach_the_root(path: str, request: pytest.FixtureRequest) -> None:
    found = sum_wholeness(request.getfixturevalue(path))
    waits = sum(one.waits for one in found.values())
    assert waits >= 15
    # A wait may have a stack that no copy holds: of a process that is just being made.
    assert sum(one.whole for one in found.values()) >= ENOUGH * waits - 2, found
    times = sum(one.ns for one in found.values())
    assert sum(one.whole_ns for one in found.values()) >= ENOUGH * times, found


def test_few_stacks_are_copied(python_waits: Path) -> None:
    recording = load_recording(python_waits, snapshots=True)
    is_sum = recording.samples.has(SampleFlag.AGGREGATED)
    waits = int(recording.samples.count[is_sum].sum())
    assert waits > 100  # some 1000 where nothing else runs
    assert len(recording.snapshots) < min(150, 0.75 * waits)


def perf_period(path: Path) -> int:
    """Return the sum that stock perf has of the off-cpu event."""
    text = perf("script", "-i", path, "-F", "event,period")
    return sum(int(line.split()[0]) for line in text.splitlines() if "offcpu-time" in line)


@pytest.mark.alone
def test_inject_gives_sums_whole_stacks_and_no_stack_bytes(
    summed: tuple[Path, dict[str, int]], perf_offcpu: Command, tmp_path: Path
) -> None:
    source, injected = summed[0], tmp_path / "i.data"
    expected, total = by_function(source), int(load_recording(source).samples.period.sum())
    assert nearly_all(expected[0])
    for keep in ([], ["--keep-stack-bytes"]):
        perf_offcpu("inject", "-i", source, "-o", injected, *keep)
        assert by_function(injected) == expected
        recording = load_recording(injected, snapshots=True)
        assert int(recording.samples.period.sum()) == total == perf_period(injected)
        assert not [cause for cause in recording.losses if "copied" in cause.text]
        with PerfDataReader.open(injected) as reader:
            kinds = [spec.attr.sample_type & SampleType.STACK_USER for spec in reader.events.specs]
        assert any(kinds) == bool(keep)
        blocks = blocks_of_perf(injected, "from_")
        assert len(blocks) >= 8
        # perf's name for functions of libc that its table of symbols does not list (glibc 2.41: clone3).
        assert {block[-1].split("@")[0] for block in blocks} <= {*ROOTS, "[unknown]", "_dl_start_user"}


@pytest.mark.alone
def test_each_file_of_a_recording_has_the_stacks_of_its_callers(callers: Path, tmp_path: Path) -> None:
    recorded(
        tmp_path / "x.data", "sh", "-c", f"for i in $(seq 12); do {callers}; done", options=("--switch-output=1s",)
    )
    files = sorted(tmp_path.glob("x.data*"))
    assert len(files) >= 2
    for path in files[:-1]:
        assert set(by_function(path)[0]) == set(FUNCTIONS)
        # Missing are those between the last look into the rings and the moment from which copies are anew.
        assert load_recording(path, snapshots=True).losses.get(losses.CALLERS_NOT_COPIED, 0) <= 4
