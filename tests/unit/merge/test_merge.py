# SPDX-License-Identifier: Apache-2.0
"""merge: whose numbers move where, what perf and our reader make of the result."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.recording import (
    BASE,
    DUMMY_TIME,
    KERNEL,
    USER,
    S,
    comm,
    event,
    raw_wait,
    round_end,
    sample,
    side,
    task,
    write,
)
from builders.stock_perf import complaints

from perf_offcpu.abi.attr import Attr, AttrFlag, PerfType, ReadFormat
from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.offcpu import EXTENSION, EXTENSION_MAGIC, EXTENSION_WORDS, PAYLOAD
from perf_offcpu.abi.records import Misc, RecordType
from perf_offcpu.abi.sample import SAMPLE
from perf_offcpu.binary.layout import U32, Field, Layout
from perf_offcpu.decode.load import load_recording
from perf_offcpu.errors import UsageError
from perf_offcpu.merge.merge import Merged, check_inputs, merge
from perf_offcpu.merge.merge_plan import ID_STEP, PID_STEP, KernelShift, MergeOptions
from perf_offcpu.model.recording import Recording
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.features import BuildId
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.trailers import record_times
from perf_offcpu.perfdata.write.features import build_id_body, feature_body, text_body

MONO = {"flags": AttrFlag.USE_CLOCKID | event("", (), BASE).attr.flags, "clockid": 1}
CLOCK = event("cpu-clock", (1, 2), BASE | S.CALLCHAIN, **MONO)
OFFCPU = event("offcpu-time", (3, 4), BASE | S.RAW, **MONO)
TEXT = 0xFFFFFFFF81000000
DAY_NS = 86_400 * 10**9


def host(name: str, wall_ns: int | None = None, **more: Any) -> dict[int, bytes]:
    """Features of a host whose monotonic clock was at 0 when the wall clock was at `wall_ns`."""
    features = {Feature.HOSTNAME: text_body(name), Feature.OSRELEASE: text_body(more.pop("release", "6.1"))}
    if wall_ns is not None:
        values = {"version": 1, "clockid": 1, "wall_clock": wall_ns + 500, "clockid_time": 500}
        features[Feature.CLOCK_DATA] = feature_body(Feature.CLOCK_DATA, **values)
    return features | more


def kernel_map(text: int = TEXT, spec: EventSpec = CLOCK, build_id: bytes = b"") -> bytes:
    values: dict[str, Any] = {"pid": 2**32 - 1, "tid": 0, "addr": text, "len": 1 << 24, "pgoff": text}
    values |= {"filename": b"[kernel.kallsyms]_text", "prot": 5, "flags": 0}
    if build_id:
        held = {"build_id_size": 20, "reserved_1": 0, "reserved_2": 0, "build_id": build_id}
        return side(spec, RecordType.MMAP2, 1 | Misc.MMAP_BUILD_ID, **values, **held)
    return side(spec, RecordType.MMAP2, 1, **values, maj=0, min=0, ino=0, ino_generation=0)


def mapped(pid: int, start: int, name: bytes, time: int = 0, ino: int = 5) -> bytes:
    values = {"pid": pid, "tid": pid, "addr": start, "len": 0x1000, "pgoff": 0, "prot": 5, "flags": 2}
    inode = {"maj": 8, "min": 1, "ino": ino, "ino_generation": 0}
    return side(CLOCK, RecordType.MMAP2, 2, time=time, **values, **inode, filename=name)


def existing(pid: int, name: str) -> list[bytes]:
    """What a recorder says of a process that is there when it begins."""
    fork = side(CLOCK, RecordType.FORK, Misc.FORK_EXEC, pid=pid, tid=pid, ppid=pid, ptid=pid)
    return [fork, comm(CLOCK, pid, pid, name)]


def tick(time: int, pid: int = 7, spec: EventSpec = CLOCK, misc: int = 2, **values: Any) -> bytes:
    given = {"pid": pid, "tid": pid, "cpu": 1, "period": 10, "ip": 0x1004, "callchain": [USER, 0x1004]}
    return sample(spec, misc, time=time, **(given | values))


def merged(paths: Sequence[Path], **options: bool) -> tuple[Path, Merged]:
    out = paths[0].with_name("merged.data")
    fd = os.open(out, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        return out, merge([str(path) for path in paths], fd, "out", ["merge"], MergeOptions(**options))
    finally:
        os.close(fd)


def perf(path: Path, fields: str, *options: str) -> list[list[str]]:
    command = ["perf", "script", "--ns", *options, "-F", fields, "-i", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    said = complaints(done.stderr)
    assert (done.returncode, said) == (0, "")
    return [line.split() for line in done.stdout.splitlines() if line]


def comms(recording: Recording) -> list[str]:
    return [recording.strings[row] for row in recording.samples.comm.tolist()]


# One machine.


def test_runs_on_one_machine_are_put_together(tmp_path: Path) -> None:
    """A pid that was used again in between is another process, with other maps."""
    first = [kernel_map(), *existing(7, "old"), mapped(7, 0x1000, b"/bin/old"), tick(1000), tick(2000)]
    second = [kernel_map(), *existing(7, "new"), mapped(7, 0x1000, b"/bin/new"), tick(5000), tick(6000)]
    paths = [
        write(tmp_path / "a", [CLOCK], first, host("h", 10 * DAY_NS)),
        write(tmp_path / "b", [CLOCK], second, host("h", 10 * DAY_NS + 3)),  # set a little in between
    ]
    out, done = merged(paths)
    assert done.machines == ((0, 1),)
    assert not done.losses
    shown = perf(out, "comm,pid,time,event,dso,ip", "-G")
    assert [(line[0], line[1], line[2], line[-1]) for line in shown] == [
        ("old", "7", "0.000001000:", "(/bin/old)"),
        ("old", "7", "0.000002000:", "(/bin/old)"),
        ("new", "7", "0.000005000:", "(/bin/new)"),
        ("new", "7", "0.000006000:", "(/bin/new)"),
    ]
    recording = load_recording(out)
    recording.check()
    assert comms(recording) == ["old", "old", "new", "new"]
    assert len(set(recording.samples.space.tolist())) == 2
    assert [(evsel.name) for evsel in recording.evsels] == ["cpu-clock"]
    with PerfDataReader.open(out) as reader:
        assert reader.events.specs[0].ids == (1, 2, ID_STEP + 1, ID_STEP + 2)
        assert reader.features.text(Feature.HOSTNAME) == "h"
        assert reader.features.values(Feature.CLOCK_DATA) == {
            "version": 1, "clockid": 1, "wall_clock": 10 * DAY_NS + 500, "clockid_time": 500,
        }  # fmt: skip


def test_a_process_in_two_recordings_is_one(tmp_path: Path) -> None:
    """Recordings at the same time: one with samples of the CPU, one of waits."""
    second = [*existing(7, "server"), wait(1500), task(CLOCK, RecordType.EXIT, 7, 7, 3000)]
    paths = [
        write(tmp_path / "a", [CLOCK], [*existing(7, "server"), tick(1000), tick(2000)], host("h")),
        write(tmp_path / "b", [CLOCK, OFFCPU], second, host("h")),
    ]
    out, _ = merged(paths)
    recording = load_recording(out)
    assert comms(recording) == ["server"] * 3
    assert [recording.evsels[row].name for row in recording.samples.evsel.tolist()] == [
        "cpu-clock", "offcpu-time", "cpu-clock",
    ]  # fmt: skip
    rows = recording.tasks.tid == 7
    assert (recording.tasks.begin_ns[rows].tolist(), recording.tasks.end_ns[rows].tolist()) == ([0], [3000])


def wait(time: int, pid: int = 7, tid: int = 7, ns: int = 100, **values: Any) -> bytes:
    raw = raw_wait(pid, tid, ns, [USER, 0x1000], cgroup=9)
    return sample(OFFCPU, time=time, **({"cpu": 1, "raw": raw} | values))


ID_ONLY = event("cpu-clock", (1, 2), BASE & ~S.IDENTIFIER | S.ID | S.CALLCHAIN, **MONO)
NO_ID = event("cpu-clock", (1,), BASE & ~S.IDENTIFIER | S.CALLCHAIN, **MONO)
NO_IDS = event("cpu-clock", (), BASE & ~S.IDENTIFIER | S.CALLCHAIN, **MONO)
NO_TRAILERS = event("cpu-clock", (1,), BASE | S.CALLCHAIN, flags=AttrFlag.USE_CLOCKID, clockid=1)
NO_CPU = event("cpu-clock", (1,), (BASE | S.CALLCHAIN) & ~S.CPU, **MONO)


@pytest.mark.parametrize(
    ("other", "united"),
    [(ID_ONLY, False), (NO_ID, True), (NO_IDS, True), (NO_TRAILERS, True), (NO_CPU, False)],
    ids=["ID", "no id", "no ids at all", "no trailers", "no CPU"],
)
@pytest.mark.parametrize("first", [True, False], ids=["as first", "as second"])
def test_recordings_of_other_layouts(other: EventSpec, united: bool, first: bool, tmp_path: Path) -> None:
    """Every sample and every record gets an id at the one place where perf then looks for it."""
    there = [comm(other, 8, 8, "there"), comm(other, 9, 9, "later", time=1500)]
    there += [tick(1000, 8, other), tick(2000, 9, other), task(other, RecordType.EXIT, 8, 8, 3000)]
    paths = [
        write(tmp_path / "a", [CLOCK], [*existing(7, "here"), tick(1100), tick(2100)], host("h")),
        write(tmp_path / "b", [other], there, host("h")),
    ]
    out, done = merged(paths[::-1] if first else paths)
    assert not done.losses
    shown = [(line[0], line[1], line[-1]) for line in perf(out, "comm,tid,time,event", "-G")]
    assert sorted(shown, key=lambda line: line[0]) == [
        ("here", "7", "cpu-clock:"), ("here", "7", "cpu-clock:"),
        ("later", "9", "cpu-clock:"), ("there", "8", "cpu-clock:"),
    ]  # fmt: skip
    recording = load_recording(out)
    assert comms(recording) == ["there", "here", "later", "here"]
    assert len(recording.evsels) == (1 if united else 2)
    ends = recording.tasks.end_ns[recording.tasks.tid == 8]
    assert ends.tolist() == [3000]


# Several machines.


def test_hosts_keep_apart_and_meet_on_the_wall_clock(tmp_path: Path) -> None:
    """The second host was booted a day later; at the same moment its clock is a day behind."""
    chain = [KERNEL, TEXT + 0x10, USER, 0x1004]
    near = [*existing(7, "nginx"), tick(DAY_NS + 1000, callchain=chain), wait(DAY_NS + 4000)]
    far = [*existing(7, "nginx"), tick(3000), wait(2000, pid=7, tid=7), wait(DUMMY_TIME)]
    cgroup = side(CLOCK, RecordType.CGROUP, id=9, path=b"/system.slice")
    paths = [
        write(tmp_path / "a", [CLOCK, OFFCPU], [cgroup, *near], host("web1", 100 * DAY_NS)),
        write(tmp_path / "b", [CLOCK, OFFCPU], [cgroup, *far], host("web2", 101 * DAY_NS)),
    ]
    out, done = merged(paths)
    assert done.machines == ((0,), (1,))
    recording = load_recording(out)
    recording.check()
    base = 101 * DAY_NS
    samples = recording.samples
    assert samples.time_ns.tolist() == [-1, base + 1000, base + 2000, base + 3000, base + 4000]
    far_pid = PID_STEP + 7
    assert samples.pid.tolist() == [far_pid, 7, far_pid, far_pid, 7]
    assert samples.tid.tolist() == samples.pid.tolist()
    assert comms(recording) == ["web2:nginx", "web1:nginx", "web2:nginx", "web2:nginx", "web1:nginx"]
    assert samples.cpu.tolist() == [5, 1, 5, 5, 1]  # each host has four CPUs
    assert recording.cgroups == {9: "/web1/system.slice", ID_STEP + 9: "/web2/system.slice"}
    assert samples.cgroup.tolist() == [ID_STEP + 9, 0, ID_STEP + 9, 0, 9]
    assert recording.meta.hostname == "web1,web2"
    assert (recording.meta.nr_cpus, recording.meta.clockid) == (8, 0)
    assert recording.meta.wall_clock_ns == recording.meta.wall_clock_at_ns
    assert [evsel.name for evsel in recording.evsels] == ["cpu-clock", "offcpu-time"]
    shown = perf(out, "comm,pid,cpu,time,event", "-G")
    assert ["web2:nginx", str(far_pid), "[005]", "8726400.000003000:", "cpu-clock:"] in shown


def test_without_prefix_hosts_are_summed_up(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / name, [CLOCK], [*existing(7, "nginx"), tick(1000)], host(name, day * DAY_NS))
        for day, name in ((5, "web1"), (6, "web2"))
    ]
    out, _ = merged(paths, prefix=False)
    recording = load_recording(out)
    assert comms(recording) == ["nginx", "nginx"]
    assert recording.samples.pid.tolist() == [7, PID_STEP + 7]


def test_boots_of_one_host_keep_apart_without_prefix(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / str(day), [CLOCK], [*existing(7, "nginx"), tick(1000)], host("web1", day * DAY_NS))
        for day in (5, 6)
    ]
    out, done = merged(paths)
    assert done.machines == ((0,), (1,))
    assert comms(load_recording(out)) == ["nginx", "nginx"]


def test_recordings_can_begin_together(tmp_path: Path) -> None:
    """No clock is needed, and the runs of one program side by side are two programs."""
    plain = event("cpu-clock", (1,), BASE | S.CALLCHAIN)
    paths = []
    for begin in (1000, 5000):
        ticks = [tick(time, spec=plain) for time in (begin, begin + 10)]
        paths.append(write(tmp_path / str(begin), [plain], [comm(plain, 7, 7, "run"), *ticks], host("h")))
    out, _ = merged(paths, from_start=True)
    recording = load_recording(out)
    assert recording.samples.time_ns.tolist() == [1000, 1000, 1010, 1010]
    assert sorted(set(recording.samples.pid.tolist())) == [7, PID_STEP + 7]


def test_kernels_of_one_build_share_their_symbols(tmp_path: Path) -> None:
    """KASLR moved the kernel; code that only one of them has gets out of the way."""
    moved, build = TEXT + 0x3000000, bytes(range(20))
    far = [kernel_map(moved, build_id=build), *existing(7, "far")]
    program = 0xFFFFFFFFC0001000
    far += [side(CLOCK, RecordType.KSYMBOL, addr=program, len=64, ksym_type=1, flags=0, name=b"bpf_prog_1")]
    chain = [KERNEL, moved + 0x123, program + 8, USER, 0x1004]
    far += [tick(1000, misc=1, ip=moved + 0x123, callchain=chain, addr=0)]
    near = [kernel_map(build_id=build), *existing(7, "near"), tick(1000)]
    paths = [
        write(tmp_path / "a", [CLOCK], near, host("a", 5 * DAY_NS)),
        write(tmp_path / "b", [CLOCK], far, host("b", 6 * DAY_NS)),
    ]
    out, _ = merged(paths)
    recording = load_recording(out)
    row = int(np.flatnonzero(recording.samples.pid == PID_STEP + 7)[0])
    there = program - ID_STEP
    assert recording.samples.ip[row] == TEXT + 0x123
    assert recording.callchains.row(recording.samples.callchain[row]).tolist() == [
        KERNEL, TEXT + 0x123, there + 8, USER, 0x1004,
    ]  # fmt: skip
    assert recording.kernel_symbols.start.tolist() == [there]
    names = [recording.strings[one] for one in recording.dsos.path.tolist()]
    assert names.count("[kernel.kallsyms]_text") == 1
    kallsyms = tmp_path / "kallsyms"  # without, perf 7 takes those of the running kernel
    kallsyms.write_text(f"{TEXT:x} T _text\n{TEXT + 0x100:x} T there\n{TEXT + 0x200:x} T _etext\n")
    assert perf(out, "comm,ip,sym", "--kallsyms", str(kallsyms))[-4:] == [
        ["b:far"],
        ["ffffffff81000123", "there"],
        ["fffeffffc0001008", "bpf_prog_1"],
        ["1004", "[unknown]"],
    ]


def test_kernels_of_other_builds_keep_apart(tmp_path: Path) -> None:
    paths = []
    for tag, name in ((5, "a"), (6, "b")):
        records = [kernel_map(build_id=bytes([tag]) * 20), *existing(7, name)]
        records.append(tick(1000, misc=1, ip=TEXT + 1, callchain=[KERNEL, TEXT + 1]))
        paths.append(write(tmp_path / name, [CLOCK], records, host(name, tag * DAY_NS)))
    out, _ = merged(paths)
    assert perf(out, "comm,ip,dso", "-G") == [
        ["a:a", "ffffffff81000001", "([kernel.kallsyms])"],
        ["b:b", "fffeffff81000001", "([b:kernel])"],
    ]


def test_the_same_path_on_two_hosts_is_two_files(tmp_path: Path) -> None:
    """Build-ids that stood in the header go with the maps."""
    paths = []
    for tag, name in ((5, "a"), (6, "b")):
        ids = build_id_body([BuildId(-1, 2, bytes([tag]).hex() * 20, b"/lib/libc.so")])
        records = [*existing(7, name), mapped(7, 0x1000, b"/lib/libc.so"), tick(1000)]
        features = host(name, tag * DAY_NS) | {Feature.BUILD_ID: ids}
        paths.append(write(tmp_path / name, [CLOCK], records, features))
    recording = load_recording(merged(paths)[0])
    found = {recording.strings[row] for row in recording.dsos.build_id.tolist()}
    assert found == {"05" * 20, "06" * 20}


def test_our_payload_moves_whole(tmp_path: Path) -> None:
    """pid pair, waker, times, cgroup, kernel frames; what is unknown stays unknown."""
    whole = Layout("raw", (*PAYLOAD.fields, *EXTENSION.fields, Field("raw_padding", U32)))
    values: dict[str, Any] = {field.name: 0 for field in whole.fields if field.count is None}
    values |= {"pid": 7, "tid": 8, "offcpu_ns": 100, "nr": 4, "callchain": [KERNEL, TEXT, USER, 0x10]}
    values |= {"magic": EXTENSION_MAGIC, "version": 1, "nwords": EXTENSION_WORDS, "kind": 1, "count": 1}
    values |= {"cgroup": 3, "switch_out_ns": 900, "waker_pid": 20, "waker_tid": 21}
    raws = [whole.pack(values), whole.pack(values | {"wakeup_ns": 950, "waker_pid": 0, "waker_tid": 0})]
    far = [sample(OFFCPU, time=1000 + row, pid=7, tid=8, raw=raw) for row, raw in enumerate(raws)]
    paths = [
        write(tmp_path / "a", [CLOCK], [tick(1000)], host("a", 5 * DAY_NS)),
        write(tmp_path / "b", [CLOCK, OFFCPU], far, host("b", 6 * DAY_NS)),
    ]
    recording = load_recording(merged(paths)[0])
    samples = recording.samples.take(recording.samples.evsel == 1)
    assert samples.pid.tolist() == [PID_STEP + 7] * 2
    assert samples.tid.tolist() == [PID_STEP + 8] * 2
    assert samples.time_ns.tolist() == [6 * DAY_NS + 1000, 6 * DAY_NS + 1001]
    assert samples.switch_out_ns.tolist() == [6 * DAY_NS + 900] * 2
    assert samples.wakeup_ns.tolist() == [-1, 6 * DAY_NS + 950]
    assert samples.waker_pid.tolist() == [PID_STEP + 20, -1]
    assert samples.waker_tid.tolist() == [PID_STEP + 21, -1]
    assert samples.cgroup.tolist() == [ID_STEP + 3] * 2
    assert samples.period.tolist() == [100, 100]
    chain = recording.callchains.row(samples.callchain[0]).tolist()
    assert chain == [KERNEL, TEXT - ID_STEP, USER, 0x10]


def test_counters_read_along_name_their_events(tmp_path: Path) -> None:
    form = ReadFormat.ID | ReadFormat.GROUP
    group = event("cpu-clock", (1,), BASE | S.READ | S.CGROUP, read_format=form, **MONO)
    values = {"read_nr": 2, "read_group": [{"value": 5, "id": 1}, {"value": 6, "id": 2}], "cgroup": 4}
    record = sample(group, time=10, pid=7, tid=7, **values)
    paths = [
        write(tmp_path / "a", [group], [record], host("a", 5 * DAY_NS)),
        write(tmp_path / "b", [group], [record], host("b", 6 * DAY_NS)),
    ]
    out, _ = merged(paths)
    found = []
    with PerfDataReader.open(out) as reader:
        for chunk in reader.chunks():
            for row in np.flatnonzero(chunk.types == RecordType.SAMPLE).tolist():
                found.append(SAMPLE.unpack(chunk.record(row), "<", group.shape, 8))
    assert [[one["id"] for one in row["read_group"]] for row in found] == [[1, 2], [ID_STEP + 1, ID_STEP + 2]]
    assert [row["cgroup"] for row in found] == [4, ID_STEP + 4]
    assert [row["cpu"] for row in found] == [0, 4]


# Order.


def test_nothing_comes_after_perf_has_passed_its_time(tmp_path: Path) -> None:
    """Two recordings at the same time with rounds of their own, and one without."""
    rng = np.random.default_rng(1)
    paths = []
    for number, with_rounds in enumerate((True, True, False)):
        records, begin = [], 1000
        for _ in range(20):
            # Within a round, and the next, rings are emptied in any order.
            times = rng.integers(begin, begin + 200, 5)
            records += [tick(int(time), 7 + number) for time in times]
            records += [round_end()] if with_rounds else []
            begin += int(rng.integers(100, 200)) if with_rounds else 150
            begin = max(begin, int(times.max()) - 90)
        paths.append(write(tmp_path / str(number), [CLOCK], records, host("h")))
    for inputs in (paths, paths[:2], paths[1:]):
        out, done = merged(inputs)
        assert done.records == 100 * len(inputs)
        times, limits, late = [], [0, 0], 0
        rounds = 0
        with PerfDataReader.open(out) as reader:
            for chunk in reader.chunks():
                for kind, time in zip(
                    chunk.types.tolist(), record_times(chunk, reader.events).tolist(), strict=True
                ):
                    if kind == RecordType.FINISHED_ROUND:
                        limits = [limits[1], max(times)]
                        rounds += 1
                    else:
                        times.append(time)
                        late += time < limits[0]
        assert late == 0
        assert rounds > (5 if inputs == paths[:2] else 0)
        assert perf(out, "time")  # perf would complain of records out of order


# What is refused.


def refusal(paths: Sequence[Path], **options: bool) -> str:
    with pytest.raises(UsageError) as caught:
        merged(paths, **options)
    return str(caught.value)


def test_clocks_that_cannot_meet(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "a", [CLOCK], [tick(1)], host("a", DAY_NS)),
        write(tmp_path / "b", [CLOCK], [tick(1)], host("b")),
    ]
    assert "b: its times cannot be put beside" in refusal(paths)
    merged(paths, from_start=True)


def test_other_architectures(tmp_path: Path) -> None:
    arm = host("b", DAY_NS) | {Feature.ARCH: text_body("aarch64")}
    paths = [
        write(tmp_path / "a", [CLOCK], [tick(1)], host("a", DAY_NS)),
        write(tmp_path / "b", [CLOCK], [tick(1)], arm),
    ]
    assert "aarch64 and x86_64 machines" in refusal(paths)


def test_tracepoints_of_several_machines(tmp_path: Path) -> None:
    traced = EventSpec(
        Attr(type=PerfType.TRACEPOINT, config=300, sample_type=BASE | S.RAW, flags=MONO["flags"], clockid=1),
        "sched:sched_switch",
        (5,),
    )
    paths = [write(tmp_path / name, [traced], [], host(name, DAY_NS)) for name in ("a", "b")]
    assert "tracepoints of several machines" in refusal(paths)
    merged([write(tmp_path / "c", [CLOCK], [tick(1)], host("c", DAY_NS)), paths[0]])


def test_nothing_to_merge() -> None:
    for paths in (["a"], ["a", "a"]):
        with pytest.raises(UsageError):
            check_inputs(paths)


def test_kernel_addresses_move_by_range() -> None:
    starts, ends = (
        np.array([1 << 63, (1 << 63) + 200], np.uint64),
        np.array([(1 << 63) + 100, (1 << 63) + 300], np.uint64),
    )
    shift = KernelShift(starts, ends, np.array([7, 2**64 - 7], np.uint64), -10)
    offsets = [0, 99, 100, 199, 200, 299, 300]
    moved = shift.apply(np.array([(1 << 63) + one for one in offsets] + [5, KERNEL], np.uint64))
    assert [one - (1 << 63) for one in moved[:-2].tolist()] == [7, 106, 90, 189, 193, 292, 290]
    assert moved[-2:].tolist() == [5, KERNEL]
    assert KernelShift(default=-1).apply(np.array([1 << 63, 8], np.uint64)).tolist() == [(1 << 63) - 1, 8]
