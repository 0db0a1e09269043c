# SPDX-License-Identifier: Apache-2.0
"""Where a kernel counts interrupts, where a task runs first; what user space knows of the BPF program."""

import errno
import platform
import subprocess
from pathlib import Path

import numpy as np
import pytest
from builders.btf import BtfBuilder
from builders.examples import examples

from perf_offcpu.abi import offcpu
from perf_offcpu.abi.counters import BUDGET
from perf_offcpu.abi.machine import MACHINES
from perf_offcpu.collect.bpf.config import MODES
from perf_offcpu.collect.bpf.header import read_header
from perf_offcpu.collect.bpf.kernel.facts import _code, _lock_text, _preempt_count, explore
from perf_offcpu.collect.bpf.maps import UserStacks
from perf_offcpu.collect.events import perf_event
from perf_offcpu.collect.events.perf_event import Kprobe
from perf_offcpu.collect.system.btf import Btf, switch_end
from perf_offcpu.errors import CapabilityError
from perf_offcpu.resources import bpf_dir

HEADER = bpf_dir() / "off_cpu.h"


def test_lines_of_c_fit_into_100_columns() -> None:
    sources = [path for path in HEADER.parent.rglob("*") if path.suffix in (".c", ".h")]
    lines = [(path.name, line) for path in sources for line in path.read_text().splitlines()]
    assert len(sources) > 10 and [line for line in lines if len(line[1].expandtabs(8)) > 100] == []


def test_structures_are_laid_out_as_the_compiler_does() -> None:
    structs = read_header(HEADER).structs
    assert len(structs) > 10 and structs["stack"]["ips"].shape == (127,)
    types = [f"typedef __{sign}{bits} {sign}{bits};" for sign in "us" for bits in (8, 16, 32, 64)]
    checks = []
    for name, dtype in structs.items():
        checks.append(f'_Static_assert(sizeof(struct offcpu_{name}) == {dtype.itemsize}, "{name}");')
        for member, (type_, offset, *_) in (dtype.fields or {}).items():
            place = f"__builtin_offsetof(struct offcpu_{name}, {member}) == {offset}"
            size = f"sizeof(((struct offcpu_{name} *)0)->{member}) == {type_.itemsize}"
            checks.append(f'_Static_assert({place} && {size}, "{name}.{member}");')
    source = "\n".join(["#include <linux/types.h>", *types, f'#include "{HEADER}"', *checks])
    command = ["gcc", "-fsyntax-only", "-x", "c", "-"]
    done = subprocess.run(command, input=source, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_header_has_room_for_the_registers_of_each_architecture_and_counts_from_zero() -> None:
    (words,) = read_header(HEADER).structs["last"]["regs"].shape
    assert words == max(row.words.number for row in MACHINES.values())
    enums = read_header(HEADER).enums
    assert enums["counter"][0] == "samples" and enums["counter"][-1] == "counters"
    assert enums["target"] == ("target_active", "target_armed")


def test_padding_comments_and_constants_of_a_header(tmp_path: Path) -> None:
    path = tmp_path / "h"
    path.write_text(
        "#define OFFCPU_N 3 /* how many */\n"
        "struct offcpu_a {\n\tu8 a;\t/* u64 hidden; */\n\tu32 b;\n\tu16 c[OFFCPU_N];\n\tu64 d;\n};\n"
    )
    (dtype,) = read_header(path).structs.values()
    assert [dtype.fields[name][1] for name in "abcd"] == [0, 4, 8, 16]  # type: ignore[index]
    assert dtype.itemsize == 24


def test_the_extension_in_c_is_the_table() -> None:
    struct, table = read_header(HEADER).structs["extension"], offcpu.EXTENSION.dtype("<")
    assert struct.descr == table.descr and struct.itemsize == 8 * offcpu.EXTENSION_WORDS


def test_the_header_agrees_with_the_payload_format() -> None:
    number = {name.removeprefix("OFFCPU_"): value for name, value in read_header(HEADER).constants.items()}
    kind, flag, lost = offcpu.Kind, offcpu.WaitFlag, offcpu.Lost
    expected = {
        "MAGIC": offcpu.EXTENSION_MAGIC, "VERSION": offcpu.EXTENSION_VERSION, "KIND_WAIT": kind.WAIT,
        "KIND_SUM": kind.SUM, "KIND_BEGAN_BEFORE": kind.BEGAN_BEFORE, "PREEMPTED_WAIT": flag.PREEMPTED,
        "WAKER_INTERRUPT": flag.WAKER_INTERRUPT, "YIELDED": flag.YIELDED, "THROTTLED_WAIT": flag.THROTTLED,
        "BEGAN_BEFORE": flag.BEGAN_BEFORE, "LOST_USER_STACK": lost.USER_STACK, "LOST_KERNEL_STACK": lost.KERNEL_STACK,
        "LOST_USER_CUT": lost.USER_STACK_CUT, "LOST_KERNEL_CUT": lost.KERNEL_STACK_CUT,
    }  # fmt: skip
    assert {name: number[name] for name in expected} == expected


def test_every_mode_of_a_thread_has_a_bucket_and_a_field_in_the_file() -> None:
    modes = read_header(HEADER).enums["mode"]
    assert set(MODES.values()) < set(modes)
    written = {field.name.removesuffix("_ns") for field in BUDGET.fields} - {"pid", "tid", "begin", "end"}
    written -= {"own_pid", "own_tid"}
    assert written == set(modes) - {"dead", "modes"} | {"switches"}
    assert len(modes) <= read_header(HEADER).structs["budget"]["ns"].shape[0]


@pytest.fixture
def stacks() -> UserStacks:
    entries = np.zeros(3, read_header(HEADER).structs["stack"])
    for entry, frames in zip(entries, ([1, 2, 3], [], [4, 5]), strict=True):
        entry["nr"], entry["ips"][: len(frames)] = len(frames), frames
    return UserStacks.pack(np.array([30, 2**64 - 1, 10], np.uint64), entries)


def test_stacks_are_kept_by_hash(stacks: UserStacks) -> None:
    assert stacks.hashes.tolist() == [10, 30, 2**64 - 1] and stacks.ips.offsets.tolist() == [0, 2, 5, 5]
    assert stacks.ips.values.tolist() == [4, 5, 1, 2, 3]
    assert UserStacks().find(np.array([7, 0], np.uint64)).offsets.tolist() == [0, 0, 0]


@pytest.mark.parametrize(("hashes", "frames"), examples("unit/collect/examples.txt", "stacks by hash"))
def test_stacks_are_found_in_the_order_asked(stacks: UserStacks, hashes: str, frames: str) -> None:
    found = stacks.find(np.array(hashes.split(), np.uint64))
    found.check()
    assert "; ".join(" ".join(map(str, found.row(row))) or "none" for row in range(len(found))) == frames


def test_a_kernel_without_the_tracepoint_is_too_old() -> None:
    empty = bytes.fromhex("9feb0100180000000000000000000000000000000100000000")
    with pytest.raises(CapabilityError, match=r"lacks the tracepoint sched_switch in its BTF: boot Linux 5\.15"):
        explore(Btf(empty))


OLDER, NEWER = 0x00FF0100, 0x1F000100
"""include/linux/preempt.h of 6.18 and 7.3: NMI_MASK | HARDIRQ_MASK | SOFTIRQ_OFFSET."""
OF_TASK, OF_CPU = 1, 2


def kernel(per_cpu: dict[str, int], *, in_task: bool = False, hot_at: int | None = None) -> Btf:
    """Task, run queue and per-CPU variables; the count is at 12 in the task, or at `hot_at` in pcpu_hot."""
    b = BtfBuilder()
    u32, u64 = b.integer("unsigned int", 4), b.integer("unsigned long", 8)
    b.composite("cfs_rq", 64, ("rq", u64, 256))
    entity = b.composite("sched_entity", 32, ("cfs_rq", u64, 64))
    preempt = b.composite("preempt", 4, ("count", u32, 0))
    members = [("se", entity, 512)]
    if in_task:
        members.append(("thread_info", b.composite("thread_info", 16, ("preempt", preempt, 96)), 0))
    b.composite("task_struct", 128, *members)
    if hot_at is not None:
        b.composite("pcpu_hot", 64, ("preempt_count", u32, 8 * hot_at))
    b.per_cpu(per_cpu)
    return Btf(b.bytes())


@pytest.mark.parametrize("disabling, mask", [({}, OLDER), ({"local_interrupt_disable_state": 512}, NEWER)])
def test_locks_that_disable_interrupts_move_the_bits(disabling: dict[str, int], mask: int) -> None:
    assert _preempt_count(kernel({"runqueues": 64, "__preempt_count": 16, **disabling}))["INTERRUPT_MASK"] == mask
    assert _preempt_count(kernel(disabling, in_task=True))["INTERRUPT_MASK"] == mask


def test_places() -> None:
    variable = _preempt_count(kernel({"runqueues": 64, "__preempt_count": 16}))
    assert (variable["OFFCPU_PREEMPT_COUNT"], variable["PREEMPT_COUNT"]) == (OF_CPU, "(-48LL)")
    assert (variable["TASK_CFS_RQ"], variable["CFS_RQ_RQ"]) == (64 + 8, 32)
    member = _preempt_count(kernel({"runqueues": 64, "pcpu_hot": 256}, hot_at=8))
    assert (member["OFFCPU_PREEMPT_COUNT"], member["PREEMPT_COUNT"]) == (OF_CPU, "(200LL)")
    assert "OFFCPU_IRQ_STACK" not in variable
    task = _preempt_count(kernel({}, in_task=True))
    assert (task["OFFCPU_PREEMPT_COUNT"], task["PREEMPT_COUNT"]) == (OF_TASK, 12)
    for known in ({}, {"runqueues": 64}, {"__preempt_count": 16}):
        assert _preempt_count(kernel(known))["OFFCPU_PREEMPT_COUNT"] == 0, "it is not found"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the stack is read on x86-64 only")
def test_the_stack_of_interrupts_is_found_from_the_run_queue() -> None:
    stack = {"hardirq_stack_ptr": 24, "hardirq_stack_inuse": 96}
    found = _preempt_count(kernel({"runqueues": 64, "__preempt_count": 16} | stack))
    assert (found["IRQ_STACK_PTR"], found["IRQ_STACK_IN_USE"]) == ("(-40LL)", "(32LL)")


def symbols(text: int, *functions: tuple[int, bytes]) -> bytes:
    listed = [(0, b"_text"), *functions, (0x9000, b"next")]
    return b"".join(b"%x T %s\n" % (text + offset, name) for offset, name in listed)


def test_places_of_code_do_not_depend_on_where_the_kernel_is() -> None:
    functions = [(0x1000, b"do_softirq.part.0"), (0x1070, b"do_softirq"), (0x1080, b"try_to_wake_up")]
    expected = {"do_softirq": (0x1000, 0x70), "wake_up": (0x1080, 0x7F80)}
    assert _code(symbols(0x81000000, *functions)) == _code(symbols(0x9A000000, *functions)) == expected
    assert _code(symbols(0x81000000, *functions[1:]))["do_softirq"] == (0x1070, 0x10)
    assert _code(symbols(0)) == _code(b"") == {}  # addresses are hidden


@pytest.mark.parametrize(("symbols", "name"), examples("unit/collect/examples.txt", "end of a switch"))
def test_the_function(symbols: str, name: str) -> None:
    assert switch_end(b" " + symbols.encode().decode("unicode_escape").encode()) == name


def test_a_kernel_without_kprobes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(perf_event, "KPROBE_TYPE", tmp_path / "type")
    with pytest.raises(OSError) as refused:
        Kprobe("finish_task_switch")
    assert refused.value.errno == errno.EOPNOTSUPP


@pytest.mark.parametrize(("names", "place"), [
    ("__schedule schedule wait_for_completion mutex_lock down_read rt_mutex_lock do_nanosleep", (0x40, 0x30)),
    ("__schedule __pfx_mutex_lock mutex_lock", (0x30, 0x10)), ("mutex_lock schedule down_read", (0x10, 0)),
    ("__schedule schedule_timeout", (0x10, 0)),
])  # fmt: skip
def test_functions_of_locks_are_kept_where_they_lie_together(names: str, place: tuple[int, int]) -> None:
    text = "".join(f"{16 * row:016x} T {name}\n" for row, name in enumerate(names.split(), 1))
    assert _lock_text(text.encode(), 0x10, 0x10 * (len(names.split()) + 1)) == place
