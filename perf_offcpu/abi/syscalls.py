# SPDX-License-Identifier: Apache-2.0
"""Names of system calls by number, for the architectures that Linux distributions are built for.

A number depends on the architecture, and on three of them on the program, too:

    x86-64    numbers with bit 30 set are x32's; those of 32-bit programs (int 0x80, sysenter) are i386's
    arm64     32-bit programs use arm's numbers
    s390x, …  31-bit programs, which current kernels no longer run

Numbers of 32-bit programs have bit 29 set in samples (COMPAT_BIT). In recordings before 2026-11-28 only the kernel's
entry functions in a stack mark them (see `is_compat_entry`).

The sections of syscalls.txt list names in order of numbers, `N:` where the numbers jump. Numbers never change their
meaning. From 403 on all architectures have the same names: `time64` where a long has 32 bits, then `shared`.
`first_ports` are names that i386, arm, s390 and powerpc have in common; each has a section that replaces some, "-"
where a number has no name.

Source: arch/x86/entry/syscalls/syscall_64.tbl and syscall_32.tbl, scripts/syscall.tbl (arm64, riscv, loongarch),
arch/arm/tools/syscall.tbl, arch/s390/kernel/syscalls/syscall.tbl, arch/powerpc/kernel/syscalls/syscall.tbl; up to Linux
6.18; for 470 and 471: linux-libc-dev 7.2.13 (asm/unistd_64.h, unistd_32.h)."""

import functools
import os
import re
from collections.abc import Mapping

from perf_offcpu.tables import read_table

X32_BIT = 1 << 30  # arch/x86/include/uapi/asm/unistd.h: __X32_SYSCALL_BIT
COMPAT_BIT = 1 << 29  # OFFCPU_SYSCALL_COMPAT of bpf/off_cpu.h
_TABLES = {
    "x86_64": "x86_64 shared",
    "i386": "first_ports i386 time64 shared",
    "aarch64": "generic shared",
    "riscv64": "generic shared",
    "loongarch64": "generic shared",
    "arm": "first_ports arm time64 shared",
    "s390x": "first_ports s390x shared",
    "ppc64": "first_ports powerpc64 shared",
}
"""Architecture → its sections of syscalls.txt; a later one replaces names of those before."""
_ALIASES = (
    (re.compile(r"amd64"), "x86_64"),
    (re.compile(r"i[3-6]86|x86"), "i386"),
    (re.compile(r"arm64"), "aarch64"),
    (re.compile(r"arm.*"), "arm"),
    (re.compile(r"s390"), "s390x"),
    (re.compile(r"ppc64le|powerpc.*"), "ppc64"),
)
"""(pattern of other names of an architecture in `uname -m` and perf's header, its key in _TABLES)."""
_COMPAT = {"x86_64": "i386", "aarch64": "arm"}
_COMPAT_ENTRY = re.compile(
    r"(?:__)?do_(?:fast_syscall_32|int80_emulation|int80_syscall_32|SYSENTER_32)|entry_(?:INT80|SYSENTER|SYSCALL)"
    r"_compat.*|int80_emulation|asm_int80_emulation|do_el0_svc_compat|el0_svc_compat|el0t_32_sync.*"
)


def syscall_names(arch: str, *, compat: bool = False) -> Mapping[int, str]:
    """Return number → name of the system calls on `arch` (`uname -m`); {} for an unknown one. `compat`: numbers without
    COMPAT_BIT are those of 32-bit programs."""
    name = next((table for pattern, table in _ALIASES if pattern.fullmatch(arch)), arch)
    return _with_compat(name, _COMPAT.get(name, name) if compat else name)


def syscall_number(name: str, arch: str) -> int:
    """Return the number of a system call on an architecture (`uname -m`); raise ValueError if it has none."""
    return min(number for number, call_name in syscall_names(arch).items() if call_name == name)  # x32 is above


def is_compat_entry(function: str) -> bool:
    """Return True for a function of the kernel through which only system calls of 32-bit programs pass."""
    return _COMPAT_ENTRY.fullmatch(function) is not None


@functools.cache
def _with_compat(arch: str, own: str) -> Mapping[int, str]:
    """Return number → name of the system calls of table `own`; with COMPAT_BIT set, of 32-bit programs on `arch`."""
    compat = _names(_COMPAT[arch]) if arch in _COMPAT else {}
    return {**{COMPAT_BIT | number: name for number, name in compat.items()}, **_names(own)}


@functools.cache
def _names(arch: str) -> Mapping[int, str]:
    sections = _sections()
    names = {number: name for key in _TABLES.get(arch, "").split() for number, name in sections[key].items()}
    names = {number: name for number, name in names.items() if name != "-"}
    if arch == "x86_64":
        own = sections["x32"]
        shared = {number: name for number, name in names.items() if name not in own.values()}
        names |= {X32_BIT | number: name for number, name in (shared | own).items()}
    return names


@functools.cache
def _sections() -> dict[str, dict[int, str]]:
    with open(f"{os.path.splitext(__file__)[0]}.txt", encoding="ascii") as file:  # direct: a table of this package
        text = file.read()
    return {name: _numbered(words) for name, words in re.findall(r"^\[(\w+)\]\n([^[]*)", text, re.MULTILINE)}


def _numbered(text: str) -> dict[int, str]:
    names, number = dict[int, str](), 0
    for word in text.split():
        if word.endswith(":"):
            number = int(word[:-1])
        else:
            names[number] = word
            number += 1
    return names


SYSCALL_NUMBERS = 512  # entries of the BPF map of `call_numbers`; the numbers of x32 are larger

CALLS: Mapping[str, tuple[str, str]] = {
    name: (kind, limit)
    for kind, calls in read_table(__file__)
    for limit, names in calls.items()
    for name in names.split()
}
"""System call → (kind of object that its arguments name: offcpu_call_kind; argument with its time limit:
offcpu_timeout), values of enums in bpf/off_cpu.h."""


def call_numbers(arch: str) -> dict[int, tuple[str, str]]:
    """Return number → (object, time limit), as in CALLS, of the 64-bit system calls on `arch` (`uname -m`)."""
    names = {number: name for number, name in syscall_names(arch).items() if number < SYSCALL_NUMBERS}
    return {number: CALLS[name] for number, name in names.items() if name in CALLS}
