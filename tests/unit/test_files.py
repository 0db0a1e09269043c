# SPDX-License-Identifier: Apache-2.0
"""Do files that others prepared stay without effect: links, FIFOs, devices, leases, holes, directories?"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

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
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD_A_LEASE, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None and holder.stdin is not None
    assert holder.stdout.readline() == b"held\n", "a file system without leases"
    before = time.monotonic()
    with pytest.raises(BlockingIOError):
        open_regular(str(path))
    assert time.monotonic() - before < 5
    holder.communicate()


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
