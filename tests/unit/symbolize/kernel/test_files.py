# SPDX-License-Identifier: Apache-2.0
"""Kernel symbols: the recorded kernel's or none, whatever file they come from, wherever KASLR put it."""

import gzip
import lzma
from collections.abc import Callable
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
from perf_offcpu.errors import FormatError, UsageError
from perf_offcpu.model.columns import Strings
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Dsos, KernelSymbols, Meta
from perf_offcpu.objects.search import by_build_id
from perf_offcpu.symbolize.kernel.names import load_module
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize

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
