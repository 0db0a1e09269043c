# SPDX-License-Identifier: Apache-2.0
"""Kernel symbols: kallsyms, made and this kernel's; the recorded kernel's or none, whatever file they come from; the
kept table of the running kernel, with the same names as long as what they depend on is the same."""

import gzip
import lzma
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from builders.chains import recording_of_chains
from builders.elf import DYN, EXEC, REL, ElfBuilder, Load, Sec, Sym

from perf_offcpu import losses
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.build_ids import kernel_build_id
from perf_offcpu.cache import DiskCache
from perf_offcpu.errors import FormatError, UsageError
from perf_offcpu.model.columns import Strings
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Dsos, KernelSymbols, Meta
from perf_offcpu.objects.search import by_build_id
from perf_offcpu.symbolize.kernel import files, names
from perf_offcpu.symbolize.kernel.files import running_kallsyms
from perf_offcpu.symbolize.kernel.kallsyms import Kallsyms, load_kallsyms, parse_kallsyms
from perf_offcpu.symbolize.kernel.names import load_module
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize

KALLSYMS = (Path(__file__).parents[3] / "data" / "formats" / "kallsyms.txt").read_bytes()
KERNEL, MODULES = KALLSYMS[: KALLSYMS.index(b"ffffffffc0")], KALLSYMS[KALLSYMS.index(b"ffffffffc0") :]


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


LINKED = 0xFFFFFFFF81000000
RECORDED = 0xFFFFFFFF9A000000  # where KASLR had put it
MODULE = 0xFFFFFFFFC0A00000
BUILD_ID = b"\x42" * 20
FUNCTIONS = [Sym("first", LINKED + 0x100, 0x40), Sym("second", LINKED + 0x140, 0x40)]


def vmlinux(build_id: bytes = BUILD_ID) -> bytes:
    text, loads = Sec(".text", addr=LINKED, size=0x1000, data=b""), [Load(0x1000, LINKED, 0x1000)]
    return ElfBuilder(FUNCTIONS, sections=[text], loads=loads, type=EXEC, build_id=build_id).build()


def kallsyms(base: int) -> str:
    lines = [f"{base:x} T _text", f"{base + 0x100:x} T first", f"{base + 0x140:x} t second"]
    return "\n".join([*lines, f"{base + 0x1000:x} D _edata", f"{MODULE + 0x10:x} t mod_fn\t[mod]", ""])


def profile(*addresses: int, module: str = "", **options: Any) -> Profile:
    strings = Strings(["[kernel.kallsyms]_text", BUILD_ID.hex(), module or "[mod]", "bpf_prog_1"])
    recording = recording_of_chains(
        [[CallchainContext.KERNEL, *addresses]], (-1, RECORDED, RECORDED + 0x1000, RECORDED, strings[1]),
        (-1, MODULE, MODULE + 0x1000, 0, strings[3]), columns={"space": [-1]}, strings=strings,
        dsos=Dsos.from_rows([(1, 2, CpuMode.KERNEL), (3, 0, CpuMode.KERNEL)]),
        kernel_symbols=KernelSymbols.from_rows([(MODULE + 0x9000, MODULE + 0x9100, 4)]),
        meta=Meta(os_release="1.2.3-none"),
    )  # fmt: skip
    result = symbolize(recording, SymbolizeOptions(**options))
    result.check()
    return result


def shown(result: Profile) -> list[str]:
    """symbol+offset (dso) of each frame, by address."""
    table, strings = result.frames, result.strings
    rows = np.argsort(table.address, kind="stable").tolist()
    return [f"{strings[table.symbol[row]]}+{int(table.offset[row]):#x} ({strings[table.dso[row]]})" for row in rows]


FIRST, SECOND = "first+0x10 ([kernel.kallsyms])", "second+0x0 ([kernel.kallsyms])"
UNKNOWN = "+0x0 ([kernel.kallsyms])"


def test_a_given_vmlinux_is_moved_to_where_the_kernel_was_that_of_another_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "vmlinux"
    path.write_bytes(vmlinux())
    result = profile(RECORDED + 0x110, RECORDED + 0x141, vmlinux=str(path))
    assert shown(result) == [FIRST, "second+0x1 ([kernel.kallsyms])"]
    path.write_bytes(vmlinux(b"\x43" * 20))
    with pytest.raises(UsageError, match="it has build-id 4343.*, the recorded kernel 4242"):
        profile(RECORDED + 0x110, vmlinux=str(path))
    for wrong in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError, match="--vmlinux"):
            profile(RECORDED + 0x110, vmlinux=str(wrong))


def test_kallsyms_of_another_boot_are_moved_and_modules_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "kallsyms"
    path.write_text(kallsyms(LINKED))
    result = profile(RECORDED + 0x110, MODULE + 0x12, kallsyms=str(path))
    assert shown(result) == [FIRST, "+0x0 ([mod])"]
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "kallsyms").write_text(kallsyms(RECORDED))
    result = profile(RECORDED + 0x110, MODULE + 0x12, symfs=str(tmp_path))
    assert shown(result) == [FIRST, "mod_fn+0x2 ([mod])"], "those of --symfs are of the recorded boot"


@pytest.mark.parametrize("kind", ["kallsyms", "vmlinux", "elf"])
def test_perfs_cache_has_the_recorded_kernel(tmp_path: Path, kind: str) -> None:
    place = Path(by_build_id(str(tmp_path), BUILD_ID, f"/{kind}"))
    place.parent.mkdir(parents=True)
    place.write_bytes(kallsyms(RECORDED).encode() if kind == "kallsyms" else vmlinux())
    assert shown(profile(RECORDED + 0x110, buildid_dir=str(tmp_path))) == [FIRST]
    if kind == "vmlinux":
        place.write_bytes(vmlinux(b"\x43" * 20))
        result = profile(RECORDED + 0x110, buildid_dir=str(tmp_path))
        assert shown(result) == [UNKNOWN] and losses.OTHER_KERNEL in result.losses, "another build is passed over"


def test_the_running_kernel_is_not_asked_for_another_ones_names() -> None:
    assert shown(profile(RECORDED + 0x110)) == [UNKNOWN]
    assert "bpf_prog_1+0x4 (bpf_prog_1)" in shown(profile(MODULE + 0x9004)), "the recording's own names come first"


class TestModules:
    """Unlinked objects, laid out as the kernel does it."""

    @staticmethod
    def module(**options: Any) -> bytes:
        sizes = {".text": 0x30, ".init.text": 0x100, ".text.unlikely": 0x20}
        sections = [Sec(name, size=size, data=b"\x90" * size) for name, size in sizes.items()]
        symbols = [Sym("mod_first", 0x10, 0x10), Sym("mod_init", 0, 0x100, section=".init.text")]
        symbols.append(Sym("mod_cold", 0x8, 0x10, section=".text.unlikely"))
        return ElfBuilder(symbols, sections=sections, type=REL, loads=[], **options).build()

    @pytest.mark.parametrize(("suffix", "pack"), [
        ("", bytes), (".xz", lzma.compress), (".gz", gzip.compress), (".zst", zstandard.ZstdCompressor().compress),
    ])  # fmt: skip
    def test_frames_are_named_by_the_module(self, tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
        path = f"/lib/modules/x/mod-a.ko{suffix}"
        (tmp_path / "lib/modules/x").mkdir(parents=True)
        Path(f"{tmp_path}{path}").write_bytes(pack(self.module()))
        result = profile(MODULE + 0x14, MODULE + 0x3A, MODULE + 0x29, symfs=str(tmp_path), module=path)
        assert shown(result) == ["mod_first+0x4 ([mod_a])", "+0x0 ([mod_a])", "mod_cold+0x2 ([mod_a])"]

    def test_another_build_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "m.ko").write_bytes(self.module(build_id=b"\x01" * 20))
        assert len(load_module(str(tmp_path / "m.ko"), b"\x01" * 20)) == 2
        with pytest.raises(FormatError, match="build-id 0101"):
            load_module(str(tmp_path / "m.ko"), b"\x02" * 20)

    @pytest.mark.parametrize(("name", "data"), [
        ("m.ko", b""), ("m.ko", b"\x7fELF"), ("m.ko.xz", b"\xfd7zXZ\0 not really"), ("m.ko.gz", b"\x1f\x8b not really"),
        ("m.ko.zst", b"(\xb5/\xfd not really"), ("m.ko", ElfBuilder(FUNCTIONS, type=DYN).build()),
    ])  # fmt: skip
    def test_damaged_files_are_refused(self, tmp_path: Path, name: str, data: bytes) -> None:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FormatError):
            load_module(str(tmp_path / name), b"")


ENTRY, CODE_OF_MODULE, BPF = 0xFFFFFFFF81000130, 0xFFFFFFFFC0A81000, 0xFFFFFFFFC0B00000


class Kernel:
    """Stands for the running kernel: its text, its state, and how often it was read."""

    def __init__(self) -> None:
        self.text, self.reads = KERNEL + MODULES, 0
        self.state: tuple[str, str] | None = ("boot", "modules")

    def load(self, path: str = "") -> Kallsyms:
        self.reads += 1
        return parse_kallsyms(self.text)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setattr(files, "load_kallsyms", made.load)
    monkeypatch.setattr(names, "load_kallsyms", made.load)
    monkeypatch.setattr(files, "_state", lambda: made.state)
    return made


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(str(tmp_path / "cache"))


def names_in(kallsyms: Kallsyms) -> list[tuple[int, int, str, str]]:
    table = kallsyms.symbols
    names = ((table.name(row), kallsyms.module_name(row)) for row in range(len(table)))
    return [(*place, *name) for *place, name in zip(table.start.tolist(), table.end.tolist(), names, strict=True)]


def test_the_second_time_nothing_is_read(kernel: Kernel, cache: DiskCache) -> None:
    first, second = running_kallsyms(cache), running_kallsyms(cache)
    assert kernel.reads == 1
    assert (first.is_partial, second.is_partial) == (False, True)
    lasting = [row for row in names_in(first) if row[3] != "[bpf]"]
    assert len(lasting) == len(first.symbols) - 1
    assert names_in(second) == lasting
    assert second.references == first.references
    addresses = [ENTRY, CODE_OF_MODULE, BPF + 1, 0, 2**64 - 1]
    expected = ["" if name.startswith("bpf_prog") else name for name in names_at(first, *addresses)]
    assert names_at(second, *addresses) == expected


def test_another_boot_or_module_is_read_again(kernel: Kernel, cache: DiskCache) -> None:
    running_kallsyms(cache)
    kernel.state = ("boot", "other modules")
    assert not running_kallsyms(cache).is_partial
    assert kernel.reads == 2


def test_without_cache_or_state_nothing_is_kept(kernel: Kernel, cache: DiskCache) -> None:
    running_kallsyms(None)
    kernel.state = None
    running_kallsyms(cache)
    assert kernel.reads == 2
    kernel.state = ("boot", "modules")
    kernel.text = b"0000000000000000 T _text\n0000000000000000 t f\n"
    assert running_kallsyms(cache).hidden and running_kallsyms(cache).hidden
    assert kernel.reads == 4, "hidden addresses are not kept"
    assert not os.path.exists(cache.directory)


def test_a_new_module_prevents_keeping(kernel: Kernel, cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    states: Iterator[tuple[str]] = iter([("before",), ("after",), ("after",), ("after",)])
    monkeypatch.setattr(files, "_state", lambda: next(states))
    running_kallsyms(cache)
    assert not os.path.exists(cache.directory)
    running_kallsyms(cache)
    assert len(os.listdir(cache.directory)) == 1


def test_columns_that_are_no_table_are_refused() -> None:
    good = files._lasting_columns(parse_kallsyms(KERNEL + MODULES))
    assert files._from_columns(good) is not None
    assert files._from_columns({**good, "module": good["module"][1:]}) is None
    assert files._from_columns({**good, "module": np.full_like(good["module"], 99)}) is None
    for name in ("module", "modules", "references", "start"):
        assert files._from_columns({key: good[key] for key in good if key != name}) is None


@pytest.mark.kernel
def test_what_is_not_in_the_kept_table_is_looked_up_in_the_kernels_own(kernel: Kernel, cache: DiskCache) -> None:
    """Programs of BPF come and go; the recording does not say their names either."""

    def shown(*addresses: int) -> set[str]:
        chain, meta = [CallchainContext.KERNEL, *addresses], Meta(kernel_build_id=kernel_build_id().hex())
        recording = recording_of_chains([chain], columns={"space": [-1]}, meta=meta)
        profile = symbolize(recording, SymbolizeOptions(cache=cache))
        return {profile.strings[row] for row in profile.frames.symbol.tolist()}

    assert shown(ENTRY + 4) == {"entry"}
    assert shown(ENTRY + 4, CODE_OF_MODULE + 0x80) == {"entry", "nf_nat_ipv4_fn"}
    assert kernel.reads == 1
    kernel.text = kernel.text.replace(b"prog", b"later_prog")
    assert "later_prog" in " ".join(shown(ENTRY + 4, BPF + 4))
    assert kernel.reads == 2


def test_the_state_of_this_kernel_can_be_told_and_lasts() -> None:
    state = files._state()
    assert state is not None
    assert state == files._state()
    assert Path("/proc/sys/kernel/random/boot_id").read_bytes() in state
