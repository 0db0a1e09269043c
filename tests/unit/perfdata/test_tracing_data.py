# SPDX-License-Identifier: Apache-2.0
"""Tracepoint formats out of TRACING_DATA: a real one, small ones of both byte orders, and damage."""

from pathlib import Path

import pytest
from builders.switching import tracing_data

from perf_offcpu import losses
from perf_offcpu.abi.features import Feature
from perf_offcpu.binary.fields import S64, U16, Order
from perf_offcpu.collect.events.tracepoints import events_directory
from perf_offcpu.losses import Losses
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.tracing_data import TracepointField, parse_format, tracepoint_formats

OLD_FORMAT = """name: sched_wakeup
ID: 60
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;
\tfield:char comm[TASK_COMM_LEN];\toffset:8;\tsize:16;
\tfield:__data_loc char[] note;\toffset:24;\tsize:4;
\tfield:pid_t pid;\toffset:28;\tsize:4;\tsigned:1;

print fmt: "comm=%s pid=%d", REC->comm, REC->pid
"""


@pytest.fixture(scope="module")
def body() -> bytes:
    with PerfDataReader.open(Path(__file__).parents[2] / "data" / "perf-7.2" / "sched.data") as reader:
        return reader.features.bodies[Feature.TRACING_DATA]


def test_what_perf_recorded(body: bytes) -> None:
    counters = Losses()
    found = tracepoint_formats(body, counters)
    assert not counters
    names = {(one.system, one.name, one.id) for one in found.values()}
    assert names == {("sched", "sched_switch", 310), ("sched", "sched_wakeup", 312)}
    switch = found[310]
    assert switch.fields["prev_pid"] == TracepointField(24, 4, signed=True)
    assert (switch.fields["prev_state"].type, switch.fields["common_type"].type) == (S64, U16)
    assert switch.fields["prev_comm"].type is None
    assert list(switch.fields)[-1] == "next_prio"
    assert switch.print_fmt.startswith('"prev_comm=%s') and switch.print_fmt.endswith("REC->next_prio")


@pytest.mark.parametrize("order", ["<", ">"])
def test_both_byte_orders(order: Order) -> None:
    found = tracepoint_formats(tracing_data(order, ("sched", [OLD_FORMAT]), ("irq", [])), Losses())
    assert {number: (one.system, one.name) for number, one in found.items()} == {60: ("sched", "sched_wakeup")}


def test_formats_of_old_kernels() -> None:
    one = parse_format("sched", OLD_FORMAT)
    assert one is not None and one.print_fmt == '"comm=%s pid=%d", REC->comm, REC->pid'
    unsigned = {"common_type": (0, 2), "comm": (8, 16), "note": (24, 4)}
    fields = {name: TracepointField(*place) for name, place in unsigned.items()}
    assert one.fields == fields | {"pid": TracepointField(28, 4, signed=True)}


@pytest.mark.kernel
def test_every_tracepoint_of_this_kernel() -> None:
    files = list(events_directory("all").glob("*/*/format"))
    assert len(files) > 100, "needs root"
    for path in files:
        text = path.read_text()
        one = parse_format(path.parts[-3], text)
        assert one is not None and one.name == path.parts[-2]
        assert len(one.fields) == text.count("\tfield:"), path


def test_what_comes_before_the_damage_is_sound(body: bytes) -> None:
    whole = tracepoint_formats(body, Losses())
    seen = set()
    for size in range(1, len(body)):
        counters = Losses()
        found = tracepoint_formats(body[:size], counters)
        assert all(found[number] == whole[number] for number in found)
        assert bool(counters) == (len(found) < len(whole)), "damage is counted, if it matters"
        seen.add(len(found))
    assert seen == {0, 1, 2}
    counters = Losses()
    assert tracepoint_formats(b"", counters) == {} and not counters


@pytest.mark.parametrize("place", range(0, 600, 7))
def test_lies_are_no_danger(body: bytes, place: int) -> None:
    for value in (b"\xff" * 8, b"\0" * 8, b"\xff\xff\xff\x7f"):
        damaged, counters = body[:place] + value + body[place + len(value) :], Losses()
        tracepoint_formats(damaged, counters)
        assert set(counters) <= {losses.BAD_FEATURE}


@pytest.mark.parametrize("text", ["", "name: x\n", "ID: 3\n", "ID: 99999999999999999999\nname: x\n"])
def test_texts_that_are_no_format(text: str) -> None:
    assert parse_format("sched", text) is None
