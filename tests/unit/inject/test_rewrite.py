# SPDX-License-Identifier: Apache-2.0
"""inject on recordings made by hand: the forms and the damage that no fixture has."""

from pathlib import Path
from typing import Any

import pytest
from builders import converted, stock_perf
from builders.chains import chains_of
from builders.compare import assert_same_but_retyped
from builders.recording import (
    BASE,
    DUMMY_TIME,
    KERNEL,
    USER,
    USER_DEFERRED,
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

from perf_offcpu import losses
from perf_offcpu.abi import offcpu
from perf_offcpu.abi.attr import AttrFlag, BranchSampleType, SampleType
from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.records import RecordType
from perf_offcpu.decode.load import load_recording
from perf_offcpu.inject.samples import Rewritten
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.write.writer import frame_record, pack_record

CLOCK = event("cpu-clock", (1, 2), BASE | S.CALLCHAIN)
OFFCPU = event("offcpu-time", (3, 4), BASE | S.RAW)
THREAD = [comm(CLOCK, 7, 7, "main"), comm(CLOCK, 7, 8, "worker")]


def inject(source: Path, **options: bool) -> tuple[Path, Rewritten]:
    target = source.with_suffix(".out")
    return target, converted.inject(source, target, **options)


def perf(path: Path, fields: str) -> list[list[str]]:
    """Words of the lines that `perf script` prints, if it has nothing to complain of."""
    text = stock_perf.perf("script", "--ns", "-F", fields, "-i", path, quiet=True)
    return [line.split() for line in text.splitlines() if line]


def types(path: Path) -> list[int]:
    with PerfDataReader.open(path) as reader:
        return [kind for chunk in reader.chunks() for kind in chunk.types.tolist()]


def wait(spec: Any = OFFCPU, **values: Any) -> bytes:
    """A wait of thread 8 in process 7, in the order of upstream's user space."""
    given = dict[str, Any](time=500, cpu=1, raw=raw_wait(7, 8, 1000, [USER, 0x1000, 0x2000], cgroup=5))
    return sample(spec, **(given | values))


LAYOUTS = {
    "IDENTIFIER": BASE, "ID": BASE & ~S.IDENTIFIER | S.ID, "CGROUP": BASE | S.CGROUP, "no trailers": BASE,
    "STREAM_ID": BASE & ~S.IDENTIFIER | S.ID | S.STREAM_ID | S.ADDR,
    "fields around": BASE | S.CALLCHAIN | S.WEIGHT | S.TRANSACTION,
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_raw_samples(layout: str, perf_data: Path) -> None:
    """Ids stay where they were, for all events have to agree on the place; other fields stay, too."""
    kind, flags = LAYOUTS[layout], AttrFlag(0) if layout == "no trailers" else AttrFlag.SAMPLE_ID_ALL
    clock = event("cpu-clock", (1, 2), kind & ~S.RAW | S.CALLCHAIN, flags=flags | CLOCK.attr.flags & ~(1 << 18))
    offcpu = event("offcpu-time", (3, 4), kind | S.RAW, flags=flags)
    records = [comm(clock, 7, 8, "worker"), wait(offcpu), sample(clock, tid=8, pid=7, time=600, period=9)]
    out, done = inject(write(perf_data, [clock, offcpu], records))
    assert (done.retyped, done.losses) == (1, {})
    first = ["worker", "7/8", "[001]", "0.000000500:", "1000", "offcpu-time:"]
    assert perf(out, "comm,pid,tid,cpu,time,period,event,ip")[:3] == [first, ["1000"], ["2000"]]
    samples = load_recording(out).samples
    assert (samples.cgroup.tolist()[0], samples.tid.tolist()) == (5, [8, 8])


def test_events_without_ids_and_with_ids_of_others(perf_data: Path) -> None:
    """Several without ids become the first; perf gives an id of two events to the last, our reader to the first."""
    offcpu = event("offcpu-time", (), BASE & ~S.IDENTIFIER | S.RAW)
    out, done = inject(write(perf_data, [offcpu], [comm(offcpu, 7, 8, "worker"), wait(offcpu)]))
    assert done.retyped == 1
    assert perf(out, "comm,tid,period,event")[0] == ["worker", "8", "1000", "offcpu-time:"]
    several = [event(name, (), BASE & ~S.IDENTIFIER) for name in ("cpu-clock", "task-clock")]
    for events, id_ in ((several, 0), ([CLOCK, event("second", (2, 3), BASE | S.CALLCHAIN)], 2)):
        out, _ = inject(write(perf_data, events, [sample(events[0], identifier=id_, tid=8, time=600, period=9)]))
        assert perf(out, "tid,period,event") == [["8", "9", "cpu-clock:"]]


def test_sums_without_time_stand_before_their_threads_end(perf_data: Path) -> None:
    """Both orders: the round that follows the time must follow the sum, and the exit comes later."""
    records = [
        *THREAD, sample(CLOCK, tid=7, pid=7, time=1000), round_end(),
        task(CLOCK, RecordType.EXIT, 7, 8, 2000), round_end(),
        sample(CLOCK, tid=7, pid=7, time=3000), round_end(),
        sample(CLOCK, tid=7, pid=7, time=4000), round_end(),
        wait(time=DUMMY_TIME, cpu=0), wait(time=DUMMY_TIME + 1, raw=raw_wait(7, 7, 50, [USER, 0x3000])),
    ]  # fmt: skip
    out, done = inject(write(perf_data, [CLOCK, OFFCPU], records))
    assert done.retyped == 2
    rounds = RecordType.FINISHED_ROUND
    comms, ticks, end = [RecordType.COMM] * 2, RecordType.SAMPLE, RecordType.EXIT
    assert types(out) == [*comms, ticks, rounds, end, ticks, rounds, ticks, rounds, ticks, ticks, rounds]
    waits = [line for line in perf(out, "comm,time,period,event") if "offcpu-time:" in line]
    assert waits == [["worker", "0.000001999:", "1000", "offcpu-time:"], ["main", "0.000004000:", "50", "offcpu-time:"]]
    with PerfDataReader.open(out) as reader:
        assert reader.features.values(Feature.SAMPLE_TIME) == {"first": 1000, "last": 4000}


def test_sums_of_perf_5_19_get_a_time_too(perf_data: Path) -> None:
    offcpu = event("offcpu-time", (3,), BASE | S.CALLCHAIN)
    records = [*THREAD, task(CLOCK, RecordType.EXIT, 7, 8, 2000), sample(CLOCK, tid=7, pid=7, time=3000)]
    records.append(sample(offcpu, pid=7, tid=8, time=DUMMY_TIME, period=77, callchain=[USER, 0x1000], ip=0x1000))
    out, done = inject(write(perf_data, [CLOCK, offcpu], records))
    assert done.retyped == 0
    assert ["worker", "0.000001999:", "77", "offcpu-time:"] in perf(out, "comm,time,period,event,ip")
    untouched, _ = inject(perf_data, retype=False)
    assert load_recording(untouched).samples.time_ns.tolist() == [-1, 3000]


def test_damaged_payloads_are_left_out_and_counted_and_upstreams_swapped_pair_is_repaired(perf_data: Path) -> None:
    swapped = wait(raw=raw_wait(8, 7, 1000, []))
    out, done = inject(write(perf_data, [CLOCK, OFFCPU], [*THREAD, wait(raw=bytes(4)), wait(raw=bytes(12)), swapped]))
    assert (done.retyped, done.losses) == (1, {losses.BAD_SAMPLE: 2})
    assert perf(out, "comm,pid,tid,period,event") == [["worker", "7/8", "1000", "offcpu-time:"]]


def test_what_perf_gives_up_a_file_for_is_left_out(perf_data: Path) -> None:
    """Unknown ids in samples and trailers, counts that lie, types that perf 6.1 does not know."""
    stranger = event("stranger", (99,), BASE | S.CALLCHAIN)
    chain_beyond_end = bytearray(sample(CLOCK, tid=8, time=5, callchain=[USER, 1]))
    chain_beyond_end[8 + 48] = 200
    lying = bytearray(side(CLOCK, RecordType.NAMESPACES, pid=7, tid=7, link_info=[{"dev": 1, "ino": 2}]))
    lying[16] = 100
    records = [
        *THREAD, sample(stranger, tid=8, time=5), comm(stranger, 7, 8, "other"), bytes(chain_beyond_end),
        bytes(lying), frame_record(RecordType.FORK, 0, bytes(8 + 24) + (1).to_bytes(8, "little")),
        frame_record(200, 0, bytes(16)), frame_record(50, 0, bytes(16)),
        sample(CLOCK, tid=8, time=6, period=1 << 63), sample(CLOCK, tid=8, time=7, period=3),
    ]  # fmt: skip
    out, done = inject(write(perf_data, [CLOCK], records))
    assert len(perf(out, "tid,period")) == 2  # of one event, every id is its own
    out, done = inject(write(perf_data, [CLOCK, OFFCPU], records))
    assert perf(out, "comm,tid,period") == [["worker", "8", "3"]]
    assert done.losses == {
        losses.UNKNOWN_ID: 1, losses.UNKNOWN_OWNER: 1, losses.BAD_SAMPLE: 2, losses.BAD_RECORD: 2,
        losses.UNREADABLE_BY_PERF: 2,
    }  # fmt: skip


def test_processor_traces_are_left_out_with_their_blobs(perf_data: Path) -> None:
    trace = {"size": 24, "offset": 0, "reference": 0, "idx": 0, "tid": 7, "cpu": 0, "reserved": 0}
    records = [
        *THREAD,
        pack_record(RecordType.AUXTRACE_INFO, 0, {"type": 1, "reserved": 0, "priv": [1, 2]}),
        pack_record(RecordType.AUXTRACE, 0, trace) + b"\xff" * 24,
        sample(CLOCK, tid=8, time=7, period=3),
    ]
    out, done = inject(write(perf_data, [CLOCK], records, {Feature.AUXTRACE: bytes(8)}))
    assert done.losses == {losses.NO_TRACES: 2}
    assert perf(out, "comm,period") == [["worker", "3"]]
    with PerfDataReader.open(out) as reader:
        assert Feature.AUXTRACE not in reader.features.bodies


def test_an_empty_recording_is_not_taken_for_a_killed_one(perf_data: Path) -> None:
    out, _ = inject(write(perf_data, [CLOCK], [round_end()]))
    assert perf(out, "comm") == []
    assert load_recording(out).losses == {}


# Deferred callchains.

DEFERRING = event("cpu-clock", (1,), BASE | S.CALLCHAIN, flags=CLOCK.attr.flags | AttrFlag.DEFER_CALLCHAIN)


def deferred(cookie: int, ips: list[int], time: int, tid: int = 8) -> bytes:
    kernel = side(DEFERRING, RecordType.CALLCHAIN_DEFERRED, 2, time=time, cookie=cookie, ips=ips)
    return kernel[:-32] + (tid << 32 | 7).to_bytes(8, "little") + kernel[-24:]


def asking(cookie: int, time: int, **values: Any) -> bytes:
    given: dict[str, Any] = {"pid": 7, "tid": 8, "callchain": [KERNEL, 2**64 - 2**31, USER_DEFERRED, cookie]}
    return sample(DEFERRING, 1, time=time, **(given | values))


def chains(path: Path) -> list[list[int]]:
    return chains_of(load_recording(path, merge=False))


def asks_for_deferral(path: Path) -> bool:
    with PerfDataReader.open(path) as reader:
        return bool(reader.events.specs[0].attr.flags & AttrFlag.DEFER_CALLCHAIN)


COOKIE = 3 << 32 | 1
FRAME = 2**64 - 2**31


def test_deferred_chains_are_merged_in_both_directions(perf_data: Path) -> None:
    records = [
        *THREAD, asking(COOKIE, 10), asking(COOKIE, 20), deferred(COOKIE, [0x10, 0x20], 30),
        asking(COOKIE, 40),  # after its record: the task had not left the kernel yet
        asking(COOKIE + 2, 50), deferred(COOKIE + 2, [0x30], 60, tid=9),  # another thread's
        deferred(COOKIE + 4, [0x40], 70),  # nobody's
    ]  # fmt: skip
    out, done = inject(write(perf_data, [DEFERRING], records))
    whole, alone = [KERNEL, FRAME, USER, 0x10, 0x20], [KERNEL, FRAME]
    assert chains(out) == [whole, whole, whole, alone]
    assert (done.completed, done.losses) == (3, {losses.UNMERGED: 1})
    assert RecordType.CALLCHAIN_DEFERRED not in types(out)
    assert ["20", "[unknown]"] not in perf(out, "comm,ip")
    addresses = [[address, "[unknown]"] for address in ("ffffffff80000000", "10", "20")]
    assert perf(out, "comm,ip,sym")[0:4] == [["worker"], *addresses]
    assert not asks_for_deferral(out)


WAITING = event("offcpu-time", (3,), BASE | S.RAW | S.CALLCHAIN, flags=CLOCK.attr.flags | AttrFlag.DEFER_CALLCHAIN)


def waiting(cookie: int, time: int, kernel: list[int]) -> bytes:
    """A wait whose payload only says that its user part is deferred: the perf core's own chain says which."""
    raw = raw_wait(7, 8, 1000, [*kernel, USER_DEFERRED, 0], cgroup=5)
    return sample(WAITING, time=time, raw=raw, callchain=[USER_DEFERRED, cookie])


def test_deferred_chains_of_waits(perf_data: Path) -> None:
    records = [
        *THREAD, waiting(COOKIE, 10, [KERNEL, FRAME]), deferred(COOKIE, [0x10, 0x20], 30),
        waiting(COOKIE + 2, 40, []), deferred(COOKIE + 2, [0x30], 45),
        waiting(COOKIE + 4, 50, [KERNEL, FRAME]),
        sample(WAITING, time=60, raw=raw_wait(7, 8, 1000, [USER, 0x40]), callchain=[]),  # a sum
    ]  # fmt: skip
    whole = [[KERNEL, FRAME, USER, 0x10, 0x20], [USER, 0x30], [KERNEL, FRAME], [USER, 0x40]]
    recording = load_recording(write(perf_data, [WAITING, DEFERRING], records))
    assert chains_of(recording) == whole
    assert (recording.samples.period.tolist(), recording.losses) == ([1000] * 4, {losses.UNMERGED: 1})
    out, done = inject(perf_data)
    assert (chains(out), done.completed, done.losses) == (whole, 2, {losses.UNMERGED: 1})
    assert len(perf(out, "comm,ip")) > 4
    assert not asks_for_deferral(out)


def test_deferred_chains_of_the_posted_series(perf_data: Path) -> None:
    """No cookie: a record belongs to all samples of its thread before it."""
    old = [KERNEL, FRAME, USER_DEFERRED]
    words = (3, USER, 0x10, 0x20, 8 << 32 | 7, 30, 0, 1)
    record = frame_record(RecordType.CALLCHAIN_DEFERRED, 2, b"".join(word.to_bytes(8, "little") for word in words))
    records = [*THREAD, asking(0, 10, callchain=old), record, asking(0, 40, callchain=old)]
    out, done = inject(write(perf_data, [DEFERRING], records))
    assert chains(out) == [[KERNEL, FRAME, USER, 0x10, 0x20], [KERNEL, FRAME]]
    assert done.completed == 1


def test_unmerged_on_request(perf_data: Path) -> None:
    write(perf_data, [DEFERRING], [*THREAD, asking(COOKIE, 10), deferred(COOKIE, [0x10], 30)])
    out, _ = inject(perf_data, merge=False)
    assert chains(out) == [[KERNEL, FRAME, USER_DEFERRED, COOKIE]]
    assert types(out)[-1] == RecordType.CALLCHAIN_DEFERRED
    assert asks_for_deferral(out)


def test_a_sample_that_would_grow_too_large_goes_without_its_user_part(perf_data: Path) -> None:
    spec = event("cpu-clock", (1,), BASE | S.CALLCHAIN | S.STACK_USER, flags=DEFERRING.attr.flags)
    stack = dict[str, Any](stack_user_size=65_000, stack_user=bytes(65_000), stack_user_dyn_size=65_000)
    ips = list(range(0x1000, 0x1000 + 100))
    large = sample(spec, 1, time=10, pid=7, tid=8, callchain=[KERNEL, FRAME, USER_DEFERRED, COOKIE], **stack)
    small = sample(spec, 1, time=11, pid=7, tid=8, callchain=[KERNEL, FRAME, USER_DEFERRED, COOKIE], stack_user_size=0)
    out, done = inject(write(perf_data, [spec], [*THREAD, large, small, deferred(COOKIE, ips, 30)]))
    assert chains(out) == [[KERNEL, FRAME], [KERNEL, FRAME, USER, *ips]]
    assert done.losses == {losses.UNMERGED: 1}
    assert types(out).count(RecordType.SAMPLE) == 2


def test_event_counters_of_branches_are_left_out(perf_data: Path) -> None:
    """They are newer than perf 6.1, which takes them for the fields behind them."""
    with_counters = int(BranchSampleType.HW_INDEX | BranchSampleType.COUNTERS)
    spec = event("cpu-clock", (1, 2), BASE | S.CALLCHAIN | S.BRANCH_STACK | S.WEIGHT, branch_sample_type=with_counters)
    branch = {"from": 0x10, "to": 0x20, "flags": 0}
    values = dict[str, Any](pid=7, tid=8, period=1, callchain=[USER, 0x10], branch_hw_idx=1, weight=77)
    records = [
        sample(spec, time=100 + nr, branch_stack=[branch] * nr, branch_nr=nr, branch_counters=[5] * nr, **values)
        for nr in (0, 3, 1)
    ]
    records[1:1] = [comm(spec, 7, 8, "worker")]
    out, done = inject(write(perf_data, [spec], records))
    assert not done.losses
    shown = [line[:4] for line in perf(out, "comm,tid,time,brstack,weight") if line[0] == "worker"]
    assert shown == [["worker", "8", f"0.000000{time}:", "77"] for time in (100, 101, 103)]
    with PerfDataReader.open(out) as reader:
        sizes = [size for chunk in reader.chunks() for size in chunk.sizes[chunk.types == 9].tolist()]
        assert sizes == [len(records[row]) - 8 * nr for row, nr in ((0, 0), (2, 3), (3, 1))]
        assert reader.events.specs[0].attr.branch_sample_type == int(BranchSampleType.HW_INDEX)


def test_tracepoints_without_a_format_become_raw_data(perf_data: Path) -> None:
    """As of a recorder that was killed: perf refuses the whole file otherwise."""
    spec = event("sched:sched_switch", (1, 2), BASE | S.CALLCHAIN | S.RAW, type=2, config=310)
    records = [*THREAD, sample(spec, pid=7, tid=8, time=100, callchain=[USER, 0x10], raw=bytes(12))]
    damaged: dict[int, bytes] = {Feature.TRACING_DATA: b"\x17\x08Dtracing0.6\0"}
    for features in ({}, damaged):
        out, done = inject(write(perf_data, [spec], records, features))
        assert done.losses == ({losses.BAD_FEATURE: 1} if features else {})
        assert perf(out, "comm,tid,time,event")[0] == ["worker", "8", "0.000000100:", "sched:sched_switch:"]


def test_attrs_that_perf_does_not_take(perf_data: Path) -> None:
    """Damaged ones hold ids elsewhere, and cost the samples of the event; bits may be newer than perf."""
    odd = event("page-faults", (5, 6), S.IP | S.TID | S.TIME | S.ID)
    records = [*THREAD, sample(CLOCK, pid=7, tid=8, time=100, period=3)]
    out, done = inject(write(perf_data, [CLOCK, odd], [*records, sample(odd, ip=99, pid=7, tid=7)]))
    assert done.losses == {losses.UNKNOWN_ID: 1}
    assert perf(out, "comm,tid,event") == [["worker", "8", "cpu-clock:"]]
    kind = SampleType(int(CLOCK.attr.sample_type) | 1 << 30)
    new = event("cpu-clock", (1, 2), kind, reserved_2=7, aux_action=1, read_format=1 << 20)
    out, _ = inject(write(perf_data, [new], records))
    assert perf(out, "comm,tid,period") == [["worker", "8", "3"]]


def test_re_typed_waits_keep_what_perf_has_no_fields_for(perf_data: Path) -> None:
    told = offcpu.BLANK_EXTENSION | {
        "kind": 2, "state": 2, "syscall": 230, "wakeup_ns": 490, "waker_pid": 7, "waker_tid": 7, "count": 5,
        "switch_out_ns": 100, "longest_ns": 300, "runq_ns": 10,
    }  # fmt: skip
    raw = raw_wait(7, 8, 1000, [KERNEL, 1 << 63, USER, 0x1000], cgroup=5)[:-4] + offcpu.EXTENSION.pack(told) + bytes(4)
    out, done = inject(write(perf_data, [CLOCK, OFFCPU], [*THREAD, wait(raw=raw)]))
    assert done.retyped == 1
    assert perf(out, "comm,tid,time,period")[0] == ["worker", "8", "0.000000500:", "1000"]
    text = stock_perf.perf("script", "-i", out)
    assert "offcpu-time" in text and "BPF output" not in text
    before, after = load_recording(perf_data), load_recording(out)
    assert_same_but_retyped(before, after)
    assert (after.samples.count.tolist(), after.samples.waker_tid.tolist()) == ([5], [7])
    again, done = inject(out.rename(out.with_name("first.data")))
    assert done.retyped == 0
    assert_same_but_retyped(before, load_recording(again))


def test_sums_without_a_time_have_none_when_they_are_read_again(perf_data: Path) -> None:
    summed = wait(time=DUMMY_TIME, pid=0, tid=0, raw=raw_wait(7, 8, 1000, [USER, 0x1000]))
    out, _ = inject(write(perf_data, [CLOCK, OFFCPU], [*THREAD, task(CLOCK, RecordType.EXIT, 7, 8, 900), summed]))
    assert perf(out, "comm,tid,time,period")[0] == ["worker", "8", "0.000000899:", "1000"]
    assert_same_but_retyped(load_recording(perf_data), load_recording(out))
    flags = int(load_recording(out).samples.flags[0])
    assert flags & SampleFlag.AGGREGATED and flags & SampleFlag.UNTIMED


def test_an_exit_stands_after_its_threads_last_wait(perf_data: Path) -> None:
    """A killed thread waits again after its EXIT, where perf 6.12 forgets it; its id's next life stays."""
    exits, fork = RecordType.EXIT, RecordType.FORK
    records = [
        *THREAD, comm(CLOCK, 7, 9, "other"), wait(time=800), task(CLOCK, exits, 7, 8, 1000),
        task(CLOCK, exits, 7, 9, 1100), round_end(), sample(CLOCK, tid=7, pid=7, time=1400),
        wait(time=1500, pid=1, tid=1), wait(time=900, raw=raw_wait(7, 9, 5, [USER, 0x1000])), round_end(),
        task(CLOCK, fork, 7, 8, 1501), comm(CLOCK, 7, 8, "second", time=1502),
        sample(CLOCK, tid=7, pid=7, time=3 * 10**9), wait(time=2 * 10**9), round_end(),
        task(CLOCK, exits, 7, 8, 4 * 10**9), round_end(),
    ]  # fmt: skip
    out, done = inject(write(perf_data, [CLOCK, OFFCPU], records))
    assert (done.retyped, done.losses) == (4, {})
    before, after = load_recording(perf_data), load_recording(out)
    rows = [list(zip(one.tasks.tid.tolist(), one.tasks.end_ns.tolist(), strict=True)) for one in (before, after)]
    assert rows[0] == [(7, -1), (8, 1000), (8, 4 * 10**9), (9, 1100)]
    assert rows[1] == [(7, -1), (8, 1500), (8, 4 * 10**9), (9, 1100)], "before the next life"
    waits = [tuple(line[:2]) for line in perf(out, "comm,time,period,event") if "offcpu-time:" in line]
    expected = [("worker", "0.000000800:"), ("other", "0.000000900:"), ("worker", "0.000001500:")]
    assert waits == [*expected, ("second", "2.000000000:")]
    rounds = RecordType.FINISHED_ROUND
    kinds = [kind for kind in types(out) if kind in (exits, fork, rounds)]
    assert kinds == [exits, rounds, exits, rounds, fork, rounds, exits, rounds], "with the round of its time"
    again, _ = inject(out.rename(out.with_name("first.data")))
    assert types(again) == types(again.with_name("first.data")), "nothing is left to be moved"
    untouched, _ = inject(perf_data, retype=False)
    assert load_recording(untouched).tasks.end_ns.tolist() == before.tasks.end_ns.tolist()
