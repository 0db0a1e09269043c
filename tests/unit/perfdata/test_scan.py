# SPDX-License-Identifier: Apache-2.0
"""Splitting inputs into records: packed files, pipes, directories, pieces of any size, damage; records put together."""

import gzip
import lzma
import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from builders import zoo
from builders.compare import assert_same
from builders.examples import examples
from builders.recording import BASE, TRACKING, S, event, side, write
from builders.zoo import zeros_packed
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu import losses
from perf_offcpu.abi.attr import AttrFlag
from perf_offcpu.abi.records import Misc, RecordType
from perf_offcpu.decode.load import load_recording
from perf_offcpu.errors import FormatError
from perf_offcpu.losses import LossCause, Losses
from perf_offcpu.perfdata.compressed import joined
from perf_offcpu.perfdata.events import EventSpec, with_written_miscs, without_leaked_flags
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.scan import Scanner


def record(kind: int, payload: bytes, order: str = "<") -> bytes:
    return struct.pack(f"{order}IHH", kind, 0, 8 + len(payload)) + payload


def scan(pieces: list[bytes], order: Any = "<") -> tuple[list[tuple[int, bytes, int]], Losses]:
    """Return (type, payload, file offset) of each record, and the counted damage."""
    counters = Losses()
    scanner = Scanner(order, counters, 1000)
    rows = ((chunk, row) for piece in pieces for chunk in scanner.feed(piece) for row in range(len(chunk)))
    found = [(int(c.types[row]), bytes(c.record(row))[8:], c.file_offset + int(c.starts[row])) for c, row in rows]
    scanner.finish()
    return found, counters


RECORDS = st.tuples(st.sampled_from([3, 9, 10]), st.integers(0, 6).map(lambda n: 8 * n))
BLOBS = st.tuples(st.sampled_from([80, 81]), st.integers(0, 50))


@given(st.lists(RECORDS | BLOBS, max_size=12), st.sampled_from(["<", ">"]), st.integers(1, 100))
def test_records_survive_any_piece_size(stream: list[tuple[int, int]], order: Any, step: int) -> None:
    records = [(kind, bytes(index % 251 for _ in range(size))) for index, (kind, size) in enumerate(stream)]
    data = b"".join(record(kind, payload, order) for kind, payload in records)
    found, counters = scan([data[at : at + step] for at in range(0, len(data), step)], order)
    assert [(kind, payload) for kind, payload, _ in found] == records
    assert not counters
    places = [offset for *_, offset in found]
    assert places == [1000 + sum(8 + len(p) for _, p in records[:i]) for i in range(len(records))]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 1500)), max_size=5), st.sampled_from(["<", ">"]))
def test_runs_of_records_of_one_size(runs: list[tuple[int, int]], order: Any) -> None:
    sizes = [8 * words for words, count in runs for _ in range(count)]
    data = b"".join(record(9, bytes(size), order) for size in sizes)
    found, counters = scan([data, b"cut"], order)
    assert [len(payload) for _, payload, _ in found] == sizes
    assert dict(counters) == {losses.FILE_CUT: 3}
    cut, counters = scan([data[:-1]], order)  # the last one is not whole
    assert cut == found[:-1]
    assert not counters or list(counters) == [losses.FILE_CUT]


@pytest.mark.parametrize(("kind", "payload"), [(66, struct.pack("<I", 16)), (71, struct.pack("<5Q", 16, 0, 0, 0, 0))])
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_bytes_behind_a_record_that_belong_to_it_are_skipped(kind: int, payload: bytes, step: int) -> None:
    data = record(3, bytes(8)) + record(kind, payload) + b"\xff" * 16 + record(9, bytes(8))
    found, counters = scan([data[at : at + step] for at in range(0, len(data), step)])
    assert [entry[0] for entry in found] == [3, kind, 9]
    assert not counters


@pytest.mark.parametrize(("rest", "counted"), [
    *((struct.pack("<IHH", 9, 0, size) + bytes(32), {losses.BAD_SIZE: 40}) for size in (0, 4, 7, 12)),
    *((record(9, bytes(16))[:cut], {losses.FILE_CUT: cut}) for cut in range(1, 24)),
])  # fmt: skip
def test_impossible_sizes_and_cut_records_are_counted_not_read(rest: bytes, counted: dict[LossCause, int]) -> None:
    found, counters = scan([part for part in (record(3, bytes(8)) + rest[:32], rest[32:]) if part])
    assert [entry[0] for entry in found] == [3] and counters == counted


PLAIN = event("cpu-clock", (1,), BASE | S.CALLCHAIN)
ASKING = event("cpu-clock", (1,), BASE | S.CALLCHAIN, flags=TRACKING | AttrFlag.BUILD_ID)
FLAG = Misc.MMAP_BUILD_ID
NAME = {"pid": 7, "tid": 7, "addr": 0x1000, "len": 0x1000, "pgoff": 0, "prot": 5, "flags": 2, "filename": b"/x"}


def by_inode(spec: EventSpec, maj: int, time: int = 5) -> bytes:
    """Make a record as the kernel does: an inode, and the flag that it forgot to clear."""
    inode = {"maj": maj, "min": 0, "ino": 0x3F854, "ino_generation": 0}
    record = bytearray(side(spec, RecordType.MMAP2, 2, time=time, **NAME, **inode))
    record[4:6] = int(2 | FLAG).to_bytes(2, "little")
    return bytes(record)


def by_build_id(spec: EventSpec, size: int = 20, time: int = 5) -> bytes:
    held: dict[str, Any] = {"build_id_size": size, "reserved_1": 0, "reserved_2": 0, "build_id": b"\xab" * size}
    return side(spec, RecordType.MMAP2, 2 | FLAG, time=time, **NAME, **held)


@pytest.mark.parametrize(("form", "asks", "number", "time", "leaked"), examples("unit/examples.txt", "leaked flags"))
def test_which_flags_are_leaked(form: str, asks: str, number: str, time: str, leaked: str, tmp_path: Path) -> None:
    spec, make = ASKING if asks else PLAIN, by_inode if form == "inode" else by_build_id
    record, is_leaked = make(spec, int(number), int(time)), bool(leaked)
    path = write(tmp_path / "perf.data", [spec], [record])
    with PerfDataReader.open(path) as reader:
        (chunk,) = reader.chunks()
    assert bool(chunk.miscs[0] & FLAG) != is_leaked
    (untouched,) = Scanner("<", Losses()).feed(record)
    with PerfDataReader.open(path) as reader:
        read = without_leaked_flags(untouched, reader.events)
    assert bytes(read.record(0)) == record
    written = bytes(with_written_miscs(read, "<").record(0))
    assert written == (record[:4] + (2).to_bytes(2, "little") + record[6:] if is_leaked else record)
    recording = load_recording(path)
    assert recording.strings[int(recording.dsos.build_id[0])] == ("" if is_leaked else "ab" * min(record[40], 20))


PACKERS: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "xz": lzma.compress, "zst": zstandard.compress}


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("name", ["direct", "pipe"])
def test_a_packed_recording_is_the_recording(packer: str, name: str, perf_data: Path) -> None:
    perf_data.write_bytes(PACKERS[packer](zoo.fixture(name)))
    with zoo.as_file(zoo.fixture(name)) as plain:
        assert_same(load_recording(plain), load_recording(perf_data))


@pytest.mark.parametrize("packer", PACKERS)
def test_of_a_damaged_packed_recording_what_can_be_unpacked(packer: str, perf_data: Path) -> None:
    data = PACKERS[packer](zoo.fixture("direct"))
    perf_data.write_bytes(data[: len(data) * 3 // 4])
    try:
        recording = load_recording(perf_data)
    except FormatError as problem:
        assert "no part of it is intact" in str(problem)
    else:
        assert recording.losses[losses.BAD_WRAPPER] == 1


def test_a_packed_bomb_is_refused(perf_data: Path) -> None:
    perf_data.write_bytes(zeros_packed(3 * 10**9, zoo.minimal()))
    with pytest.raises(FormatError, match="it grows more than 1000-fold"):
        load_recording(perf_data)


@pytest.mark.parametrize("data", [zoo.minimal(), gzip.compress(zoo.minimal()), zoo.fixture("pipe")])
def test_any_form_through_a_fifo(data: bytes, perf_data: Path) -> None:
    os.mkfifo(perf_data)
    writer = threading.Thread(target=perf_data.write_bytes, args=(data,))
    writer.start()
    recording = load_recording(perf_data)
    writer.join()
    assert len(recording.samples) in (2, 546)
    assert losses.FILE_CUT not in recording.losses


@pytest.mark.parametrize(("name", "sentence"), [
    ("/dev/zero", "not a regular file"), ("missing", "perf-offcpu record"), ("a\0b", "cannot be opened"),
    (".", "cannot be opened"),  # a directory without `data`
])  # fmt: skip
def test_what_is_no_file(name: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=sentence):
        load_recording(tmp_path / name)


def test_a_directory_of_threads(tmp_path: Path) -> None:
    """`data` holds the head, data.0 … bare records; other names and kinds of files are ignored."""
    recording = zoo.fixture("direct")
    begin, size = (int.from_bytes(recording[offset : offset + 8], "little") for offset in (40, 48))
    records, ends = recording[begin : begin + size], [0]
    while ends[-1] < len(records):
        ends.append(ends[-1] + int.from_bytes(records[ends[-1] + 6 : ends[-1] + 8], "little"))
    cuts = [ends[len(ends) * part // 3] for part in range(3)] + [len(records)]
    head = recording[:48] + cuts[1].to_bytes(8, "little") + recording[56 : begin + cuts[1]]
    # The features lie behind the data: the table is moved, the bodies' places with it.
    moved = bytearray(recording[begin + size :])
    for offset in range(0, 16 * sum(bin(byte).count("1") for byte in recording[72:104]), 16):
        place = int.from_bytes(moved[offset : offset + 8], "little") - (len(records) - cuts[1])
        moved[offset : offset + 8] = place.to_bytes(8, "little")
    (tmp_path / "data").write_bytes(head + moved)
    (tmp_path / "data.10").write_bytes(records[cuts[2] :])
    (tmp_path / "data.2").write_bytes(records[cuts[1] : cuts[2]])
    (tmp_path / "data.old").write_bytes(b"nonsense")
    with zoo.as_file(recording) as plain:
        assert_same(load_recording(plain), load_recording(tmp_path))


@given(st.lists(st.binary(max_size=9)), st.integers(1, 20))
def test_the_same_bytes_in_fewer_pieces(pieces: list[bytes], least: int) -> None:
    found = list(joined(iter(pieces), least))
    assert b"".join(found) == b"".join(pieces)
    assert all(len(piece) >= least for piece in found[:-1])


def test_what_came_before_damage_is_given_first() -> None:
    def damaged() -> Iterator[bytes]:
        yield from (b"ab", b"c", b"d")
        raise ValueError("damage")

    pieces = joined(damaged(), 3)
    assert (next(pieces), next(pieces)) == (b"abc", b"d")
    with pytest.raises(ValueError, match="damage"):
        next(pieces)
