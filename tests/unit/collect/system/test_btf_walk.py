# SPDX-License-Identifier: Apache-2.0
"""Begins of BTF records found by strides, compared with a walk from one to the next."""

import random
import struct
from itertools import pairwise
from pathlib import Path

import pytest

from perf_offcpu.collect.system.btf import VMLINUX_BTF
from perf_offcpu.collect.system.btf_walk import Kind, walk

WORDS = {Kind.INT: 4, Kind.ARRAY: 6, Kind.VAR: 4, Kind.DECL_TAG: 4}
ENTRY_WORDS = {
    Kind.STRUCT: 3, Kind.UNION: 3, Kind.ENUM: 2, Kind.FUNC_PROTO: 2, Kind.DATASEC: 3, Kind.ENUM64: 3,
}  # fmt: skip


def walked(section: bytes) -> list[tuple[int, int, int]]:
    """(first word, name_off, kind) of each type, by a walk from one to the next as in btf.rst."""
    words, position, found = memoryview(section).cast("I"), 0, []
    while position < len(words):
        kind = Kind(words[position + 1] >> 24 & 0x1F)
        found.append((position, words[position], int(kind)))
        position += WORDS.get(kind, 3) + ENTRY_WORDS.get(kind, 0) * (words[position + 1] & 0xFFFF)
    return found


def types(seed: int, count: int, longest: int) -> bytes:
    """Records of all kinds, their contents made to look like the beginnings of other records."""
    chance, section = random.Random(seed), bytearray()
    for name in range(count):
        kind = Kind(chance.randrange(1, len(Kind)))
        vlen = int(longest ** chance.random()) - 1
        words = WORDS.get(kind, 3) - 2 + ENTRY_WORDS.get(kind, 0) * vlen
        section += struct.pack("=II", name, chance.getrandbits(1) << 31 | kind << 24 | vlen)
        section += struct.pack(f"={words}I", *(chance.getrandbits(32) for _ in range(words)))
    return bytes(section)


def check(section: bytes) -> None:
    index = walk(memoryview(section))
    assert index.problem == ""
    found = zip(index.starts.tolist(), index.names.tolist(), index.kinds.tolist(), strict=True)
    assert list(found) == walked(section)


@pytest.mark.parametrize(
    ("count", "longest"), [(0, 1), (1, 1), (3, 1), (5000, 2), (5000, 60), (300, 4000), (40, 65536)]
)
def test_records_are_where_a_walk_finds_them(count: int, longest: int) -> None:
    check(types(count, count, longest))


@pytest.mark.kernel
@pytest.mark.beside
def test_records_of_this_kernel_are_where_a_walk_finds_them() -> None:
    check(section_of(VMLINUX_BTF))


def section_of(path: Path) -> bytes:
    data = path.read_bytes()
    header, offset, length = struct.unpack_from("=4x3I", data)
    return data[header + offset : header + offset + length]


def test_the_first_of_a_kind_and_name_is_found() -> None:
    section = b"".join(
        struct.pack("=III", name, kind << 24, 0)
        for name, kind in ((7, Kind.FWD), (7, Kind.STRUCT), (8, Kind.STRUCT), (7, Kind.STRUCT))
    )
    index = walk(memoryview(section))
    assert [index.find(Kind.STRUCT, name) for name in (7, 8, 9)] == [2, 3, None]
    assert index.find(Kind.FWD, 7) == 1


def test_types_before_damage_are_kept() -> None:
    section = types(5, 4000, 30)
    starts = [start for start, _, _ in walked(section)]
    for number in (0, 1, 2000, 3999):
        at = 4 * starts[number]
        broken = section[: at + 7] + b"\x1f" + section[at + 8 :]
        index = walk(memoryview(broken))
        assert index.problem == f"type {number + 1} is of unknown kind 31"
        assert index.starts.tolist() == starts[:number]
    for number, (start, end) in list(enumerate(pairwise(starts)))[::500]:
        for words in range(start + 1, end):
            index = walk(memoryview(section[: 4 * words]))
            assert index.problem == f"type {number + 1} reaches beyond the end of the types"
            assert index.starts.tolist() == starts[:number]
