# SPDX-License-Identifier: Apache-2.0
"""Do hostile archives stay inside, small and without traces?"""

import gzip
import io
import lzma
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from perf_offcpu.archive import unpack as module
from perf_offcpu.archive.unpack import unpack
from perf_offcpu.commands.archive import unpack as unpack_archive
from perf_offcpu.errors import FormatError


def link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


def archive(path: Path, *members: tarfile.TarInfo | tuple[str, bytes]) -> Path:
    with tarfile.open(path, "w") as out:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                out.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                out.addfile(info, io.BytesIO(member[1]))
    return path


def refused(path: Path, match: str) -> None:
    """Unpack next to the archive; nothing arrives."""
    with pytest.raises(tarfile.TarError, match=match):
        unpack(str(path), str(path.parent / "there"))
    assert list((path.parent / "there").iterdir()) == []


def test_files_directories_and_links_inside_arrive(tmp_path: Path) -> None:
    directory = tarfile.TarInfo("symbols/empty")
    directory.type = tarfile.DIRTYPE
    members = (("symbols/a/elf", b"text"), directory, link("symbols/.build-id/ab/cd", "../../a"))
    unpack(str(archive(tmp_path / "x.tar", *members)), str(tmp_path / "new" / "there"))
    there = tmp_path / "new" / "there" / "symbols"
    assert (there / ".build-id/ab/cd/elf").read_bytes() == b"text" and (there / "empty").is_dir()


@pytest.mark.parametrize("members", [
    (link("a", "/etc/passwd"),), (link("d/a", "//etc"),), (link("a", "../outside"),),
    (link("d/e", "."), link("d/f", "e/../../outside")),
    (link("d", "symbols"), link("f", "d/../../outside")), (link("a", "b"), link("b", "a")),
    (link("a", "victim"), ("a/file", b"through a link")), (("a", b"file"), ("a/b", b"below a file")),
    (("a", b"one"), ("a", b"two")),
], ids="absolute double above chain chain-2 circle through below-file twice".split())  # fmt: skip
def test_what_leads_elsewhere_is_refused(
    members: tuple[tarfile.TarInfo | tuple[str, bytes], ...], tmp_path: Path
) -> None:
    path = archive(tmp_path / "x.tar", ("symbols/first", b"x"), *members)
    (tmp_path / "there" / "victim").mkdir(parents=True)
    with pytest.raises((tarfile.TarError, OSError)):
        unpack(str(path), str(tmp_path / "there"))
    left = [one for one in (tmp_path / "there").rglob("*") if not one.is_dir() or one.is_symlink()]
    assert left == [] and not (tmp_path / "outside").exists()


def test_an_existing_file_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "perf.data").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        unpack(str(archive(tmp_path / "x.tar", ("perf.data", b"theirs"))), str(tmp_path))
    assert (tmp_path / "perf.data").read_bytes() == b"mine"


def test_links_on_the_way_to_the_place_are_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "symbols").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="Not a directory|symbolic links"):
        unpack(str(archive(tmp_path / "x.tar", ("symbols/a", b"x"))), str(tmp_path / "there"))
    assert list((tmp_path / "victim").iterdir()) == []


def test_a_hole_of_two_gigabytes_is_refused(tmp_path: Path) -> None:
    """GNU tar writes 1.5 KB for it."""
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(2 << 30)
    subprocess.run(["tar", "--sparse", "-cf", "x.tar", "hole"], cwd=tmp_path, check=True)
    refused(tmp_path / "x.tar", "neither a file nor a link")


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress], ids=["gzip", "xz"])
def test_a_bomb_is_refused_before_it_fills_the_disk(pack: object, tmp_path: Path) -> None:
    plain = archive(tmp_path / "x.tar", ("zeros", bytes(64 << 20)))
    packed = tmp_path / "x.tar.packed"
    packed.write_bytes(pack(plain.read_bytes()))  # type: ignore[operator]
    refused(packed, "more than an archive of symbols|larger than an archive")


_IN_LITTLE_MEMORY = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))
from perf_offcpu.cli import main
sys.exit(main(["archive", "--unpack", sys.argv[1], "-C", sys.argv[2]]))
"""


def test_headers_of_any_size_take_little_memory(tmp_path: Path) -> None:
    """tarfile reads an extended header as large as the file says."""
    header = tarfile.TarInfo("././@PaxHeader")
    header.type, header.size = tarfile.XHDTYPE, 2 << 30
    path = tmp_path / "x.tar.gz"
    with gzip.open(path, "wb", 1) as out:
        out.write(header.tobuf(tarfile.PAX_FORMAT))
        for _ in range(20):
            out.write(bytes(32 << 20))
    words: list[str | Path] = [sys.executable, "-c", _IN_LITTLE_MEMORY, path, tmp_path / "there"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "larger than an archive" in done.stderr


def test_too_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MEMBERS", 3)
    refused(archive(tmp_path / "x.tar", *((f"file{number}", b"") for number in range(4))), "more than 3 members")


def test_a_fifo_is_no_archive(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.tar")
    with pytest.raises(OSError, match="not a regular file"):
        unpack(str(tmp_path / "x.tar"), str(tmp_path / "there"))


@pytest.mark.parametrize("headers", [
    {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "7"}, {"path": "a\0b"},
], ids=["sparse-without-map", "nul"])  # fmt: skip
def test_headers_that_tarfile_does_not_check_end_in_a_sentence(headers: dict[str, str], tmp_path: Path) -> None:
    info = tarfile.TarInfo("a")
    info.pax_headers = headers
    (tmp_path / "x.tar").write_bytes(info.tobuf(tarfile.PAX_FORMAT) + bytes(1024))
    with pytest.raises(FormatError):
        unpack_archive(str(tmp_path / "x.tar"), str(tmp_path / "there"))
    assert list((tmp_path / "there").iterdir()) == []
