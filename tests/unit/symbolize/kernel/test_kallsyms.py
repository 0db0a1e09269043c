# SPDX-License-Identifier: Apache-2.0
"""kallsyms: made texts, and the running kernel's."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from perf_offcpu.build_ids import kernel_build_id
from perf_offcpu.errors import FormatError
from perf_offcpu.symbolize.kernel.kallsyms import Kallsyms, load_kallsyms, parse_kallsyms

KERNEL = b"""\
ffffffff81000000 T _stext
ffffffff81000000 T _text
ffffffff81000130 T entry
ffffffff81000200 t local
ffffffff81000300 W weak_alias
ffffffff81000300 t after_weak
ffffffff81000400 R rodata_inside
ffffffff81000500 D data
ffffffff81000600 T _etext
ffffffff82000000 D _edata
"""
MODULES = b"""\
ffffffffc0a81000 t nf_nat_ipv4_fn\t[nf_nat]
ffffffffc0a81100 t nf_last\t[nf_nat]
ffffffffc0a90000 t virtblk_done\t[virtio_blk]
ffffffffc0a90fff t virtblk_last\t[virtio_blk]
ffffffffc0b00000 t bpf_prog_6deef7357e7b4530_sd\t[bpf]
"""


def names_at(kallsyms: Kallsyms, *addresses: int, delta: int = 0) -> list[str]:
    rows = kallsyms.lookup(np.array(addresses, np.uint64), delta)
    return [kallsyms.symbols.name(row) if row >= 0 else "" for row in rows.tolist()]


def test_functions_are_named_and_data_only_bounds_them() -> None:
    kallsyms = parse_kallsyms(KERNEL)
    for address, name in {
        0xFFFFFFFF81000130: "entry", 0xFFFFFFFF810001FF: "entry", 0xFFFFFFFF81000200: "local",
        0xFFFFFFFF81000400: "after_weak",  # type R is nothing to perf, so the function before goes on
        0xFFFFFFFF81000500: "", 0xFFFFFFFF81FFFFFF: "_etext", 0xFFFFFFFF80FFFFFF: "", 0xFFFFFFFF82000000: "", 0: "",
    }.items():  # fmt: skip
        assert names_at(kallsyms, address) == [name]
    assert (kallsyms.damaged, kallsyms.hidden, kallsyms.modules) == (0, False, ())


def test_modules_have_their_name_and_end_with_their_page() -> None:
    kallsyms = parse_kallsyms(KERNEL + MODULES)
    places = [0xFFFFFFFFC0A81000, 0xFFFFFFFFC0A81FFF, 0xFFFFFFFFC0A90FFE, 0xFFFFFFFFC0B00000]
    rows = kallsyms.lookup(np.array(places, np.uint64)).tolist()
    assert [kallsyms.module_name(row) for row in rows] == ["[nf_nat]", "[nf_nat]", "[virtio_blk]", "[bpf]"]
    assert names_at(kallsyms, *places[:3]) == ["nf_nat_ipv4_fn", "nf_last", "virtblk_done"]
    assert names_at(kallsyms, 0xFFFFFFFFC0A82FFF, 0xFFFFFFFFC0A83000) == ["nf_last", ""]
    assert kallsyms.module_name(int(kallsyms.lookup(np.array([0xFFFFFFFF81000130], np.uint64))[0])) == ""


def test_unsorted_modules_are_sorted() -> None:
    kallsyms = parse_kallsyms(KERNEL + b"".join(reversed(MODULES.splitlines(keepends=True))))
    assert names_at(kallsyms, 0xFFFFFFFFC0A81080, 0xFFFFFFFFC0A90001) == ["nf_nat_ipv4_fn", "virtblk_done"]
    assert kallsyms.module_name(int(kallsyms.lookup(np.array([0xFFFFFFFFC0A90001], np.uint64))[0])) == ("[virtio_blk]")


def test_the_reference_symbols_are_found_whatever_their_type() -> None:
    assert parse_kallsyms(KERNEL + MODULES).references["_text"] == 0xFFFFFFFF81000000
    lines = b"ffffffff81000000 A _text\nffffffff81000000 T x_stext\nffffffff81000100 T _stext\n"
    assert parse_kallsyms(lines).references == {"_text": 0xFFFFFFFF81000000, "_stext": 0xFFFFFFFF81000100}
    assert parse_kallsyms(b"ffffffff81000000 T _text").references == {"_text": 0xFFFFFFFF81000000}
    assert parse_kallsyms(b" T _text\nx _stext\n").references == {}


def test_another_boot_is_read_by_the_distance_of_the_reference_symbol() -> None:
    kallsyms = parse_kallsyms(KERNEL + MODULES)
    delta = kallsyms.delta("_text", 0xFFFFFFFF9C000000)
    assert delta == 0xFFFFFFFF81000000 - 0xFFFFFFFF9C000000
    assert names_at(kallsyms, 0xFFFFFFFF9C000131, 0xFFFFFFFF81000131, delta=delta) == ["entry", ""]
    moved_module = 0xFFFFFFFFC0A81000 - delta
    assert names_at(kallsyms, moved_module % 2**64, delta=delta) == [""]
    assert kallsyms.delta("_text", 0) is None
    assert kallsyms.delta("_no_such", 0xFFFFFFFF9C000000) is None


def test_hidden_addresses_are_said_and_name_nothing() -> None:
    kallsyms = parse_kallsyms(b"0000000000000000 T _text\n0000000000000000 t f\t[m]\n")
    assert (kallsyms.hidden, len(kallsyms.symbols), kallsyms.references) == (True, 0, {})
    assert names_at(kallsyms, 0, 1) == ["", ""]


def test_a_32_bit_kernel_and_a_last_line_without_newline() -> None:
    kallsyms = parse_kallsyms(b"c0008000 T _text\nc0008100 t f\nc0009000 D d\n")
    assert names_at(kallsyms, 0xC0008100, 0xC0008FFF, 0xC0009000) == ["f", "f", ""]
    assert names_at(parse_kallsyms(b"ffffffff81000000 T only"), 0xFFFFFFFF81000001) == ["only"]


@pytest.mark.parametrize(("line", "sound"), [
    (b"", 0), (b"garbage", 0), (b"ffffffff8100000g T f", 0), (b"ffffffff81000000 T", 0), (b"ffffffff81000000 T ", 0),
    (b"ffffffff81000000  T f", 0), (b"FFFFFFFF81000000 T f", 0), (b" ffffffff8100000 T f", 0),
    (b"fffff81000000 T f", 0), (b"\xff" * 40, 0), (b"\0" * 40, 0), (b"ffffffff81000000 T f\t", 1),
    (b"ffffffff81000000 T f\t[" + b"m" * 500 + b"]", 1), (b"ffffffff81000000 T " + b"n" * 100_000, 1),
])  # fmt: skip
def test_damaged_lines_are_counted_wherever_they_stand(line: bytes, sound: int) -> None:
    alone, amidst = parse_kallsyms(line), parse_kallsyms(KERNEL + line + b"\n" + MODULES)
    first = parse_kallsyms(line + b"\n" + KERNEL + MODULES)
    assert (len(alone.symbols), alone.damaged) == (sound, 1 - sound)
    for kallsyms in (amidst, first):
        assert kallsyms.damaged == 1 - sound
        assert {"[nf_nat]", "[virtio_blk]", "[bpf]"} <= set(kallsyms.modules)


def test_plain_and_packed_files_are_read_and_damaged_ones_refused(tmp_path: Path) -> None:
    plain, packed, torn = tmp_path / "plain", tmp_path / "packed", tmp_path / "torn"
    plain.write_bytes(KERNEL)
    packed.write_bytes(gzip.compress(KERNEL))
    torn.write_bytes(gzip.compress(KERNEL)[:-20])
    assert len(load_kallsyms(str(plain)).symbols) == len(load_kallsyms(str(packed)).symbols) > 0
    with pytest.raises(FormatError, match="gzip stream"):
        load_kallsyms(str(torn))


def test_the_running_kernels_functions_are_found_at_their_addresses() -> None:
    """Read line by line here, and compared at each function's first byte: one of its aliases is shown."""
    text = Path("/proc/kallsyms").read_bytes()  # once: BPF programs come and go
    names_of: dict[int, set[str]] = {}
    for line in text.decode().splitlines():
        address, type_, name = line.split()[:3]
        if type_ in "tTwW" and int(address, 16):
            names_of.setdefault(int(address, 16), set()).add(name)
    kallsyms = parse_kallsyms(text)
    assert len(kallsyms.symbols) == len(names_of)
    assert (kallsyms.damaged, kallsyms.hidden) == (0, not names_of)
    for row, start in enumerate(kallsyms.symbols.start.tolist()):
        assert kallsyms.symbols.name(row) in names_of[start]


@pytest.mark.kernel
def test_the_running_kernels_build_id_is_the_one_in_its_notes() -> None:
    build_id = kernel_build_id()
    assert 8 <= len(build_id) <= 20
    assert b"GNU\0" + build_id in Path("/sys/kernel/notes").read_bytes()
    assert kernel_build_id("/nonexistent") == b""
