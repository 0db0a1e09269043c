# SPDX-License-Identifier: Apache-2.0
"""Names of what threads wait for, holders in the report, and deadlocks, in programs that know better."""

import itertools
import os
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from builders.compiled import build
from builders.program import run as perf_offcpu
from kernel.recorder import hanging, report, run
from kernel.test_wait_objects import HUNG, LOCKS, Recorded, record

from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.symbolize.load import load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions

pytestmark = pytest.mark.beside


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("names")


@pytest.fixture(scope="module")
def recorded(directory: Path) -> Recorded:
    return record(directory, "--lock-owners")


@pytest.fixture(scope="module")
def profile(recorded: Recorded, directory: Path) -> Profile:
    profile = load_profile([str(directory / "perf.data")], SymbolizeOptions())
    assert (profile.samples.time_ns == recorded.recording.samples.time_ns).all()
    return profile


NAMES = {
    "ledger": r"ledger_lock in objects", "journal": r"journal_lock in objects",
    "heap": r"lock heap 0x[0-9a-f]+ \(via wait_heap\)", "pi": r"pi_lock in objects",
    "rwlock": r"table_lock in objects", "cond": r"ready(_lock)? in objects", "sem": r"slots in objects",
    "tcp": r"tcp 127\.0\.0\.1:\d+ \(server \d+\)", "unix": r"unix (objects\.\d+\.sock|.*) \(server \d+\)",
    "pipe": r"pipe from server \(\d+\)", "fsync": r"/.*/block",
}  # fmt: skip
CLASSES = {"tcp": "network", "unix": "pipe", "pipe": "pipe", "fsync": "disk"}


@pytest.mark.parametrize("kind", NAMES)
def test_each_wait_has_the_name_of_what_the_program_waited_for(kind: str, recorded: Recorded, profile: Profile) -> None:
    samples, names = profile.samples, profile.objects.name.tolist()
    classes = classify(profile).wait_class
    syscall = {"tcp": "read", "unix": "read", "pipe": "read", "fsync": "fsync"}.get(kind, "futex")
    found: Counter[str] = Counter()
    for one in recorded.rounds:
        for row in recorded.waits(one, syscall).tolist() if one.kind == kind else ():
            found[profile.strings[names[samples.object[row]]]] += 1
            assert WaitClass(classes[row]).label == CLASSES.get(kind, "lock")
    assert found, "nothing waited"
    assert all(re.fullmatch(NAMES[kind], name) for name in found), found
    assert len(found) <= (2 if kind == "cond" else 1), "one object has one name"


def test_holders_in_the_report_are_those_of_the_log(recorded: Recorded, directory: Path) -> None:
    locks = {lock["name"]: lock for lock in report("--locks", cwd=directory)["locks"]}
    samples = recorded.recording.samples
    for kind in set(LOCKS) - {"heap"}:
        (lock,) = (lock for name, lock in locks.items() if re.fullmatch(NAMES[kind], name))
        weights: Counter[int] = Counter()
        for one in recorded.rounds:
            if one.kind == kind:
                rows = recorded.waits(one, "futex")  # nobody holds the lock after the wake-up
                weights[one.holder] += int((samples.period - samples.runq_ns.clip(0))[rows].sum())
        assert lock["role"] == "held"
        shares = {hand["tid"]: hand["weight"] for hand in lock["hands"]}
        for tid, weight in weights.items():
            assert shares[tid] == pytest.approx(weight, rel=0.05), kind
        assert lock["queue"] == 1, "one of the two waits for the other"


@pytest.fixture(scope="module")
def abba(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(HUNG / "abba.c", tmp_path_factory.mktemp("abba") / "abba", "-O2", "-g")


def first_sentence(directory: Path) -> str:
    done = perf_offcpu("report", cwd=directory)
    return done.stdout.replace("\n#   ", " ").splitlines()[0]


DEADLOCK = (
    r"# Deadlock of 2 threads: abba (\d+) waits in (?:take|one|two) for (first|second) in abba, "
    r"held by abba (\d+); abba (\d+) waits in (?:take|one|two) for (first|second) in abba, "
    r"held by abba (\d+)\."
)


def check(sentence: str) -> set[int]:
    match = re.fullmatch(DEADLOCK, sentence)
    assert match, sentence
    one, lock, holder, other, other_lock, other_holder = match.groups()
    assert (holder, other_holder) == (other, one)
    assert {lock, other_lock} == {"first", "second"}
    return {int(one), int(other)}


def test_a_deadlock_is_said_first(abba: Path, tmp_path: Path) -> None:
    with hanging(abba, threads=3) as pid:
        samples = run("-p", str(pid), "--duration", "1", cwd=tmp_path).recording.samples
        threads = {int(tid) for tid in os.listdir(f"/proc/{pid}/task")} - {pid}
    assert check(first_sentence(tmp_path)) == threads
    blocked = samples.has(SampleFlag.STILL_BLOCKED)
    holders = dict(zip(samples.tid[blocked].tolist(), samples.holder_tid[blocked].tolist(), strict=True))
    assert {(tid, holders[tid]) for tid in threads} == set(itertools.permutations(threads))


def test_so_is_one_that_ended_with_its_process(abba: Path, tmp_path: Path) -> None:
    done = run("--lock-owners", "--", "timeout", "-s", "KILL", "1", abba, cwd=tmp_path, status=None)
    assert "wrote" in done.stderr or done.returncode in (0, 137), done.stderr
    check(first_sentence(tmp_path))


PAUSES = """
import os, time
there, to = os.pipe()
if os.fork() == 0:
    os.close(there)
    for at in range(400):
        time.sleep(0.004 if at % 20 == 0 else 0.0002)
        os.write(to, b"x")
    os._exit(0)
os.close(to)
while os.read(there, 1):
    pass
"""


def test_sums_of_short_reads_have_the_class_of_long_ones(tmp_path: Path) -> None:
    profile = run("--off-cpu-thresh", "2", "--", sys.executable, "-c", PAUSES, cwd=tmp_path).profile
    samples, classes = profile.samples, classify(profile).wait_class
    sums = samples.has(SampleFlag.AGGREGATED) & (samples.syscall == 0) & (samples.state == 1)
    assert int(samples.count[sums].sum()) > 100, "most reads are short"
    pipe = sums & (classes == WaitClass.PIPE)
    assert int(samples.period[pipe].sum()) >= 0.95 * int(samples.period[sums].sum())
