# SPDX-License-Identifier: Apache-2.0
"""Headers that lie, compressed records that are damaged or grow without end: refused, or read as far as possible."""

import resource
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from builders import zoo
from builders.recording import BASE, event, sample, write
from builders.zoo import zeros_packed
from corrupt.damage import SOUND, Damaged, header_at, periods

from perf_offcpu import losses
from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.records import RecordType
from perf_offcpu.decode.load import load_recording
from perf_offcpu.errors import FormatError
from perf_offcpu.losses import LossCause
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.write.writer import frame_record

MINIMAL = zoo.minimal()
WAITS_LOST = {"cpu-clock": [10], "offcpu-time": []}
NAMELESS = {"cpu-clock": [10], "bpf-output": [0]}


def changed(feature: Feature, value: int) -> Damaged:
    """Return a recording with another first number (u32) in a feature."""
    damaged = Damaged.of()
    return damaged.put(damaged.feature(feature)[1], value, 4)


def refused() -> Iterator[tuple[Damaged, str]]:
    begin = "file header at offset 0x0"
    for size in (0, 1, 8, 15):
        yield Damaged.of(MINIMAL[:size]), f"{begin}: {size} bytes, a perf.data file has at least 16"
    for size in (16, 72, 103):
        yield Damaged.of(MINIMAL[:size]), f"{begin}: cut: {size} bytes of 104"
    yield Damaged.of(b"#!/bin/sh\necho hello\n"), f"{begin}: magic is b'#!/bin/s': this is no perf.data file"
    sentence = f"{begin}: PERFFILE, the format before Linux 3.2, is not supported"
    yield Damaged.of(b"PERFFILE" + MINIMAL[8:]), sentence
    for size in (0, 17, 103, 120, 2**64 - 1):
        sentence = f"file header at offset 0x8: its size is {size}, expected is 16, 72 or 104"
        yield Damaged.of().put_header(size, "size"), sentence
    for size in (0, 16, 79):
        sentence = f"attr section at offset 0x10: entries of {size} bytes, expected are at least 80"
        yield Damaged.of().put_header(size, "attr_size"), sentence


@pytest.mark.parametrize(("damaged", "sentence"), [*refused()])
def test_heads_that_are_refused(damaged: Damaged, sentence: str) -> None:
    with pytest.raises(FormatError) as caught:
        damaged.read()
    assert str(caught.value).split(": ", 1)[1] == sentence


def readable() -> Iterator[tuple[Damaged, dict[str, list[int]], dict[LossCause, int] | set[LossCause]]]:
    """Yield damaged heads, and what is read: periods by event, and the losses or their causes."""
    yield Damaged.of(), SOUND, {}
    # perf steps by each entry's own size and loses events without a word.
    yield Damaged.of().put_attr(0, "size", 120), SOUND, {losses.ODD_ATTRS: 1}
    for size in (1, 63, 2**31, 2**32 - 1):
        yield Damaged.of().put_attr(1, "size", size), SOUND, {losses.ODD_ATTRS: 1}
    yield Damaged.of().put_attr(0, "size", 0), SOUND, {losses.ODD_ATTRS: 1}  # that of the first published one
    # Ids outside of the file are taken from the feature that repeats them.
    for offset in (1 << 40, 2**64 - 1):
        yield Damaged.of().put_attr(1, "ids_offset", offset), SOUND, {losses.BAD_IDS: 1}
    yield Damaged.of().put_attr(1, "ids_size", 12), SOUND, {losses.BAD_IDS: 1}
    for size in (1 << 40, 2**64 - 8):  # what other numbers claim as ids are duplicates
        yield Damaged.of().put_attr(1, "ids_size", size), SOUND, {losses.BAD_IDS, losses.DUPLICATE_ID}
    for offset in (2**63, 2**64 - 1, 1 << 40):
        nothing = {"cpu-clock": [], "bpf-output": []}
        yield Damaged.of().put_header(offset, "data", "offset"), nothing, {losses.FILE_CUT, losses.BAD_FEATURE}
    # Read to the end. Nobody knows where the features are, and with them the names of events.
    for size in (1 << 40, 2**63, 2**64 - 1):
        lost = {losses.FILE_CUT, losses.BAD_SIZE, losses.BAD_FEATURE}
        yield Damaged.of().put_header(size, "data", "size"), NAMELESS, lost
    # perf gives up; names of events are not in such a file, which has no features.
    sound = Damaged.of()
    end = sound.records[-1][0] + sound.records[-1][2]
    yield Damaged.of(zoo.killed(MINIMAL[:end])), NAMELESS, {losses.NO_END: 1}
    for size in (2**32 - 1, 5000):
        yield changed(Feature.HOSTNAME, size), SOUND, {losses.BAD_FEATURE: 1}
    yield changed(Feature.HOSTNAME, 0), SOUND, {}
    for count in (3, 2**31, 2**32 - 1):  # events without names have samples all the same
        yield changed(Feature.EVENT_DESC, count), NAMELESS, {losses.BAD_FEATURE: 1}


@pytest.mark.parametrize(("damaged", "read", "lost"), [*readable()])
def test_heads_that_are_read_as_far_as_they_can_be_true(
    damaged: Damaged, read: dict[str, list[int]], lost: dict[LossCause, int] | set[LossCause]
) -> None:
    recording = damaged.read()
    assert periods(recording) == read
    assert (set(recording.losses) if isinstance(lost, set) else recording.losses) == lost


@pytest.mark.parametrize("size", [2**62, 2**64 - 1])
def test_more_attrs_than_the_file_has_bytes(size: int) -> None:
    """The table ends with the file; what follows the true attrs is read as events that no sample has."""
    recording = Damaged.of().put_header(size, "attrs", "size").read()
    assert recording.losses[losses.BAD_ATTRS] == size // 144 - len(recording.evsels)
    assert periods(recording)["cpu-clock"] == [10]


def test_many_events_that_share_the_whole_file_as_ids_are_bounded() -> None:
    """65536 events of a megabyte of ids each would be 8 billion."""
    data = bytearray(MINIMAL[:104]) + bytes(3 << 20)
    attrs = len(data)
    entry = bytearray(144)
    struct.pack_into("<II", entry, 0, 1, 128)
    struct.pack_into("<QQ", entry, 128, 104, 3 << 20)
    damaged = Damaged.of(bytes(data + entry * 3000)).put_header(attrs, "attrs", "offset")
    damaged.put_header(144 * 3000, "attrs", "size").put_header(104, "data", "offset")
    recording = damaged.put_header(0, "data", "size").read()
    assert len(recording.evsels) == 3000
    assert recording.losses[losses.BAD_IDS] == 2999, "no more ids than the file has bytes for"


def test_an_id_that_two_events_claim_is_the_first_ones() -> None:
    damaged = Damaged.of()
    ids = damaged.u64(header_at("attrs", "offset")) + 144 + 128
    recording = damaged.put(damaged.u64(ids), 1).read()
    assert recording.losses[losses.DUPLICATE_ID] == recording.losses[losses.UNKNOWN_ID] == 1
    assert periods(recording) == WAITS_LOST


def test_a_data_section_in_the_header() -> None:
    assert sum(Damaged.of().put_header(0, "data", "offset").read().losses.values()) > 0


@pytest.mark.parametrize(("place", "value"), [(0, 1 << 40), (0, 2**64 - 1), (8, 1 << 40), (8, 2**64 - 1), (0, None)])
def test_a_feature_outside_of_the_file_or_inside_another(place: int, value: int | None) -> None:
    """A thousand features of the whole file each must not be a thousand copies of it."""
    damaged = Damaged.of()
    entry, _ = damaged.feature(Feature.NRCPUS)
    recording = damaged.put(entry + place, damaged.u64(entry - 16) if value is None else value).read()
    assert recording.losses == {losses.BAD_FEATURE: 1}
    assert periods(recording) == SOUND
    assert (recording.meta.nr_cpus, recording.meta.arch) == (0, "x86_64")


@pytest.mark.parametrize("size", [0, 5000, 2**32 - 1])
def test_a_damaged_string_leaves_the_others(size: int) -> None:
    meta = changed(Feature.HOSTNAME, size).read().meta
    assert (meta.hostname, meta.arch) == ("", "x86_64")


def test_more_feature_bits_than_the_table_has_entries() -> None:
    damaged = Damaged.of()
    for word in range(4):
        damaged.put(72 + 8 * word, 2**64 - 1)
    recording = damaged.read()
    assert recording.losses[losses.BAD_FEATURE] > 200
    assert len(recording.samples) == 2


SPEC = event("cpu-clock", (1,), BASE)


def sample_at(time_ns: int) -> bytes:
    return sample(SPEC, pid=70, tid=70, time=time_ns, period=1)


def compressed(data: bytes, kind: RecordType) -> bytes:
    if kind == RecordType.COMPRESSED2:
        data = len(data).to_bytes(8, "little") + data
        return frame_record(kind, 0, data)
    size = 8 + len(data)
    return int(kind).to_bytes(4, "little") + bytes(2) + size.to_bytes(2, "little") + data


def times(*records: bytes) -> tuple[list[int], dict[str, int]]:
    with zoo.as_file(b"") as path:
        recording = load_recording(write(path, [SPEC], records))
    return recording.samples.time_ns.tolist(), recording.losses


@pytest.mark.parametrize("kind", [RecordType.COMPRESSED, RecordType.COMPRESSED2])
def test_records_split_over_pieces_of_one_stream(kind: RecordType) -> None:
    """Cut at each place of an inner record; without the feature COMPRESSED, which perf insists on."""
    inner = sample_at(1) + sample_at(2)
    for cut in range(1, len(inner)):
        stream = zstandard.ZstdCompressor().compressobj()
        parts = []
        for piece in (inner[:cut], inner[cut:]):
            parts.append(stream.compress(piece) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
        assert times(*(compressed(part, kind) for part in parts)) == ([1, 2], {})


def test_small_compressed_records_are_read_together(tmp_path: Path) -> None:
    """A recorder that is emptied often writes a record for each few of its own."""
    stream, records = zstandard.ZstdCompressor().compressobj(), list[bytes]()
    for at in range(1, 1001):
        content = stream.compress(sample_at(at)) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        records.append(compressed(content, RecordType.COMPRESSED))
    records.insert(500, sample_at(0))
    path = write(tmp_path / "data", [SPEC], records)
    with PerfDataReader.open(path) as reader:
        sizes = [len(chunk) for chunk in reader.chunks()]
    assert 500 in sizes and len(sizes) < 10
    assert load_recording(path).samples.time_ns.tolist() == [*range(1001)]


def test_what_is_no_zstd_or_says_more_than_it_has_costs_its_own_record() -> None:
    stream = zstandard.ZstdCompressor().compress
    bad = compressed(b"\x28\xb5\x2f\xfd" + b"\xff" * 60, RecordType.COMPRESSED)
    good = [compressed(stream(sample_at(at)), RecordType.COMPRESSED) for at in (1, 2)]
    assert times(good[0], bad, good[1]) == ([1, 2], {losses.BAD_COMPRESSED: 1})
    cut = compressed(stream(sample_at(3)[:20]), RecordType.COMPRESSED)  # its end was in the bad one
    lost = {losses.BAD_COMPRESSED: 1, losses.FILE_CUT: 20}
    assert times(good[0], good[1], cut, bad, good[1]) == ([1, 2, 2], lost)
    record = bytearray(compressed(zstandard.ZstdCompressor().compress(sample_at(1)), RecordType.COMPRESSED2))
    record[8:16] = (2**63).to_bytes(8, "little")
    assert times(bytes(record), sample_at(5)) == ([5], {losses.BAD_COMPRESSED: 1})


def test_a_bomb_is_neither_believed_nor_kept() -> None:
    """64 KB that become 2 GB of zeros: stopped at 64 MB, in little memory and time."""
    bomb = zeros_packed(2 * 10**9)[:65_000]
    assert len(bomb) > 50_000
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    found, lost = times(compressed(bomb, RecordType.COMPRESSED), sample_at(5))
    assert found == [5]
    assert lost[losses.BAD_COMPRESSED] == 1
    assert time.process_time() - begin < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10


def test_a_compressed_recording_with_another_feature_than_it_should_have() -> None:
    """perf refuses the file."""
    damaged = Damaged.of(zoo.fixture("compressed"))
    assert len(damaged.put(damaged.feature(Feature.COMPRESSED)[1] + 16, 2**32 - 1, 4).read().samples) == 400
