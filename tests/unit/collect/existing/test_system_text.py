# SPDX-License-Identifier: Apache-2.0
"""Texts of the kernel that the recorder reads: maps and mounts."""

from __future__ import annotations

from perf_offcpu.collect.existing.cgroups import cgroup2_mount
from perf_offcpu.collect.existing.proc import Mapping, parse_maps


def test_maps() -> None:
    text = (
        b"00400000-0040b000 r-xp 00001000 fe:1f 260131                     /usr/bin/my prog (deleted)\n"
        b"7f0000000000-7f0000001000 rw-s 00000000 00:00 0 \n"
        b"7f0000002000-7f0000003000 r--p 00000000 00:2a 18446744073709551615 /tmp/new\\012line\n"
        b"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n"
    )
    assert list(parse_maps(text)) == [
        Mapping(0x400000, 0x40B000, b"r-xp", 0x1000, (0xFE, 0x1F), 260131, b"/usr/bin/my prog (deleted)"),
        Mapping(0x7F0000000000, 0x7F0000001000, b"rw-s", 0, (0, 0), 0, b""),
        Mapping(0x7F0000002000, 0x7F0000003000, b"r--p", 0, (0, 0x2A), 2**64 - 1, b"/tmp/new\nline"),
        Mapping(0xFFFFFFFFFF600000, 0xFFFFFFFFFF601000, b"--xp", 0, (0, 0), 0, b"[vsyscall]"),
    ]


def test_cgroup2_mount() -> None:
    text = (
        b"25 30 0:23 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n"
        b"31 25 0:26 / /sys/fs/cgroup/a\\040b rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    assert cgroup2_mount(text) == b"/sys/fs/cgroup/a b"
    assert cgroup2_mount(text.splitlines()[0]) is None
