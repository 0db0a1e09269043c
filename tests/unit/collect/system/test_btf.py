# SPDX-License-Identifier: Apache-2.0
"""Types of a kernel in BTF: members, tracepoints, and where the records of 130,000 types begin."""

import random
import struct
from itertools import pairwise
from pathlib import Path

import pytest
from builders.btf import BtfBuilder
from builders.examples import examples

from perf_offcpu.collect.system.btf import VMLINUX_BTF, Btf, Kind, Member, Tracepoint, walk
from perf_offcpu.errors import CapabilityError, FormatError, PerfOffcpuError


@pytest.fixture
def kernel() -> bytes:
    """A small kernel: a task with the shapes of members that the real one has, two tracepoints."""
    b = BtfBuilder()
    u32, u64 = b.integer("unsigned int", 4), b.integer("unsigned long", 8)
    b.others()
    pid_t = b.modifier(Kind.TYPEDEF, b.modifier(Kind.CONST, u32), "pid_t")
    anonymous = b.composite("", 16, ("on_rq", u32, 0), ("wake_cpu", u32, 64))
    either = b.composite("", 16, ("", anonymous, 0), ("words", u64, 0), kind=Kind.UNION)
    regs = b.composite("regs", 24, ("ip", u64, 0), ("sp", u64, 64))
    task = b.composite(
        "task_struct", 96, ("__state", b.modifier(Kind.VOLATILE, u32), 0), ("pid", pid_t, 64), ("", either, 128),
        ("thread", regs, 256), ("parent", b.pointer(b.count + 9), 448),
    )  # fmt: skip
    b.with_bit_fields("flags", 8, ("low", u32, 0, 0), ("odd", u32, 32, 3), ("high", u32, 40, 0))
    for name, arguments in {"sched_switch": (0, u32, 0, 0, u32), "sched_exit_tp": (0, u32)}.items():
        b.modifier(Kind.TYPEDEF, b.pointer(b.function_type(*arguments)), f"btf_trace_{name}")
    b.modifier(Kind.TYPEDEF, u32, "btf_trace_not_one")
    assert task
    return b.bytes()


@pytest.mark.parametrize(("path", "offset", "size"), examples("unit/collect/examples.txt", "members"))
def test_members(kernel: bytes, path: str, offset: str, size: str) -> None:
    expected = Member(int(offset), int(size)) if offset else None
    assert Btf(kernel).member("task_struct", path) == expected


def test_members_of_structures_with_bit_fields_and_all_names(kernel: bytes) -> None:
    btf = Btf(kernel)
    assert btf.member("flags", "low") == Member(0, 4) and btf.member("flags", "high") == Member(5, 4)
    with pytest.raises(FormatError, match="odd is a bit field"):
        btf.member("flags", "odd")
    assert btf.member("flags", "odd", low_bits=True) == Member(4, 4)
    assert btf.has_string("B") and btf.has_string("wake_cpu")
    assert not btf.has_string("wake_cp") and not btf.has_string("cpu")
    with pytest.raises(CapabilityError, match="cannot be read .No such file.*CONFIG_DEBUG_INFO_BTF=y"):
        Btf.load(Path("/nonexistent/vmlinux"))


def test_tracepoints(kernel: bytes) -> None:
    btf = Btf(kernel)
    switch, leave = btf.tracepoint("sched_switch"), btf.tracepoint("sched_exit_tp")
    assert switch and leave
    assert (switch.args, leave.args) == (4, 1)
    assert leave == Tracepoint(btf.type_id(Kind.TYPEDEF, "btf_trace_sched_exit_tp") or 0, 1)
    assert leave.btf_id == switch.btf_id + 3 and btf.tracepoint("sched_waking") is None
    with pytest.raises(FormatError, match="btf_trace_not_one is not a pointer to a function"):
        btf.tracepoint("not_one")


def test_questions_in_any_order_give_the_same_answers(kernel: bytes) -> None:
    questions = [(Kind.INT, "unsigned int"), (Kind.TYPEDEF, "pid_t"), (Kind.STRUCT, "regs")]
    questions += [(Kind.STRUCT, "task_struct"), (Kind.STRUCT, "pid_t"), (Kind.TYPEDEF, "btf_trace_sched_switch")]
    forward, backward = Btf(kernel), Btf(kernel)
    answers = [forward.type_id(kind, name) for kind, name in questions]
    assert answers == [backward.type_id(kind, name) for kind, name in reversed(questions)][::-1]
    assert answers[0] is None  # integers have names, too, but are not looked up
    assert answers[4] is None  # a typedef, not a structure
    assert all(answers[1:4])


def ask_everything(data: bytes) -> None:
    btf = Btf(data)
    for path in ("__state", "pid", "wake_cpu", "thread.sp", "parent", "state"):
        btf.member("task_struct", path)
    btf.member("flags", "high")
    for name in ("sched_switch", "sched_exit_tp", "sched_waking"):
        btf.tracepoint(name)


@pytest.mark.parametrize(("damage", "message"), [
    (lambda data: b"", "header wants 24 bytes, file has 0"),
    (lambda data: data[:23], "header wants 24 bytes, file has 23"),
    (lambda data: data[1::-1] + data[2:], "magic is 0x9feb, expected 0xeb9f"),
    (lambda data: data[:-1], "sections end at"),
    (lambda data: data[:12] + struct.pack("=I", 2**32 - 1) + data[16:], "sections end at"),
    (lambda data: data[:28] + b"\xff\xff\xff\x1f" + data[32:], "type 1 is of unknown kind 31"),
    (lambda data: data[:28] + b"\xff\xff\x00\x04" + data[32:], "type 1 reaches beyond the end of the types"),
])  # fmt: skip
def test_damage_is_named(kernel: bytes, damage: object, message: str) -> None:
    assert callable(damage)
    with pytest.raises(FormatError, match=message):
        ask_everything(damage(kernel))


def test_types_defined_by_themselves() -> None:
    b = BtfBuilder()
    b.modifier(Kind.TYPEDEF, 2, "a")
    b.modifier(Kind.CONST, 1)
    b.composite("s", 8, ("m", 1, 0), ("n", 4, 0))
    b.composite("", 8, ("", 4, 0))
    b.composite("t", 8, ("", 4, 0))
    btf = Btf(b.bytes())
    with pytest.raises(FormatError, match="defined by itself"):
        btf.member("s", "m")
    with pytest.raises(FormatError, match="nested too deeply"):
        btf.member("t", "m")


def test_every_prefix_and_many_bit_flips_give_an_answer_or_our_error(kernel: bytes) -> None:
    ask_everything(kernel)
    for end in range(len(kernel)):
        with pytest.raises(PerfOffcpuError):
            ask_everything(kernel[:end])
    chance = random.Random(2)
    for _ in range(3000):
        data = bytearray(kernel)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        try:
            ask_everything(bytes(data))
        except PerfOffcpuError:
            continue


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
    assert list(zip(index.starts.tolist(), index.names.tolist(), index.kinds.tolist(), strict=True)) == walked(section)


@pytest.mark.parametrize(("count", "longest"), [
    (0, 1), (1, 1), (3, 1), (5000, 2), (5000, 60), (300, 4000), (40, 65536),
])  # fmt: skip
def test_records_are_where_a_walk_finds_them(count: int, longest: int) -> None:
    check(types(count, count, longest))


@pytest.mark.kernel
def test_records_of_this_kernel_are_where_a_walk_finds_them() -> None:
    data = VMLINUX_BTF.read_bytes()
    header, offset, length = struct.unpack_from("=4x3I", data)
    check(data[header + offset : header + offset + length])


def test_the_first_of_a_kind_and_name_is_found() -> None:
    named = ((7, Kind.FWD), (7, Kind.STRUCT), (8, Kind.STRUCT), (7, Kind.STRUCT))
    index = walk(memoryview(b"".join(struct.pack("=III", name, kind << 24, 0) for name, kind in named)))
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
