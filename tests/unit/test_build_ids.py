# SPDX-License-Identifier: Apache-2.0
"""Build-ids, held against readelf and against files that anyone may have made."""

import os
import random
import re
import struct
import subprocess
from pathlib import Path

import pytest
from builders.zoo import as_file

from perf_offcpu.build_ids import build_id_of, kernel_build_id, module_build_id
from perf_offcpu.collect.existing.maps import MappedBuildIds, build_id_of_memory, parse_maps

BUILD_ID = bytes(range(20))


def image(order: str, bits: int, notes: bytes, align: int = 4, count: int = 1) -> bytes:
    """An ELF file that is a header, one segment of notes, and nothing else; written without our tables."""
    data, word = (1, 2)[order == ">"], "I" if bits == 32 else "Q"
    ident = b"\x7fELF" + bytes([1 if bits == 32 else 2, data, 1]) + bytes(9)
    head_size, entry_size = (52, 32) if bits == 32 else (64, 56)
    head = struct.pack(f"{order}HHI3{word}I6H", 3, 8, 1, 0, head_size, 0, 0, head_size, entry_size, count, 0, 0, 0)
    at = head_size + entry_size
    if bits == 32:
        entry = struct.pack(f"{order}8I", 4, at, 0, 0, len(notes), 0, 4, align)
    else:
        entry = struct.pack(f"{order}II6Q", 4, 4, at, 0, 0, len(notes), 0, align)
    return ident + head + entry + notes


def note(order: str, name: bytes, kind: int, text: bytes, align: int = 4) -> bytes:
    def padded(data: bytes) -> bytes:
        return data + bytes(-len(data) % align)

    return padded(struct.pack(f"{order}III", len(name), len(text), kind) + name) + padded(text)


def read(data: bytes) -> bytes:
    with as_file(data) as path, path.open("rb") as file:
        return build_id_of(file.fileno())


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("bits", [32, 64])
def test_both_classes_and_orders(order: str, bits: int) -> None:
    other = note(order, b"stapsdt\0", 3, b"x" * 7)
    assert read(image(order, bits, other + note(order, b"GNU\0", 3, BUILD_ID))) == BUILD_ID
    assert read(image(order, bits, other)) == b""


def test_alignment_and_length() -> None:
    """.note.gnu.property is aligned to 8, and may stand in one segment with others; records hold 20 bytes."""
    notes = note("<", b"GNU\0", 5, b"p" * 20, 8) + note("<", b"GNU\0", 3, BUILD_ID, 8)
    assert read(image("<", 64, notes, align=8)) == BUILD_ID
    assert read(image("<", 64, note("<", b"GNU\0", 3, bytes(64)))) == bytes(20)


def test_real_files_as_readelf_sees_them() -> None:
    maps = parse_maps(Path("/proc/self/maps").read_bytes())
    files = {mapping.name for mapping in maps if mapping.inode and b"x" in mapping.permissions}
    assert len(files) > 2
    for name in files:
        with open(name, "rb") as file:
            ours = build_id_of(file.fileno()).hex()
        notes = subprocess.run(["readelf", "-nW", name], capture_output=True, text=True, check=True)
        found = re.search(r"Build ID: ([0-9a-f]+)", notes.stdout)
        assert ours == (found[1] if found else "")


def test_damage_is_no_build_id_and_no_error() -> None:
    whole = image("<", 64, note("<", b"GNU\0", 3, BUILD_ID))
    for data in (b"", b"#!/bin/sh\n", b"\x7fELF", *(whole[:size] for size in range(len(whole) - len(BUILD_ID)))):
        assert read(data) == b""
    random.seed(1)
    for _ in range(3000):
        damaged = bytearray(whole)
        for _ in range(random.randint(1, 8)):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        assert len(read(bytes(damaged))) <= 20


def test_vdso_is_read_from_memory() -> None:
    (vdso,) = [one for one in parse_maps(Path("/proc/self/maps").read_bytes()) if one.name == b"[vdso]"]
    assert len(build_id_of_memory(vdso.start, vdso.end - vdso.start)) == 20


@pytest.mark.kernel
def test_cache_follows_the_mapping_not_the_name(tmp_path: Path) -> None:
    """A running program whose file was deleted still has its build-id; a device is not opened."""
    copy = tmp_path / "sleep"
    copy.write_bytes(Path("/bin/sleep").read_bytes())
    copy.chmod(0o755)
    with open(copy, "rb") as file:
        expected = build_id_of(file.fileno())
    child = subprocess.Popen([copy, "60"])
    try:
        while b"libc.so" not in Path(f"/proc/{child.pid}/maps").read_bytes():
            pass
        copy.unlink()
        known, maps = MappedBuildIds(), parse_maps(Path(f"/proc/{child.pid}/maps").read_bytes())
        code = [one for one in maps if one.inode and b"x" in one.permissions]
        for one in code:
            known.of_mapping(child.pid, one.start, one.end, one.device, one.inode, one.name, maps=True)
        assert known.files[os.fsencode(copy) + b" (deleted)"] == expected != b""
        # Without a mapping at that address the path counts, if it still is that file.
        libc = next(one for one in code if b"libc.so" in one.name)
        others = [known.of_mapping(child.pid, 0, 4096, "other", inode, libc.name) for inode in (libc.inode, 1)]
        assert others == [known.files[libc.name], None]
        assert known.of_mapping(child.pid, 0, 4096, "none", os.stat("/dev/null").st_ino, b"/dev/null") is None
    finally:
        child.kill()
        child.wait()


@pytest.mark.kernel
def test_kernel_build_id_is_that_of_file() -> None:
    shown = subprocess.run(["perf", "buildid-list", "-k"], capture_output=True, text=True, check=True)
    assert kernel_build_id().hex() == shown.stdout.strip()
    assert module_build_id("no_such_module") == b""
