# SPDX-License-Identifier: Apache-2.0
"""Where a kernel counts that it serves an interrupt, and where a task runs first, by types and symbols."""

import errno
import platform
from pathlib import Path

import pytest
from builders.btf import BtfBuilder

from perf_offcpu.collect.bpf.kernel.facts import _code, _lock_text, _preempt_count
from perf_offcpu.collect.events import perf_event
from perf_offcpu.collect.events.perf_event import Kprobe
from perf_offcpu.collect.system.btf import Btf, switch_end

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


@pytest.mark.parametrize(("symbols", "name"), [
    ("0 t finish_task_switch\n", "finish_task_switch"),
    ("0 t prev\n0 t finish_task_switch.isra.0\n0 T next\n", "finish_task_switch.isra.0"),
    # a part of it that is rarely reached, or a module's function, is not it
    ("0 t finish_task_switch.isra.0\n0 t finish_task_switch.isra.0.cold\n", "finish_task_switch.isra.0"),
    ("0 t finish_task_switch.isra.1\n0 t finish_task_switch\t[module]\n", "finish_task_switch.isra.1"),
    # two that may be meant: some switches would be missed
    ("0 t finish_task_switch.isra.0\n0 t finish_task_switch\n", ""),
    ("0 t my_finish_task_switch\n0 t finish_task_switch_late\n", ""),
    ("", ""),
])  # fmt: skip
def test_the_function(symbols: str, name: str) -> None:
    assert switch_end(b" " + symbols.encode()) == name


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
