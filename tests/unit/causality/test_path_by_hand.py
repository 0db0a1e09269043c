# SPDX-License-Identifier: Apache-2.0
"""A critical path of a recording of perf's sched events, found by hand by Perfetto's definition."""

import lzma
from pathlib import Path

from perf_offcpu.analysis.select import Selection
from perf_offcpu.analysis.timeline import timeline_of
from perf_offcpu.causality.critical_path import Doing, choose_thread, critical_path
from perf_offcpu.symbolize.load import load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions

DATA = Path(__file__).parents[2] / "data" / "perf-7.2"
KWORKER = 125

# A journal commit: kworker/0:1H waits for jbd2, jbd2 for syncer (the program that calls fsync), and syncer
# for kworker/u8:4, which a disk's interrupt wakes. The events of these threads, as perf script prints them:
EVENTS = """
145.079635: prev_comm=syncer prev_pid=256 prev_state=D
145.086194: wakeup by swapper (interrupt): comm=kworker/u8:4 pid=139
145.086954: next_comm=kworker/u8:4
145.087208: wakeup by kworker/u8:4: comm=syncer pid=256
145.087458: next_comm=syncer
145.087588: wakeup by syncer: comm=jbd2/vda-8 pid=109
145.090210: next_comm=jbd2/vda-8
145.091413: prev_comm=jbd2/vda-8 prev_state=D
145.091826: wakeup by burner (interrupt): comm=jbd2/vda-8 pid=109
145.092720: next_comm=jbd2/vda-8
145.093247: wakeup by jbd2/vda-8: comm=kworker/0:1H pid=125
145.093696: next_comm=kworker/0:1H
145.096318: prev_comm=kworker/0:1H prev_state=I
"""

# Perfetto (stdlib sched/thread_executing_span.sql): an executing span begins where another *thread* wakes its
# thread; wake-ups from interrupts do not cut it. The path of kworker/0:1H from .079000 to .096318:
#
#   1. Its executing span began at .093247. From there on it is on the path itself: runnable until .093696,
#      then it ran. The idle time before (it slept from .059068 on) is explained by the span of jbd2.
#   2. The span of jbd2 began at .087588, woken by syncer. Within it jbd2 was runnable until .090210, ran
#      until .091413, waited (D) until an interrupt on top of burner woke it at .091826, which cuts no
#      span, was runnable until .092720, and ran until the wake-up of step 1. The idle time before that span
#      (it slept from .058927 on) is explained by the span of syncer.
#   3. The span of syncer began at .087208, woken by kworker/u8:4: runnable until .087458, then it ran until
#      the wake-up of step 2. Its idle time before began at .079635: explained by kworker/u8:4.
#   4. Only interrupts woke kworker/u8:4, so its span covers all of that: it waited until .086194, was
#      runnable until .086954, and ran until the wake-up of step 3.
#   5. Before .079635 syncer ran, in the span before that of step 3, which is still on the path of jbd2.
BY_HAND = [
    ("syncer", "RUNNING", "145.079000", "145.079635"),
    ("kworker/u8:4-ev", "WAITING", "145.079635", "145.086194"),
    ("kworker/u8:4-ev", "RUNNABLE", "145.086194", "145.086954"),
    ("kworker/u8:4-ev", "RUNNING", "145.086954", "145.087208"),
    ("syncer", "RUNNABLE", "145.087208", "145.087458"),
    ("syncer", "RUNNING", "145.087458", "145.087588"),
    ("jbd2/vda-8", "RUNNABLE", "145.087588", "145.090210"),
    ("jbd2/vda-8", "RUNNING", "145.090210", "145.091413"),
    ("jbd2/vda-8", "WAITING", "145.091413", "145.091826"),
    ("jbd2/vda-8", "RUNNABLE", "145.091826", "145.092720"),
    ("jbd2/vda-8", "RUNNING", "145.092720", "145.093247"),
    ("kworker/0:1H-kb", "RUNNABLE", "145.093247", "145.093696"),
    ("kworker/0:1H-kb", "RUNNING", "145.093696", "145.096318"),
]


def test_the_path_is_the_one_found_by_hand() -> None:
    profile = load_profile([str(DATA / "sched.data")], SymbolizeOptions())
    timeline = timeline_of(profile)
    thread = choose_thread(timeline, Selection(tids=(KWORKER,)))
    path = critical_path(profile, timeline, thread, 145_079_000_000, 145_096_318_000)
    columns = (path.track.tolist(), path.doing.tolist(), path.begin_ns.tolist(), path.end_ns.tolist())
    found = [
        (path.tracks[track].comm, Doing(doing).name, in_perf(begin), in_perf(end))
        for track, doing, begin, end in zip(*columns, strict=True)
    ]
    assert found == BY_HAND


def in_perf(ns: int) -> str:
    """The time as perf script prints it: microseconds, rounded down."""
    return f"{ns // 10**9}.{ns % 10**9 // 1000:06}"


def test_the_events_of_the_comment_are_those_that_perf_prints() -> None:
    printed = lzma.decompress((DATA / "sched.script.txt.xz").read_bytes()).decode().splitlines()
    for line in EVENTS.split("\n")[1:-1]:
        time, _, words = line.partition(": ")
        facts = [word for word in words.split() if "=" in word]
        assert any(time in one and all(fact in one for fact in facts) for one in printed), line
