# SPDX-License-Identifier: Apache-2.0
"""Events that `-e` takes; sizes of copies of user stacks, as bpf/copies.h expects them."""

import platform
import re
from pathlib import Path

import numpy as np
import pytest
from builders.examples import examples

from perf_offcpu.abi.attr import AttrFlag
from perf_offcpu.abi.machine import MACHINES
from perf_offcpu.abi.offcpu import LARGEST_COPY
from perf_offcpu.collect.bpf.header import read_header
from perf_offcpu.collect.bpf.maps import MAP_NAMES
from perf_offcpu.collect.events.parser import HARDWARE, SOFTWARE, SamplingEvent, parse_events
from perf_offcpu.collect.kernel_totals.user_stacks import registers_of, sizes_of_copies
from perf_offcpu.collect.sampling import copy_sizes
from perf_offcpu.errors import UsageError
from perf_offcpu.resources import bpf_dir


@pytest.mark.parametrize(("text", "type_", "config"), examples("unit/collect/examples.txt", "event names"))
def test_names(text: str, type_: str, config: str) -> None:
    (event,) = parse_events([text])
    assert (event.type, event.config, event.name, event.flags) == (int(type_), int(config, 16), text, AttrFlag(0))


def test_lists_and_repetition_keep_their_order() -> None:
    assert [event.name for event in parse_events(["cycles,cs", "faults"])] == ["cycles", "cs", "faults"]
    assert parse_events(["none"]) == ()


@pytest.mark.parametrize(("text", "names"), examples("unit/collect/examples.txt", "modifiers"))
def test_modifiers(text: str, names: str) -> None:
    flags = AttrFlag(sum(AttrFlag[name] for name in names.split()))
    assert parse_events([text]) == (SamplingEvent(text, 0, 0, flags, most_precise="P" in text),)


def test_cycles_fall_back_to_the_clock_as_in_perf_and_nothing_else_does() -> None:
    (cycles,) = parse_events(["cycles:uppp"])
    assert cycles.fallback() == SamplingEvent("cpu-clock:uppp", 1, 0, AttrFlag.EXCLUDE_KERNEL | AttrFlag.EXCLUDE_HV)
    assert all(one.fallback() is None for one in parse_events(["instructions,cs,r0,LLC-loads"]))


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two PMUs as sysfs shows those of an Intel machine."""
    files = {
        "cpu/type": "4\n", "cpu/format/event": "config:0-7\n", "cpu/format/umask": "config:8-15\n",
        "cpu/format/edge": "config:18\n", "cpu/format/offcore_rsp": "config1:0-63\n",
        "cpu/format/scattered": "config2:0-3,32-35\n", "cpu/events/mem-loads": "event=0xcd,umask=0x1,offcore_rsp=3\n",
        "odd/type": "9\n", "odd/format/broken": "nothing\n",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("perf_offcpu.collect.events.parser.DEVICES", tmp_path)


@pytest.mark.usefixtures("devices")
def test_events_of_a_pmu_follow_its_formats() -> None:
    texts = [
        "cpu/event=0xc0,umask=0x01/", "cpu/event=3,edge,name=mine/u,cs", "cpu/scattered=0xab/",
        "cpu/mem-loads,period=17/pp", "cpu/config=0x12,freq=50/",
    ]  # fmt: skip
    first, second, _, third, fourth, fifth = parse_events(texts)
    assert (first.type, first.config, first.name) == (4, 0x1C0, texts[0])
    assert (second.config, second.name) == (3 | 1 << 18, "mine")
    assert second.flags == AttrFlag.EXCLUDE_KERNEL | AttrFlag.EXCLUDE_HV and third.config2 == 0xB | 0xA << 32
    assert (fourth.config, fourth.config1, fourth.period, fourth.flags) == (0x1CD, 3, 17, AttrFlag.PRECISE_IP_2)
    assert (fifth.config, fifth.frequency_hz) == (0x12, 50)


@pytest.mark.parametrize(("text", "problem"), examples("unit/sentences.txt", "events"))
@pytest.mark.usefixtures("devices")
def test_impossible_events_of_a_pmu(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=re.escape(problem)):
        parse_events([text])


def test_tracepoints_by_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perf_offcpu.collect.events.parser.TRACEFS", tmp_path)
    point = tmp_path / "events/sched/sched_switch"
    point.mkdir(parents=True)
    (point / "id").write_text("372\n")
    plain, modified = parse_events(["sched:sched_switch,sched:sched_switch:k"])
    assert (plain.type, plain.config, plain.period, plain.is_tracepoint) == (2, 372, 1, True)
    assert modified.flags == AttrFlag.EXCLUDE_USER | AttrFlag.EXCLUDE_HV
    for text in ("sched:nosuch", "../../etc:passwd", "sched:../../etc"):
        with pytest.raises(UsageError, match="unknown event"):
            parse_events([text])


@pytest.mark.parametrize(
    "text", ["nosuch", "", "cpu-clock,", "r", "rxyz", "r" + "1" * 17, "cycles:q", "cycles:uu", "cycles:pppp"]
)
def test_unknown_event_lists_what_is_known(text: str) -> None:
    with pytest.raises(UsageError) as problem:
        parse_events([text])
    assert str(problem.value).startswith("-e ")
    if ":" not in text:
        assert all(name in str(problem.value) for name in (*SOFTWARE, *HARDWARE))


@pytest.mark.parametrize("texts", [["none,cycles"], ["cycles", "none"], ["cycles,cycles"]])
def test_contradictions(texts: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_events(texts)


@pytest.mark.parametrize(("asked", "expected"), examples("unit/collect/examples.txt", "sizes of copies"))
def test_sizes_are_multiples_of_a_word_and_bounded(asked: str, expected: str) -> None:
    sizes = copy_sizes(int(asked))
    assert " ".join(map(str, sizes.values())) == expected and set(sizes) < set(MAP_NAMES)


def test_the_largest_copy_is_that_of_the_program() -> None:
    (kilobytes,) = re.findall(r"#define MOST_COPIED \((\d+)ULL << 10\)", (bpf_dir() / "copies.h").read_text())
    assert int(kilobytes) << 10 == LARGEST_COPY


TASK = read_header(bpf_dir() / "off_cpu.h").structs["last"]
SP = 0x7FFF_0000_1000


@pytest.mark.parametrize(
    ("usual", "sizes"), [(8192, [1064, 12352, 32768, 8192, 8192]), (1024, [1064, 4096, 4096, 1024, 1024])]
)
def test_copies_end_with_the_stack_or_at_four_times_the_usual_size(usual: int, sizes: list[int]) -> None:
    tasks = np.zeros(5, TASK)
    words = MACHINES[platform.machine()].words
    tasks["regs"][:, words.sp] = SP
    tasks["regs"][:, words.mode] = words.mode_64
    assert (registers_of(tasks)["sp"] == SP).all()
    tasks["stack_end"] = [SP + 1000, SP + 12288, SP + 100_000, 0, SP - 8]
    assert sizes_of_copies(tasks, usual).tolist() == sizes
    assert sizes_of_copies(tasks, 0).tolist() == [0] * 5, "without copies"


@pytest.mark.parametrize(("machine", "modes"), [
    ("x86_64", {0x33: True, 0x23: False, 0: False}),  # __USER_CS, __USER32_CS; a kernel thread
    ("aarch64", {0: True, 0x80001000: True, 0x60000010: False, 0x10: False}),  # PSR_MODE32_BIT
])  # fmt: skip
def test_registers_of_programs_in_another_mode_are_not_taken(
    machine: str, modes: dict[int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    tasks, words = np.zeros(len(modes), TASK), MACHINES[machine].words
    tasks["regs"][:, words.ip] = tasks["regs"][:, words.sp] = SP
    tasks["regs"][:, words.mode] = list(modes)
    for name in ("ip", "sp"):
        assert (registers_of(tasks)[name] > 0).tolist() == list(modes.values())
