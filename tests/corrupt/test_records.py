# SPDX-License-Identifier: Apache-2.0
"""Records that lie about their size, their counts, or whose they are: their neighbours stay whole."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import zoo
from builders.recording import BASE, KERNEL, TRACKING, USER, S, comm, event, raw_wait, sample, side, task, write
from builders.shown import show
from corrupt.damage import SOUND, Damaged, periods

from perf_offcpu import losses
from perf_offcpu.abi.attr import SampleType
from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.records import RecordType
from perf_offcpu.decode.load import load_recording
from perf_offcpu.losses import LossCause
from perf_offcpu.model.recording import Recording, SampleFlag
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.features import feature_body
from perf_offcpu.perfdata.write.writer import frame_record

R = RecordType
CHAIN = [KERNEL, 0xFFFFFFFF81000010, USER, 0x401010]
TRACKER = event("cpu-clock", (1, 2), BASE | S.CALLCHAIN)
WAITS = event("offcpu-time", (11, 12), BASE | S.RAW | S.CGROUP)
OFFSET_OF_NR = 8 + 48  # header; identifier, ip, pid and tid, time, cpu, period


def load(path: Path, *records: bytes, features: dict[int, bytes] | None = None) -> Recording:
    """What is read of these records, between a thread's name and two sound samples."""
    around = [comm(TRACKER, 70, 70, "main")]
    behind = [
        sample(TRACKER, 1, pid=70, tid=70, time=4000, period=10, callchain=CHAIN),
        sample(WAITS, 1, time=5000, raw=raw_wait(70, 70, 900, [USER, 0x401010])),
    ]
    recording = load_recording(write(path / "x.data", [TRACKER, WAITS], [*around, *records, *behind], features))
    recording.check()
    return recording


def raw_sample(raw: bytes) -> bytes:
    return sample(WAITS, 1, time=4500, raw=raw, raw_size=len(raw) + -(len(raw) + 4) % 8)


def damaged_samples() -> Iterator[tuple[Damaged, dict[str, list[int]], set[LossCause]]]:
    """Yield the smallest recording with a changed sample, and what is read: periods by event, and causes of losses."""
    no_wait, no_sample = {"cpu-clock": [10], "offcpu-time": []}, {"cpu-clock": [], "offcpu-time": [900]}
    for size in (0, 4, 7, 9, 44):  # an impossible size ends the reading
        yield Damaged.of().put_record(R.SAMPLE, 6, size, 2, number=1), no_wait, {losses.BAD_SIZE}
    yield Damaged.of().put_record(R.SAMPLE, 6, 0xFFF8, 2, number=1), no_wait, {losses.FILE_CUT}
    for nr in (6, 2**16, 2**32, 2**61, 2**61 + 4, 2**63, 2**64 - 1):  # words of the callchain
        yield Damaged.of().put_record(R.SAMPLE, OFFSET_OF_NR, nr), no_sample, {losses.BAD_SAMPLE}
    for size in (0xFFFF, 2**31, 2**32 - 1, 200):  # of raw data
        yield Damaged.of().put_record(R.SAMPLE, OFFSET_OF_NR, size, 4, number=1), no_wait, {losses.BAD_SAMPLE}
    # perf aborts; where all events are laid out alike, a file without any ids is the first event's.
    yield Damaged.of().put_record(R.SAMPLE, 8, 99), no_sample, {losses.UNKNOWN_ID}
    for cpu in (4096, 2**31, 2**32 - 1):
        yield Damaged.of().put_record(R.SAMPLE, 8 + 32, cpu, 4), SOUND, set()
    for period in (2**63, 2**64 - 1):
        yield Damaged.of().put_record(R.SAMPLE, 8 + 40, period), no_sample, {losses.BAD_SAMPLE}


@pytest.mark.parametrize(("damaged", "read", "causes"), [*damaged_samples()])
def test_a_damaged_sample_leaves_others(damaged: Damaged, read: dict[str, list[int]], causes: set[LossCause]) -> None:
    recording = damaged.read()
    assert periods(recording) == read
    assert set(recording.losses) == causes
    if causes & {losses.BAD_SAMPLE, losses.UNKNOWN_ID}:
        assert recording.losses == dict.fromkeys(causes, 1)


@pytest.mark.parametrize("kind", [R.COMM, R.MMAP2, R.FORK, R.CGROUP, R.KSYMBOL, R.LOST])
def test_a_record_too_short_for_its_type(kind: RecordType, tmp_path: Path) -> None:
    """Only a header and what looks like a trailer."""
    trailer = side(TRACKER, R.SWITCH, time=3000)[8:]
    recording = load(tmp_path, frame_record(kind, 0, trailer), frame_record(kind, 0, b""))
    assert recording.losses == {losses.BAD_RECORD: 2}
    assert periods(recording) == SOUND


@pytest.mark.parametrize("kind", [0, 23, 63, 87, 200, 2**32 - 1])
def test_records_of_unknown_type_are_counted_and_passed_over(kind: int, tmp_path: Path) -> None:
    recording = load(tmp_path, frame_record(kind, 0, bytes(40)), frame_record(kind, 7, bytes(8)))
    assert recording.losses == {losses.UNKNOWN_RECORD: 2}
    assert periods(recording) == SOUND


def test_a_name_without_its_end(tmp_path: Path) -> None:
    """It ends where the trailer begins."""
    record = bytearray(side(TRACKER, R.CGROUP, id=7, path=b"/1234567"))
    at = record.index(b"/1234567")
    assert record[at + 8 : at + 16] == bytes(8)
    full = record[:at] + b"/1234567" + record[at + 16 :]
    full[6:8] = len(full).to_bytes(2, "little")
    recording = load(tmp_path, bytes(full))
    assert recording.cgroups == {7: "/1234567"}
    assert recording.losses == {}


@pytest.mark.parametrize("nr, frames", [(0, 0), (1, 1), (2, 2), (3, 2), (100, 2), (2**61, 2), (2**64 - 1, 2)])
def test_an_off_cpu_callchain_that_lies_about_its_length(nr: int, frames: int) -> None:
    """At most the words that the payload has, the cgroup's set apart."""
    recording = Damaged.of().put_record(R.SAMPLE, OFFSET_OF_NR + 4 + 16, nr, number=1).read()
    assert periods(recording) == SOUND
    row = recording.samples.callchain[recording.samples.period == 900]
    assert recording.callchains.lengths[row].tolist() == [frames]


@pytest.mark.parametrize("raw", [b"", bytes(4), bytes(20), raw_wait(70, 70, 900, [])[:28]])
def test_off_cpu_payloads_that_are_too_short(raw: bytes, tmp_path: Path) -> None:
    recording = load(tmp_path, raw_sample(raw))
    assert recording.losses == {losses.BAD_SAMPLE: 1}
    assert periods(recording) == SOUND


def test_an_off_cpu_payload_that_is_far_too_long(tmp_path: Path) -> None:
    recording = load(tmp_path, raw_sample(raw_wait(70, 70, 800, [USER, 0x401010]) + bytes(4000)))
    assert periods(recording) == {"cpu-clock": [10], "offcpu-time": [800, 900]}
    assert recording.losses == {}


@pytest.mark.parametrize("word", [8, 16])
@pytest.mark.parametrize("value", [0, 2, 2**61, 2**64 - 1])
def test_a_deferred_callchain_longer_than_its_record(word: int, value: int) -> None:
    """perf 7.2 dies of it. Word 8 is the cookie, with which nothing can be merged if it is wrong."""
    recording = Damaged.of(zoo.deferred_chains()).put_record(R.CALLCHAIN_DEFERRED, word, value).read()
    assert len(recording.samples) == 3
    unmerged = (recording.samples.flags & SampleFlag.UNMERGED) != 0
    if word == 8 and value == 2:
        assert unmerged.all()
    if word == 16 and value != 2:
        assert unmerged.all()
        assert recording.losses[losses.BAD_RECORD] == 1


@pytest.mark.parametrize("kind, at", [
    (R.NAMESPACES, 16), (R.THREAD_MAP, 8), (R.ID_INDEX, 8), (R.BPF_METADATA, 8 + 512), (R.STAT_CONFIG, 8),
    (R.TEXT_POKE, 16),
])  # fmt: skip
@pytest.mark.parametrize("nr", [10_000, 2**61, 2**64 - 1])
def test_records_that_count_more_than_they_hold(kind: RecordType, at: int, nr: int) -> None:
    size = 2 if kind == R.TEXT_POKE else 8
    sound = Damaged.of(zoo.everything()).read()
    recording = Damaged.of(zoo.everything()).put_record(kind, at, min(nr, 256**size - 1), size).read()
    assert recording.losses[losses.BAD_RECORD] == sound.losses.get(losses.BAD_RECORD, 0) + 1
    assert len(recording.samples) == len(sound.samples) == 1


@pytest.mark.parametrize("kind", [R.AUXTRACE, R.HEADER_TRACING_DATA])
@pytest.mark.parametrize("size", [0xFFFF, 2**31, 2**63, 2**64 - 1])
def test_a_blob_longer_than_the_file(kind: RecordType, size: int, tmp_path: Path) -> None:
    """What was before it stays; what is behind it cannot be told from it."""
    payload = size.to_bytes(8, "little") + bytes(32)
    path = write(tmp_path / "x.data", [TRACKER], [
        sample(TRACKER, 1, pid=70, tid=70, time=4000, period=10, callchain=CHAIN),
        frame_record(kind, 0, payload if kind == R.AUXTRACE else payload[:8]),
    ])  # fmt: skip
    assert periods(load_recording(path)) == {"cpu-clock": [10]}


def test_a_blob_is_passed_over(tmp_path: Path) -> None:
    trace = frame_record(R.AUXTRACE, 0, (24).to_bytes(8, "little") + bytes(32)) + b"\xff" * 24
    assert periods(load(tmp_path, trace)) == SOUND


@pytest.mark.parametrize("field", range(8, 8 + 48 + 24, 8))
@pytest.mark.parametrize("value", [2**63, 2**64 - 1])
def test_absurd_numbers_in_a_sample(field: int, value: int) -> None:
    recording = Damaged.of().put_record(R.SAMPLE, field, value).read()
    assert len(recording.samples) + sum(recording.losses.values()) >= 2
    assert periods(recording)["offcpu-time"] == [900]


@pytest.mark.parametrize("ids", [(0, 0), (2**32 - 1, 2**32 - 1), (2**31, 5)])
def test_ids_that_are_no_threads(ids: tuple[int, int], tmp_path: Path) -> None:
    odd = sample(TRACKER, 1, pid=ids[0], tid=ids[1], time=4001, period=7, callchain=CHAIN)
    recording = load(tmp_path, odd, task(TRACKER, R.EXIT, *ids, 4002), comm(TRACKER, *ids, "odd"))
    assert periods(recording)["cpu-clock"] == [10, 7]
    samples = recording.samples
    names = dict(zip(samples.period.tolist(), [recording.strings[row] for row in samples.comm], strict=True))
    assert names[10] == "main"


@pytest.mark.parametrize("time", [0, 2**63 - 1, 2**63, 0xFFFFFFFF << 32, 2**64 - 1])
def test_times_that_are_none(time: int, tmp_path: Path) -> None:
    odd = sample(TRACKER, 1, pid=70, tid=70, time=time, period=7, callchain=CHAIN)
    recording = load(tmp_path, odd, comm(TRACKER, 70, 70, "later", time=time))
    assert sorted(periods(recording)["cpu-clock"]) == [7, 10]
    untimed = recording.samples.period[(recording.samples.flags & SampleFlag.UNTIMED) != 0].tolist()
    assert untimed == ([7] if time >= 2**63 else [])


def test_times_that_run_backwards_are_put_in_order(tmp_path: Path) -> None:
    late = [sample(TRACKER, 1, pid=70, tid=70, time=9000 - at, period=at) for at in range(5)]
    assert load(tmp_path, *late).samples.time_ns.tolist() == [4000, 5000, 8996, 8997, 8998, 8999, 9000]


@pytest.mark.parametrize("name", [b"a\x1b[31mb", b"a\xff\xfe", b"a\nb;c", b"\x61\xff\xfe\x00"])
def test_names_of_any_bytes_come_back_as_they_were(name: bytes, tmp_path: Path) -> None:
    recording = load(tmp_path, side(TRACKER, R.COMM, time=3999, pid=70, tid=70, comm=name))
    text = recording.strings[int(recording.samples.comm[0])]
    assert text.encode("utf-8", "surrogateescape") == name.rstrip(b"\0")


@pytest.mark.parametrize("addr, size", [(0x401000, 0), (2**64 - 4096, 8192), (2**64 - 1, 2**64 - 1), (0, 2**64 - 1)])
def test_mappings_that_are_empty_or_wrap(addr: int, size: int, tmp_path: Path) -> None:
    odd = side(
        TRACKER, R.MMAP2, 2, pid=70, tid=70, addr=addr, len=size, pgoff=0, maj=8, min=1, ino=5,
        ino_generation=0, prot=5, flags=2, filename=b"/bin/odd",
    )  # fmt: skip
    recording = load(tmp_path, odd)
    assert periods(recording) == SOUND
    assert (recording.maps.start < recording.maps.end).all()


def test_sample_bits_that_nobody_knows() -> None:
    """What is before them can be read; perf goes on likewise."""
    damaged = Damaged.of()
    damaged.put_attr(0, "sample_type", int(TRACKER.attr.sample_type) | 1 << 40)
    assert periods(damaged.read()) == SOUND


@pytest.mark.parametrize("bare", [
    event("cpu-clock", (1,), BASE, flags=TRACKING & ~TRACKING.SAMPLE_ID_ALL),
    event("cpu-clock", (), SampleType.IP | SampleType.TID | SampleType.TIME),
], ids=["no trailers", "no ids"])  # fmt: skip
def test_the_recording_of_one_event_needs_no_ids_and_no_trailers(bare: EventSpec, tmp_path: Path) -> None:
    time = {"period": 10} if bare.ids else {}
    records = [comm(bare, 70, 70, "main"), sample(bare, pid=70, tid=70, time=4000, **time)]
    recording = load_recording(write(tmp_path / "x.data", [bare], records))
    assert [recording.strings[row] for row in recording.samples.comm] == ["main"]
    assert recording.losses == {}


def test_fewer_cpus_than_samples_say(tmp_path: Path) -> None:
    none = {Feature.NRCPUS: feature_body(Feature.NRCPUS, available=0, online=9)}
    assert periods(load(tmp_path, features=none)) == SOUND


@pytest.mark.parametrize("merge", [True, False])
def test_deferred_callchains_of_a_file_without_events_are_shown(merge: bool) -> None:
    """Nothing says that they have trailers: one whose count includes the trailer's words is sound then."""
    damaged = Damaged.of(zoo.deferred_chains()).put_header(0, "attrs", "size")
    damaged.put_record(R.CALLCHAIN_DEFERRED, 16, 2 + 4)
    with zoo.as_file(bytes(damaged.data)) as path:
        recording = load_recording(path, merge=False)
        assert not recording.evsels
        assert len(recording.deferred) == 1
        show(str(path), merge=merge)
