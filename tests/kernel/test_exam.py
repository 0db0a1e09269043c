# SPDX-License-Identifier: Apache-2.0
"""Many small designs (workload/exam.cpp, exam.py): what each thread waits for, and whether for work.

They are judged twice: with all names, and linked statically and stripped, where facts alone tell.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from builders.compiled import WORKLOAD, build
from conftest import Command

from perf_offcpu.analysis.classes.classify import Waits, classify
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.model.profile import Profile
from perf_offcpu.symbolize.load import load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions

pytestmark = pytest.mark.beside

# thread        class  for work  object
EXAM = r"""
stopped         stopped  no
traced          stopped  no
mutex           lock     no    ::lock in exam
recursive       lock     no    ::lock in exam
robust          lock     no    ::lock in exam
inherit         lock     no    ::lock in exam
mutex-timed     lock     no    ::lock in exam
mutex-clock     lock     no    ::lock in exam
timed-mutex     lock     no    ::lock in exam
rwlock/read     lock     no    ::lock in exam
rwlock/write    lock     no    ::lock in exam
shared-mutex    lock     no    ::lock in exam
shared-timed    lock     no    ::lock in exam
sem-lock        lock     no    ::lock in exam
sem-procs       lock     no    shared memory
cond-lock       lock     no    ready in exam
counting        lock     no    ::lock in exam
sysv-lock       lock     no    System V semaphores
flock           lock     no    /tmp/exam-
fcntl-lock      lock     no    /tmp/exam-
barrier/early   lock     no    ::barrier in exam
join            child    no    thread
join/two        child    no    thread
join-timed      child    no    thread
waitpid         child    no    child
waitid          child    no    [pidfd]
vfork           child    no
pidfd/poll      child    no    [pidfd]
pidfd/epoll     child    no    [pidfd]
timerfd/read    sleep    no    [timerfd]
timerfd/poll    sleep    no    [timerfd]
timerfd/epoll   poll     yes   [timerfd]
eventfd/read    poll     yes   [eventfd]
eventfd/poll    poll     yes   [eventfd]
eventfd/epoll   poll     yes   [eventfd]
signalfd/read   poll     yes   [signalfd]
signalfd/poll   poll     yes   [signalfd]
signalfd/epoll  poll     yes   [signalfd]
inotify/read    poll     yes   inotify
inotify/poll    poll     yes   inotify
inotify/epoll   poll     yes   inotify
perf/poll       poll     yes   [perf_event]
perf/epoll      poll     yes   [perf_event]
fanotify        poll     yes   [fanotify]
userfaultfd     poll     yes   [userfaultfd]
io_uring        poll     yes   [io_uring]
pipe/read       pipe     no    pipe
pipe/poll       pipe     no    pipe
pipe/epoll      pipe     yes   pipe
unix/read       pipe     no    unix
unix/poll       pipe     no    unix
unix/epoll      pipe     yes   unix
tty/read        other    yes   /dev/pts/
tty/poll        poll     yes   /dev/pts/
tty/epoll       poll     yes   /dev/pts/
pause           other    yes
cond-queue      lock     yes   ready in exam
sem-queue       lock     yes   ::items in exam
count-queue     lock     yes   ::items in exam
"""
PYTHON = """
py-lock         lock     no
py-rlock        lock     no
py-semaphore    lock     no
py-condition    lock     no
py-mp-lock      lock     no    shared
py-event        lock     no
py-join         lock     no
py-queue        lock     no
py-simple-queue lock     yes
py-pool         lock     yes
py-sleep        sleep    no    sleep
py-select       poll     yes
py-asyncio      poll     yes   [eventpoll]
py-subprocess   child    no    child
"""
"""A queue has a lock for each wait, as a semaphore of threading: which of both it is, nothing there tells."""


FUTEX = "a futex of several threads that only others wake"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("exam")
    code = build("exam.cpp", directory / "exam.o", *"-std=c++20 -O0 -g -c".split())
    return {
        "named": build(code, directory / "exam"),
        "nameless": build(code, directory / "nameless", "-static", "-s"),
    }


@pytest.mark.parametrize("form", ["named", "nameless"])
def test_what_each_thread_waits_for(perf_offcpu: Command, programs: dict[str, Path], tmp_path: Path, form: str) -> None:
    command: list[str | Path] = [programs[form]]
    if form == "named":
        command = ["sh", "-c", '"$0" & /usr/bin/python3 "$1"; wait', programs[form], WORKLOAD / "exam.py"]
    perf_offcpu("record", "-q", "-e", "none", "--", *command, cwd=tmp_path)
    profile = load_profile([str(tmp_path / "perf.data")], SymbolizeOptions(inline=False))
    waits, wrong = classify(profile), []
    table = EXAM + PYTHON * (form == "named")
    rows = {row.split()[0]: row.split(None, 3) for row in table.split("\n") if row}
    for comm, label, work, *things in rows.values():
        found = judged(profile, waits, comm, asleep=label == "sleep")
        if found[:2] != (label, work) or (form == "named" and "".join(things) not in found[2]):
            wrong.append((comm, found))
    assert not wrong
    done = perf_offcpu("report", "--idle", "only", "--json", cwd=tmp_path)
    reasons = {one["comm"]: one["idle_because"] for one in json.loads(done.stdout)["threads"]}
    assert reasons["eventfd/poll"] == "the next event of a descriptor"
    only_others = {"named": "a condition that only other threads signal", "nameless": FUTEX}
    assert all(reasons.values()) and reasons["cond-queue"] == only_others[form]


def judged(profile: Profile, waits: Waits, comm: str, *, asleep: bool) -> tuple[str, str, str]:
    """Return class, purpose and object of most of a thread's waits of some length, naps left out."""
    samples = profile.samples
    mine = (samples.comm == profile.strings.find(comm)) & (samples.period > 5_000_000)
    mine &= asleep | (waits.wait_class != WaitClass.SLEEP)
    weights: dict[tuple[str, str, str], int] = {}
    for row in np.flatnonzero(mine).tolist():
        thing = profile.strings[np.append(profile.objects.name, 0)[samples.object[row]]]
        key = WaitClass(waits.wait_class[row]).label, "yes" if waits.for_work[row] else "no", thing
        weights[key] = weights.get(key, 0) + int(samples.period[row])
    return max(weights, key=lambda key: weights[key], default=("", "", ""))
