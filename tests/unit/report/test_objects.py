# SPDX-License-Identifier: Apache-2.0
"""What was waited for: the section of the report, the report on locks, and both as JSON."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
from builders.profile import ProfileBuilder
from builders.recording import BASE, S, comm, event, write
from builders.refused import output, refused
from builders.wait_objects import COUNTERS, WAITS, Call, described, thing, wait

from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.analysis.selection.select import Selection, select_samples
from perf_offcpu.cli import main
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.report import lock_report
from perf_offcpu.report.document import document
from perf_offcpu.report.style import Style
from perf_offcpu.report.summary import Limits, summarize
from perf_offcpu.report.terminal import first_screen, render

BLOCKED = SampleFlag.STILL_BLOCKED


def bank(*, owners: bool) -> Profile:
    """Threads 11 and 12 wait for a lock that 13 and 14 hold; 15 for a file; 16 for nothing known."""
    builder = ProfileBuilder(
        meta={"arch": "x86_64"}, tasks=[(tid, 10, 0, -1) for tid in range(11, 17)],
        comms=[(13, 10, 0, "holder"), (14, 10, 0, "other")],
    )  # fmt: skip
    lock, file = builder.thing("ledger in bank"), builder.thing("/var/\x1b[31m", ObjectKind.FILE)
    waits = [(11, 0, 100, 13, 13), (12, 50, 80, 13, 13), (11, 200, 210, 14, 13), (12, 205, 215, 14, 14)]
    for tid, begin, end, holder, waker in waits:
        builder.sample(
            "worker", ["main", "transfer", "pthread_mutex_lock"], (end - begin) * 1000, pid=10, tid=tid, object=lock,
            holder_tid=holder if owners else -1, switch_out_ns=begin * 1000, time_ns=end * 1000, waker_tid=waker,
            waker_pid=10, wakeup_ns=end * 1000, waker_path=["main", "commit", "unlock_it"], syscall=202, state=1,
        )  # fmt: skip
    builder.sample("log", ["main", "flush"], 5000, pid=10, tid=15, object=file, time_ns=300_000, waker_tid=0,
                   waker_pid=0, flags=SampleFlag.WAKER_INTERRUPT, state=2)  # fmt: skip
    return builder.sample("log", ["main"], 7000, pid=10, tid=16, time_ns=310_000).build()


def lines(profile: Profile, start: str) -> list[str]:
    text = list(render(summarize(profile), Style(unit="us")))
    at = next(row for row, line in enumerate(text) if start in line)
    end = next(row for row in range(at + 2, len(text)) if text[row] == "#")
    return [" ".join(line.split()) for line in text[at + 4 : end]]


@pytest.mark.parametrize(("owners", "by"), [
    (True, "held by holder 73%, other 3%, not known 23%"), (False, "released by holder 93%, other 7%"),
])  # fmt: skip
def test_the_section(owners: bool, by: str) -> None:
    for limit in (None, 0, 1, 2):
        table = summarize(bank(owners=owners), limits=Limits(stacks=limit)).objects
        assert sum(row.total.weight for row in table.rows) + table.more[1] + table.without == 162_000
    assert lines(bank(owners=owners), "What was waited for: ") == [
        f"92.59% 150.000 4 37.500 100.000 2 lock ledger in bank {by}",
        "3.09% 5.000 1 5.000 5.000 1 other /var/\\x1b[31m",
        "# without an object: 7.000 us (7000 ns)",
    ]


def test_without_objects_there_is_no_section() -> None:
    profile = ProfileBuilder().sample("a", ["main"], 5).build()
    assert "What was waited for: " not in "\n".join(render(summarize(profile), Style()))
    assert document(summarize(profile))["objects"] == {
        "rows": [], "more": {"rows": 0, "weight": 0}, "without": 5,
    }  # fmt: skip


def test_locks_with_owners() -> None:
    (lock,) = lock_report.report_of(bank(owners=True), None).table.rows
    assert (lock.row.name, lock.queue, lock.hand_overs, lock.changed, lock.row.threads) == (
        "ledger in bank", 2, 4, 1, 2,
    )  # fmt: skip
    assert lock.waiting_in == {"transfer": 150_000}
    hands = [(hand.comm, hand.tid, hand.weight, hand.times) for hand in lock.hands]
    assert hands == [("holder", 13, 110_000, 1), ("other", 14, 5_000, 1)]
    assert (lock.row.role, lock.weight_known, lock.weight_unknown) == ("held", 115_000, 35_000)
    made = json.loads(json.dumps(lock_report.document(lock_report.report_of(bank(owners=True), None))))
    assert made["locks"][0]["hands"][0]["comm"] == "holder"
    assert (made["weight"] + 12_000, made["refused_holders"]) == (made["total"], 0)


def test_locks_without_owners_have_releasers_and_their_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_report, "_HANDS", 1)
    report = lock_report.report_of(bank(owners=False), 10)
    (lock,) = report.table.rows
    assert (lock.changed, lock.row.role, lock.more_hands, lock.weight_known) == (
        None, "released", (1, 10_000), 150_000,
    )  # fmt: skip
    (hand,) = lock.hands
    assert (hand.comm, hand.weight, hand.function) == ("holder", 140_000, "unlock_it")
    assert [name.label for name in hand.frames] == ["main", "commit", "unlock_it"]
    text = "\n".join(lock_report.render(report, Style(unit="us")))
    assert "150.000 us of 162.000 us off the CPU were waits for 1 lock." in text
    assert "ledger in bank: who released it while others waited" in text
    assert "---main\n               commit\n               unlock_it" in text
    assert "---main" not in "\n".join(lock_report.render(report, Style(stacks=False)))


def test_what_idle_threads_wait_for_comes_last() -> None:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    pool, lock = builder.thing("pool_condition in bank"), builder.thing("ledger in bank")
    for tid, path, row, weight in ((1, "pthread_cond_wait", pool, 10**9), (2, "pthread_mutex_lock", lock, 10**6)):
        builder.sample("bank", ["main", path], weight, tid=tid, object=row, state=1, syscall=202)
    for limit in (None, 1):
        rows = lock_report.report_of(builder.build(), limit).table.rows
        assert [one.row.name for one in rows][:limit] == ["ledger in bank", "pool_condition in bank"][:limit]


def first_row(*waits: tuple[str, int, ObjectKind]) -> str:
    """The first cause of waits in one function, for objects of these names, by weight and kind."""
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    for name, weight, kind in waits:
        thing = builder.thing(name, kind)
        builder.sample("bank", ["main", "transfer"], weight * 10**6, object=thing, syscall=202, state=1)
    return re.sub(" +", " ", list(first_screen(summarize(builder.build())))[4])


def test_the_verdict_names_the_object_of_nearly_all_waits() -> None:
    lock, poll = ObjectKind.FUTEX, ObjectKind.DESCRIPTORS
    assert "lock: m\\x1b in bank transfer bank" in first_row(("m\x1b in bank", 5, lock))
    assert "lock: m transfer" in first_row(("m", 60, lock), ("m", 30, lock), ("n", 10, lock))
    assert "lock: mostly m transfer" in first_row(("m", 89, lock), ("n", 11, lock))
    assert "lock transfer" in first_row(("m", 50, lock), ("n", 50, lock))
    assert "lock transfer" in first_row(("3 descriptors", 5, poll)), "the class says as much"


def test_threads_that_are_still_blocked_say_for_what() -> None:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    lock = builder.thing("m in bank")
    builder.sample("bank", ["main"], 10**9, object=lock, syscall=202, state=1, flags=BLOCKED, tid=7)
    lines = list(first_screen(summarize(builder.build())))
    assert "Still blocked at the end: bank 7 in main (lock: m in bank) for 1.000 s." in lines


def test_a_deadlock_comes_before_the_verdict() -> None:
    builder = ProfileBuilder(tasks=[(11, 10, 0, -1), (12, 10, 0, -1)])
    a, b = builder.thing("a in bank"), builder.thing("b in bank")
    for tid, lock, holder in ((11, b, 12), (12, a, 11)):
        builder.sample("bank", ["main"], 10**9, pid=10, tid=tid, object=lock, holder_tid=holder, flags=BLOCKED)
    profile = builder.build()
    first = next(iter(render(summarize(profile), Style())))
    assert first.startswith("# Deadlock of 2 threads: bank 11 waits in main for b in bank, held by bank 12; bank 12")
    assert [one["lock"] for one in document(summarize(profile))["deadlocks"][0]] == ["b in bank", "a in bank"]
    assert "Deadlock of 2" in "\n".join(render(summarize(profile, verdict=False), Style()))
    assert "Deadlock of 2" in "\n".join(lock_report.render(lock_report.report_of(profile, None), Style()))


@pytest.mark.parametrize(("selection", "weights"), [
    (Selection(objects=("ledger",)), [100, 30, 10, 10]), (Selection(objects=("*in b?nk",)), [100, 30, 10, 10]),
    (Selection(objects=("/var/",)), [5]), (Selection(objects=("/var/", "ledger")), [100, 30, 10, 10, 5]),
    (Selection(objects=("Ledger",)), []), (Selection(locks=(0x40,)), [100, 30, 10, 10]), (Selection(locks=(0,)), []),
    (Selection(locks=(0x40,), objects=("/var",)), []), (Selection(locks=(1 << 80,)), []),
])  # fmt: skip
def test_selection(selection: Selection, weights: list[int]) -> None:
    profile = bank(owners=True)
    profile.objects.address[0] = 0x40
    assert (select_samples(profile, selection).samples.period // 1000).tolist() == weights


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = event("cpu-clock", (1,), BASE | S.CALLCHAIN)
    lock = thing(8, ObjectKind.FUTEX, address=0x55AA, place="heap")
    objects = described(thing(7, ObjectKind.FILE, name="/var/log/x"), lock)
    names = [comm(clock, 10, 10, "bank"), comm(clock, 10, 11, "worker")]
    waits = [wait(7, syscall=Call.READ, ns=50), wait(8, time=95, tid=11, ns=30)]
    path = str(write(tmp_path / "x.data", [clock, WAITS, COUNTERS], [*names, objects, *waits]))
    for option, row in (("--object=/var", ("/var/log/x", 50)), ("--lock=55aa", ("futex heap 0x55aa", 30))):
        objects = json.loads(output(capsys, "report", "-i", path, option, "--json"))["objects"]
        assert [(row["name"], row["weight"]) for row in objects["rows"]] == [row]
    assert "futex heap 0x55aa" in output(capsys, "report", "-i", path, "--locks")
    assert main(["report", "-i", path, "--object", "nothing"]) == 0
    assert "no object nothing in the recording, which has" in capsys.readouterr().err
    sentence = refused(capsys, "report", "-i", path, "--lock", "ledger")
    assert "--lock: 'ledger' is not an address in hexadecimal" in sentence


def sleeps(*waits: tuple[int, int], flags: SampleFlag | None = None, syscall: int = Call.NANOSLEEP) -> Profile:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    thing = builder.thing("sleep", ObjectKind.UNKNOWN)
    for asked, slept in waits:
        builder.sample("a", ["main"], slept, asked_ns=asked, syscall=syscall, state=1, object=thing, flags=flags)
    return builder.build()


def oversleep_of(profile: Profile) -> tuple[int, ...]:
    oversleep = summarize(profile).oversleep
    assert oversleep
    return dataclasses.astuple(oversleep)


def test_median_longest_and_interrupted() -> None:
    profile = sleeps((1000, 1010), (1000, 3_001_000), (1000, 1050), (1000, 400), (-1, 9))
    assert oversleep_of(profile) == (3, 50, 3_000_000, 1)
    assert document(summarize(profile))["oversleep"]["longest"] == 3_000_000
    text = "\n".join(render(summarize(profile), Style()))
    assert "# 3 sleeps took longer than asked: 0.000 ms in the median, 3.000 ms at most" in text
    assert "longer than asked" not in "\n".join(render(summarize(sleeps((1000, 900_000))), Style()))


def test_only_sleeps_with_a_time_count() -> None:
    poll = sleeps((5, 9), syscall=Call.POLL)  # a timeout
    sums = (sleeps((5, 9), flags=flag) for flag in (SampleFlag.AGGREGATED, SampleFlag.BEGAN_BEFORE))
    assert [summarize(profile).oversleep for profile in (sleeps((-1, 5)), poll, *sums)] == [None] * 4
    assert oversleep_of(sleeps((5, 9), flags=BLOCKED)) == (0, 0, 0, 1)
