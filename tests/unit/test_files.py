# SPDX-License-Identifier: Apache-2.0
"""Do files that others prepared stay without effect? Build-ids, held against readelf and files of anyone."""

import os
import random
import re
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from builders.program import started
from builders.zoo import as_file

from perf_offcpu.build_ids import build_id_of, kernel_build_id, module_build_id
from perf_offcpu.collect.existing.maps import build_id_of_memory, parse_maps, read_build_id
from perf_offcpu.directories import Directory
from perf_offcpu.files import FileRefusedError, allocated_bytes, kernel_lines, open_regular, read_kernel, read_regular

OTHER = 12345
"""Somebody who is not the caller and not root."""


def test_a_regular_file_is_read_through_links_if_the_caller_allows_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(str(tmp_path / "link"), 4) == b"text"
    with pytest.raises(FileRefusedError, match="it is a symbolic link"):
        open_regular(str(tmp_path / "link"), follow=False)


@pytest.mark.parametrize("make", [
    os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/ptmx"), lambda path: path.symlink_to("/dev/full"),
], ids=["fifo", "directory", "ptmx", "full"])  # fmt: skip
def test_other_kinds_are_refused_at_once_and_not_opened(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "file")
    before = time.monotonic()
    with pytest.raises(FileRefusedError, match="it is not a regular file"):
        open_regular(str(tmp_path / "file"))
    assert time.monotonic() - before < 1


def test_a_lease_does_not_hold_the_reader_up(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    with started(sys.executable, "-c", _HOLD_A_LEASE, path) as (_, line):
        assert line == "held\n", "a file system without leases"
        before = time.monotonic()
        with pytest.raises(BlockingIOError):
            open_regular(str(path))
        assert time.monotonic() - before < 5


_HOLD_A_LEASE = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
sys.stdin.read()
"""


def test_owner_and_size_are_those_of_the_opened_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular(str(path), 5, owners={os.geteuid()}) == b"12345"
    with pytest.raises(FileRefusedError, match="larger than 4 bytes"):
        read_regular(str(path), 4)
    with pytest.raises(FileRefusedError, match=f"belongs to user {os.geteuid()}"):
        read_regular(str(path), 5, owners={OTHER})


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    read = os.read

    def growing(fd: int, size: int) -> bytes:
        with path.open("ab") as file:
            file.write(b"5678")
        return read(fd, min(size, 4))

    monkeypatch.setattr(os, "read", growing)
    with pytest.raises(FileRefusedError, match="larger than 6 bytes"):
        read_regular(str(path), 6)


@pytest.mark.parametrize("size", [0, 1, 16383, 16384, 16385, 1 << 20, (1 << 20) + 16384, 3_000_000])
def test_small_files_are_read_in_small_blocks(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large block is mapped and unmapped at each read, which costs more than reading a file of /proc."""
    content, blocks, read = os.urandom(size), list[int](), os.read
    (tmp_path / "file").write_bytes(content)

    def noted(fd: int, block: int) -> bytes:
        blocks.append(block)
        return read(fd, block)

    monkeypatch.setattr(os, "read", noted)
    assert read_regular(str(tmp_path / "file"), 1 << 22) == content
    assert max(blocks) == 16384 if size < 16384 else len(blocks) <= 6


def test_a_hole_counts_by_what_it_occupies(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(1 << 34)
    assert allocated_bytes(path.stat()) < 1 << 16


def test_text_of_the_kernel_is_split_at_newlines_alone() -> None:
    assert kernel_lines(b"a\rb\x0bc\x85d\xe2\x80\xa8e\n\nlast") == [b"a\rb\x0bc\x85d\xe2\x80\xa8e", b"", b"last"]
    assert kernel_lines(b"one\n") == [b"one"] and kernel_lines(b"") == []
    assert read_kernel("/proc/self/comm") == b"" or read_kernel("/proc/self/comm").endswith(b"\n")


def test_a_private_directory_is_made_and_belongs_to_its_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with Directory.private(str(tmp_path / "a" / "b"), make=True) as directory:
        with directory.replacing("name") as file:
            file.write(b"content")
        assert directory.names() == ["name"]
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / "b" / "name").stat().st_mode & 0o777 == 0o600


def test_a_directory_of_another_user_is_not_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under sudo with a kept HOME: the caller is not the one to whom the directory belongs."""
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    with pytest.raises(FileRefusedError, match="belongs to user|not private"):
        Directory.private(str(tmp_path))


@pytest.mark.parametrize("mode", [0o702, 0o707])
def test_a_directory_that_others_may_write_to_is_not_private(mode: int, tmp_path: Path) -> None:
    (tmp_path / "shared" / "inner").mkdir(parents=True)
    (tmp_path / "shared").chmod(mode)
    for path in ("shared", "shared/inner"):
        with pytest.raises(FileRefusedError, match="not private|others may write"):
            Directory.private(str(tmp_path / path))


def test_below_a_private_directory_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_bytes(b"kept")
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "cache" / "programs").symlink_to(tmp_path / "victim")
    (tmp_path / "cache" / "entry").symlink_to(tmp_path / "victim" / "file")
    with Directory.private(str(tmp_path / "cache")) as directory:
        with pytest.raises(OSError, match="symbolic links|Not a directory"):
            directory.subdirectory("programs")
        with pytest.raises(FileRefusedError, match="symbolic link"):
            directory.open_regular("entry")
        with directory.replacing("entry") as file:
            file.write(b"new")
    assert (tmp_path / "victim" / "file").read_bytes() == b"kept"
    assert not (tmp_path / "cache" / "entry").is_symlink()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\0b"])
def test_methods_take_names_and_no_paths(name: str, tmp_path: Path) -> None:
    with Directory.named(str(tmp_path)) as directory, pytest.raises(ValueError, match="directory entry"):
        directory.create(name)


def test_nothing_is_left_of_a_file_whose_writing_failed(tmp_path: Path) -> None:
    (tmp_path / "name").write_bytes(b"old")
    with Directory.named(str(tmp_path)) as directory:
        with pytest.raises(KeyError), directory.replacing("name") as file:
            file.write(b"half")
            raise KeyError
        assert directory.names() == ["name"]
    assert (tmp_path / "name").read_bytes() == b"old"


def test_the_output_of_a_link_is_the_file_behind_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real/out")
    directory, name = Directory.of_output(str(tmp_path / "link"))
    with directory, directory.replacing(name) as file:
        file.write(b"x")
    assert (tmp_path / "real" / "out").read_bytes() == b"x" and (tmp_path / "link").is_symlink()


def test_a_chain_of_links_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for resolve in (Directory.named, Directory.of_output, Directory.private):
        with pytest.raises(OSError, match="symbolic links"):
            resolve(str(tmp_path / "a"))


def test_threads_that_list_a_directory_at_once_get_all_of_it(tmp_path: Path) -> None:
    names = sorted(f"file{number:03}" for number in range(300))
    for name in names:
        (tmp_path / name).touch()
    with Directory.private(str(tmp_path)) as directory, ThreadPoolExecutor(4) as threads:
        lists = [threads.submit(directory.names) for _ in range(400)]
        others = [threads.submit(directory.names_of_others) for _ in range(50)]
        assert all(one.result() == names for one in lists)
        assert all(one.result() == [] for one in others)


def test_a_removed_directory_is_empty(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with Directory.private(str(tmp_path / "d")) as directory:
        (tmp_path / "d").rmdir()
        assert directory.names() == directory.names_of_others() == []


BUILD_ID = bytes(range(20))


def image(order: str, bits: int, notes: bytes, align: int = 4) -> bytes:
    """An ELF file that is a header, one segment of notes, and nothing else; written without our tables."""
    data, word = (1, 2)[order == ">"], "I" if bits == 32 else "Q"
    ident = b"\x7fELF" + bytes([1 if bits == 32 else 2, data, 1]) + bytes(9)
    head_size, entry_size = (52, 32) if bits == 32 else (64, 56)
    head = struct.pack(f"{order}HHI3{word}I6H", 3, 8, 1, 0, head_size, 0, 0, head_size, entry_size, 1, 0, 0, 0)
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
        mappings = parse_maps(Path(f"/proc/{child.pid}/maps").read_bytes())
        code = [area for area in mappings if area.inode and b"x" in area.permissions]
        read = partial(read_build_id, child.pid)
        build_ids = {area.name: read(area.start, area.end, area.inode, area.name, maps=True) for area in code}
        assert build_ids[os.fsencode(copy) + b" (deleted)"] == expected != b""
        # Without a mapping at that address the path counts, if it still is that file.
        libc = next(area for area in code if b"libc.so" in area.name)
        others = [read(0, 4096, inode, libc.name, maps=False) for inode in (libc.inode, 1)]
        assert others == [build_ids[libc.name], None]
        assert read(0, 4096, os.stat("/dev/null").st_ino, b"/dev/null", maps=False) is None
    finally:
        child.kill()
        child.wait()


@pytest.mark.kernel
def test_kernel_build_id_is_that_of_file() -> None:
    shown = subprocess.run(["perf", "buildid-list", "-k"], capture_output=True, text=True, check=True)
    assert kernel_build_id().hex() == shown.stdout.strip()
    assert module_build_id("no_such_module") == b""
