# SPDX-License-Identifier: Apache-2.0
"""FileWriter: files that our reader reads, that perf opens, and that survive what happens to recorders."""

import os
import random
import resource
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from builders.recording import event
from builders.stock_perf import perf

from perf_offcpu import losses
from perf_offcpu.abi.attr import Attr, AttrFlag, SampleType, SoftwareConfig
from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.records import RecordType
from perf_offcpu.errors import FileFullError, LayoutError
from perf_offcpu.perfdata.compressed import CompressedWriter
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.features import BuildId, build_id_body, cmdline_body, event_desc_body, feature_body, text_body
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.write.writer import FileWriter, frame_record, pack_record, write_all

KIND = SampleType.IDENTIFIER | SampleType.IP | SampleType.TID | SampleType.TIME | SampleType.CPU
TRAILER = bytes(32)
CLOCK = event("cpu-clock", (11, 12), KIND, flags=AttrFlag.SAMPLE_ID_ALL)
EVENTS = [CLOCK, event("dummy", (13, 14), KIND, flags=AttrFlag.SAMPLE_ID_ALL, config=SoftwareConfig.DUMMY)]
BUILD_IDS = [BuildId(-1, 2, "ab" * 20, b"/bin/a"), BuildId(-1, 1, "cd" * 16, b"[k]")]
FEATURES: dict[int, bytes] = {
    Feature.HOSTNAME: text_body("here"), Feature.OSRELEASE: text_body("6.18"),
    Feature.NRCPUS: feature_body(Feature.NRCPUS, available=2, online=2),
    Feature.CMDLINE: cmdline_body(["perf-offcpu", "record", "-a", "caf\udce9"]),
    Feature.EVENT_DESC: event_desc_body(EVENTS), Feature.BUILD_ID: build_id_body(BUILD_IDS),
}  # fmt: skip


def comm(tid: int, name: bytes) -> bytes:
    return pack_record(RecordType.COMM, 0, {"pid": tid, "tid": tid, "comm": name}, TRAILER)


def kernel_map() -> bytes:
    place = {"pid": 2**32 - 1, "tid": 0, "addr": 0xFFFFFFFF81000000, "len": 1 << 24, "pgoff": 0xFFFFFFFF81000000}
    return pack_record(RecordType.MMAP, 1, place | {"filename": b"[kernel.kallsyms]_text"}, TRAILER)


def described(specs: Sequence[EventSpec]) -> list[tuple[str, tuple[int, ...], Attr]]:
    return [(spec.name, spec.ids, spec.attr) for spec in specs]


def sample(event_id: int, time_ns: int) -> bytes:
    words = (event_id, 0x1000, 7 << 32 | 7, time_ns, 0)
    return frame_record(RecordType.SAMPLE, 2, b"".join(word.to_bytes(8, "little") for word in words))


@pytest.fixture
def fd(perf_data: Path) -> Iterator[int]:
    fd = os.open(perf_data, os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def records(path: Path) -> list[tuple[int, bytes]]:
    with PerfDataReader.open(path) as reader:
        places = ((chunk, row) for chunk in reader.chunks() for row in range(len(chunk)))
        found = [(int(chunk.types[row]), bytes(chunk.record(row))) for chunk, row in places]
        assert not reader.counters or set(reader.counters) == {losses.NO_END}
        return found


def test_what_was_written_is_read(fd: int, perf_data: Path) -> None:
    writer = FileWriter(fd, EVENTS, "out")
    written = [comm(7, b"seven"), sample(11, 100), sample(12, 200)]
    writer.append(written[0])
    writer.append(*(memoryview(record) for record in written[1:]))
    writer.finish(FEATURES)
    assert [data for _, data in records(perf_data)] == written
    with PerfDataReader.open(perf_data) as reader:
        assert described(reader.events.specs) == described(EVENTS)
        assert reader.features.text(Feature.HOSTNAME) == "here"
        assert reader.features.cmdline() == ("perf-offcpu", "record", "-a", "caf\udce9")
        assert reader.features.values(Feature.NRCPUS) == {"available": 2, "online": 2}
        assert reader.features.build_ids() == BUILD_IDS
        assert sorted(reader.features.bodies) == sorted(FEATURES)


def test_stock_perf_opens_it_without_a_word(fd: int, perf_data: Path) -> None:
    writer = FileWriter(fd, EVENTS, "out")
    writer.append(kernel_map())
    writer.append(comm(7, b"seven"), sample(11, 100), sample(12, 200))
    writer.finish(FEATURES)
    for command in (["report", "--header-only"], ["script"], ["report", "--stdio"]):
        perf(*command, "-i", perf_data, quiet=True)
    assert perf("script", "-F", "comm,tid,event", "-i", perf_data).split() == ["seven", "7", "cpu-clock:"] * 2


def test_ids_that_come_later_stand_at_the_end(fd: int, perf_data: Path) -> None:
    writer = FileWriter(fd, EVENTS, "out")
    writer.append(kernel_map())
    writer.append(comm(7, b"seven"), sample(11, 100), sample(99, 200))
    later = [replace(CLOCK, ids=(*CLOCK.ids, 99)), *EVENTS[1:]]
    writer.learn_ids(later)
    writer.finish(FEATURES)
    with PerfDataReader.open(perf_data) as reader:
        assert [spec.ids for spec in reader.events.specs] == [spec.ids for spec in later]
        assert reader.features.text(Feature.HOSTNAME) == "here"
    assert perf("script", "-F", "tid,event", "-i", perf_data, quiet=True).split() == ["7", "cpu-clock:"] * 2


def test_without_finish_it_is_known_as_a_killed_recorders(fd: int, perf_data: Path) -> None:
    FileWriter(fd, EVENTS, "out").append(comm(7, b"seven"), sample(11, 100))
    assert [kind for kind, _ in records(perf_data)] == [RecordType.COMM, RecordType.SAMPLE]
    with PerfDataReader.open(perf_data) as reader:
        assert losses.NO_END in reader.counters
        assert [spec.ids for spec in reader.events.specs] == [(11, 12), (13, 14)]


def test_big_endian(fd: int, perf_data: Path) -> None:
    writer = FileWriter(fd, EVENTS, "out", ">")
    writer.append(pack_record(RecordType.COMM, 0, {"pid": 1, "tid": 2, "comm": b"big"}, TRAILER, ">"))
    writer.finish({Feature.HOSTNAME: text_body("there", ">"), Feature.EVENT_DESC: event_desc_body(EVENTS, ">")})
    with PerfDataReader.open(perf_data) as reader:
        assert reader.order == ">"
        assert described(reader.events.specs) == described(EVENTS)
        assert reader.features.text(Feature.HOSTNAME) == "there"


@contextmanager
def full_at(size: int) -> Iterator[None]:
    """RLIMIT_FSIZE makes write(2) short and then fail, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_of_what_does_not_fit_the_whole_records_that_do_are_kept(fd: int, perf_data: Path) -> None:
    some = [sample(11, time_ns) for time_ns in range(10)]
    fitting = 100 // len(some[0])
    assert fitting == 2
    data = b"".join(some)  # as a ring that wraps gives them: cut within a record
    writer = FileWriter(fd, EVENTS, "out")
    writer.append(comm(7, b"seven"))
    with (
        full_at(writer.data_offset + writer.data_size + 100),
        pytest.raises(FileFullError, match=r"^out: cannot write the recording: File too large$") as caught,
    ):
        writer.append(data[:57], data[57:])
    assert (caught.value.taken, caught.value.records) == (fitting * len(some[0]), fitting)
    assert os.fstat(fd).st_size == writer.data_offset + writer.data_size
    writer.append(sample(12, 5))
    writer.finish(FEATURES)
    assert [data for _, data in records(perf_data)] == [comm(7, b"seven"), *some[:fitting], sample(12, 5)]


def test_a_compressed_file_that_is_full_ends_in_plain_records(fd: int, perf_data: Path) -> None:
    noise = random.Random(4)
    some = [sample(11, noise.getrandbits(62)) for _ in range(10_000)]
    file = FileWriter(fd, EVENTS, "out")
    writer = CompressedWriter(file)
    writer.append(comm(7, b"seven"))
    with full_at(file.data_offset + 50_000), pytest.raises(FileFullError) as caught:
        writer.append(*some)
    assert 0 < caught.value.taken < len(some) * len(some[0])
    assert caught.value.taken == caught.value.records * len(some[0])
    writer.append(sample(12, 5))
    writer.finish(FEATURES)
    assert [data for _, data in records(perf_data)] == [comm(7, b"seven"), *some[: caught.value.records], sample(12, 5)]


def test_many_pieces_through_short_writes() -> None:
    """A pipe takes 64 KB at most, and writev no more than IOV_MAX pieces."""
    pieces = [bytes([at & 255]) * (at % 97) for at in range(3000)]
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read_fd)
        write_all(write_fd, pieces)
        os._exit(0)
    os.close(write_fd)
    with open(read_fd, "rb") as file:
        received = file.read()
    assert os.waitpid(pid, 0)[1] == 0
    assert received == b"".join(pieces)


def test_records_are_padded_and_bounded() -> None:
    assert frame_record(RecordType.SAMPLE, 2, b"abc")[4:] == b"\x02\x00\x10\x00abc\0\0\0\0\0"
    assert len(frame_record(RecordType.SAMPLE, 2, bytes(65520))) == 65528
    with pytest.raises(LayoutError, match="at most 65528"):
        frame_record(RecordType.SAMPLE, 2, bytes(65521))
    with pytest.raises(LayoutError, match="after byte 128"):  # attrs that perf 6.1 cannot read
        FileWriter(-1, [EventSpec(Attr(sample_type=KIND, config3=1, size=136), "new", (1,))], "out")
