# SPDX-License-Identifier: Apache-2.0
"""Raw off-cpu samples: whose they are, what the collector adds, and what it says of itself."""

from pathlib import Path
from typing import Any

import pytest
from builders.accounts import counters, told
from builders.recording import BASE, DUMMY_TIME, KERNEL, USER, S, comm, event, raw_wait, sample, side, task, write
from builders.wait_objects import COUNTERS

from perf_offcpu import losses
from perf_offcpu.abi import offcpu
from perf_offcpu.abi.records import RecordType
from perf_offcpu.decode.load import load_recording
from perf_offcpu.losses import LossCause
from perf_offcpu.model.recording import Recording, SampleFlag
from perf_offcpu.perfdata.events import EventSpec

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


@pytest.mark.parametrize(("values", "flag"), [
    ({"kind": 2}, SampleFlag.AGGREGATED), ({"kind": 3}, SampleFlag.STILL_BLOCKED),
    ({"kind": 4}, SampleFlag.BEGAN_BEFORE), ({"flags": 1}, SampleFlag.PREEMPTED),
    ({"lost": 1}, SampleFlag.NO_USER_STACK), ({"lost": 2}, SampleFlag.NO_KERNEL_STACK),
    ({"lost": 8}, SampleFlag.TRUNCATED), ({"kind": 999}, SampleFlag(0)),
])  # fmt: skip
def test_what_kind_of_wait(values: dict[str, int], flag: SampleFlag, tmp_path: Path) -> None:
    recording = extended(tmp_path, **values)
    assert int(recording.samples.flags[0]) == flag | SampleFlag.OFFCPU
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


def mapping(pid: int, addr: int, path: str, time: int = 0) -> bytes:
    return side(
        CLOCK, RecordType.MMAP2, 2, time=time, pid=pid, tid=pid, addr=addr, len=0x1000, pgoff=0, maj=8, min=1,
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
