# SPDX-License-Identifier: Apache-2.0
"""perf_event_attr of all sizes and both byte orders, task states, and what differs between architectures."""

import platform
import re
import subprocess

import pytest
from builders.examples import examples

from perf_offcpu.abi.attr import Attr, AttrFlag, ReadFormat, SampleType, unpack_attr
from perf_offcpu.abi.machine import MACHINES, arch_of_registers
from perf_offcpu.abi.syscalls import COMPAT_BIT, X32_BIT, is_compat_entry, syscall_names, syscall_number
from perf_offcpu.abi.task_state import TaskState, state_letter
from perf_offcpu.errors import LayoutError

ATTR = Attr(
    type=1, config=10, sample_period=1, sample_type=SampleType.IP | SampleType.TID, read_format=ReadFormat.ID,
    flags=AttrFlag.SAMPLE_ID_ALL | AttrFlag.USE_CLOCKID | AttrFlag.DISABLED, clockid=1,
)  # fmt: skip


@pytest.mark.parametrize("size", [64, 72, 80, 96, 104, 112, 120, 128, 136, 144, 200])
def test_sizes(size: int) -> None:
    attr = ATTR._replace(clockid=1 if size >= 96 else 0)
    data = attr.pack(size)
    assert len(data) == size and unpack_attr(data) == attr._replace(size=size)
    assert unpack_attr(bytes(size)).size == 64, "0 means the first published size"


def test_what_does_not_fit_is_not_lost_silently() -> None:
    with pytest.raises(LayoutError, match="after byte 128"):
        ATTR._replace(config3=1).pack(128)
    assert ATTR._replace(config3=1).cut().pack() == ATTR.pack(128)
    attr = ATTR._replace(flags=ATTR.flags | AttrFlag.DEFER_CALLCHAIN)
    assert attr.cut().flags == ATTR.flags, "old perfs refuse the flag"
    with pytest.raises(LayoutError, match="63 bytes"):
        unpack_attr(bytes(63))


def test_foreign_flag_bits_are_mirrored_within_each_byte() -> None:
    # A big-endian compiler gives bit 0 of a bit field the highest bit of the first byte.
    data = ATTR._replace(flags=AttrFlag.DISABLED | AttrFlag.MMAP).pack(order=">")
    assert data[40:48] == bytes([0x80, 0x80, 0, 0, 0, 0, 0, 0])
    assert unpack_attr(data, ">").flags == AttrFlag.DISABLED | AttrFlag.MMAP


@pytest.mark.parametrize(("words", "letter"), examples("unit/examples.txt", "task states"))
def test_letters(words: str, letter: str) -> None:
    names = TaskState.__members__
    state = sum(names[word] if word in names else int(word, 16) for word in words.split())
    assert state_letter(state) == letter
    assert state_letter(TaskState.INTERRUPTIBLE | max(state, 0), preempted=True) == "R", "whatever its state"


NEWEST = 471  # rseq_slice_yield, Linux 7.2


def definitions(header: str, pattern: str) -> list[tuple[str, str]]:
    command = ["gcc", "-E", "-dM", "-include", header, "-x", "c", "/dev/null"]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    return re.findall(pattern, text, re.M)


def defined(header: str) -> dict[int, str]:
    return {int(number): name for name, number in definitions(header, r"^#define __NR_(\w+) (\d+)$")}


def test_names_are_those_of_the_kernels_headers() -> None:
    known = {number: name for number, name in defined("asm/unistd.h").items() if number <= NEWEST}
    names = syscall_names(platform.machine())
    assert len(known) > 300 and {number: names[number] for number in known} == known


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are x86's headers")
def test_names_of_32_bit_programs() -> None:
    known = defined("asm/unistd_32.h")
    names = syscall_names("x86_64", compat=True)
    assert len(known) > 400 and {number: names[number] for number in known if number <= NEWEST} == known
    x32 = definitions("asm/unistd_x32.h", r"__NR_(\w+) \(__X32_SYSCALL_BIT \+ (\d+)\)")
    names = syscall_names("x86_64")
    assert len(x32) > 300
    assert {name: names[X32_BIT | int(number)] for name, number in x32} == {name: name for name, _ in x32}


@pytest.mark.parametrize(("arch", "number", "name"), examples("unit/examples.txt", "system calls"))
def test_known_numbers(arch: str, number: str, name: str) -> None:
    mode, _, digits = number.rpartition(" ")
    assert syscall_names(arch)[int(digits) | (COMPAT_BIT if mode else 0)] == name


def test_what_is_not_there() -> None:
    assert 403 not in syscall_names("x86_64")  # the 64-bit ports have no *_time64
    assert 335 not in syscall_names("aarch64")
    assert -1 not in syscall_names("x86_64") and -2 not in syscall_names("x86_64")
    assert dict(syscall_names("vax")) == dict(syscall_names("")) == {}


def test_32_bit_programs_are_known_by_how_they_enter_the_kernel() -> None:
    compat = ["do_fast_syscall_32", "entry_INT80_compat", "entry_SYSENTER_compat_after_hwframe"]
    assert all(map(is_compat_entry, [*compat, "__do_fast_syscall_32", "do_el0_svc_compat"]))
    assert not any(map(is_compat_entry, ["do_syscall_64", "entry_SYSCALL_64_after_hwframe", "do_el0_svc", ""]))


def test_numbers_are_those_of_the_architectures_headers() -> None:
    """Source: asm/unistd_64.h of x86 and s390, asm-generic/unistd.h for arm64."""
    numbers = {"x86_64": (298, 321), "aarch64": (241, 280), "s390x": (331, 351), "riscv64": (241, 280)}
    for arch, (perf_event_open, bpf) in numbers.items():
        assert syscall_number("perf_event_open", arch) == perf_event_open
        assert syscall_number("bpf", arch) == bpf


@pytest.mark.parametrize("arch", MACHINES)
def test_registers_of_samples_tell_the_machine(arch: str) -> None:
    assert arch_of_registers(MACHINES[arch].registers.sample_mask) == arch
    assert arch_of_registers(0xFF0FFF) == "x86_64"  # perf record --call-graph dwarf
    assert arch_of_registers((1 << 33) - 1) == "aarch64"
    assert arch_of_registers(0) == arch_of_registers(1 << 8) == ""
