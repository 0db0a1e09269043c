# SPDX-License-Identifier: Apache-2.0
"""Kernel type information: types built here, then damaged in every way that costs little to try."""

import random
import struct
from pathlib import Path

import pytest
from builders.btf import BtfBuilder

from perf_offcpu.collect.system.btf import Btf, Member, Tracepoint
from perf_offcpu.collect.system.btf_walk import Kind
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
        "task_struct", 96,
        ("__state", b.modifier(Kind.VOLATILE, u32), 0), ("pid", pid_t, 64), ("", either, 128),
        ("thread", regs, 256), ("parent", b.pointer(b.count + 9), 448),
    )  # fmt: skip
    b.with_bit_fields("flags", 8, ("low", u32, 0, 0), ("odd", u32, 32, 3), ("high", u32, 40, 0))
    for name, arguments in {"sched_switch": (0, u32, 0, 0, u32), "sched_exit_tp": (0, u32)}.items():
        b.modifier(Kind.TYPEDEF, b.pointer(b.function_type(*arguments)), f"btf_trace_{name}")
    b.modifier(Kind.TYPEDEF, u32, "btf_trace_not_one")
    assert task
    return b.bytes()


@pytest.mark.parametrize(("path", "expected"), [
    ("__state", Member(0, 4)),  # of a qualified type
    ("pid", Member(8, 4)),  # of a typedef of a qualified type
    ("on_rq", Member(16, 4)),  # in an anonymous structure in an anonymous union
    ("wake_cpu", Member(24, 4)),
    ("words", Member(16, 8)),
    ("thread", Member(32, 24)),
    ("thread.sp", Member(40, 8)),
    ("parent", Member(56, struct.calcsize("P"))),
    ("parent.pid", None),  # never through a pointer
    ("state", None),
    ("ip", None),  # members of named structures have a path
    ("sp", None),
])  # fmt: skip
def test_members(kernel: bytes, path: str, expected: Member | None) -> None:
    assert Btf(kernel).member("task_struct", path) == expected


def test_members_of_structures_with_bit_fields(kernel: bytes) -> None:
    btf = Btf(kernel)
    assert btf.member("flags", "low") == Member(0, 4)
    assert btf.member("flags", "high") == Member(5, 4)
    with pytest.raises(FormatError, match="odd is a bit field"):
        btf.member("flags", "odd")


def test_tracepoints(kernel: bytes) -> None:
    btf = Btf(kernel)
    switch, leave = btf.tracepoint("sched_switch"), btf.tracepoint("sched_exit_tp")
    assert switch and leave
    assert (switch.args, leave.args) == (4, 1)
    assert leave == Tracepoint(btf.type_id(Kind.TYPEDEF, "btf_trace_sched_exit_tp") or 0, 1)
    assert leave.btf_id == switch.btf_id + 3
    assert btf.tracepoint("sched_waking") is None
    with pytest.raises(FormatError, match="btf_trace_not_one is not a pointer to a function"):
        btf.tracepoint("not_one")


def test_questions_in_any_order_give_the_same_answers(kernel: bytes) -> None:
    questions = [(Kind.INT, "unsigned int"), (Kind.TYPEDEF, "pid_t"), (Kind.STRUCT, "regs")]
    questions += [(Kind.STRUCT, "task_struct"), (Kind.STRUCT, "pid_t"), (Kind.TYPEDEF, "btf_trace_sched_switch")]
    forward = Btf(kernel)
    backward = Btf(kernel)
    answers = [forward.type_id(kind, name) for kind, name in questions]
    assert answers == [backward.type_id(kind, name) for kind, name in reversed(questions)][::-1]
    assert answers[0] is None  # integers have names, too, but are not looked up
    assert answers[4] is None  # a typedef, not a structure
    assert all(answers[1:4])


def test_names_of_anything_can_be_looked_for(kernel: bytes) -> None:
    btf = Btf(kernel)
    assert btf.has_string("B") and btf.has_string("wake_cpu")
    assert not btf.has_string("wake_cp") and not btf.has_string("cpu")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(CapabilityError, match="cannot be read .No such file.*CONFIG_DEBUG_INFO_BTF=y"):
        Btf.load(tmp_path / "vmlinux")


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
    (
        lambda data: data[:28] + b"\xff\xff\x00\x04" + data[32:],
        "type 1 reaches beyond the end of the types",
    ),
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
