# SPDX-License-Identifier: Apache-2.0
"""The file that is opened for a recorded name, the names for which none is, the vDSO, and debug files."""

import io
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.compiled import build
from builders.elf import REL, ElfBuilder, Sym
from builders.examples import examples
from builders.objects import elf_build_id, find_object, names_of, recording_of_dso
from elftools.elf.elffile import ELFFile

from perf_offcpu import losses
from perf_offcpu.losses import LossCause
from perf_offcpu.objects.elf.headers import Source
from perf_offcpu.objects.elf.image import ElfImage, open_elf
from perf_offcpu.objects.files import VDSO, open_dso, refusal, same_build, vdso_image
from perf_offcpu.objects.functions import file_offset_to_vaddr, load_elf_symbols, symbols_of
from perf_offcpu.objects.search import Search, by_build_id, debug_by_link, debug_link

SOUND = ElfBuilder([Sym("f", 0x1000, 8)], build_id=b"\x12" * 20).build()


@pytest.fixture
def sound(tmp_path: Path) -> str:
    path = tmp_path / "program"
    path.write_bytes(SOUND)
    return str(path)


def test_the_file_of_that_name_is_read_if_it_has_the_recorded_build_id(sound: str) -> None:
    found = find_object(sound)
    assert found.cause is None and found.elf and names_of(found.elf.symbols) == ["f"]
    assert find_object(sound, b"\x12" * 20).cause is None
    assert find_object(sound, b"\x12" * 19 + b"\x13").cause is losses.OTHER_BUILD
    Path(sound).write_bytes(ElfBuilder([Sym("f", 0x1000, 8)]).build())  # without a build-id
    assert find_object(sound, b"\x12" * 20).cause is losses.OTHER_BUILD
    assert find_object(sound).cause is None


def test_records_pad_short_build_ids() -> None:
    assert same_build(b"\x12" * 8, b"\x12" * 8 + bytes(12))
    assert not same_build(b"\x12" * 8, b"\x12" * 9)
    assert not same_build(b"", b"\x12")


def test_symfs_stands_before_every_path(tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr" / "program").write_bytes(SOUND)
    assert find_object("/usr/program", search=Search(symfs=str(tmp_path))).cause is None
    assert find_object("/usr/program").cause is losses.FILE_MISSING


@pytest.mark.parametrize(
    ("name", "cause"), [*examples("unit/objects/files.txt", "names"), ("/" + "a" * 5000, "UNSAFE_PATH")]
)
def test_names_are_judged_before_anything_is_opened(name: str, cause: str) -> None:
    name, expected = name.encode().decode("unicode_escape"), getattr(losses, cause) if cause else None
    assert refusal(name) is expected
    assert find_object(name).cause is (expected or losses.FILE_MISSING)


def test_a_link_out_of_bounds_is_not_followed_and_one_to_a_file_is(tmp_path: Path, sound: str) -> None:
    (tmp_path / "to_proc").symlink_to("/proc/kmsg")
    (tmp_path / "to_file").symlink_to(sound)
    (tmp_path / "to_itself").symlink_to(tmp_path / "to_itself")
    assert find_object(str(tmp_path / "to_proc")).cause is losses.UNSAFE_PATH
    assert find_object(str(tmp_path / "to_file")).cause is None
    assert find_object(str(tmp_path / "to_itself")).cause is losses.FILE_DENIED


@pytest.mark.kernel
def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    fifo, device = tmp_path / "fifo", tmp_path / "device"
    os.mkfifo(fifo)
    os.mknod(device, 0o20600, os.makedev(1, 5))
    for path in (fifo, device, tmp_path):
        assert find_object(str(path)).cause is losses.NOT_REGULAR
    assert find_object(f"{fifo}/program").cause is losses.FILE_MISSING


@pytest.mark.parametrize(("content", "cause"), [
    (b"", losses.FILE_DAMAGED), (b"#!/bin/sh\n", losses.FILE_DAMAGED), (SOUND[:100], losses.FILE_DAMAGED),
    (ElfBuilder([Sym("f", 1)], type=REL).build(), losses.FILE_DAMAGED), (ElfBuilder().build(), losses.NO_SYMBOLS),
])  # fmt: skip
def test_what_is_in_the_file_decides_the_cause(tmp_path: Path, content: bytes, cause: LossCause) -> None:
    path = tmp_path / "program"
    path.write_bytes(content)
    found = find_object(str(path))
    assert (found.elf, found.cause) == (None, cause)


def test_the_vdso_is_the_running_kernels_or_none_and_names_its_exported_functions() -> None:
    vdso = ElfImage(Source(VDSO, vdso_image()))
    found = find_object("[vdso]", vdso.build_id)
    assert found.elf is not None
    elf = symbols_of(vdso)
    assert np.array_equal(found.elf.symbols.start, elf.symbols.start)
    assert find_object("[vdso]", b"\x12" * 20).cause is losses.OTHER_BUILD
    addresses = file_offset_to_vaddr(elf.loads, np.array([0x40], np.uint64))  # its first page is mapped from offset 0
    assert addresses.tolist() == [int(elf.loads["p_vaddr"][0]) + 0x40]
    assert len(elf.build_id) >= 8
    dynsym = ELFFile(io.BytesIO(vdso_image())).get_section_by_name(".dynsym")
    functions = {s.name: s for s in dynsym.iter_symbols() if s["st_info"]["type"] == "STT_FUNC"}
    assert any("clock_gettime" in name for name in functions)
    for symbol in functions.values():
        row = int(elf.symbols.lookup(np.array([symbol["st_value"] + symbol["st_size"] - 1], np.uint64))[0])
        assert functions[elf.symbols.name(row)]["st_value"] == symbol["st_value"]


PROGRAM = """
#include <unistd.h>
static int __attribute__((noinline)) hidden(int n) { return n * 3 + getpid(); }
int main(int argc, char **argv) { (void)argv; return argc > 1 ? (int)sleep(100) : hidden(argc); }
"""


class Built:
    """A program, the same stripped, and its debug file."""

    def __init__(self, directory: Path, *options: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.whole, self.stripped, self.debug = (directory / name for name in ("whole", "program", "d.debug"))
        (directory / "program.c").write_text(PROGRAM)
        build(directory / "program.c", self.whole, "-O1", "-g", *options)
        run("objcopy", "--only-keep-debug", self.whole, self.debug)
        run("strip", "-o", self.stripped, self.whole)
        self.build_id = elf_build_id(str(self.whole))


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True, timeout=60)


def is_named(path: Path, search: Search) -> bool:
    """Return True if the local function that only debug files list is named."""
    return "hidden" in names_of(load_elf_symbols(str(path), search).symbols)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(tmp_path_factory.mktemp("built"), "-Wl,--build-id=sha1")


@pytest.fixture(scope="module")
def without_id(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(tmp_path_factory.mktemp("without"), "-Wl,--build-id=none")


@pytest.fixture
def copy(built: Built, tmp_path: Path) -> Path:
    """The stripped program where no debug file is near."""
    return Path(shutil.copy(built.stripped, tmp_path / "program"))


def put(source: Path, target: str) -> None:
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


@pytest.mark.parametrize(("place", "tail"), [("debug_roots", ".debug"), ("buildid_dir", "/debug"), ("symfs", "/debug")])
def test_debug_files_are_found_by_build_id(built: Built, copy: Path, tmp_path: Path, place: str, tail: str) -> None:
    root = str(tmp_path / "root")
    roots: dict[str, Any] = {"debug_roots": (f"{root}/nothing", root), "buildid_dir": root, "symfs": root}
    search = Search(**{place: roots[place]})
    assert not is_named(copy, search)
    put(built.debug, by_build_id(root, built.build_id, tail))
    assert is_named(copy, search)
    whole = load_elf_symbols(str(built.whole)).symbols
    assert names_of(load_elf_symbols(str(copy), search).symbols) == names_of(whole)


def test_debug_roots_below_symfs_and_the_cache_of_debuginfod_are_used(built: Built, copy: Path, tmp_path: Path) -> None:
    put(built.debug, by_build_id(f"{tmp_path}/sys/usr/lib/debug", built.build_id, ".debug"))
    assert is_named(copy, Search(symfs=str(tmp_path / "sys"), debug_roots=("/usr/lib/debug",)))
    put(built.stripped, f"{tmp_path}/{built.build_id.hex()}/executable")
    assert find_object("/gone", built.build_id, Search(debuginfod_dir=str(tmp_path))).elf is not None


@pytest.mark.parametrize("where", ["", ".debug/", "root/"])
def test_a_debuglink_leads_to_the_file_of_the_right_crc(without_id: Built, tmp_path: Path, where: str) -> None:
    program = tmp_path / "bin" / "program"
    run("objcopy", f"--add-gnu-debuglink={without_id.debug}", without_id.stripped, tmp_path / "linked")
    with open_elf(str(tmp_path / "linked")) as image:
        assert debug_link(image) == ("d.debug", zlib.crc32(without_id.debug.read_bytes()))
    put(tmp_path / "linked", str(program))
    root = tmp_path / "root"
    directory = Path(f"{root}{program.parent}") if where == "root/" else program.parent / where
    search = Search(debug_roots=(str(root),))
    assert not is_named(program, search)
    put(without_id.debug, str(directory / "d.debug"))
    assert is_named(program, search)
    with (directory / "d.debug").open("ab") as file:
        file.write(b"changed")
    assert not is_named(program, search)


def test_a_build_id_outweighs_a_debuglink(built: Built, without_id: Built, tmp_path: Path) -> None:
    """The linked file is of another build: its name does not help."""
    other = Built(tmp_path / "other", "-Wl,--build-id=sha1", "-DOTHER", "-O2")
    put(built.stripped, str(tmp_path / "program"))
    run("objcopy", f"--add-gnu-debuglink={other.debug}", tmp_path / "program")
    put(other.debug, str(tmp_path / "d.debug"))
    assert not is_named(tmp_path / "program", Search())


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "..", "", "a\x1bb"])
def test_a_debuglink_cannot_leave_its_directory(tmp_path: Path, name: str) -> None:
    assert list(debug_by_link(str(tmp_path / "program"), name, Search())) == []


def test_debug_files_at_the_objects_path_need_its_build_id(built: Built, without_id: Built, tmp_path: Path) -> None:
    search = Search(debug_roots=(str(tmp_path / "root"),))
    for name, one, is_found in (("with", built, True), ("without", without_id, False)):
        put(one.stripped, f"{tmp_path}/{name}/program")
        put(one.debug, f"{tmp_path}/root{tmp_path}/{name}/program.debug")
        assert is_named(tmp_path / name / "program", search) == is_found


def test_an_object_is_found_by_its_build_id_alone(built: Built, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    search = Search(buildid_dir=cache)
    assert find_object("/gone/program", built.build_id, search).cause is losses.FILE_MISSING
    put(built.whole, by_build_id(cache, built.build_id, "/elf"))
    assert find_object("/gone/program", built.build_id, search).elf is not None
    assert find_object("/gone/program (deleted)", built.build_id, search).elf is not None
    assert find_object("/gone/program", b"", search).cause is losses.FILE_MISSING


@pytest.mark.parametrize("size", [20, 16, 8, 5])
@pytest.mark.parametrize("last", ["ab", "00"])
def test_build_ids_may_end_in_a_zero_which_also_pads_them(size: int, last: str, tmp_path: Path) -> None:
    """One SHA-1 in 256 ends in a zero; records of old perfs pad shorter build-ids to 20 bytes."""
    build_id, program = bytes.fromhex("01" * (size - 1) + last), tmp_path / "program"
    (tmp_path / "program.c").write_text(PROGRAM)
    build(tmp_path / "program.c", program, f"-Wl,--build-id=0x{build_id.hex()}")
    put(program, by_build_id(str(tmp_path), build_id, "/elf"))
    for recorded in (build_id, build_id.ljust(20, b"\0")):
        is_ambiguous = size == 5 and last == "00" and recorded != build_id  # a size that nobody uses
        assert (find_object("/gone", recorded, Search(buildid_dir=str(tmp_path))).elf is None) == is_ambiguous


def test_what_lies_under_a_build_id_must_have_it_and_be_the_object(built: Built, tmp_path: Path) -> None:
    """A debug file has no bytes of code, and its program headers say nothing of the object's."""
    for source, build_id in ((built.whole, bytes(20)), (built.debug, built.build_id)):
        put(source, by_build_id(str(tmp_path), build_id, "/elf"))
        assert find_object("/gone/program", build_id, Search(buildid_dir=str(tmp_path))).elf is None


def test_another_build_at_the_path_does_not_hide_the_recorded_one(built: Built, tmp_path: Path) -> None:
    put(built.whole, by_build_id(str(tmp_path), built.build_id, "/elf"))
    here = os.path.realpath(sys.executable)
    assert find_object(here, built.build_id, Search(buildid_dir=str(tmp_path))).elf is not None
    assert find_object(here, built.build_id, Search()).cause is losses.OTHER_BUILD


def test_without_a_build_id_a_file_changed_since_is_refused(without_id: Built) -> None:
    changed, path = os.stat(without_id.whole).st_mtime_ns, str(without_id.whole)
    assert find_object(path, changed_after_ns=changed - 1).cause is losses.FILE_CHANGED
    assert find_object(path, changed_after_ns=changed).cause is None
    assert find_object(path, changed_after_ns=0).cause is None


@pytest.mark.kernel
class TestProcesses:
    """The file is gone from its path, but a process has it mapped."""

    @pytest.fixture
    def running(self, built: Built, tmp_path: Path) -> Iterator[tuple[Path, int]]:
        program = Path(shutil.copy(built.whole, tmp_path / "running"))
        with subprocess.Popen([program, "sleep"]) as process:
            while str(program) not in Path(f"/proc/{process.pid}/maps").read_text():  # until execve() is over
                assert process.poll() is None
            yield program, process.pid
            process.kill()

    def test_a_deleted_program_is_found_through_its_process(self, built: Built, running: tuple[Path, int]) -> None:
        program, pid = running
        program.unlink()
        name, search = f"{program} (deleted)", Search(processes=True)
        assert find_object(name, built.build_id, search, [pid]).elf is not None
        for build_id, other in ((built.build_id, Search()), (b"", search), (bytes(20), search)):
            assert find_object(name, build_id, other, [pid]).cause is losses.FILE_DELETED

    def test_another_root_is_looked_into(self, built: Built, tmp_path: Path) -> None:
        """The path is that of the process, as in a container."""
        root = tmp_path / "root"
        (tmp_path / "static.c").write_text(PROGRAM)
        put(build(tmp_path / "static.c", tmp_path / "static", "-static"), f"{root}/bin/run")
        put(built.whole, f"{root}/app/program")
        with subprocess.Popen(["chroot", root, "/bin/run", "sleep"]) as process:
            try:
                while os.readlink(f"/proc/{process.pid}/root") != str(root):
                    assert process.poll() is None
                elf = find_object("/app/program", built.build_id, Search(processes=True), [process.pid]).elf
                assert elf and elf.path.startswith(f"/proc/{process.pid}/root/")
            finally:
                process.kill()


def test_links_to_acting_files_are_not_opened_wherever_they_stand(built: Built, tmp_path: Path) -> None:
    link = Path(by_build_id(str(tmp_path), built.build_id, "/elf"))
    link.parent.mkdir(parents=True)
    link.symlink_to("/proc/version")
    with ExitStack() as stack, pytest.raises(Exception, match="no such file"):
        open_dso(recording_of_dso("/gone", built.build_id), 0, Search(buildid_dir=str(tmp_path)), stack)
