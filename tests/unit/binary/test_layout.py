# SPDX-License-Identifier: Apache-2.0
"""Layouts on hand-made bytes."""

import struct

import numpy as np
import pytest

from perf_offcpu.abi.attr import SampleType
from perf_offcpu.binary.layout import BYTE, REST, STRING, TEXT, U8, U16, U32, U64, Field, Layout
from perf_offcpu.errors import LayoutError

PAIR = Layout("pair", Field("a", U32), Field("b", U32))


def test_integers_in_both_byte_orders() -> None:
    layout = Layout("x", Field("a", U8), Field("b", U16), Field("c", U32), Field("d", U64))
    for order in ("<", ">"):
        data = struct.pack(f"{order}BHIQ", 1, 2, 3, 4)
        assert layout.unpack(data, order) == {"a": 1, "b": 2, "c": 3, "d": 4}
        assert layout.pack({"a": 1, "b": 2, "c": 3, "d": 4}, order) == data
    assert (layout.size(), layout.offset("d"), layout.dtype(">").itemsize) == (15, 7, 15)


COUNTED = Layout("x", Field("nr", U64), Field("ips", U64, count="nr"))


def test_counted_array_fills_in_its_count_and_must_not_contradict_it() -> None:
    layout = Layout("x", *COUNTED.fields, Field("tail", U8))
    data = layout.pack({"ips": [7, 8], "tail": 9})
    assert data == struct.pack("<QQQB", 2, 7, 8, 9)
    assert layout.unpack(data) == {"nr": 2, "ips": [7, 8], "tail": 9}
    with pytest.raises(LayoutError, match="ips: 1 items, its count says 2"):
        COUNTED.pack({"nr": 2, "ips": [1]})


def test_fields_follow_the_flags_of_the_shape_and_where() -> None:
    layout = Layout("x", Field("ip", U64, if_=SampleType.IP), Field("pid", U32, if_=SampleType.TID))
    assert layout.unpack(bytes(4), shape=SampleType.TID) == {"pid": 0} and layout.size(SampleType.IP) == 8
    assert layout.size(SampleType.IP | SampleType.TID) == 12
    layout = Layout("x", Field("abi", U64), Field("reg", U64, where="abi"))
    assert layout.unpack(struct.pack("<Q", 0)) == {"abi": 0}
    assert layout.unpack(struct.pack("<QQ", 1, 5)) == {"abi": 1, "reg": 5}
    assert layout.pack({"abi": 0}) == bytes(8)


@pytest.mark.parametrize("length", range(8))
def test_text_is_padded_with_at_least_one_nul(length: int) -> None:
    layout = Layout("x", Field("name", TEXT))
    data = layout.pack({"name": b"n" * length})
    assert len(data) == 8 and layout.unpack(data) == {"name": b"n" * length}
    assert layout.unpack(b"abcdefgh") == {"name": b"abcdefgh"}, "without a NUL it ends with the record"
    perfs = Layout("x", Field("text", STRING))  # padded to 64
    assert len(perfs.pack({"text": b"host"})) == 68
    assert perfs.unpack(perfs.pack({"text": b"host"}, ">"), ">") == {"text": b"host"}


def test_nested_layouts_once_counted_and_to_the_end() -> None:
    once = Layout("x", Field("pair", PAIR), Field("rest", PAIR, count=REST))
    data = struct.pack("<6I", 1, 2, 3, 4, 5, 6)
    values = once.unpack(data)
    assert values == {"pair": {"a": 1, "b": 2}, "rest": [{"a": 3, "b": 4}, {"a": 5, "b": 6}]}
    assert once.pack(values) == data


@pytest.mark.parametrize("cut", range(16))
def test_every_cut_is_an_error_of_ours(cut: int) -> None:
    with pytest.raises(LayoutError):
        COUNTED.unpack(struct.pack("<QQ", 1, 5)[:cut])


def test_huge_count_and_empty_struct_are_errors_and_no_allocation() -> None:
    with pytest.raises(LayoutError, match="field ips needs"):
        COUNTED.unpack(struct.pack("<QQ", 2**61, 5))
    with pytest.raises(LayoutError, match="empty nothing repeats"):
        Layout("x", Field("rows", Layout("nothing"), count=REST)).unpack(bytes(8))


def test_bytes_with_a_fixed_count() -> None:
    layout = Layout("x", Field("id", BYTE, count=4), Field("n", U32))
    assert layout.pack({"id": b"ab", "n": 1}) == b"ab\0\0\x01\0\0\0"
    assert np.zeros(1, layout.dtype())["n"][0] == 0


def test_of_a_damaged_structure_the_fields_before_the_damage_are_read() -> None:
    layout = Layout("s", Field("a", U32), Field("nr", U32), Field("ips", U64, count="nr"), Field("b", U32))
    data = struct.pack("<IIQ", 7, 2, 9)
    values, at, problem = layout.unpack_sound(data, "<", None, 0, len(data))
    assert (values, at) == ({"a": 7, "nr": 2}, 8)
    assert str(problem) == "s: field ips needs 16 bytes at 8, 8 are left"
    whole = struct.pack("<IIQI", 7, 1, 9, 5)
    assert layout.unpack_sound(whole, "<", None, 0, len(whole)) == ({"a": 7, "nr": 1, "ips": [9], "b": 5}, 20, None)
