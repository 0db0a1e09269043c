# SPDX-License-Identifier: Apache-2.0
"""Records of the kernel's own code."""

from pathlib import Path

import pytest

from perf_offcpu.abi.records import RECORD_HEADER, RECORD_LAYOUTS, RecordType
from perf_offcpu.collect.existing.kernel_maps import KernelMaps, bpf_symbols

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
def maps(monkeypatch: pytest.MonkeyPatch) -> KernelMaps:
    """This machine's, with other symbols."""
    maps = KernelMaps()
    monkeypatch.setattr(maps, "_kallsyms", KALLSYMS)
    return maps


def unpacked(record: bytes) -> tuple[int, dict[str, object]]:
    header = RECORD_HEADER.unpack(record)
    return header["type"], RECORD_LAYOUTS[header["type"]].unpack(record, shape=header["misc"], start=8)


def test_kernel_and_bpf_programs(maps: KernelMaps) -> None:
    kernel, *programs = [unpacked(record) for record in maps.records() if unpacked(record)[0] != RecordType.MMAP]
    assert kernel[0] == RecordType.MMAP2
    wanted = {"pid": 2**32 - 1, "addr": 0xFFFFFFFF81000000, "len": 1 << 24, "pgoff": 0xFFFFFFFF81000000}
    wanted["filename"] = b"[kernel.kallsyms]_text"
    assert {name: kernel[1][name] for name in wanted} == wanted
    programs = [values for kind, values in programs if kind == RecordType.KSYMBOL]
    places = [(values["addr"], values["len"]) for values in programs]
    assert places == [(0xFFFFFFFFC0300000, 0x40), (0xFFFFFFFFC0300040, 4096)]


def test_hidden_addresses_make_no_kernel_map(maps: KernelMaps, monkeypatch: pytest.MonkeyPatch) -> None:
    """kernel.kptr_restrict shows zeros."""
    hidden = b"".join(b"0" * 16 + line[16:] for line in KALLSYMS.splitlines(keepends=True))
    monkeypatch.setattr(maps, "_kallsyms", hidden)
    assert [record for record in maps.records() if unpacked(record)[1].get("filename", b"")[:1] == b"["] == []
    monkeypatch.setattr(maps, "_kallsyms", b"")
    assert RecordType.KSYMBOL not in {unpacked(record)[0] for record in maps.records()}


@pytest.mark.kernel
def test_running_kernel_has_a_map_that_holds_its_symbols() -> None:
    lines = Path("/proc/kallsyms").read_bytes().splitlines()
    (address,) = [int(line[:16], 16) for line in lines if line.endswith(b" T schedule")]
    kernel = unpacked(next(KernelMaps().records()))[1]
    assert kernel["addr"] < address < kernel["addr"] + kernel["len"]
