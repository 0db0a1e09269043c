# SPDX-License-Identifier: Apache-2.0
"""What a recorder says of itself: accounts of parts of a file, budgets, raw off-cpu samples; also damaged ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.accounts import SPENT, counters, told
from builders.accounts import budget as row
from builders.accounts import budgets as block
from builders.examples import examples
from builders.hosts import host
from builders.recording import BASE, DUMMY_TIME, KERNEL, USER, S, comm, event, raw_wait, sample, side, task, write
from builders.wait_objects import COUNTERS

from perf_offcpu import losses
from perf_offcpu.abi import offcpu
from perf_offcpu.abi.counters import BUDGET, BUDGETS, payload_layout
from perf_offcpu.abi.records import RecordType
from perf_offcpu.binary.layout import Order
from perf_offcpu.decode.account import CollectorAccount, read_budgets
from perf_offcpu.decode.continued import joined_budget, without_continued
from perf_offcpu.decode.load import load_recording
from perf_offcpu.errors import LayoutError
from perf_offcpu.losses import LossCause, Losses
from perf_offcpu.model.recording import Budget, Recording, SampleFlag, Samples
from perf_offcpu.perfdata.events import EventSpec

HEAD = BUDGETS.offset("budgets")
BLOCKED = SampleFlag.OFFCPU | SampleFlag.STILL_BLOCKED


def file(path: Path, *payloads: bytes) -> Path:
    return write(path, [COUNTERS], map(told, payloads), host("here", 10**18))


def read(payload: bytes, order: Order = "<") -> Budget:
    return read_budgets(payload, order)


def test_budgets_of_version_2_have_no_own_ids() -> None:
    newest = block(row(9, 5, 15, own_pid=1, own_tid=2))
    assert (read(newest).own_pid.tolist(), read(newest).own_tid.tolist()) == ([1], [2])
    older = read(newest[:4] + b"\2" + newest[5:-8])
    assert (older.tid.tolist(), older.own_pid.tolist(), older.own_tid.tolist()) == ([9], [-1], [-1])


def test_budgets_of_version_1_have_no_throttled_time() -> None:
    rows = BUDGET.prefix(BUDGET.offset("throttled_ns")).dtype("<")
    old = np.array([(7, 8, 5, 15, 3, 0, 10, *[0] * 8), (7, 9, 5, 25, 3, 0, 0, 20, *[0] * 7)], rows)
    payload = b"OFCB" + bytes([1, 0, 2, 0]) + old.tobytes()
    budget = read(payload)
    assert (budget.tid.tolist(), budget.throttled_ns.tolist()) == ([8, 9], [0, 0])
    assert (budget.running_ns.tolist(), budget.runnable_ns.tolist()) == ([10, 0], [0, 20])
    values, end, problem = payload_layout(payload, "<").unpack_sound(payload, "<", None, 0, len(payload))
    assert (end, problem) == (len(payload), None)
    assert [(one["tid"], one["end_ns"]) for one in values["budgets"]] == [(8, 15), (9, 25)]


@pytest.mark.parametrize("order", ["<", ">"])
def test_every_time_comes_to_its_column(order: Order) -> None:
    spent = {name: 10**at for at, name in enumerate(SPENT)}
    payload = block(row(8, 5, 5 + sum(spent.values()), **spent), order=order)
    account = CollectorAccount()
    account.take([payload], "<", Losses())
    account.take([payload], ">", Losses())
    assert len(account.budgets) == 1  # in its own order
    budget = read(payload, order)
    budget.check()
    assert (budget.tid.tolist(), budget.pid.tolist(), budget.switches.tolist()) == ([8], [7], [3])
    for name in SPENT:
        if name not in ("unknown_ns", "stopped_ns", "traced_ns"):
            assert getattr(budget, name).tolist() == [spent[name]], name
    assert budget.stopped_ns.tolist() == [spent["stopped_ns"] + spent["traced_ns"]]


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_block_that_is_cut_is_none_at_all(order: Order) -> None:
    payload = block(row(8, 5, 9), row(9, 5, 9), order=order)
    for length in range(len(payload)):
        with pytest.raises(LayoutError):
            read_budgets(payload[:length], order)
    assert len(read(payload + bytes(4), order)) == 2  # as samples are padded
    assert len(read(block(order=order), order)) == 0
    most = 2**62 - 1  # ids and times at the limit stay in their types
    budget = read(block(row(2**32 - 1, 0, most, stopped_ns=most, traced_ns=most)))
    assert (budget.tid.tolist(), budget.stopped_ns.tolist()) == ([-1], [2 * most])


@pytest.mark.parametrize("spoilt", [
    {"end_ns": 4}, {"end_ns": 2**62}, {"begin_ns": 2**64 - 1, "end_ns": 2**64 - 1}, {"running_ns": 2**63},
    {"other_ns": 2**62}, {"stopped_ns": 2**64 - 1}, {"traced_ns": 2**63}, {"switches": 2**64 - 1},
])  # fmt: skip
def test_a_row_that_cannot_be_is_left_out_and_its_neighbours_stay(spoilt: dict[str, int]) -> None:
    assert read(block(row(8, 5, 9), row(9, 5, 9) | spoilt, row(10, 5, 9))).tid.tolist() == [8, 10]


def test_rows_are_sorted_by_thread_and_time() -> None:
    budget, _ = joined_budget([read(block(row(9, 30, 40), row(8, 50, 60))), read(block(row(9, 10, 20)))])
    assert (budget.tid.tolist(), budget.begin_ns.tolist()) == ([8, 9, 9], [50, 10, 30])
    assert len(joined_budget([])[0]) == 0


def test_what_files_in_turn_have_of_a_life_is_one_row() -> None:
    """Not so what separate recordings have: they do not go on at the very ns."""
    first = block(row(8, 5, 9, running_ns=3, switches=1), row(9, 5, 9), row(10, 5, 9))
    second = block(row(8, 9, 9, switches=0), row(8, 9, 20, running_ns=4, stopped_ns=2, switches=2), row(9, 10, 20))
    budget, borders = joined_budget([read(second), read(first)])
    assert (budget.tid.tolist(), budget.begin_ns.tolist()) == ([8, 9, 9, 10], [5, 5, 10, 5])
    assert budget.end_ns.tolist() == [20, 9, 20, 9]
    assert budget.running_ns[0] == 7 and budget.stopped_ns[0] == 2 and budget.switches[0] == 3
    assert list(zip(*(column.tolist() for column in borders), strict=True)) == [(8, 9), (8, 9)]
    again, none = joined_budget([budget])
    assert len(again) == 4 and len(none[0]) == 0
    samples = Samples.filled(
        5, tid=np.array([8, 8, 8, 9, 10], np.int32), time_ns=np.array([9, 9, 20, 9, 9]),
        flags=np.array([BLOCKED, SampleFlag.OFFCPU, BLOCKED, BLOCKED, BLOCKED], np.uint32),
    )  # fmt: skip
    kept = without_continued(samples, borders, end_ns=20)
    assert moments(kept) == [(8, 9), (8, 20), (9, 9), (10, 9)]
    assert kept.flags[0] == SampleFlag.OFFCPU and len(without_continued(samples, none, end_ns=20)) == 5


def moments(samples: Samples) -> list[tuple[int, int]]:
    return list(zip(samples.tid.tolist(), samples.time_ns.tolist(), strict=True))


def test_damaged_blocks_of_a_file_are_counted_and_the_others_are_read(tmp_path: Path) -> None:
    sound = block(row(8, 5, 9))
    too_many = sound[: HEAD - 2] + (2).to_bytes(2, "little") + sound[HEAD:]
    recording = load_recording(file(tmp_path / "a", too_many, sound, sound[:12]))
    assert (recording.budget.tid.tolist(), recording.losses) == ([8], {losses.BAD_SAMPLE: 2})


def test_a_wait_that_is_told_again_counts_once() -> None:
    """Also where the budget that should go on is lost; what the last file tells stays."""
    samples = Samples.filled(
        5, tid=np.array([8, 9, 8, 9, 10], np.int32), time_ns=np.array([50, 50, 70, 90, 90]),
        switch_out_ns=np.array([20, 20, 20, 60, 10]),
        flags=np.array([BLOCKED, BLOCKED, SampleFlag.OFFCPU, BLOCKED, BLOCKED], np.uint32),
    )  # fmt: skip
    assert moments(without_continued(samples, joined_budget([])[1], end_ns=90)) == [(9, 50), (8, 70), (9, 90), (10, 90)]


def account_of(*payloads: bytes) -> CollectorAccount:
    account, damaged = CollectorAccount(), Losses()
    account.take(payloads, "<", damaged)
    assert not damaged
    return account


@pytest.mark.parametrize(("spans", "parts"), [
    ([], ()), ([(5, 9)], ()), ([(5, 9), (9, 12)], ()), ([(5, 9), (10, 12)], ((5, 9), (10, 12))),
    ([(20, 30), (5, 9), (6, 10), (20, 30)], ((5, 10), (20, 30))), ([(5, 9), (40, 30), (10, 12)], ((5, 9), (10, 12))),
])  # fmt: skip
def test_parts_are_the_times_between_pauses(spans: list[tuple[int, int]], parts: tuple[tuple[int, int], ...]) -> None:
    account = account_of(*(counters(*span) for span in spans))
    assert account.parts() == parts
    if spans:
        assert (account.begin_ns, account.end_ns) == (min(spans)[0], max(end for _, end in spans))


def test_counters_of_all_parts_are_added() -> None:
    first = counters(1, 2, samples=(3, 70), sampling_period=(1, 20), threshold_raised=(4, 900))
    account = account_of(first, counters(3, 4, samples=(5, 30), sampling_period=(1, 20), threshold_raised=(1, 400)))
    assert account.notes[losses.SAMPLES.name] == (8, 100)
    assert account.notes[losses.SAMPLING_PERIOD.name][1] == 20
    assert account.notes[losses.THRESHOLD_RAISED.name] == (5, 900)


CLOCK = event("cpu-clock", (1,), BASE | S.CALLCHAIN)
WAITS = event("offcpu-time", (3,), BASE | S.RAW)


def load(path: Path, *records: bytes, more: tuple[EventSpec, ...] = ()) -> Recording:
    recording = load_recording(write(path / "x.data", [CLOCK, WAITS, *more], records))
    recording.check()
    return recording


def pair(low: int, high: int, time: int, path: Path, *known: bytes) -> tuple[int, int, bool]:
    """(pid, tid, exchanged) of a sample of upstream's."""
    table = load(path, *known, sample(WAITS, time=time, raw=raw_wait(low, high, 10, [USER, 9]))).samples
    return int(table.pid[0]), int(table.tid[0]), bool(table.flags[0] & SampleFlag.REPAIRED_IDS)


LEADER, THREAD = comm(CLOCK, 70, 70, "main"), comm(CLOCK, 70, 71, "thread")


@pytest.mark.parametrize("time", [500, DUMMY_TIME])
def test_the_recording_knows_better_than_the_path(time: int, tmp_path: Path) -> None:
    assert pair(71, 70, time, tmp_path, LEADER, THREAD) == (70, 71, True)
    assert pair(70, 71, time, tmp_path, LEADER, THREAD) == (70, 71, False)
    assert pair(70, 70, time, tmp_path, LEADER) == (70, 70, False)
    ended = task(CLOCK, RecordType.EXIT, 70, 71, 400)
    assert pair(70, 71, 500, tmp_path, LEADER, ended) == (70, 71, False), "a thread that has ended is known"
    # Of unknown threads the path decides. Sent directly: tid first. At the end: pid first.
    assert pair(71, 70, 500, tmp_path) == (70, 71, True)
    assert pair(70, 71, DUMMY_TIME, tmp_path) == (70, 71, False)


def test_the_bogus_33rd_frame_is_none(tmp_path: Path) -> None:
    recording = load(tmp_path, sample(WAITS, time=5, raw=raw_wait(7, 7, 10, [USER, *range(0x1000, 0x1021)], cgroup=9)))
    assert len(recording.callchains.row(int(recording.samples.callchain[0]))) == 33


def extended(path: Path, **values: Any) -> Recording:
    """A wait of our collector's, with these fields of its extension."""
    raw = raw_wait(70, 71, 900, [KERNEL, 1 << 63, USER, 9], cgroup=5)[:-4]
    raw += offcpu.EXTENSION.pack(offcpu.BLANK_EXTENSION | {"kind": 1} | values) + bytes(4)
    return load(path, LEADER, THREAD, sample(WAITS, time=2000, raw=raw))


def test_what_is_unknown_is_not_0(tmp_path: Path) -> None:
    table = extended(tmp_path, runq_ns=2**64 - 1, prev_state=2**32 - 1, longest_ns=2**64 - 1, syscall=-2).samples
    sentinels = ("state", "wakeup_ns", "runq_ns", "switch_out_ns", "longest_ns", "waker_tid")
    assert [int(getattr(table, name)[0]) for name in sentinels] == [-1] * 6
    assert (int(table.syscall[0]), int(table.count[0])) == (-2, 1)
    table = extended(tmp_path, wakeup_ns=2**63, count=2**63 + 5, waker_tid=2**31, syscall=-7).samples
    assert (table.wakeup_ns.tolist(), table.count.tolist(), table.waker_tid.tolist()) == ([-1], [1], [-1])
    assert table.syscall.tolist() == [-2], "no column holds such numbers"


@pytest.mark.parametrize(("field", "value", "name"), examples("unit/examples.txt", "kinds of waits"))
def test_what_kind_of_wait(field: str, value: str, name: str, tmp_path: Path) -> None:
    recording = extended(tmp_path, **{field: int(value)})
    assert int(recording.samples.flags[0]) == (SampleFlag[name] if name else 0) | SampleFlag.OFFCPU
    assert not recording.samples.flags[0] & SampleFlag.REPAIRED_IDS


WHOLE = offcpu.EXTENSION.pack(offcpu.BLANK_EXTENSION | {"kind": 2, "count": 5, "state": 1, "runq_ns": 7})


def with_extension(path: Path, extension: bytes, rest: bytes = b"") -> Recording:
    raw = raw_wait(70, 71, 900, [USER, 9], cgroup=5)[:-4]
    return load(path, LEADER, THREAD, sample(WAITS, time=2000, raw=raw + extension + rest + bytes(4)))


@pytest.mark.parametrize("field", [one.name for one in offcpu.EXTENSION.fields[3:]])
def test_a_fixed_part_of_an_older_writer_ends_before_a_field(field: str, tmp_path: Path) -> None:
    size = offcpu.EXTENSION.offset(field)
    old = bytearray(WHOLE[:size].ljust(-(-size // 8) * 8, b"\xaa"))  # what fills the last word is no field
    old[6:8] = size.to_bytes(2, "little")
    table = with_extension(tmp_path, bytes(old)).samples
    known = [one.name for one in offcpu.fixed_part(size).fields]
    assert field not in known
    assert bool(table.flags[0] & SampleFlag.AGGREGATED) == ("kind" in known)
    assert table.count.tolist() == [5 if "count" in known else 1]
    assert table.state.tolist() == [1 if "state" in known else -1]
    assert table.runq_ns.tolist() == [7 if "runq_ns" in known else -1]


def test_a_fixed_part_of_a_newer_writer_is_longer(tmp_path: Path) -> None:
    new = bytearray(WHOLE + bytes(range(24)))
    new[6:8] = len(new).to_bytes(2, "little")
    new[12:16] = (len(new) + 8).to_bytes(2, "little") + (3).to_bytes(2, "little")
    rest = b"".join(word.to_bytes(8, "little") for word in (99, KERNEL, 1 << 63, 1 << 62))
    recording = with_extension(tmp_path, bytes(new), rest)
    table = recording.samples
    assert (table.count.tolist(), table.state.tolist(), recording.losses) == ([5], [1], {})
    waker = recording.callchains.row(int(table.waker_callchain[0]))
    assert waker.tolist() == [KERNEL, 1 << 63, 1 << 62], "found by its offset, after a part of another kind"


@pytest.mark.parametrize("size", [offcpu.EXTENSION_SIZE + 8, 2**16 - 1])
def test_of_a_fixed_part_that_does_not_fit_nothing_is_believed(size: int, tmp_path: Path) -> None:
    table = extended(tmp_path, size=size, count=5).samples
    assert (table.period.tolist(), table.count.tolist(), table.tid.tolist()) == ([900], [1], [71])


@pytest.mark.parametrize("values", [{"waker_nr": 1}, {"waker_nr": 2**16 - 1, "waker_offset": 8}])
def test_a_callchain_that_does_not_fit_is_none(values: dict[str, int], tmp_path: Path) -> None:
    table = extended(tmp_path, **({"waker_offset": offcpu.EXTENSION_SIZE} | values), count=5).samples
    assert (table.waker_callchain.tolist(), table.count.tolist()) == ([-1], [5])


@pytest.mark.parametrize("version", [0, 1, 3, 2**16 - 1])
def test_other_versions_are_counted_and_not_read(version: int, tmp_path: Path) -> None:
    recording = extended(tmp_path, version=version)
    assert len(recording.samples) == 0
    assert recording.losses == {losses.OTHER_PAYLOAD.about(f"payload of version {version}, not 2"): 1}


def test_the_collectors_own_account(tmp_path: Path) -> None:
    """Not a sample of the machine's; of several, from the first begin to the last end."""
    counts = {"waits_lost": (3, 0), "new\x1b": (2, 0), "samples": (8, 0), "ring_full": (0, 0)}
    payloads = [counters(begin, begin + 50, 7, **counts) for begin in (100, 20)]
    recording = load(tmp_path, *map(told, payloads), sample(COUNTERS, time=5, raw=payloads[0][:36]), more=(COUNTERS,))
    assert len(recording.samples) == 0
    meta = recording.meta
    assert (meta.begin_ns, meta.end_ns, meta.threshold_ns) == (20, 150, 7)
    new = LossCause(losses.Stage.RECORDER, "new\x1b", "collector: new\x1b")
    assert recording.losses == {losses.WAITS_LOST: 6, new: 4, losses.BAD_SAMPLE: 1}


def mapping(pid: int, addr: int, path: str) -> bytes:
    return side(
        CLOCK, RecordType.MMAP2, 2, time=0, pid=pid, tid=pid, addr=addr, len=0x1000, pgoff=0, maj=8, min=1,
        ino=5, ino_generation=0, prot=5, flags=2, filename=path.encode(),
    )  # fmt: skip


def chain_of(path: Path, chain: list[int], *known: bytes) -> tuple[list[int], int]:
    recording = load(path, LEADER, *known, sample(CLOCK, pid=70, tid=70, time=900, callchain=chain))
    kept = recording.callchains.row(int(recording.samples.callchain[0])).tolist()
    return kept, recording.losses.get(losses.WRONG_CALLERS, 0)


def test_garbage_is_cut_at_the_root_only(tmp_path: Path) -> None:
    """A return address may stand right behind its mapping; the innermost frame stays whatever it is."""
    code = mapping(70, 0x400000, "/bin/main")
    chain = [USER, 0x10, 0x400010, 0x20, 0x401000, 0x30, 0x40]
    assert chain_of(tmp_path, chain, code) == (chain[:5], 1)
    assert chain_of(tmp_path, [USER, 0x10, 0x20], code) == ([USER, 0x10], 1)
    assert chain_of(tmp_path, [KERNEL, 1 << 63, USER, 0x10], code) == ([KERNEL, 1 << 63, USER, 0x10], 0)
    assert chain_of(tmp_path, [USER, 0x10, 0x20]) == ([USER, 0x10, 0x20], 0), "a process without maps"


def test_ids_of_another_pid_namespace_are_named(tmp_path: Path) -> None:
    """perf in a container: BPF says 4070, the kernel's records 70."""
    foreign = sample(WAITS, time=5, raw=raw_wait(4071, 4070, 10, [USER, 9]))
    known = sample(WAITS, time=6, raw=raw_wait(71, 70, 10, [USER, 9]))
    assert load(tmp_path, LEADER, THREAD, foreign, known).losses == {losses.FOREIGN_IDS: 1}
    assert load(tmp_path, foreign).losses == {}, "nobody is known: nothing to compare with"
