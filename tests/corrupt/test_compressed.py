# SPDX-License-Identifier: Apache-2.0
"""Compressed records that are damaged, or made to grow without end."""

import resource
import time

import pytest
import zstandard
from builders import zoo
from builders.bombs import zeros_packed
from builders.recording import BASE, event, sample, write
from corrupt.damage import Damaged

from perf_offcpu import losses
from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.records import RecordType
from perf_offcpu.decode.load import load_recording
from perf_offcpu.perfdata.write.writer import frame_record

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


def test_what_is_no_zstd_costs_its_own_record_only() -> None:
    stream = zstandard.ZstdCompressor().compress
    bad = compressed(b"\x28\xb5\x2f\xfd" + b"\xff" * 60, RecordType.COMPRESSED)
    good = [compressed(stream(sample_at(at)), RecordType.COMPRESSED) for at in (1, 2)]
    assert times(good[0], bad, good[1]) == ([1, 2], {losses.BAD_COMPRESSED: 1})


def test_a_record_that_says_more_than_it_has() -> None:
    data = zstandard.ZstdCompressor().compress(sample_at(1))
    record = bytearray(compressed(data, RecordType.COMPRESSED2))
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
    recording = damaged.put(damaged.feature(Feature.COMPRESSED)[1] + 16, 2**32 - 1, 4).read()
    assert len(recording.samples) == 400
