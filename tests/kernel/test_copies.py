# SPDX-License-Identifier: Apache-2.0
"""Copies of user stacks by need, without frame pointers: each once and whole; sums by caller have whole ones, too."""

import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from builders.program import PATIENCE, run
from builders.stock_perf import perf
from kernel import whole_stacks
from kernel.whole_stacks import BASH, ENOUGH, ROOTS, STACKS, blocks_of_perf, compiled, record, user_stacks

from perf_offcpu import losses
from perf_offcpu.abi.attr import SampleType
from perf_offcpu.abi.offcpu import LARGEST_COPY
from perf_offcpu.decode.join import join_by_host
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.perfdata.reader import PerfDataReader

pytestmark = pytest.mark.beside

ALL_SHORT = ("--off-cpu-thresh", "10000")
EXACT = (*ALL_SHORT, "--short-waits", "stacks")
IN_TURN = ("--switch-output=1s",)
FUNCTIONS = ("from_one", "from_two")


@pytest.fixture(scope="module")
def callers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/workload/stacks/callers.c, optimized and without frame pointers."""
    return compiled("callers.c", tmp_path_factory.mktemp("callers"))


def recorded(output: Path, *command: str | Path, options: tuple[str, ...] = ()) -> str:
    """Record every wait of a command, and return what it printed."""
    how = ("-q", "-e", "none", "--off-cpu-thresh", "0", *options, "-o", str(output))
    done = run("record", *how, "--", *command, timeout_s=120)
    assert done.stderr == ""
    return done.stdout


@pytest.fixture(scope="module")
def summed(callers: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """A recording of the program, and the ns that each of its two functions measured."""
    path = tmp_path_factory.mktemp("summed") / "x.data"
    return path, dict(zip(FUNCTIONS, map(int, recorded(path, callers, options=EXACT).split()), strict=True))


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
    for stack, (count, total_ns) in whole_stacks.sums_by_stack(path).items():
        for name in FUNCTIONS:
            if name in stack and stack[-1] in ROOTS and "in_turn" in stack:
                waits[name] += count
                times[name] += total_ns
    return waits, times


def nearly_all(waits: Counter[str]) -> bool:
    """Return whether both have their 400 naps, but for those whose timer fires before the switch."""
    least = 390 if PATIENCE == 1 else 360
    return waits.keys() == set(FUNCTIONS) and all(least <= count <= 400 for count in waits.values())


@pytest.mark.alone
def test_sums_tell_two_callers_apart(callers: Path, summed: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    path, spent = summed
    waits, times = by_function(path)
    assert nearly_all(waits)
    for name, each_ns in zip(FUNCTIONS, (100_000, 300_000), strict=True):
        assert waits[name] * each_ns <= times[name] <= spent[name]
    recorded(tmp_path / "fp.data", callers, options=(*EXACT, "--call-graph", "fp"))
    assert by_function(tmp_path / "fp.data") == (Counter(), Counter())


def test_without_stack_bytes_sums_end_where_frame_pointers_do(callers: Path, tmp_path: Path) -> None:
    recorded(tmp_path / "x.data", callers, options=(*ALL_SHORT, "--no-stack-bytes"))
    assert by_function(tmp_path / "x.data") == (Counter(), Counter())
    recording = load_recording(tmp_path / "x.data", snapshots=True)
    assert len(recording.snapshots) == 0
    assert int(recording.samples.count.sum()) >= 780  # of 800 naps: the timer of some fires before the switch


@pytest.mark.parametrize("path", ["python_waits", "bash_waits"])
def test_sums_of_programs_as_debian_ships_them_reach_the_root(path: str, request: pytest.FixtureRequest) -> None:
    programs = whole_stacks.sum_wholeness(request.getfixturevalue(path))
    waits = sum(program.waits for program in programs.values())
    assert waits >= 15
    # A wait may have a stack that no copy holds: of a process that is just being made.
    assert sum(program.whole for program in programs.values()) >= ENOUGH * waits - 2, programs
    times = sum(program.ns for program in programs.values())
    assert sum(program.whole_ns for program in programs.values()) >= (ENOUGH - 0.02) * times, programs


def test_few_stacks_are_copied(python_waits: Path) -> None:
    recording = load_recording(python_waits, snapshots=True)
    waits = int(recording.samples.count[recording.samples.has(SampleFlag.AGGREGATED)].sum())
    assert waits > 100  # some 1000 where nothing else runs
    assert len(recording.snapshots) < min(150, 0.75 * waits)


@pytest.mark.alone
def test_inject_gives_sums_whole_stacks_and_no_stack_bytes(summed: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    source, injected = summed[0], tmp_path / "i.data"
    expected, total = by_function(source), int(load_recording(source).samples.period.sum())
    assert nearly_all(expected[0])
    for keep in ([], ["--keep-stack-bytes"]):
        run("inject", "-i", source, "-o", injected, *keep)
        assert by_function(injected) == expected
        recording = load_recording(injected, snapshots=True)
        assert int(recording.samples.period.sum()) == total
        lines = perf("script", "-i", injected, "-F", "event,period").splitlines()
        assert sum(int(line.split()[0]) for line in lines if "offcpu-time" in line) == total
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
    again = f"for i in $(seq 12); do {callers}; done"
    recorded(tmp_path / "x.data", "sh", "-c", again, options=(*ALL_SHORT, *IN_TURN))
    files = sorted(tmp_path.glob("x.data*"))
    assert len(files) >= 2
    for path in files[:-1]:
        assert set(by_function(path)[0]) == set(FUNCTIONS)
        # Missing are those between the last look into the rings and the moment from which copies are anew.
        assert load_recording(path, snapshots=True).losses.get(losses.CALLERS_NOT_COPIED, 0) <= 4


def singles_by_function(path: Path) -> Counter[str]:
    """Count the waits of callers.c with a whole stack, by the function that waited."""
    found: Counter[str] = Counter()
    for stack, count in user_stacks(path).items():
        if "in_turn" in stack and stack[-1] in ROOTS:
            found.update({name: count for name in FUNCTIONS if name in stack})
    return found


def test_waits_in_one_place_share_a_copy_and_each_has_its_own_caller(callers: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.data"
    recorded(path, callers)
    recording = load_recording(path, snapshots=True)
    assert len(recording.samples) >= 780
    assert len(recording.snapshots) < 100
    assert losses.CALLERS_NOT_COPIED not in recording.losses
    assert path.stat().st_size < 780 * 2048
    expected = singles_by_function(path)
    assert nearly_all(expected)
    for keep in ([], ["--keep-stack-bytes"]):
        injected = tmp_path / "i.data"
        run("inject", "-i", path, "-o", injected, *keep)
        assert singles_by_function(injected) == expected
        blocks = blocks_of_perf(injected, "in_turn")
        assert Counter(name for block in blocks for name in FUNCTIONS if name in block) == expected, keep


def test_pointers_that_change_make_no_new_copy(tmp_path: Path) -> None:
    path = tmp_path / "x.data"
    recorded(path, compiled("pointers.c", tmp_path))
    naps = {stack: count for stack, count in user_stacks(path).items() if "nap" in stack}
    assert 98 <= sum(naps.values()) <= 100
    assert {stack[-1] for stack in naps} <= ROOTS
    assert len(load_recording(path, snapshots=True).snapshots) < 20


def test_stacks_of_many_levels_are_told_apart_at_their_leaf(tmp_path: Path) -> None:
    path = tmp_path / "x.data"
    recorded(path, compiled("levels.c", tmp_path))
    stacks = user_stacks(path)
    for name in ("from_one", "from_other"):
        assert 19 <= sum(count for stack, count in stacks.items() if name in stack) <= 20


def test_deep_stacks_are_copied_to_their_end(tmp_path: Path) -> None:
    path = tmp_path / "x.data"
    recorded(path, compiled("deep.c", tmp_path))
    stacks = user_stacks(path)
    for name, frames in (("of_12_kb", 13), ("of_24_kb", 25)):
        whole = {stack: count for stack, count in stacks.items() if name in stack}
        assert 18 <= sum(whole.values()) <= 20  # 19 were seen where a kprobe ends waits (Linux 6.1)
        assert {stack.count("descend") for stack in whole} == {frames}
        assert {stack[-1] for stack in whole} <= ROOTS
    deeper = {stack: count for stack, count in stacks.items() if stack.count("descend") > 25}
    assert 18 <= sum(deeper.values()) <= 20
    assert {stack[-1] for stack in deeper} == {"descend"}
    assert {30 <= stack.count("descend") <= 32 for stack in deeper} == {True}  # of 32 KB


BUDGET = 100_000  # bytes a second, of which a program of 1024 stacks of 5 KB asks for fifteen times as much
SMALL_BUDGET = f"""
import sys
from perf_offcpu.collect.bpf import defines
defines.COPIES_A_SECOND = {BUDGET}
from perf_offcpu.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("options", [
    pytest.param(("--off-cpu-thresh", "0"), id="waits"), pytest.param(EXACT, id="exact", marks=pytest.mark.long),
    pytest.param(ALL_SHORT, id="drawn"),
])  # fmt: skip
def test_copies_above_their_bytes_of_a_second_are_short_or_none(tmp_path: Path, options: tuple[str, ...]) -> None:
    path = tmp_path / "x.data"
    how = ("record", "-q", "-e", "none", *options, "-o", str(path), "--", str(compiled("paths.c", tmp_path)))
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", SMALL_BUDGET, *how], check=True, timeout=120 * PATIENCE)
    seconds = time.monotonic() - begin
    recording = load_recording(path, snapshots=True)
    sizes = 8 * recording.snapshots.stack.lengths
    assert BUDGET <= sizes.sum() <= (seconds + 2) * (2 * BUDGET + LARGEST_COPY)
    assert 200 <= recording.losses[losses.COPIES_LIMITED] <= 1100
    if options[1] != "0":
        return  # sums have whole copies or none
    stacks = user_stacks(path)
    shallow = {stack: count for stack, count in stacks.items() if "nap" in stack and "left" not in stack}
    deep = {stack: count for stack, count in stacks.items() if "left" in stack}
    assert sum(shallow.values()) >= 1000 and {stack[-1] for stack in shallow} <= ROOTS
    assert 10 <= sum(deep[stack] for stack in deep if stack[-1] in ROOTS) <= 600
    cut = [stack for stack in deep if stack[-1] not in ROOTS]
    assert len(cut) >= 10 and {stack.count("left") + stack.count("right") for stack in cut} == {11}


@pytest.mark.alone
def test_each_file_of_a_recording_has_the_copies_that_its_samples_refer_to(callers: Path, tmp_path: Path) -> None:
    recorded(tmp_path / "x.data", "sh", "-c", f"for i in $(seq 12); do {callers}; done", options=IN_TURN)
    files = sorted(tmp_path.glob("x.data*"))
    assert len(files) >= 2
    for path in files:
        recording = load_recording(path, snapshots=True)
        assert losses.CALLERS_NOT_COPIED not in recording.losses
        assert len(recording.snapshots) < 200
    for path in files[:-1]:
        assert min(singles_by_function(path)[name] for name in FUNCTIONS) >= 100


def test_processes_share_copies_only_with_those_of_their_user(tmp_path: Path) -> None:
    """A stack of one user cannot stand for another's, even where all addresses are the same."""
    path = tmp_path / "x.data"
    with tempfile.TemporaryDirectory(prefix="copies.", dir="/tmp") as place:  # where all may enter
        Path(place).chmod(0o755)
        fixed = f"setarch -R {compiled('callers.c', Path(place))}"  # no random addresses
        recorded(path, "sh", "-c", f"{fixed}; {fixed}; setpriv --reuid 65534 --clear-groups {fixed}")
    first, second, other = copies_of_processes(path)
    assert len(first & second) > len(first) / 2
    assert other and not other & (first | second)


def copies_of_processes(path: Path) -> list[set[int]]:
    """Return the rows of copies to which the waits of callers.c refer, by process, in the order of pids."""
    recording = load_recording(path, snapshots=True)
    samples = recording.samples
    named = samples.comm == list(recording.strings).index("callers")
    return [set(samples.snapshot[named & (samples.pid == pid)].tolist()) for pid in np.unique(samples.pid[named])]


def test_each_recording_has_other_numbers_of_stacks(callers: Path, tmp_path: Path) -> None:
    found = []
    for path in (tmp_path / "x.data", tmp_path / "y.data"):
        recorded(path, "setarch", "-R", callers)
        found.append(set(re.findall(r"\bcaller\W+(0x[0-9a-f]+|[0-9]{9,})", run("dump", "-i", path).stdout)))
    assert min(map(len, found)) > 10 and not found[0] & found[1]


STORM = """
end=$(($(date +%s) + 2))
while [ $(date +%s) -lt $end ]; do for i in 1 2 3 4 5 6 7 8; do (sleep 0.003; :) & done; wait; done
"""


def test_processes_that_end_as_a_file_begins_have_names_and_maps(tmp_path: Path) -> None:
    recorded(tmp_path / "x.data", "sh", "-c", STORM, options=IN_TURN)
    files = sorted(tmp_path.glob("x.data*"))
    assert len(files) >= 2
    for path in files:
        recording = load_recording(path)
        samples = recording.samples
        assert {recording.strings[comm] for comm in np.unique(samples.comm)} <= {"sh", "sleep", "date"}
        assert bool((samples.space >= 0).all())
    (host,) = join_by_host([load_recording(path) for path in files])
    tasks = host.recording.tasks
    born = [one for one in zip(tasks.tid.tolist(), tasks.begin_ns.tolist(), strict=True) if one[1] > 0]
    assert len(born) == len(set(born)) >= 40  # those of both files once
