# SPDX-License-Identifier: Apache-2.0
"""FileWriter and AtomicFile: files that our reader reads, that perf opens, and that survive; all or nothing."""

import os
import random
import resource
import signal
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from builders.disk import small_disk
from builders.recording import event
from builders.stock_perf import perf

from perf_offcpu import losses
from perf_offcpu.abi.attr import Attr, AttrFlag, SampleType, SoftwareConfig
from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.records import RecordType
from perf_offcpu.errors import FileFullError, LayoutError, RecordingError
from perf_offcpu.perfdata.compressed import CompressedWriter
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.features import BuildId, build_id_body, cmdline_body, event_desc_body, feature_body, text_body
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.write.output import AtomicFile
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


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def write(path: Path, text: bytes, keep_old: bool = True) -> None:
    with AtomicFile(path, keep_old) as output:
        os.write(output.fd, text)
        output.commit()


def test_committed_file_is_private(perf_data: Path, tmp_path: Path) -> None:
    os.umask(0)
    write(perf_data, b"one")
    assert perf_data.read_bytes() == b"one"
    assert stat.S_IMODE(perf_data.stat().st_mode) == 0o600
    assert names(tmp_path) == ["perf.data"]


def test_without_commit_nothing_has_happened(perf_data: Path, tmp_path: Path) -> None:
    perf_data.write_bytes(b"older")
    with AtomicFile(perf_data, keep_old=True) as output:
        os.write(output.fd, b"half")
    assert names(tmp_path) == ["perf.data"]
    assert perf_data.read_bytes() == b"older"


@pytest.mark.parametrize(("texts", "keep_old", "old"), [
    ((b"one", b"two", b"three"), True, [b"two"]), ((b"", b"one"), True, []), ((b"one", b"two"), False, []),
])  # fmt: skip
def test_an_older_file_is_kept(texts: tuple[bytes, ...], keep_old: bool, old: list[bytes], tmp_path: Path) -> None:
    for text in texts:
        write(tmp_path / "perf.data", text, keep_old)
    assert (tmp_path / "perf.data").read_bytes() == texts[-1]
    assert [path.read_bytes() for path in tmp_path.glob("*.old")] == old
    assert len(names(tmp_path)) == 1 + len(old)


def test_link_is_replaced_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "perf.data").symlink_to(victim)
    write(tmp_path / "perf.data", b"one")
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "perf.data").is_symlink()


def test_device_is_written_to() -> None:
    with AtomicFile("/dev/null", keep_old=True) as output:
        assert os.write(output.fd, b"gone") == 4
        output.commit()
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_what_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name, sentence in (
        ("nowhere/out", r"nowhere/out: cannot be written: No such file or directory$"), (".", "is no regular file"),
        ("fifo", "is no regular file"), ("x/", r"x/: is the name of a directory: give that of a file"),
    ):  # fmt: skip
        with pytest.raises(RecordingError, match=sentence):
            AtomicFile(f"{tmp_path}/{name}")
    assert names(tmp_path) == ["fifo"]


@pytest.mark.kernel
def test_room_held_on_the_disk_is_there_when_it_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "256K") as disk:
        with AtomicFile(disk / "perf.data", reserve=64 << 10) as output:
            with pytest.raises(OSError, match="No space left on device"):
                while True:
                    os.write(output.fd, bytes(4096))
            assert os.fstat(output.fd).st_size == 192 << 10
            assert output.release() and not output.release()
            assert os.write(output.fd, bytes(64 << 10)) == 64 << 10
            assert names(disk) != []
        assert names(disk) == []
        with pytest.raises(RecordingError, match="cannot write the recording: No space left on device"):
            AtomicFile(disk / "perf.data", reserve=1 << 20)
        assert names(disk) == []


def test_the_oldest_is_unlinked_and_freed_at_the_end(tmp_path: Path) -> None:
    for text in (b"one", b"two"):
        write(tmp_path / "perf.data", text)
    with AtomicFile(tmp_path / "perf.data", keep_old=True) as output:
        assert open_but_unlinked(tmp_path) == []
        output.commit()
        assert open_but_unlinked(tmp_path) == ["perf.data.old (deleted)"]
    assert open_but_unlinked(tmp_path) == []


def open_but_unlinked(directory: Path) -> list[str]:
    fds = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    targets = [Path(os.readlink(fd)) for fd in fds if os.path.islink(fd)]
    return [path.name for path in targets if path.parent == directory and "(deleted)" in path.name]


def test_a_committed_file_can_be_withdrawn_if_it_is_still_the_same(tmp_path: Path) -> None:
    with AtomicFile(tmp_path / "x.data") as file:
        file.commit()
        file.withdraw()
    assert not list(tmp_path.iterdir())
    with AtomicFile(tmp_path / "x.data") as file:
        file.commit()
        (tmp_path / "x.data").unlink()
        (tmp_path / "x.data").write_text("another")
        file.withdraw()
    assert (tmp_path / "x.data").read_text() == "another"
    with AtomicFile("/dev/null") as file:
        file.withdraw()
    assert Path("/dev/null").exists()
