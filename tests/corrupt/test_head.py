# SPDX-License-Identifier: Apache-2.0
"""Headers that lie: refused with a reason, or read as far as they can be true."""

import struct

import pytest
from builders import zoo
from corrupt.damage import SOUND, Damaged, header_at, periods

from perf_offcpu import losses
from perf_offcpu.abi.features import Feature
from perf_offcpu.errors import FormatError


def refusal(damaged: Damaged) -> str:
    with pytest.raises(FormatError) as caught:
        damaged.read()
    return str(caught.value).split(": ", 1)[1]


def test_the_sound_one() -> None:
    recording = Damaged.of().read()
    assert periods(recording) == SOUND
    assert recording.losses == {}


@pytest.mark.parametrize("size", [0, 1, 8, 15])
def test_an_empty_file_or_less_than_a_header(size: int) -> None:
    assert refusal(Damaged.of(zoo.minimal()[:size])) == (
        f"file header at offset 0x0: {size} bytes, a perf.data file has at least 16"
    )


@pytest.mark.parametrize("size", [16, 72, 103])
def test_a_cut_header(size: int) -> None:
    assert refusal(Damaged.of(zoo.minimal()[:size])) == f"file header at offset 0x0: cut: {size} bytes of 104"


def test_another_kind_of_file() -> None:
    assert "this is no perf.data file" in refusal(Damaged.of(b"#!/bin/sh\necho hello\n"))
    assert "not supported" in refusal(Damaged.of(b"PERFFILE" + zoo.minimal()[8:]))


@pytest.mark.parametrize("size", [0, 17, 103, 120, 2**64 - 1])
def test_an_impossible_header_size(size: int) -> None:
    assert refusal(Damaged.of().put_header(size, "size")) == (
        f"file header at offset 0x8: its size is {size}, known are 16, 72 and 104"
    )


@pytest.mark.parametrize("size", [0, 16, 79])
def test_attr_entries_too_short_for_an_attr(size: int) -> None:
    assert f"entries of {size} bytes, 80 at least" in refusal(Damaged.of().put_header(size, "attr_size"))


def test_attr_entries_of_another_size_than_their_attr() -> None:
    """perf steps by each entry's own size and loses events without a word."""
    recording = Damaged.of().put_attr(0, "size", 120).read()
    assert periods(recording) == SOUND
    assert recording.losses == {losses.ODD_ATTRS: 1}


@pytest.mark.parametrize("size", [1, 63, 2**31, 2**32 - 1])
def test_an_attr_size_that_cannot_be(size: int) -> None:
    recording = Damaged.of().put_attr(1, "size", size).read()
    assert periods(recording) == SOUND
    assert recording.losses == {losses.ODD_ATTRS: 1}


def test_an_attr_size_of_0_is_that_of_the_first_published_one() -> None:
    recording = Damaged.of().put_attr(0, "size", 0).read()
    assert periods(recording)["cpu-clock"] == [10]


@pytest.mark.parametrize("size", [2**62, 2**64 - 1])
def test_more_attrs_than_the_file_has_bytes(size: int) -> None:
    """The table ends with the file; what follows the true attrs is read as events that no sample has."""
    recording = Damaged.of().put_header(size, "attrs", "size").read()
    assert recording.losses[losses.BAD_ATTRS] == size // 144 - len(recording.evsels)
    assert periods(recording)["cpu-clock"] == [10]


@pytest.mark.parametrize("offset", [1 << 40, 2**64 - 1])
def test_ids_outside_of_the_file_are_taken_from_the_feature_that_repeats_them(offset: int) -> None:
    recording = Damaged.of().put_attr(1, "ids_offset", offset).read()
    assert periods(recording) == SOUND
    assert recording.losses == {losses.BAD_IDS: 1}


@pytest.mark.parametrize("size", [1 << 40, 2**64 - 8, 12])
def test_ids_of_impossible_number(size: int) -> None:
    recording = Damaged.of().put_attr(1, "ids_size", size).read()
    assert periods(recording) == SOUND
    assert recording.losses[losses.BAD_IDS] == 1
    assert len(recording.losses) <= 2  # and perhaps what other numbers claim as ids


def test_many_events_that_share_the_whole_file_as_ids_are_bounded() -> None:
    """65536 events of a megabyte of ids each would be 8 billion."""
    data = bytearray(zoo.minimal()[:104]) + bytes(3 << 20)
    attrs = len(data)
    entry = bytearray(144)
    struct.pack_into("<II", entry, 0, 1, 128)
    struct.pack_into("<QQ", entry, 128, 104, 3 << 20)
    data += entry * 3000
    damaged = Damaged.of(bytes(data)).put_header(attrs, "attrs", "offset")
    damaged.put_header(144 * 3000, "attrs", "size").put_header(104, "data", "offset")
    recording = damaged.put_header(0, "data", "size").read()
    assert len(recording.evsels) == 3000
    assert recording.losses[losses.BAD_IDS] == 2999, "no more ids than the file has bytes for"


def test_an_id_that_two_events_claim_is_the_first_ones() -> None:
    damaged = Damaged.of()
    ids = damaged.u64(header_at("attrs", "offset")) + 144 + 128
    recording = damaged.put(damaged.u64(ids), 1).read()
    assert recording.losses[losses.DUPLICATE_ID] == 1
    assert recording.losses[losses.UNKNOWN_ID] == 1
    assert periods(recording) == {"cpu-clock": [10], "offcpu-time": []}


@pytest.mark.parametrize("offset", [2**63, 2**64 - 1, 1 << 40])
def test_a_data_section_outside_of_the_file(offset: int) -> None:
    recording = Damaged.of().put_header(offset, "data", "offset").read()
    assert len(recording.samples) == 0
    assert recording.losses[losses.FILE_CUT] > 0


@pytest.mark.parametrize("size", [1 << 40, 2**63, 2**64 - 1])
def test_a_data_section_longer_than_the_file(size: int) -> None:
    """Read to the end. Nobody knows where the features are, and with them the names of events."""
    recording = Damaged.of().put_header(size, "data", "size").read()
    assert periods(recording) == {"cpu-clock": [10], "bpf-output": [0]}
    assert recording.losses[losses.FILE_CUT] > 0


def test_a_recorder_that_was_killed() -> None:
    """perf gives up; names of events are not in such a file, which has no features."""
    data = zoo.minimal()
    sound = Damaged.of(data)
    end = sound.records[-1][0] + sound.records[-1][2]
    recording = Damaged.of(zoo.killed(data[:end])).read()
    assert recording.losses == {losses.NO_END: 1}
    assert len(recording.samples) == 2


def test_a_data_section_in_the_header() -> None:
    recording = Damaged.of().put_header(0, "data", "offset").read()
    assert sum(recording.losses.values()) > 0


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("value", [1 << 40, 2**64 - 1])
def test_a_feature_outside_of_the_file(place: int, value: int) -> None:
    damaged = Damaged.of()
    recording = damaged.put(damaged.feature(Feature.NRCPUS)[0] + 8 * place, value).read()
    assert recording.losses == {losses.BAD_FEATURE: 1}
    assert periods(recording) == SOUND
    assert (recording.meta.nr_cpus, recording.meta.arch) == (0, "x86_64")


def test_features_that_overlap() -> None:
    """A thousand features of the whole file each must not be a thousand copies of it."""
    damaged = Damaged.of()
    entry, _ = damaged.feature(Feature.NRCPUS)
    recording = damaged.put(entry, damaged.u64(entry - 16)).read()
    assert recording.losses == {losses.BAD_FEATURE: 1}
    assert recording.meta.arch == "x86_64"


@pytest.mark.parametrize("size", [2**32 - 1, 5000])
def test_a_string_longer_than_its_feature(size: int) -> None:
    damaged = Damaged.of()
    recording = damaged.put(damaged.feature(Feature.HOSTNAME)[1], size, 4).read()
    assert recording.losses == {losses.BAD_FEATURE: 1}
    assert (recording.meta.hostname, recording.meta.arch) == ("", "x86_64")


def test_an_empty_string() -> None:
    damaged = Damaged.of()
    recording = damaged.put(damaged.feature(Feature.HOSTNAME)[1], 0, 4).read()
    assert (recording.meta.hostname, recording.losses) == ("", {})


@pytest.mark.parametrize("count", [3, 2**31, 2**32 - 1])
def test_a_feature_that_counts_more_than_it_holds(count: int) -> None:
    damaged = Damaged.of()
    recording = damaged.put(damaged.feature(Feature.EVENT_DESC)[1], count, 4).read()
    assert recording.losses == {losses.BAD_FEATURE: 1}
    assert len(recording.samples) == 2, "events without names have samples all the same"


def test_more_feature_bits_than_the_table_has_entries() -> None:
    damaged = Damaged.of()
    for word in range(4):
        damaged.put(72 + 8 * word, 2**64 - 1)
    recording = damaged.read()
    assert recording.losses[losses.BAD_FEATURE] > 200
    assert len(recording.samples) == 2
