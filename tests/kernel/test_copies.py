# SPDX-License-Identifier: Apache-2.0
"""Copies of user stacks by need: each stack once, and as far as it reaches."""

import re
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from builders.program import run
from conftest import Command
from kernel.whole_stacks import ROOTS, blocks_of_perf, compiled, user_stacks

from perf_offcpu import losses
from perf_offcpu.decode.join import join_by_host
from perf_offcpu.decode.load import load_recording

pytestmark = pytest.mark.beside

FUNCTIONS = ("from_one", "from_two")


def record(output: Path, *command: str | Path, options: tuple[str, ...] = ()) -> None:
    """Record every wait of a command."""
    how = ("-q", "-e", "none", "--off-cpu-thresh", "0", *options, "-o", str(output))
    done = run("record", *how, "--", *command, timeout_s=120)
    assert done.stderr == ""


def by_function(path: Path) -> Counter[str]:
    """Count the waits of callers.c with a whole stack, by the function that waited."""
    found: Counter[str] = Counter()
    for stack, count in user_stacks(path).items():
        if "in_turn" in stack and stack[-1] in ROOTS:
            found.update({name: count for name in FUNCTIONS if name in stack})
    return found


def test_waits_in_one_place_share_a_copy_and_each_has_its_own_caller(perf_offcpu: Command, tmp_path: Path) -> None:
    path = tmp_path / "x.data"
    record(path, compiled("callers.c", tmp_path))
    recording = load_recording(path, snapshots=True)
    assert len(recording.samples) >= 780
    assert len(recording.snapshots) < 100
    assert losses.CALLERS_NOT_COPIED not in recording.losses
    assert path.stat().st_size < 780 * 2048
    expected = by_function(path)  # a nap is no wait if its timer fires before the switch
    assert expected.keys() == set(FUNCTIONS) and all(390 <= count <= 400 for count in expected.values())
    for keep in ([], ["--keep-stack-bytes"]):
        injected = tmp_path / "i.data"
        perf_offcpu("inject", "-i", path, "-o", injected, *keep)
        assert by_function(injected) == expected
        assert by_perf(injected) == expected


def by_perf(path: Path) -> Counter[str]:
    """Count them as stock perf shows them."""
    blocks = blocks_of_perf(path, "in_turn")
    return Counter(name for block in blocks for name in FUNCTIONS if name in block)


def test_deep_stacks_are_copied_to_their_end(tmp_path: Path) -> None:
    path = tmp_path / "x.data"
    record(path, compiled("deep.c", tmp_path))
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


@pytest.mark.alone
def test_each_file_of_a_recording_has_the_copies_that_its_samples_refer_to(tmp_path: Path) -> None:
    callers = compiled("callers.c", tmp_path)
    again = f"for i in $(seq 12); do {callers}; done"
    record(tmp_path / "x.data", "sh", "-c", again, options=("--switch-output=1s",))
    files = sorted(tmp_path.glob("x.data*"))
    assert len(files) >= 2
    for path in files:
        recording = load_recording(path, snapshots=True)
        assert losses.CALLERS_NOT_COPIED not in recording.losses
        assert len(recording.snapshots) < 200
    for path in files[:-1]:
        assert min(by_function(path)[name] for name in FUNCTIONS) >= 100


def test_processes_share_copies_only_with_those_of_their_user(tmp_path: Path) -> None:
    """A stack of one user cannot stand for another's, even where all addresses are the same."""
    path = tmp_path / "x.data"
    with tempfile.TemporaryDirectory(prefix="copies.", dir="/tmp") as place:  # where all may enter
        Path(place).chmod(0o755)
        fixed = f"setarch -R {compiled('callers.c', Path(place))}"  # no random addresses
        record(path, "sh", "-c", f"{fixed}; {fixed}; setpriv --reuid 65534 --clear-groups {fixed}")
    first, second, other = copies_of_processes(path)
    assert len(first & second) > len(first) / 2
    assert other and not other & (first | second)


def copies_of_processes(path: Path) -> list[set[int]]:
    """Return the rows of copies to which the waits of callers.c refer, by process, in the order of pids."""
    recording = load_recording(path, snapshots=True)
    samples = recording.samples
    named = samples.comm == list(recording.strings).index("callers")
    return [set(samples.snapshot[named & (samples.pid == pid)].tolist()) for pid in np.unique(samples.pid[named])]


def test_each_recording_has_other_numbers_of_stacks(tmp_path: Path) -> None:
    fixed = ("setarch", "-R", compiled("callers.c", tmp_path))
    found = []
    for path in (tmp_path / "x.data", tmp_path / "y.data"):
        record(path, *fixed)
        found.append(set(re.findall(r"\bcaller\W+(0x[0-9a-f]+|[0-9]{9,})", run("dump", "-i", path).stdout)))
    assert min(map(len, found)) > 10 and not found[0] & found[1]


STORM = """
end=$(($(date +%s) + 4))
while [ $(date +%s) -lt $end ]; do for i in 1 2 3 4 5 6 7 8; do (sleep 0.003; :) & done; wait; done
"""


def test_processes_that_end_as_a_file_begins_have_names_and_maps(tmp_path: Path) -> None:
    record(tmp_path / "x.data", "sh", "-c", STORM, options=("--switch-output=1s",))
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
    assert len(born) == len(set(born)) >= 80  # those of both files once
