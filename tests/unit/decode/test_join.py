# SPDX-License-Identifier: Apache-2.0
"""Recordings joined by host: processes, clocks, budgets, pauses, who is still blocked, and refusals."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.accounts import budget, budgets, told
from builders.hosts import CLOCK, DAY_NS, MONO, OFFCPU, comms_of, existing, host, kernel_map, mapped, tick, wait
from builders.recording import BASE, KERNEL, USER, USER_DEFERRED, S, comm, event, side, task, write
from builders.wait_objects import COUNTERS
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.abi.attr import Attr, AttrFlag
from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.records import RecordType
from perf_offcpu.decode.continued import at_pauses
from perf_offcpu.decode.deferred import merge_deferred
from perf_offcpu.decode.join import Host, JoinOptions, join_by_host
from perf_offcpu.decode.load import load_recording
from perf_offcpu.errors import UsageError
from perf_offcpu.model.recording import Evsel, Meta, Recording, SampleFlag, Samples, Spans
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.features import feature_body, text_body
from perf_offcpu.report.thread_budgets import budget_table
from perf_offcpu.symbolize.load import join_profiles
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize

TEXT = 0xFFFFFFFF81000000


def hosts(paths: Sequence[Path], **options: bool) -> list[Host]:
    found = join_by_host([load_recording(path, merge=False) for path in paths], JoinOptions(**options))
    for one in found:
        one.recording.check()
    assert len(found) > 1 or found[0].recording.losses == {}
    return found


def one(paths: Sequence[Path], **options: bool) -> Recording:
    (host,) = hosts(paths, **options)
    return host.recording


def of_one_host(path: Path, *files: list[bytes]) -> list[Path]:
    return [write(path / str(row), [CLOCK], records, host("h")) for row, records in enumerate(files)]


def ticking(path: Path, *hosts_: dict[int, bytes]) -> list[Path]:
    """A file with one sample for each host: a, b, …"""
    names = "abc"[: len(hosts_)]
    return [write(path / name, [CLOCK], [tick(1000)], one) for name, one in zip(names, hosts_, strict=True)]


def lives(recording: Recording, tid: int) -> list[tuple[int, int]]:
    rows = recording.tasks.tid == tid
    return list(zip(recording.tasks.begin_ns[rows].tolist(), recording.tasks.end_ns[rows].tolist(), strict=True))


# One host.


def test_runs_on_one_host_become_one(tmp_path: Path) -> None:
    """A pid that was used again in between is another process, with other maps."""
    first = [kernel_map(), *existing(7, "old"), mapped(7, 0x1000, b"/bin/old"), tick(1000), tick(2000)]
    second = [kernel_map(), *existing(7, "new"), mapped(7, 0x1000, b"/bin/new"), tick(5000), tick(6000)]
    paths = [
        write(tmp_path / "a", [CLOCK], first, host("h", 10 * DAY_NS)),
        write(tmp_path / "b", [CLOCK], second, host("h", 10 * DAY_NS + 3)),  # set a little in between
    ]
    for order in (paths, paths[::-1]):
        recording = one(order)
        samples = recording.samples
        assert (samples.time_ns.tolist(), samples.tid.tolist()) == ([1000, 2000, 5000, 6000], [7] * 4)
        assert comms_of(recording) == ["old", "old", "new", "new"]
        dso_of = {space: recording.maps.dso[row] for row, space in enumerate(recording.maps.space.tolist())}
        paths_of = [recording.strings[recording.dsos.path[dso_of[space]]] for space in samples.space.tolist()]
        assert paths_of == ["/bin/old", "/bin/old", "/bin/new", "/bin/new"]
        assert [evsel.name for evsel in recording.evsels] == ["cpu-clock"]
        assert recording.maps.space.tolist().count(-1) == 1  # the kernel, once
        assert len(set(samples.callchain.tolist())) == 1 == len(recording.callchains)
    meta = one(paths).meta
    assert (meta.hostname, meta.nr_cpus, meta.clockid) == ("h", 4, 1)
    assert (meta.wall_clock_ns, meta.wall_clock_at_ns) == (10 * DAY_NS + 500, 500)
    assert (meta.first_ns, meta.last_ns) == (1000, 6000)
    assert meta.source == ", ".join(map(str, paths))


def test_a_process_in_two_recordings_is_one(tmp_path: Path) -> None:
    """Recordings at the same time: one with samples of the CPU, one of waits."""
    second = [*existing(7, "server"), wait(1500), task(CLOCK, RecordType.EXIT, 7, 7, 3000)]
    paths = [
        write(tmp_path / "a", [CLOCK], [*existing(7, "server"), tick(1000), tick(2000)], host("h")),
        write(tmp_path / "b", [CLOCK, OFFCPU], second, host("h")),
    ]
    recording = one(paths)
    assert comms_of(recording) == ["server"] * 3
    names = [recording.evsels[row].name for row in recording.samples.evsel.tolist()]
    assert names == ["cpu-clock", "offcpu-time", "cpu-clock"]
    assert lives(recording, 7) == [(0, 3000)]
    names = [recording.strings[row] for row in recording.comms.comm[recording.comms.tid == 7].tolist()]
    assert names == ["server"]


def test_lives_of_threads(tmp_path: Path) -> None:
    """What a later recording finds is the thread that was there, unless that is known to have ended."""
    fork, leave = RecordType.FORK, RecordType.EXIT
    first = [*existing(7, "stays"), *existing(8, "ends"), tick(1000)]
    first += [task(CLOCK, leave, 8, 8, 1500), task(CLOCK, fork, 9, 9, 1600), tick(2000)]
    second = [*existing(7, "stays"), *existing(8, "again"), *existing(9, "born"), tick(5000, 8)]
    second += [task(CLOCK, leave, 9, 9, 5500), task(CLOCK, fork, 9, 9, 5600), tick(6000)]
    recording = one(of_one_host(tmp_path, first, second))
    assert lives(recording, 7) == [(0, -1)]
    assert lives(recording, 8) == [(0, 1500), (4999, -1)]
    assert lives(recording, 9) == [(1600, 5500), (5600, -1)]
    assert comms_of(recording)[2] == "again"


ID_ONLY = event("cpu-clock", (1, 2), BASE & ~S.IDENTIFIER | S.ID | S.CALLCHAIN, **MONO)
NO_IDS = event("cpu-clock", (), BASE & ~S.IDENTIFIER | S.CALLCHAIN, **MONO)
NO_TRAILERS = event("cpu-clock", (1,), BASE | S.CALLCHAIN, flags=AttrFlag.USE_CLOCKID, clockid=1)
NO_CPU = event("cpu-clock", (1,), (BASE | S.CALLCHAIN) & ~S.CPU, **MONO)


@pytest.mark.parametrize("other", [ID_ONLY, NO_IDS, NO_TRAILERS, NO_CPU], ids=["ID", "no ids", "no trailers", "no CPU"])
@pytest.mark.parametrize("first", [True, False], ids=["as first", "as second"])
def test_recordings_of_other_layouts(other: EventSpec, first: bool, tmp_path: Path) -> None:
    there = [comm(other, 8, 8, "there"), comm(other, 9, 9, "later", time=1500)]
    there += [tick(1000, 8, other), tick(2000, 9, other), task(other, RecordType.EXIT, 8, 8, 3000)]
    paths = [
        write(tmp_path / "a", [CLOCK], [*existing(7, "here"), tick(1100), tick(2100)], host("h")),
        write(tmp_path / "b", [other], there, host("h")),
    ]
    recording = one(paths[::-1] if first else paths)
    assert comms_of(recording) == ["there", "here", "later", "here"]
    assert len(recording.evsels) == (2 if other is NO_CPU else 1)
    assert [end for _, end in lives(recording, 8)] == [3000]


def test_samples_of_recordings_at_the_same_time_are_in_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    times = [rng.integers(1000, 9000, 100).tolist() for _ in range(3)]
    recording = one(of_one_host(tmp_path, *([tick(time, 7 + row) for time in some] for row, some in enumerate(times))))
    assert recording.samples.time_ns.tolist() == sorted(sum(times, []))
    for row, some in enumerate(times):
        assert recording.samples.time_ns[recording.samples.tid == 7 + row].tolist() == sorted(some)


def test_kernel_symbols_and_modules_of_all_recordings_are_known(tmp_path: Path) -> None:
    def ksymbol(addr: int, name: bytes) -> bytes:
        return side(CLOCK, RecordType.KSYMBOL, addr=addr, len=64, ksym_type=1, flags=0, name=name)

    low, high = 0xFFFFFFFFC0001000, 0xFFFFFFFFD0000000
    both = [kernel_map(), kernel_map(high, name=b"[nf_nat]"), ksymbol(low + 64, b"both")]
    first = [*both, ksymbol(low, b"old"), tick(10)]
    second = [*both, kernel_map(high + (1 << 25), name=b"[xt]"), tick(20), ksymbol(low, b"new")]
    recording = one(of_one_host(tmp_path, first, second))
    assert [recording.strings[row] for row in recording.kernel_symbols.name.tolist()] == ["new", "both"]
    kernel = recording.maps.dso[recording.maps.space == -1]
    shown = [recording.strings[row] for row in recording.dsos.path[kernel].tolist()]
    assert shown == ["[kernel.kallsyms]_text", "[nf_nat]", "[xt]"]


def test_a_deferred_callchain_of_the_next_file_completes_its_sample(tmp_path: Path) -> None:
    """perf record --switch-output cuts where it likes."""
    waiting = tick(1000, callchain=[KERNEL, TEXT, USER_DEFERRED, 5])
    late = side(CLOCK, RecordType.CALLCHAIN_DEFERRED, time=1100, pid=7, tid=7, cookie=5, ips=[0x10, 0x20])
    recording = merge_deferred(one(of_one_host(tmp_path, [*existing(7, "x"), waiting], [*existing(7, "x"), late])))
    assert recording.callchains.row(int(recording.samples.callchain[0])).tolist() == [KERNEL, TEXT, USER, 0x10, 0x20]
    assert recording.losses == {}


# Hosts and boots.


def test_hosts_are_told_apart(tmp_path: Path) -> None:
    """By name, kernel, place of the kernel, and the clocks."""
    built = 0

    def recorded(features: dict[int, bytes], *records: bytes) -> Path:
        nonlocal built
        built += 1
        return write(tmp_path / str(built), [CLOCK], [*records, tick(1000)], features)

    plain = recorded(host("h"), kernel_map())
    assert len(hosts([plain, recorded(host("h"), kernel_map())])) == 1
    assert len(hosts([plain, recorded(host("other", DAY_NS), kernel_map())], from_start=True)) == 2
    for other in (
        recorded(host("other"), kernel_map()),
        recorded(host("h", release="6.2"), kernel_map()),
        recorded(host("h"), kernel_map(TEXT + 0x1000000)),
    ):
        assert "its times cannot be put next to" in refusal([plain, other])
        assert len(hosts([plain, other], from_start=True)) == 2
    timed = recorded(host("h", 5 * DAY_NS))
    assert len(hosts([timed, recorded(host("h", 5 * DAY_NS + 10**9))])) == 1
    assert len(hosts([timed, recorded(host("h", 6 * DAY_NS))])) == 2
    assert len(hosts([timed, recorded(host("h", 5 * DAY_NS))], apart=True)) == 2


def test_a_recording_without_names_is_of_any_host_with_the_same_kernel(tmp_path: Path) -> None:
    """As killed recorders leave them: without features."""
    bare: dict[int, bytes] = {Feature.HOSTNAME: text_body(""), Feature.OSRELEASE: text_body("")}
    contents = ([kernel_map(), tick(1000)], host("h", DAY_NS)), ([kernel_map(), tick(2000)], bare), ([tick(2000)], bare)
    paths = [write(tmp_path / name, [CLOCK], *content) for name, content in zip("abc", contents, strict=True)]
    assert one(paths[:2]).samples.time_ns.tolist() == [1000, 2000]
    assert "c: its times cannot" in refusal([paths[0], paths[2]])


def test_hosts_meet_on_the_wall_clock(tmp_path: Path) -> None:
    """The second was booted a day later: at the same moment its clock is a day behind."""
    far = [*existing(7, "x"), tick(3000), wait(2000)]
    far += [task(CLOCK, RecordType.FORK, 8, 8, 2500), comm(CLOCK, 8, 8, "new", time=2600)]
    paths = [
        write(tmp_path / "a", [CLOCK], [tick(DAY_NS + 1000)], host("web1", 100 * DAY_NS)),
        write(tmp_path / "b", [CLOCK, OFFCPU], far, host("web2", 101 * DAY_NS)),
    ]
    first, second = hosts(paths)
    assert (first.name, second.name) == ("web1", "web2")
    base = 101 * DAY_NS
    assert first.recording.samples.time_ns.tolist() == [base + 1000]
    recording = second.recording
    assert recording.samples.time_ns.tolist() == [base + 2000, base + 3000]
    assert lives(recording, 8) == [(base + 2500, -1)]
    assert lives(recording, 7) == [(0, -1)]  # the first of its host: since before
    assert recording.comms.begin_ns[recording.comms.tid == 8].tolist() == [base + 2600]
    meta = recording.meta
    assert (meta.clockid, meta.first_ns, meta.last_ns) == (0, base + 2000, base + 3000)
    assert meta.wall_clock_ns == meta.wall_clock_at_ns == 101 * DAY_NS + 500


def test_recordings_can_begin_together(tmp_path: Path) -> None:
    """No clock is needed, and the runs of one program side by side are two programs."""
    plain = event("cpu-clock", (1,), BASE | S.CALLCHAIN)
    paths = {}
    for begin in (1000, 5000):
        ticks = [tick(time, spec=plain) for time in (begin, begin + 10)]
        paths[begin] = write(tmp_path / str(begin), [plain], [comm(plain, 7, 7, "run"), *ticks], host("h"))
    for begin in (1000, 5000):
        joined = hosts([paths[begin], paths[6000 - begin]], from_start=True)
        assert [part.recording.samples.time_ns.tolist() for part in joined] == [[begin, begin + 10]] * 2
    timed = write(tmp_path / "timed", [CLOCK], [tick(1000)], host("h", DAY_NS))
    metas = [part.recording.meta for part in hosts([paths[1000], timed], from_start=True)]
    assert [(meta.clockid, meta.wall_clock_at_ns) for meta in metas] == [(-1, 0), (-1, 500)], "the first's clock"


def clock_data(wall_ns: int, at_ns: int) -> bytes:
    return feature_body(Feature.CLOCK_DATA, version=1, clockid=1, wall_clock=wall_ns, clockid_time=at_ns)


def test_times_at_the_limit_do_not_overflow(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "a", [CLOCK], [tick(1000)], host("a", DAY_NS)),
        write(tmp_path / "b", [CLOCK], [tick(1000), tick(2**63 - 2)], host("b", 2 * DAY_NS)),
    ]
    assert hosts(paths)[1].recording.samples.time_ns.tolist() == [2 * DAY_NS + 1000, 2**63 - 1]
    wild = host("b") | {Feature.CLOCK_DATA: clock_data(2**64 - 1, 1)}
    assert "its times cannot" in refusal([paths[0], write(tmp_path / "c", [CLOCK], [tick(1000)], wild)])


# Budgets.


def budget_file(path: Path, *rows: dict[str, Any], name: str = "here") -> Path:
    return write(path, [COUNTERS], [told(budgets(*rows))], host(name, 10**18))


def test_budgets_of_several_files_stand_side_by_side(tmp_path: Path) -> None:
    """Those of files in turn go on; those of another host keep apart."""
    paths = [
        budget_file(tmp_path / "a", budget(8, 100, 200, running_ns=100)),
        budget_file(tmp_path / "b", budget(8, 201, 300, idle_ns=99), budget(9, 250, 300)),
        budget_file(tmp_path / "c", budget(9, 300, 310, running_ns=10)),
        budget_file(tmp_path / "d", budget(8, 100, 150, other_ns=50), name="there"),
    ]
    here, there = hosts(paths)
    mine, others = here.recording.budget, there.recording.budget
    rows = zip(mine.tid.tolist(), (mine.begin_ns - 10**18).tolist(), (mine.end_ns - 10**18).tolist(), strict=True)
    assert list(rows) == [(8, 100, 200), (8, 201, 300), (9, 250, 310)]
    assert (mine.running_ns.tolist(), mine.idle_ns.tolist()) == ([100, 0, 10], [0, 99, 0])
    assert (others.tid.tolist(), others.other_ns.tolist()) == ([8], [50])


# What is refused.


def refusal(paths: Sequence[Path], **options: bool) -> str:
    with pytest.raises(UsageError) as caught:
        hosts(paths, **options)
    return str(caught.value)


def test_clocks_and_machines_that_do_not_fit(tmp_path: Path) -> None:
    paths = ticking(tmp_path, host("a", DAY_NS), host("b"))
    assert "b: its times cannot be put next to" in refusal(paths)
    hosts(paths, from_start=True)
    arm = host("b", DAY_NS) | {Feature.ARCH: text_body("aarch64")}
    assert "aarch64 and x86_64 machines" in refusal(ticking(tmp_path, host("a", DAY_NS), arm))
    after_all_samples = host("b") | {Feature.CLOCK_DATA: clock_data(100 * DAY_NS, 5 * 10**9)}
    assert "time namespaces" in refusal(ticking(tmp_path, host("a", DAY_NS), after_all_samples))


PERF = Path(__file__).resolve().parents[2] / "data/perf-7.2"
STEP = 8  # times are multiples of half of it, plus the number of the file (0 to 3): no two waits begin at once


@dataclass(frozen=True)
class Wait:
    tid: int
    begin: int
    end: int
    blocked: bool


@dataclass(frozen=True)
class File:
    spans: Spans
    waits: tuple[Wait, ...]

    def blocked_at_end(self) -> set[tuple[int, int]]:
        return {(one.tid, one.end) for one in self.waits if one.blocked and one.end == self.spans[-1][1]}

    def recording(self) -> Recording:
        waits = sorted(self.waits, key=lambda wait: wait.end)
        flags = [SampleFlag.OFFCPU | (SampleFlag.STILL_BLOCKED if wait.blocked else 0) for wait in waits]
        samples = Samples.filled(
            len(waits), evsel=0, pid=1, tid=[wait.tid for wait in waits], time_ns=[wait.end for wait in waits],
            switch_out_ns=[wait.begin for wait in waits], period=[wait.end - wait.begin for wait in waits], flags=flags,
        )  # fmt: skip
        parts = self.spans if len(self.spans) > 1 else ()
        begin, end = self.spans[0][0], self.spans[-1][1]
        times: dict[str, Any] = {"begin_ns": begin, "end_ns": end, "first_ns": begin, "last_ns": end}
        meta = Meta(hostname="h", clockid=1, nr_cpus=1, source="f", parts=parts, **times)
        return Recording(samples=at_pauses(samples, parts), evsels=[Evsel("offcpu-time", Attr(), "ns")], meta=meta)


@st.composite
def a_file(draw: st.DrawFn, number: int) -> File:
    edges = draw(st.lists(st.integers(1, 60), min_size=2, max_size=8, unique=True))
    edges = [STEP * edge + number for edge in sorted(edges[: len(edges) // 2 * 2])]
    spans = tuple(zip(edges[::2], edges[1::2], strict=True))
    waits = []
    for begin, end in spans:
        for tid in draw(st.sets(st.integers(1, 4))):
            still, woken = draw(st.booleans()), (begin + end) // 2
            waits += [] if still and draw(st.booleans()) else [Wait(tid, begin, woken, False)]
            waits += [Wait(tid, woken, end, True)] if still else []
    return File(spans, tuple(waits))


FILES = st.integers(1, 4).flatmap(lambda number: st.tuples(*(a_file(at) for at in range(number))))


def still_blocked(recording: Recording) -> list[tuple[int, int]]:
    samples = symbolize(recording, SymbolizeOptions())
    rows = np.flatnonzero(samples.is_still_blocked())
    return list(zip(samples.samples.tid[rows].tolist(), samples.samples.time_ns[rows].tolist(), strict=True))


def united(files: Sequence[File]) -> Recording:
    (one,) = join_by_host([file.recording() for file in files])
    one.recording.check()
    return one.recording


@given(FILES)
def test_joined_recordings_have_the_recorded_time_of_all(files: tuple[File, ...]) -> None:
    meta = united(files).meta
    covered = np.zeros(STEP * 62, np.bool_)
    for begin, end in (span for file in files for span in file.spans):
        covered[begin:end] = True
    for begin, end in meta.recorded:
        assert covered[begin:end].all() and not covered[begin - 1] and not covered[end]
    assert sum(end - begin for begin, end in meta.recorded) == covered.sum()
    assert meta.paused_ns == (~covered[meta.begin_ns : meta.end_ns]).sum()
    assert united(files[::-1]).meta.recorded == meta.recorded


@given(FILES)
def test_joined_recordings_keep_every_wait_and_know_who_is_still_blocked(files: tuple[File, ...]) -> None:
    """A thread is blocked at the end if it is at the end of the last recording that saw it."""
    recording, waits = united(files), [wait for file in files for wait in file.waits]
    assert recording.samples.period.sum() == sum(wait.end - wait.begin for wait in waits)
    assert recording.samples.has(SampleFlag.STILL_BLOCKED).sum() == sum(wait.blocked for wait in waits)
    last = {wait.tid: wait.end for wait in sorted(waits, key=lambda wait: wait.end)}
    ends = set[tuple[int, int]]().union(*(file.blocked_at_end() for file in files))
    assert sorted(still_blocked(recording)) == sorted(ends & set(last.items()))
    assert set(still_blocked(united(files[::-1]))) == set(still_blocked(recording))


@pytest.mark.parametrize("names", [*combinations(("atend", "direct", "hybrid", "pipe", "sched"), 2)])
def test_real_recordings_joined(names: tuple[str, ...]) -> None:
    """Of one boot, one after the other, by perf: sums, and the time between them, are those of the files."""
    files = [load_recording(PERF / f"{name}.data") for name in names]
    (one,) = join_by_host(files)
    assert one.recording.samples.period.sum() == sum(int(file.samples.period.sum()) for file in files)
    spans = sorted(file.meta.recorded[0] for file in files if file.meta.first_ns >= 0)
    assert one.recording.meta.recorded == tuple(spans)
    assert one.recording.meta.paused_ns == sum(b[0] - a[1] for a, b in zip(spans, spans[1:], strict=False))


def test_threads_of_a_host_live_while_it_is_recorded() -> None:
    """Budgets derived from waits: of each host those of its own recording, however long the other one is."""
    files = [load_recording(PERF / f"{name}.data") for name in ("sched", "direct")]
    files = [file.replaced(meta=replace(file.meta, hostname=name)) for name, file in zip("ab", files, strict=True)]
    begin, end = files[1].meta.recorded[0]
    files[1].meta.parts = ((begin, begin + 10**8), (begin + 2 * 10**8, end))
    alone = [budget_table(symbolize(file, SymbolizeOptions())) for file in files]
    both = budget_table(join_profiles(files, SymbolizeOptions(), JoinOptions(from_start=True), merge=True))
    assert both and both.derived and both.total
    totals = [table.total for table in alone if table and table.total]
    assert both.total.wall == sum(total.wall for total in totals) and len(totals) == 2
    assert both.total.threads == sum(total.threads for total in totals)
