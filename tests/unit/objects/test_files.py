# SPDX-License-Identifier: Apache-2.0
"""The file that is opened for a recorded name, the names for which none is, and the vDSO."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
from builders.elf import REL, ElfBuilder, Sym
from builders.objects import find_object, names_of
from elftools.elf.elffile import ELFFile

from perf_offcpu import losses
from perf_offcpu.losses import LossCause
from perf_offcpu.objects.elf.headers import Source
from perf_offcpu.objects.elf.image import ElfImage
from perf_offcpu.objects.files import VDSO, refusal, same_build, vdso_image
from perf_offcpu.objects.functions import file_offset_to_vaddr, symbols_of
from perf_offcpu.objects.search import Search

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


@pytest.mark.parametrize(("name", "cause"), [
    ("", losses.NO_FILE), ("[heap]", losses.NO_FILE), ("[stack]", losses.NO_FILE), ("[vsyscall]", losses.NO_FILE),
    ("[anon:scudo]", losses.NO_FILE), ("//anon", losses.NO_FILE), ("/memfd:jit (deleted)", losses.NO_FILE),
    ("/SYSV00000000 (deleted)", losses.NO_FILE), ("/[aio] (deleted)", losses.NO_FILE),
    ("/anon_hugepage (deleted)", losses.NO_FILE), ("/dev/zero", losses.NO_FILE),
    ("anon_inode:[perf_event]", losses.NO_FILE), ("/usr/bin/old (deleted)", losses.FILE_DELETED),
    ("usr/bin/ls", losses.UNSAFE_PATH), ("/usr/../etc/passwd", losses.UNSAFE_PATH), ("/..", losses.UNSAFE_PATH),
    ("/usr/bin/\x1b[2J", losses.UNSAFE_PATH), ("/usr/bin/a\nb", losses.UNSAFE_PATH),
    ("/usr/bin/a\0b", losses.UNSAFE_PATH), ("/" + "a" * 5000, losses.UNSAFE_PATH),
    ("/dev/watchdog", losses.UNSAFE_PATH), ("/proc/kmsg", losses.UNSAFE_PATH),
    ("/sys/kernel/notes", losses.UNSAFE_PATH), ("/usr/bin/a..b", None), ("/usr/bin/caf\u00e9", None),
    ("/usr/bin/caf\udce9", None), ("/usr/bin/with space", None),
])  # fmt: skip
def test_names_are_judged_before_anything_is_opened(name: str, cause: LossCause | None) -> None:
    assert refusal(name) is cause
    assert find_object(name).cause is (cause or losses.FILE_MISSING)


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
