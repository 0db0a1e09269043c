# SPDX-License-Identifier: Apache-2.0
"""Samples as text: columns, times, stacks, this project's own fields; what `-F` chooses, and the header."""

import io
import itertools
import time
from typing import Any

import numpy as np
import pytest
from builders.large import large_profile
from builders.perf_text import parse
from builders.profile import Code, ProfileBuilder, functions_of, kernel

from perf_offcpu.abi.attr import Attr, PerfType, SampleType
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.errors import UsageError
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Budget, Evsel, Meta, SampleFlag
from perf_offcpu.script import frames as perf_frames
from perf_offcpu.script.fields import DEFAULT_FIELDS, LEFT_TO_PERF, OWN_FIELDS, PERF_FIELDS, choose_fields
from perf_offcpu.script.samples import TextOptions, header_lines, write

LIBC = "/usr/lib/libc.so.6"


def text(profile: Profile, fields: str = "", **options: bool) -> str:
    out = io.StringIO()
    write(profile, out, TextOptions(choose_fields([fields]), **options))
    return out.getvalue()


def with_ips(profile: Profile, ips: dict[str, int], offset: int = 0x1D) -> Profile:
    """The profile with addresses for its symbols, each `offset` bytes into its function."""
    names = [profile.strings[row] for row in profile.frames.symbol.tolist()]
    profile.frames.ip = np.array([ips.get(name, 0) for name in names], np.uint64)
    profile.frames.offset = np.full(len(names), offset, np.uint64)
    return profile


def test_a_wait_as_perf_prints_it() -> None:
    builder = ProfileBuilder().sample(
        "reader", [Code("main", "/root/app"), Code("read", LIBC), kernel("schedule"), kernel("__schedule")],
        10208510, tid=128, time_ns=13_959_392_149, cpu=1,
    )  # fmt: skip
    ips = {"main": 0x55A162D0C32C, "read": 0x7FCA03D37EFE, "__schedule": 2**64 - 2**31}
    assert text(with_ips(builder.build(), ips)) == (
        "reader     128 [001]    13.959392:   10208510 offcpu-time: \n"
        "\tffffffff80000000 __schedule+0x1d ([kernel.kallsyms])\n"
        "\t               0 schedule+0x1d ([kernel.kallsyms])\n"
        "\t    7fca03d37efe read+0x1d (/usr/lib/libc.so.6)\n"
        "\t    55a162d0c32c main+0x1d (/root/app)\n"
        "\n"
    )


def test_what_is_not_known_says_so_and_times_are_cut_off_as_perfs_or_whole() -> None:
    profile = ProfileBuilder().sample("a", [Code("", "/lib/x"), Code("", "")], 1, time_ns=0, cpu=0).build()
    assert text(profile, "sym,dso").splitlines()[1:3] == ["\t[unknown] ([unknown])", "\t[unknown] (/lib/x)"]
    profile = ProfileBuilder().sample("a", [], 5, time_ns=1_234_567_890_999).build()
    assert text(profile, "time") == " 1234.567890: \n"
    assert text(profile, "time", nanoseconds=True) == " 1234.567890999: \n"


def test_sums_have_no_time_and_come_last() -> None:
    builder = ProfileBuilder().sample("sum", [], 7, time_ns=-1, flags=SampleFlag.UNTIMED | SampleFlag.AGGREGATED)
    builder.sample("wait", [], 5, time_ns=2_000_000_000)
    lines = text(builder.build(), "comm,time,period").splitlines()
    assert [line.split() for line in lines] == [["wait", "2.000000:", "5"], ["sum", "-:", "7"]]
    assert len({line.index(":") for line in lines}) == 1


def test_own_fields_show_on_off_cpu_samples_only() -> None:
    builder = ProfileBuilder().sample(
        "waiter", [], 1000, flags=SampleFlag.TRUNCATED, state=2, syscall=35, count=3, longest_ns=600,
        switch_out_ns=1_500_000_000, wakeup_ns=1_999_999_000, waker_pid=7, waker_tid=8, runq_ns=90,
    )  # fmt: skip
    builder.sample("other", [], 1, event="cpu-clock").sample("unknown", [], 2)
    lines = text(builder.build(), "event,state,syscall,count,longest,switch_out,wakeup,waker,runq,flags").splitlines()
    assert lines == [
        "offcpu-time: state=D syscall=35 count=3 longest=600 switch_out=1.500000 wakeup=1.999999 waker=7/8 "
        "runq=90 flags=truncated ",
        "  cpu-clock: ",
        "offcpu-time: state=- syscall=- count=1 longest=- switch_out=- wakeup=- waker=- runq=- flags=- ",
    ]


def test_ids_in_the_pid_namespace_of_a_thread_are_those_of_its_life_at_that_time() -> None:
    builder = ProfileBuilder()
    for tid, time_ns in ((8, 50), (8, 150), (9, 50), (10, 50)):
        builder.sample("a", [], 1, tid=tid, time_ns=time_ns)
    lives = {"tid": [8, 8, 9], "begin_ns": [0, 100, 0], "own_pid": [1, 3, -1], "own_tid": [2, 4, -1]}
    profile = builder.build()
    profile.budget = Budget.filled(3, **{name: np.array(ids) for name, ids in lives.items()})
    assert sorted(text(profile, "tid,nspid").split()) == sorted("8 nspid=1/2 8 nspid=3/4 9 nspid=- 10 nspid=-".split())


def test_a_preempted_thread_was_runnable_and_a_page_fault_is_no_system_call() -> None:
    profile = ProfileBuilder().sample("a", [], 1, state=1, flags=SampleFlag.PREEMPTED, syscall=-1).build()
    assert text(profile, "state,syscall,flags") == "state=R syscall=none flags=preempted \n"


def test_system_calls_have_names_and_waits_a_class() -> None:
    builder = ProfileBuilder(meta={"arch": "aarch64"})
    builder.sample("a", [], 1, syscall=98).sample("a", [], 1, syscall=4000)
    builder.sample("a", [], 1, event="cpu-clock")
    assert text(builder.build(), "event,class,syscall").splitlines() == [
        "offcpu-time: class=lock syscall=futex ", "offcpu-time: class=other syscall=4000 ", "  cpu-clock: ",
    ]  # fmt: skip


def test_ids_cpus_and_cgroups() -> None:
    profile = ProfileBuilder().sample("a", [], 1, pid=4, tid=123456).sample("b", [], 1, pid=-1, tid=-1).build()
    assert text(profile, "tid").splitlines() == [" 123456 ", "     -1 "]
    assert text(profile, "pid").splitlines() == ["      4 ", "     -1 "]
    assert text(profile, "pid,tid").splitlines() == ["      4/123456  ", "     -1/-1      "]
    builder = ProfileBuilder().sample("a", [], 1, cpu=3).sample("b", [], 1, event="cpu-clock", cpu=-1)
    assert "[" not in text(builder.build(), "-ip,-sym,-dso,-symoff")
    assert text(builder.build(), "cpu") == "[003] \n[  -] \n"
    builder = ProfileBuilder(cgroups={9: "/system.slice/x\n"}).sample("a", [], 1, cgroup=9)
    assert text(builder.sample("b", [], 1, cgroup=10).build(), "cgroup") == "/system.slice/x\\n \n- \n"


def test_one_line_a_sample() -> None:
    profile = ProfileBuilder().sample("a", ["main", "leaf"], 1).sample("b", [], 1).build()
    assert text(with_ips(profile, {"leaf": 0x10}), "comm,sym,ip", call_graph=False) == (
        "               a                10 leaf\n               b  \n"
    )


def test_an_event_without_callchains_is_on_one_line_by_itself() -> None:
    profile = ProfileBuilder().sample("a", ["leaf"], 1, event="cpu-clock").build()
    profile.evsels[1] = Evsel("cpu-clock", Attr(sample_type=SampleType.IP), "ns")
    assert text(profile, "comm,sym") == "               a  leaf\n"
    profile.evsels[1] = Evsel("cpu-clock", Attr(sample_type=SampleType.CALLCHAIN), "ns")
    assert text(profile, "comm,sym") == "a \n\tleaf\n\n"


def test_tracepoints_have_no_period_unless_asked() -> None:
    profile = ProfileBuilder().sample("a", [], 1, event="cpu-clock").build()
    profile.evsels[1] = Evsel("sched:sched_switch", Attr(type=PerfType.TRACEPOINT))
    assert text(profile, "-tid,-cpu,-time").strip() == "a sched:sched_switch:"
    assert text(profile, "+period,-tid,-cpu,-time").split() == ["a", "1", "sched:sched_switch:"]


def test_inlined_functions_are_marked_as_perf_marks_them() -> None:
    profile = with_ips(ProfileBuilder().sample("a", [Code("f", "/x"), Code("g", "/x")], 1).build(), {"f": 1, "g": 1})
    profile.frames.inline_depth[0] = 1  # g, the leaf, was declared first
    frames = text(profile, "ip,sym,dso").splitlines()[1:3]
    assert frames == ["\t               1 g (inlined)", "\t               1 f (/x)"]


def test_names_cannot_break_lines_or_drive_a_terminal() -> None:
    shown = text(ProfileBuilder().sample(b"\x1b[2J\n\xff", [Code("f\u202e\n", "/tmp/\x07")], 1).build())
    assert "\\x1b[2J\\n\\xff" in shown
    assert "f\\u202e\\n" in shown and "/tmp/\\x07" in shown
    assert all(char.isprintable() or char in "\n\t" for char in shown)


def test_a_deferred_callchain_has_its_cookie_in_front() -> None:
    profile = ProfileBuilder().sample("a", ["main", "(cookie)"], 0).sample("a", [], 0).build()
    profile.samples.evsel[:] = -1
    profile.frames.cpumode[0] = CpuMode.UNKNOWN
    shown = text(with_ips(profile, {"(cookie)": 0x300000001}, offset=0), "comm,event,period,ip,sym")
    assert shown == ("a DEFERRED CALLCHAIN [cookie: 300000001]\n\t               0 main\n\na DEFERRED CALLCHAIN\n\n")


def test_blocks_and_forgotten_stacks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of stacks is bounded; the text does not show where a block or the memory ended."""
    profile = large_profile(3000, 400)
    whole = text(profile)
    monkeypatch.setattr(perf_frames, "_CACHED_TEXT", 5000)
    monkeypatch.setattr("perf_offcpu.script.samples._BLOCK", 7)
    assert text(profile) == whole
    assert len(parse(whole)) == 3000


def test_the_text_says_what_the_profile_says() -> None:
    profile = large_profile(500, 60)
    samples, strings = profile.samples, profile.strings
    for row, shown in zip(range(500), parse(text(profile)), strict=True):
        assert (shown.comm, shown.tid) == (strings[samples.comm[row]], samples.tid[row])
        assert (shown.period, shown.cpu) == (samples.period[row], samples.cpu[row])
        assert int(shown.time.replace(".", "")) == samples.time_ns[row] // 1000
        names = functions_of(profile, int(samples.stack[row]))
        assert [frame.sym.partition("+")[0] for frame in reversed(shown.frames)] == names


def test_nothing_gives_nothing() -> None:
    assert text(ProfileBuilder().build()) == ""


@pytest.mark.parametrize("fields", [*itertools.combinations(["comm", "time", "sym", "state"], 2)], ids=",".join)
def test_every_sample_has_its_line(fields: tuple[str, str]) -> None:
    lines = text(ProfileBuilder().sample("a", ["f"], 1).sample("b", ["f"], 1).build(), ",".join(fields)).splitlines()
    assert len([line for line in lines if line and not line.startswith("\t")]) == 2


def test_the_defaults_are_perfs() -> None:
    choice = choose_fields([])
    assert choice.shown == set(DEFAULT_FIELDS) <= set(PERF_FIELDS)
    assert not choice.asked
    assert not choice.has(*OWN_FIELDS)


@pytest.mark.parametrize(("texts", "shown", "asked"), [
    (["comm,tid", " time "], {"comm", "tid", "time"}, {"comm", "tid", "time"}),
    (["+state,-cpu", "+period"], {*DEFAULT_FIELDS, "state"} - {"cpu"}, {"state", "period"}),
    (["+cpu,-cpu,-sym,+sym"], {*DEFAULT_FIELDS} - {"cpu"}, {"sym"}),
])  # fmt: skip
def test_a_list_replaces_defaults_and_changes_keep_the_rest(texts: list[str], shown: set[str], asked: set[str]) -> None:
    choice = choose_fields(texts)
    assert choice.shown == shown and choice.asked == asked


LEFT = r"'%s' is printed by perf script; .*perf-offcpu inject"


@pytest.mark.parametrize(("texts", "sentence"), [
    *((texts, "--fields") for texts in (["comm,+tid"], ["-cpu", "tid"], ["+nonsense"], ["+"], ["comm,pid,-"])),
    (["lock_owner"], r"--fields.*no field 'lock_owner' \(known: comm, .*, waker"),
    (["+brstack"], LEFT % "brstack"), (["comm,data_src"], LEFT % "data_src"), (["trace:trace"], LEFT % "trace"),
    (["cpu-clock:comm"], r"no type of events 'cpu-clock' \(known: hw, sw, trace"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused(texts: list[str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        choose_fields(texts)


def test_fields_that_only_perf_prints() -> None:
    assert choose_fields(["-trace,-cpu"]) == choose_fields(["-cpu"]), "they may be left out"
    assert not LEFT_TO_PERF & {*PERF_FIELDS, *OWN_FIELDS}
    assert {"brstack", "data_src", "trace"} <= LEFT_TO_PERF


def test_fields_of_events_of_a_type() -> None:
    choice = choose_fields(["trace:comm,event", "+period", "sw:-cpu", "hw:"])
    assert choice.shown == {*DEFAULT_FIELDS, "period"}
    assert choice.of_type["trace"].shown == choice.of_type["trace"].asked == {"comm", "event"}
    assert choice.of_type["sw"].shown == {*DEFAULT_FIELDS, "period"} - {"cpu"}
    assert choice.of_type["hw"].shown == set()
    assert choice.anywhere() == {*DEFAULT_FIELDS, "period"}


SECOND = 10**9


def captured(**facts: Any) -> list[str]:
    profile = Profile(meta=Meta(wall_clock_ns=10**18, **facts))
    return [line.partition(" : ")[2] for line in header_lines(profile) if line.startswith("# captured on")]


def test_the_date_is_that_of_the_first_sample() -> None:
    date = time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(10**9 + 5))
    assert captured(wall_clock_at_ns=100 * SECOND, first_ns=105 * SECOND, last_ns=900 * SECOND) == [date]


@pytest.mark.parametrize(("last", "end", "known"), [(200, 0, False), (200, 950, True), (950, 0, True)])
def test_a_clock_that_began_after_all_samples_is_another_one(last: int, end: int, known: bool) -> None:
    """As perf's is in a time namespace whose clock is ahead; a recording may end without samples, though."""
    said = captured(wall_clock_at_ns=1000 * SECOND, first_ns=105 * SECOND, last_ns=last * SECOND, end_ns=end * SECOND)
    assert len(said) == 1 and said[0].startswith("unknown, ") != known
