# SPDX-License-Identifier: Apache-2.0
"""Many small designs (workload/exam.cpp, exam.py, and scripts here): what each thread waits for, and how it is said.
They are judged twice: with all names, and linked statically and stripped, where facts alone tell. Waiting for a CPU is
left out where a design does not mean it: it is the machine's load."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from builders.compiled import WORKLOAD, build
from builders.program import PATIENCE
from builders.program import run as perf_offcpu

from perf_offcpu.analysis.classes.classify import Waits, classify
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.selection.select import Selection, select_samples
from perf_offcpu.model.profile import Profile
from perf_offcpu.report.summary import summarize
from perf_offcpu.symbolize.load import load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions

pytestmark = pytest.mark.beside

EXAM, NAMED = (f"{part}\n" for part in Path(__file__).with_name("exam.txt").read_text().split("\n\n"))
"""`NAMED`: in Python and shell, whose designs need names. A queue of Python has a lock for each wait, as a semaphore of
threading: only the Python function tells which of both it is."""

SCRIPTS = {
    "sh-fifo": "mkfifo fifo; sh -c 'sleep 0.2; echo >fifo' & read x <fifo",
    "sh-wait": "sleep $NAP & wait",
    "sh-stopped": 'sh -c "sleep 0.3; kill -CONT $$" & kill -STOP $$',
    "sh-chroot": 'mkdir -p inside; cp "$NAMELESS" inside/exam; exec chroot inside /exam chrooted',
    "sh-quota": """
        g=/sys/fs/cgroup/cpu; [ -e $g/cpu.cfs_quota_us ] || g=/sys/fs/cgroup
        echo +cpu >$g/cgroup.subtree_control; mkdir $g/exam-$$; cd $g/exam-$$
        echo 5000 >cpu.cfs_quota_us || echo 5000 100000 >cpu.max
        echo $$ >cgroup.procs; i=0; while [ $i -lt 50000 ]; do i=$((i + 1)); done
        echo $$ >../cgroup.procs; cd ..; rmdir exam-$$""",
    "sh-reclaim": """
        g=/sys/fs/cgroup/memory; [ -e $g/memory.limit_in_bytes ] || g=/sys/fs/cgroup
        echo +memory >$g/cgroup.subtree_control; mkdir $g/exam-$$; group=$g/exam-$$
        echo 6000000 >$group/memory.limit_in_bytes || echo 6000000 >$group/memory.max
        sh -c "echo \\$\\$ >$group/cgroup.procs; exec dd if=/dev/zero of=big bs=1M count=60 $SYNC"
        rm big; rmdir $group""",
}
# A disk in the memory of a slow machine's host has written as fast as dd does: dd waits for the last blocks there.
SLOW = f"NAP={0.2 * min(PATIENCE, 10)} SYNC={'conv=fsync' * (PATIENCE > 1)}"
FUTEX = "a futex of several threads that only others wake"
REASONS = {
    "CPython: the next item of a queue": "py-queue",
    "CPython: the next item of a SimpleQueue: thread pools of concurrent.futures": "py-pool py-simple-queue",
    "a condition that nobody signalled": "unused/cond",
    "a condition that only other threads signal": "c11-queue cond-queue cond-queue-proc cond-queue-time",
    "a condition that other threads signal, too": "cond-pool",
    FUTEX: "count-queue sysv-queue",
    "a semaphore that nobody posted": "unused/sem",
    "a semaphore that only other threads post": "sem-queue sem-queue-procs sem-queue-timed",
    "a signal, a terminal's input, or a job of the kernel": "pause sigwait tty/read unused/poll",
    "the next connection": "accept py-accept",
    "the next event of a descriptor": """
        eventfd/epoll eventfd/poll eventfd/read fanotify inotify/epoll inotify/poll inotify/read io_uring
        listen/epoll listen/poll perf/epoll perf/poll pipe/epoll py-async-lock
        py-asyncio signalfd/epoll signalfd/poll signalfd/read timerfd/epoll tty/epoll
        tty/poll udp/epoll udp/poll unix/epoll userfaultfd
    """,
}
"""Why threads of designs are idle."""


class Judged(NamedTuple):
    """What a report says of the threads with a name."""

    wait_class: str
    place: str  # first, or apart: below the line, or idle
    because: str  # who held or ended it, the first of them
    object: str
    reason: str  # why it is idle


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("exam")
    flags = [*"-std=c++20 -O0 -g -c".split(), f"-DSLOWER={int(min(PATIENCE, 10))}"]
    code = build("exam.cpp", directory / "exam.o", *flags)
    return {"named": build(code, directory / "exam"), "nameless": build(code, directory / "nameless", "-static", "-s")}


def rows_of(table: str) -> dict[str, list[str]]:
    return {row.split()[0]: [*row.split(None, 4)[1:], ""][:4] for row in table.split("\n") if row and row[0] != "#"}


TRIES, MOST_BY_CHANCE = 5, 12
"""Recordings of designs that were judged wrongly, and how many of them may be, in any of these."""


def test_there_are_at_least_80_designs() -> None:
    assert len(rows_of(EXAM) | rows_of(NAMED)) >= 80


@pytest.mark.parametrize("form", ["named", "nameless"])
def test_what_each_thread_waits_for(programs: dict[str, Path], tmp_path: Path, form: str) -> None:
    command: list[str | Path] = [programs[form]]
    if form == "named":
        scripts = [tmp_path / name for name in SCRIPTS]
        for script in scripts:
            script.write_text(f"#!/bin/sh\nNAMELESS={programs['nameless']} {SLOW}\n{SCRIPTS[script.name]}\n")
            script.chmod(0o755)
        all_of_them = (  # sh-wait is not to wait for the disk, that sleep(1) is on
            'sleep 0; exam=$1 python=$2; shift 2; for script; do "$script" & done; "$exam" & '
            '/usr/bin/python3 "$python"; wait'
        )
        command = ["sh", "-c", all_of_them, "sh", programs[form], WORKLOAD / "exam.py", *scripts]
    reason_of = {comm: reason for reason, comms in REASONS.items() for comm in comms.split()}
    rows, wrong = rows_of(EXAM + NAMED * (form == "named")), list[tuple[str, Judged]]()
    for _ in range(TRIES):  # who ends a wait depends on who gets a CPU when
        words = ["record", "-q", "-e", "none", "--lock-owners", "--", *command]
        perf_offcpu(*words, cwd=tmp_path, timeout_s=180)
        profile = load_profile([str(tmp_path / "perf.data")], SymbolizeOptions(inline=False))
        waits, wrong = classify(profile), []
        for comm, (label, place, because, thing) in rows.items():
            judged = judge(profile, waits, comm, label)
            fits = judged[:2] == (label, place) and because in ("-", judged.because)
            fits &= bool(judged.reason) == (comm in reason_of)
            if form == "named":
                fits &= thing in judged.object and judged.reason == reason_of.get(comm, "")
            if not fits:
                wrong.append((comm, judged))
        assert len(wrong) <= MOST_BY_CHANCE, "\n".join(map(str, wrong))
        rows = {comm: rows[comm] for comm, _ in wrong}
        if not rows:
            break
    assert not wrong, "wrong each time:\n" + "\n".join(map(str, wrong))
    done = perf_offcpu("report", "--idle", "only", "--json", cwd=tmp_path)
    reasons = {one["comm"]: one["idle_because"] for one in json.loads(done.stdout)["threads"]}
    assert all(reasons.values()) and reasons["cond-queue"] == (reason_of["cond-queue"] if form == "named" else FUTEX)


def judge(profile: Profile, waits: Waits, comm: str, label: str) -> Judged:
    """Judge most of the time of the waits of some length, naps left out where they are not meant."""
    verdict = summarize(select_samples(profile, Selection(comms=(comm,)))).verdict
    if label in ("runqueue", "fault"):  # many short waits, or none
        first = next((c for c in verdict.causes if label in ("runqueue", c.wait_class)), None) if verdict else None
        thing = first.places[0].object if first and first.places else ""
        return Judged(first.wait_class if first else "", "first", "", thing, "")
    samples = profile.samples
    chosen = (samples.comm == profile.strings.find(comm)) & (samples.period > 5_000_000)
    chosen &= (label == "sleep") | (waits.wait_class != WaitClass.SLEEP)
    weights: dict[tuple[str, str, str], int] = {}
    for row in np.flatnonzero(chosen).tolist():
        thing = profile.strings[np.append(profile.objects.name, 0)[samples.object[row]]]
        key = WaitClass(waits.wait_class[row]).label, waits.purposes[waits.purpose[row]], thing
        weights[key] = weights.get(key, 0) + int(samples.period[row])
    wait_class, reason, thing = max(weights, key=lambda key: weights[key], default=("", "", ""))
    left_out = ("runqueue", "sleep") if label != "sleep" else ("runqueue",)
    causes = [one for one in verdict.causes if one.wait_class not in left_out] if verdict else []
    place, because = "", ""
    if causes and causes[0].wait_class == wait_class and not reason:
        place, because = "first", next(iter(causes[0].peers.comms), "")
    elif verdict and (verdict.idle_threads or wait_class in {one.wait_class for one in verdict.elsewhere}):
        place = "apart"
    return Judged(wait_class, place, because, thing, reason)


NAPS_BESIDE = f"""
sleep {3 * PATIENCE} &
file=$(mktemp -p /var/tmp)
timeout {1.5 * PATIENCE} dd if=/dev/zero of=$file bs=4k count=9999 oflag=sync 2>/dev/null
rm $file
kill $!
"""
"""No threads of Python: what they wait for its interpreter lock depends on the load. A thread naps only if it runs for
less than a hundredth of its time, its start included: on a slow machine it sleeps for longer."""


@pytest.mark.parametrize(("script", "first", "apart"), [
    ("x=$(sleep 0.2)", "sleep", "pipe"), ("x=$(sh -c 'sleep 0.2 &')", "sleep", "pipe"), (NAPS_BESIDE, "disk", "sleep"),
], ids=["child", "grandchild", "naps"])  # fmt: skip
def test_what_takes_others_time_stands_apart(tmp_path: Path, script: str, first: str, apart: str) -> None:
    perf_offcpu("record", "-q", "-e", "none", "--", "sh", "-c", script, cwd=tmp_path)
    verdict = summarize(load_profile([str(tmp_path / "perf.data")], SymbolizeOptions(inline=False))).verdict
    assert verdict
    causes = [cause.wait_class for cause in verdict.causes if cause.wait_class != "runqueue"]
    assert causes[0] == first and apart not in causes
    assert apart in {cause.wait_class for cause in verdict.elsewhere}
