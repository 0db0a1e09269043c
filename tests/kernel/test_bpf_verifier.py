# SPDX-License-Identifier: Apache-2.0
"""Instructions that the verifier follows: users wait for it at each start, and it gives up at a million. Kernels differ
in how well they see that two paths are one, so there has to be room. Kernels before 6.9 lack may_goto, without which
the verifier follows each round of a loop; the programs for them are tested here, too."""

import ctypes
import os
import re
import struct
from typing import Any, NamedTuple

import pytest
from kernel.napping import usual

from perf_offcpu.collect.bpf import defines as bpf_defines
from perf_offcpu.collect.bpf import program as bpf_program
from perf_offcpu.collect.bpf import syscall as bpf_syscall
from perf_offcpu.collect.bpf.attr import AttachType, Command, ProgramLoad, ProgramType
from perf_offcpu.collect.bpf.config import OffCpuConfig, Targets
from perf_offcpu.collect.bpf.kernel import facts as kernel_facts
from perf_offcpu.collect.bpf.program import OffCpuProgram

pytestmark = pytest.mark.beside

ENOUGH = 60_000
ENOUGH_BEFORE_MAY_GOTO = 400_000
STATISTICS = 4  # BPF_LOG_STATS, include/linux/bpf_verifier.h
MAY_GOTO = 0xE5  # BPF_JMP | BPF_JCOND

EVERYTHING = {
    "targets": Targets.ALL, "waker_stacks": True, "by_cpu": True, "by_user": True, "by_comm": True,
    "by_group": "", "max_rate": 1000, "kernel_threads": True, "copy_bytes": 8192, "lock_owners": True,
}  # fmt: skip
SAMPLED = EVERYTHING | {"off_cpu_period_ns": 1_000_000}


class Followed(NamedTuple):
    instructions: int  # number that the verifier looked at
    loops: int  # number of instructions may_goto


def load_followed(
    kind: ProgramType, name: str, code: bytes, license_text: str, btf_id: int, attach: AttachType
) -> tuple[int, int]:
    """Load a program; return its descriptor and the number of instructions that the verifier looked at."""
    buffers = [ctypes.create_string_buffer(data) for data in (code, license_text.encode(), bytes(4096))]
    instructions, license_buffer, log = (ctypes.addressof(buffer) for buffer in buffers)
    attr = ProgramLoad(
        prog_type=kind, insn_cnt=len(code) // 8, insns=instructions, license=license_buffer,
        expected_attach_type=attach, attach_btf_id=btf_id, prog_name=name.encode()[:15],
        log_level=STATISTICS, log_size=4096, log_buf=log,
    )  # fmt: skip
    fd = bpf_syscall.call(Command.PROG_LOAD, attr)
    found = re.search(rb"processed (\d+) insns", buffers[2].value)
    assert found
    return fd, int(found[1])


FORMS = {"default": {}, "callers": {"copy_bytes": 8192}, "everything": EVERYTHING, "sampled": SAMPLED}


def forms(*usual: str) -> pytest.MarkDecorator:
    """Return a parameter `asked` of all forms; but for the usual ones they are further examples."""
    marks = {name: () if name in usual else pytest.mark.long for name in FORMS}
    forms = [pytest.param(form, id=name, marks=marks[name]) for name, form in FORMS.items()]
    return pytest.mark.parametrize("asked", forms)


largest_forms = forms("everything")  # for forms of the programs that few kernels need


def load_all(config: OffCpuConfig, monkeypatch: pytest.MonkeyPatch) -> dict[str, Followed]:
    seen: dict[str, Followed] = {}

    def count_and_load(
        kind: ProgramType, name: str, code: bytes, license_text: str,
        btf_id: int = 0, attach: AttachType = AttachType.NONE,
    ) -> int:  # fmt: skip
        fd, count = load_followed(kind, name, code, license_text, btf_id, attach)
        seen[name] = Followed(count, code[::8].count(MAY_GOTO))
        return fd

    monkeypatch.setattr(bpf_syscall, "load_program", count_and_load)
    OffCpuProgram(config).close()
    assert {"offcpu_switch", "offcpu_filter"} <= seen.keys()
    return seen


@usual
@largest_forms
def test_the_verifiers_limit_is_far(asked: dict[str, Any], in_switch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = ENOUGH if kernel_facts.has_may_goto() else ENOUGH_BEFORE_MAY_GOTO
    seen = load_all(OffCpuConfig(in_switch=in_switch, **asked), monkeypatch)
    assert {name: one.instructions for name, one in seen.items() if one.instructions > limit} == {}


@pytest.mark.long
@largest_forms
def test_without_may_goto_the_limit_is_far(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_facts, "has_may_goto", lambda: False)
    seen = load_all(OffCpuConfig(**asked), monkeypatch)
    assert max(one.instructions for one in seen.values()) <= ENOUGH_BEFORE_MAY_GOTO
    assert not any(one.loops for one in seen.values())


def test_loops_have_the_instruction_from_linux_6_9_on(monkeypatch: pytest.MonkeyPatch) -> None:
    number = re.match(r"(\d+)\.(\d+)", os.uname().release)
    assert number
    assert kernel_facts.has_may_goto() or (int(number[1]), int(number[2])) < (6, 9)
    assert any(one.loops for one in load_all(OffCpuConfig(), monkeypatch).values()) == kernel_facts.has_may_goto()


@pytest.mark.long
@largest_forms
def test_the_form_for_a_kprobe_is_taken_without_one(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels before 6.16 need it; all verifiers can check it, but only kernels with kprobes attach it."""
    monkeypatch.setattr(bpf_defines, "_ON_EXIT", {})
    monkeypatch.setattr(bpf_program, "Kprobe", Nowhere)
    with OffCpuProgram(OffCpuConfig(in_sleeper=True, **asked)) as program:
        assert program.ends_at_exit
        assert "offcpu_switched" in program.run_stats()


def falls_back(code: bytes) -> list[int]:
    """Return the instructions after which a program goes back without a jump, as check_cfg() of Linux 6.1 (the file
    kernel/bpf/verifier.c) refuses it: in a depth-first search that visits the next instruction before a jump."""
    instructions = list(struct.iter_unpack("<BBhi", code))

    def next_of(at: int) -> list[tuple[int, bool]]:
        operation, _, offset, value = instructions[at]
        if operation == 0x18:  # a number of 64 bits
            return [(at + 2, False)]
        kind = operation & 0xF0 if operation & 7 in (5, 6) else 0x80
        if kind == 0x90:
            return []
        if kind == 0x80:  # no jump, or a call
            return [(at + 1, False)]
        jump = (at + 1 + (offset if operation & 7 == 5 else value), True)
        return [jump] if kind == 0 else [(at + 1, True), jump]

    found, state = list[int](), {0: "open"}
    path = [(0, iter(next_of(0)))]
    while path:
        at, following = path[-1]
        for after, is_jump in following:
            if after not in state:
                state[after] = "open"
                path.append((after, iter(next_of(after))))
                break
            if state[after] == "open" and not is_jump:
                found.append(at)
        else:
            state[at] = "done"
            path.pop()
    return found


@pytest.mark.long
@forms("everything", "sampled")  # with all loops
def test_loops_go_back_by_jumps(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_facts, "has_may_goto", lambda: False)
    codes: dict[str, bytes] = {}
    load = bpf_syscall.load_program
    monkeypatch.setattr(
        bpf_syscall,
        "load_program",
        lambda kind, name, code, *rest: codes.update({name: code}) or load(kind, name, code, *rest),
    )
    OffCpuProgram(OffCpuConfig(in_switch=True, **asked)).close()
    assert {name: found for name, code in codes.items() if (found := falls_back(code))} == {}
    code = "b7000000000000000500010000000000b700000000000000b7000000000000001500fdff000000009500000000000000"
    assert falls_back(bytes.fromhex(code)) == [2]


class Nowhere:
    """A kprobe that is never hit."""

    def __init__(self, function: str) -> None:
        assert function.startswith("finish_task_switch")

    def detach(self) -> None:
        """Nothing was attached."""

    close = detach
