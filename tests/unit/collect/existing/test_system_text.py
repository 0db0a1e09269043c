# SPDX-License-Identifier: Apache-2.0
"""Texts of the kernel that the recorder reads: maps, mounts, time namespaces, code; scans that know the last one."""

import ctypes
import mmap
import os
import tempfile
import threading
from pathlib import Path

import pytest

from perf_offcpu import losses
from perf_offcpu.abi.records import RECORD_HEADER, RECORD_LAYOUTS, RecordType
from perf_offcpu.collect.existing import kernel_maps
from perf_offcpu.collect.existing.inventory import KnownTasks
from perf_offcpu.collect.existing.kernel_maps import KernelMaps, bpf_symbols
from perf_offcpu.collect.existing.maps import MappedBuildIds, Mapping, parse_maps
from perf_offcpu.collect.existing.process import Description, Part, ProcessReader
from perf_offcpu.collect.system.cgroups import Hierarchy, cgroup2_mount, hierarchies
from perf_offcpu.collect.system.clock import shift_from_text
from perf_offcpu.losses import Losses


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


def test_a_line_that_makes_no_sense_is_counted_and_the_others_are_read() -> None:
    good = b"00400000-0040b000 r-xp 00001000 fe:1f 260131 /a\rb\x0bc\x85d\n"
    skipped = Losses()
    bad = b"".join(line + b"\n" for line in (b"", b"x", b"1-2 r 3", b"g-h r-xp 0 0:0 0 /x", b"1-2 r-xp 0 00 0 /x"))
    assert [one.name for one in parse_maps(good + bad + good, skipped)] == [b"/a\rb\x0bc\x85d"] * 2
    assert skipped == {losses.KERNEL_TEXT: 5}


def test_no_name_of_a_mount_point_hides_or_makes_a_hierarchy() -> None:
    """Any user can mount in a namespace; the kernel escapes blanks, newlines and backslashes only."""
    names = [bytes([byte]) * 3 for byte in range(1, 256) if byte not in b" \t\n\\/"]
    lines = [b"40 30 0:50 / /m" + name + b"cgroup2 rw - tmpfs none rw\n" for name in names]
    real = b"31 25 0:26 / /sys/fs/cgroup\\134x rw shared:9 master:2 - cgroup2 cgroup2 rw,nsdelegate\n"
    text = b"".join(lines) + real + b"".join(lines) + b"\nnonsense\n - cgroup2 x\n"
    assert hierarchies(text) == (Hierarchy("/sys/fs/cgroup\\x", ""),)


def test_cgroup2_mount() -> None:
    text = (
        b"25 30 0:23 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n"
        b"31 25 0:26 / /sys/fs/cgroup/a\\040b rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    assert cgroup2_mount(text) == b"/sys/fs/cgroup/a b" and cgroup2_mount(text.splitlines()[0]) is None


@pytest.mark.parametrize("text, shift_ns", [
    ("monotonic        1000         0\nboottime         2000         0\n", 1000 * 10**9),
    ("monotonic          -2 500000000\nboottime            0         0\n", -1_500_000_000),
    ("boottime         2000         0\n", 0), ("", 0),
])  # fmt: skip
def test_the_shift_of_the_monotonic_clock(text: str, shift_ns: int) -> None:
    assert shift_from_text(text) == shift_ns


def scan(known: KnownTasks | None) -> bytes:
    known = known or KnownTasks()
    known.begin()
    reader = ProcessReader(MappedBuildIds(), True, known.has, lambda device: None)
    described = Description(*reader.read(os.getpid(), mapped=True))
    return b"".join(known.complete(Part(*one)).records or b"" for one in described.parts)


def rename(name: bytes) -> None:
    ctypes.CDLL(None).prctl(15, name, 0, 0, 0)


def test_what_changed_is_read_again() -> None:
    tasks = KnownTasks()
    assert scan(tasks) == scan(tasks) == scan(None)
    rename(b"other-name")
    assert b"other-name" in scan(tasks) and scan(tasks) == scan(None)
    rename(b"python")
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    assert scan(tasks) == scan(None)
    go.set()
    while os.path.exists(f"/proc/self/task/{thread.native_id}"):  # join() returns a little earlier
        thread.join()
    assert scan(tasks) == scan(None)
    with tempfile.NamedTemporaryFile(prefix="mapped-") as file:
        file.write(bytes(mmap.PAGESIZE))
        file.flush()
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC):
            assert b"mapped-" in scan(tasks)
    assert b"mapped-" not in scan(tasks)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perf_offcpu.collect.existing.inventory._MOST_KEPT", 10)
    known, made = KnownTasks(), list[int]()

    def records(number: int) -> bytes | None:
        key = "threads", number
        if is_new := not known.has(key, b"same"):
            made.append(number)
        return known.complete(Part(key, b"same", bytes(4) if is_new else None, {})).records

    for _ in range(2):
        known.begin()
        assert [records(one) for one in range(4)] == [bytes(4)] * 4
    assert made == [0, 1, 2, 3, 2, 3], "the first two fit"
    known.begin()
    known.begin()
    records(0)
    assert made[-1] == 0, "what a scan does not meet is forgotten"


KALLSYMS = (
    b"ffffffff81000000 T _stext\n"
    b"ffffffff81000000 T _text\n"
    b"ffffffff82000000 D _edata\n"
    b"ffffffffc0300040 t bpf_prog_6deef7357e7b4530_second\t[bpf]\n"
    b"ffffffffc0300000 t bpf_prog_0123456789abcdef\t[bpf]\n"
)


def test_bpf_symbols_are_sorted() -> None:
    assert bpf_symbols(KALLSYMS) == [
        (0xFFFFFFFFC0300000, b"bpf_prog_0123456789abcdef"),
        (0xFFFFFFFFC0300040, b"bpf_prog_6deef7357e7b4530_second"),
    ]
    assert bpf_symbols(KALLSYMS.splitlines(keepends=True)[4]) == [(0xFFFFFFFFC0300000, b"bpf_prog_0123456789abcdef")]
    assert bpf_symbols(KALLSYMS.partition(b"ffffffffc")[0]) == bpf_symbols(b"") == []


@pytest.fixture
def kallsyms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for /proc/kallsyms."""
    path = tmp_path / "kallsyms"
    path.write_bytes(KALLSYMS)
    monkeypatch.setattr(kernel_maps, "KALLSYMS", path)
    return path


def unpacked(record: bytes) -> tuple[int, dict[str, object]]:
    header = RECORD_HEADER.unpack(record)
    return header["type"], RECORD_LAYOUTS[header["type"]].unpack(record, shape=header["misc"], start=8)


@pytest.mark.usefixtures("kallsyms")
def test_kernel_and_bpf_programs() -> None:
    kernel, *programs = [
        unpacked(record) for record in KernelMaps().records() if unpacked(record)[0] != RecordType.MMAP
    ]
    assert kernel[0] == RecordType.MMAP2
    wanted = {"pid": 2**32 - 1, "addr": 0xFFFFFFFF81000000, "len": 1 << 24, "pgoff": 0xFFFFFFFF81000000}
    wanted["filename"] = b"[kernel.kallsyms]_text"
    assert {name: kernel[1][name] for name in wanted} == wanted
    programs = [values for kind, values in programs if kind == RecordType.KSYMBOL]
    places = [(values["addr"], values["len"]) for values in programs]
    assert places == [(0xFFFFFFFFC0300000, 0x40), (0xFFFFFFFFC0300040, 4096)]


def test_hidden_addresses_make_no_kernel_map(kallsyms: Path) -> None:
    """kernel.kptr_restrict shows zeros."""
    kallsyms.write_bytes(b"".join(b"0" * 16 + line[16:] for line in KALLSYMS.splitlines(keepends=True)))
    assert [record for record in KernelMaps().records() if unpacked(record)[1].get("filename", b"")[:1] == b"["] == []
    kallsyms.write_bytes(b"")
    assert RecordType.KSYMBOL not in {unpacked(record)[0] for record in KernelMaps().records()}


def test_records_are_made_again_when_a_program_has_come(kallsyms: Path) -> None:
    maps = KernelMaps()
    records = maps.records()
    kallsyms.write_bytes(b"")
    assert maps.records() is records
    maps.changes += 1
    assert len(maps.records()) < len(records)


@pytest.mark.kernel
def test_running_kernel_has_a_map_that_holds_its_symbols() -> None:
    lines = Path("/proc/kallsyms").read_bytes().splitlines()
    (address,) = [int(line[:16], 16) for line in lines if line.endswith(b" T schedule")]
    kernel = unpacked(KernelMaps().records()[0])[1]
    assert kernel["addr"] < address < kernel["addr"] + kernel["len"]
