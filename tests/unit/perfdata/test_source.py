# SPDX-License-Identifier: Apache-2.0
"""Inputs of a reader: packed files, pieces, pipes, directories, and others that are refused."""

import gzip
import lzma
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard
from builders import zoo
from builders.bombs import zeros_packed
from builders.compare import assert_same
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu import losses
from perf_offcpu.decode.load import load_recording
from perf_offcpu.errors import FormatError
from perf_offcpu.perfdata.compressed import joined

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
        assert "nothing in it is whole" in str(problem)
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
    whole = zoo.fixture("direct")
    begin, size = (int.from_bytes(whole[at : at + 8], "little") for at in (40, 48))
    records, ends = whole[begin : begin + size], [0]
    while ends[-1] < len(records):
        ends.append(ends[-1] + int.from_bytes(records[ends[-1] + 6 : ends[-1] + 8], "little"))
    cuts = [ends[len(ends) * part // 3] for part in range(3)] + [len(records)]
    head = whole[:48] + cuts[1].to_bytes(8, "little") + whole[56 : begin + cuts[1]]
    # The features lie behind the data: the table is moved, the bodies' places with it.
    moved = bytearray(whole[begin + size :])
    for at in range(0, 16 * sum(bin(byte).count("1") for byte in whole[72:104]), 16):
        place = int.from_bytes(moved[at : at + 8], "little") - (len(records) - cuts[1])
        moved[at : at + 8] = place.to_bytes(8, "little")
    (tmp_path / "data").write_bytes(head + moved)
    (tmp_path / "data.10").write_bytes(records[cuts[2] :])
    (tmp_path / "data.2").write_bytes(records[cuts[1] : cuts[2]])
    (tmp_path / "data.old").write_bytes(b"nonsense")
    with zoo.as_file(whole) as plain:
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
