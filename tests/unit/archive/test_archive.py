# SPDX-License-Identifier: Apache-2.0
"""A recording packed with its symbols, what another machine makes of it; hostile archives stay inside and small."""

import gzip
import io
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from builders.compiled import addresses
from builders.objects import elf_build_id
from builders.refused import output
from builders.stock_perf import version
from unit.symbolize.lines.test_lines import build, frames, recording

from perf_offcpu.archive import unpack as module
from perf_offcpu.archive.gather import DirectoryStore, SymbolSaver
from perf_offcpu.archive.unpack import unpack
from perf_offcpu.cli import main
from perf_offcpu.commands.archive import unpack as unpack_archive
from perf_offcpu.commands.record.command import keep_symbols
from perf_offcpu.errors import FormatError
from perf_offcpu.model.recording import Dsos, Recording
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize

DATA = Path(__file__).resolve().parents[2] / "data"
PERF = DATA / "perf-7.2"
BLOCKER = "/root/blocker"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    root = tmp_path / "machine"
    (root / "root").mkdir(parents=True)
    shutil.copy(PERF / "blocker", f"{root}{BLOCKER}")
    # A tenth of the kernel's symbols, those of sleeps among them: xz takes seconds for all.
    with gzip.open(PERF / "kallsyms.gz", "rt") as whole:
        kept = [line for number, line in enumerate(whole) if number % 10 == 0 or "nanosleep" in line or "_text" in line]
    (tmp_path / "kallsyms").write_text("".join(kept))
    return root


def packed(machine: Path, output: Path, *options: str) -> int:
    symbols = ["--symfs", str(machine), "--kallsyms", str(machine.parent / "kallsyms")]
    return main(["archive", "-f", "-i", str(PERF / "direct.data"), "-o", str(output), *symbols, *options])


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tar.xz", ".tar.bz2"])
def test_an_archive_gives_the_same_names_as_the_machine(
    machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    archive, there = tmp_path / f"x{suffix}", tmp_path / "there"
    assert packed(machine, archive) == 0
    assert "not packed: /usr/lib/x86_64-linux-gnu/libc.so.6" in capsys.readouterr().err
    shutil.rmtree(machine / "root")
    assert main(["archive", "--unpack", str(archive), "-C", str(there)]) == 0
    assert (there / "perf.data").read_bytes() == (PERF / "direct.data").read_bytes()
    capsys.readouterr()
    text = output(capsys, "script", "-f", "-i", str(there / "perf.data"), "--symfs", str(there / "symbols"))
    assert "t_sleeper+" in text
    assert "__x64_sys_clock_nanosleep+" in text or "do_nanosleep+" in text


def test_gzip_does_not_compress_its_slowest(machine: Path, tmp_path: Path) -> None:
    """The slowest level takes six times as long for 3 % less (byte 8 of the header, XFL, is 2 for it)."""
    assert packed(machine, tmp_path / "x.tgz") == 0
    header = (tmp_path / "x.tgz").read_bytes()[:10]
    assert (header[:3], header[8]) == (b"\x1f\x8b\x08", 0)


def test_the_layout_is_that_of_perfs_cache(machine: Path, tmp_path: Path) -> None:
    assert packed(machine, tmp_path / "x.tar") == 0
    with tarfile.open(tmp_path / "x.tar") as archive:
        members = {member.name: member for member in archive}
    build_id = elf_build_id(str(PERF / "blocker")).hex()
    elf = f"symbols/root/blocker/{build_id}/elf"
    assert members[elf].size == (PERF / "blocker").stat().st_size
    link = members[f"symbols/.build-id/{build_id[:2]}/{build_id[2:]}"]
    assert os.path.normpath(f"{os.path.dirname(link.name)}/{link.linkname}") == os.path.dirname(elf)
    assert any(name.endswith("/kallsyms") for name in members)
    assert {member.uid for member in members.values() if member.name != "perf.data"} == {0}


def test_perf_names_frames_from_it(tmp_path: Path) -> None:
    """The recorded program exists in the archive only."""
    symbols = ["--symfs", str(DATA / "demo.symfs"), "--kallsyms", str(DATA / "demo.kallsyms")]
    archive, there = str(tmp_path / "x.tar.gz"), tmp_path / "there"
    assert main(["archive", "-f", "-i", str(DATA / "demo.data"), "-o", archive, *symbols]) == 0
    assert main(["archive", "--unpack", archive, "-C", str(there)]) == 0
    waits = str(there / "waits.data")  # as this perf, which is too old to know ours, reads them
    assert main(["inject", "-f", "-i", str(there / "perf.data"), "-o", waits]) == 0
    command = ["perf", "--buildid-dir", str(there / "symbols")]
    command += ["script", "-f", "-F", "comm,ip,sym,dso", "-i", waits]
    if version() >= (7, 0):  # which takes the running kernel's symbols, whatever the build-id
        (kallsyms,) = there.glob("symbols/?kernel.kallsyms?/*/kallsyms")
        command += ["--kallsyms", str(kallsyms)]
    text = subprocess.run(command, check=True, timeout=120, capture_output=True, text=True).stdout
    assert " run_worker (/tmp/demo/waiter)" in text and " futex_wait ([kernel.kallsyms])" in text


def test_objects_not_recorded_stay_out(machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor do files of holes, which would be written out as zeros."""
    program = f"{machine}{BLOCKER}"
    original = shutil.copy(program, tmp_path / "blocker")
    for reason in ("the file here has another build-id", "it consists of holes"):
        shutil.copy("/bin/true" if "build-id" in reason else original, program)
        os.truncate(program, 200 << 20 if "holes" in reason else os.path.getsize(program))
        assert packed(machine, tmp_path / "x.tar") == 0
        with tarfile.open(tmp_path / "x.tar") as archive:
            assert not [name for name in archive.getnames() if name.endswith("/elf")]
        assert f"not packed: /root/blocker: {reason}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["x.zip", "x", "x.tar.zst"])
def test_bad_endings_are_refused(machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert packed(machine, tmp_path / name) == 129 and "must end in .tar" in capsys.readouterr().err
    assert not (tmp_path / name).exists()


def test_a_failed_packing_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.data"
    bad.write_bytes(b"PERFILE2" + bytes(10))
    assert main(["archive", "-i", str(bad), "-o", str(tmp_path / "x.tar")]) == 1
    assert main(["archive", "-i", "-", "-o", str(tmp_path / "x.tar")]) == 129
    assert main(["archive", "-i", str(tmp_path / "none"), "-o", str(tmp_path / "x.tar")]) == 1
    assert "none: cannot be opened: No such file or directory" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["bad.data"]


@pytest.mark.parametrize("kind", ["absolute", "above", "link", "device", "damaged"])
def test_hostile_archives_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    path, there = tmp_path / "hostile.tar", tmp_path / "there"
    info = tarfile.TarInfo({"absolute": "/../../escaped", "above": "../escaped"}.get(kind, "symbols"))
    if kind == "link":
        info.type, info.linkname = tarfile.SYMTYPE, "/etc"
    if kind == "device":
        info.type = tarfile.CHRTYPE
    with tarfile.open(path, "w") as archive:
        archive.addfile(info)
    if kind == "damaged":
        path.write_bytes(b"no tar" * 200)
    assert main(["archive", "--unpack", str(path), "-C", str(there)]) == 1
    assert str(path) in capsys.readouterr().err and not (tmp_path / "escaped").exists()


def recorded(program: Path, build_id: bytes) -> Recording:
    made = recording(program, [[addresses(program)["mark_outer"]]])
    return made.replaced(dsos=Dsos.from_rows([(1, made.strings.intern(build_id.hex()), 2)]))


def test_a_kept_object_names_frames_when_its_file_is_gone(tmp_path: Path) -> None:
    program = build(tmp_path)
    made = recorded(program, elf_build_id(str(program)))
    store = DirectoryStore(str(tmp_path / "cache"))
    other = SymbolSaver(recorded(program, bytes(20)), store, SymbolizeOptions()).save()
    assert other.files == 0 and "another build-id" in other.missing[str(program)]
    assert not os.path.exists(tmp_path / "cache")
    saved = SymbolSaver(made, store, SymbolizeOptions()).save()
    assert (saved.files, saved.size, saved.missing) == (1, program.stat().st_size, {})
    assert SymbolSaver(made, store, SymbolizeOptions()).save().files == 0  # it is in the store already
    program.unlink()
    options = SymbolizeOptions(buildid_dir=str(tmp_path / "cache"), inline=True)
    assert frames(symbolize(made, options)) == [("outer", "program.cc", 11, 0)]
    assert frames(symbolize(made)) == [("", "", 0, 0)]


def test_a_cache_that_cannot_be_written_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERF_BUILDID_DIR", "/proc/nowhere")
    assert keep_symbols(str(DATA / "demo.data"))[0].startswith(("symbols could not be kept", "0 files with symbols"))


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
def test_what_leads_out_is_refused(members: tuple[tarfile.TarInfo | tuple[str, bytes], ...], tmp_path: Path) -> None:
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
