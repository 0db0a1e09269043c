# SPDX-License-Identifier: Apache-2.0
"""Maps of code that programs make: which are believed, and what their lines name."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import objects
from builders.accounts import counters as account
from builders.accounts import told
from builders.chains import recording_of_chains
from builders.examples import examples
from builders.recording import BASE, event, sample, side, write
from builders.wait_objects import COUNTERS
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu import losses
from perf_offcpu.abi import counters
from perf_offcpu.abi.records import RecordType
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.decode.load import GrowingFile, load_recording
from perf_offcpu.files import FileRefusedError
from perf_offcpu.losses import LossCause
from perf_offcpu.model.join import join
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Meta, Spaces, Tasks
from perf_offcpu.objects.perf_map import JitName, PerfMaps, is_jit_memory, parse_perf_map, read_jit_name, read_perf_map
from perf_offcpu.objects.symtab import SymbolTable
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize

PID = 2**22 - 7  # of no process: higher than the kernel assigns by default


def names_at(text: bytes, *addresses: int) -> list[str]:
    return objects.names_at(parse_perf_map(text), *addresses)


def test_lines_name_ranges() -> None:
    text = b"1000 10 first\n1020 20 second with blanks\nffff800000000000 8 far\n"
    names = ["", "first", "first", "", "second with blanks", "second with blanks", ""]
    assert names_at(text, 0xFFF, 0x1000, 0x100F, 0x1010, 0x1020, 0x103F, 0x1040) == names
    assert names_at(text, 0xFFFF800000000007) == ["far"]


@pytest.mark.parametrize("line", [
    *(b"", b"1000", b"1000 10", b"1000 10 ", b"x 10 f", b"1000 y f", b"-1000 10 f", b"1000 -10 f"),
    *(b"1000 0 f", b"10000000000000000 10 f", b"ffffffffffffffff 10 f", b"\xff\xff \x00 f"),
])  # fmt: skip
def test_other_lines_are_passed_over(line: bytes) -> None:
    assert names_at(line + b"\n2000 10 good\n", 0x1000, 0x2000) == ["", "good"]
    assert names_at(b"2000 10 good\n" + line, 0x1000, 0x2000) == ["", "good"], "a last line that is being written"


@pytest.mark.parametrize(("text", "names"), examples("unit/objects/files.txt", "perf maps"))
def test_later_lines_win(text: str, names: str) -> None:
    """Over the same place, and over what they overlap; what lies inside something larger is shown."""
    places = [place.partition(" ")[::2] for place in names.split(", ")]
    lines = (text.replace(" ⏎ ", "\n") + "\n").encode()
    assert names_at(lines, *(int(address, 16) for address, _ in places)) == [name for _, name in places]


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 60)), max_size=30))
def test_no_address_gets_the_name_of_code_that_was_replaced(rows: list[tuple[int, int]]) -> None:
    """A name that is found covers its address; no later line overlaps it but those that lie inside."""
    text = b"".join(b"%x %x n%d\n" % (start, size, row) for row, (start, size) in enumerate(rows))
    for address, name in enumerate(names_at(text, *range(400))):
        covering = [row for row, (start, size) in enumerate(rows) if start <= address < start + size]
        if not name:
            continue
        row = int(name[1:])
        assert row in covering
        start, size = rows[row]
        for later, more in rows[row + 1 :]:
            apart = later >= start + size or later + more <= start
            assert apart or (start <= later and later + more <= start + size)


def jit_map(pid: int, text: bytes) -> bytes:
    values = {"magic": counters.JIT_MAP_MAGIC, "version": 1, "reserved": 0, "pid": pid, "text": text}
    return counters.JIT_MAP.pack(values)


def test_maps_in_a_recording_are_used_before_files(tmp_path: Path) -> None:
    """Parts are one map; a map is not that of two processes; a part that is damaged is counted."""
    frame = b":frame 1000 30 c\n:frame 1010 30\n:frame 1020 7fffffff c\n"
    payloads = [jit_map(7, b"1000 10 first\n" + frame), jit_map(7, b"1010 10 second\n"), jit_map(8, b"1000 10 other\n")]
    recording = load_recording(write(tmp_path / "in.data", [COUNTERS], map(told, [*payloads, payloads[0][:6]])))
    recording = recording.replaced(spaces=Spaces.filled(10, pid=np.arange(10)))
    maps = PerfMaps(recording, str(tmp_path))
    table = maps.of(7)
    assert isinstance(table, SymbolTable) and objects.names_at(table, 0x1000, 0x1010) == ["first", "second"]
    assert (maps.frames_of(7), maps.frames_of(8)) == ({0x1000: (0x30, 0xC)}, {})
    assert maps.of(9) == losses.NO_PERF_MAP and recording.losses == {losses.BAD_SAMPLE: 1}
    lives = recording.replaced(tasks=Tasks.from_rows([(7, 7, 10, 20), (7, 7, 30, -1), (8, 8, 10, -1)]))
    again = [PerfMaps(lives, str(tmp_path)).text_of(pid) for pid in (7, 8)]
    assert isinstance(again[0], LossCause) and "used again" in again[0].text and again[1] == b"1000 10 other\n"
    assert join([recording, recording], 1).perf_maps[8] == b"1000 10 other\n" * 2


def test_memory_that_a_jvm_uses_again_has_the_name_of_its_time(tmp_path: Path) -> None:
    clock = event("cpu-clock", (1,), BASE)
    place = {"pid": PID, "tid": PID, "addr": 0x1000, "len": 0x9000, "pgoff": 0, "filename": b"//anon"}
    text = b":apart 0\n1000 10 a\n2000 10 b\n:split 40 50\n:gone 2000 10 b\n2000 10 c\n"
    text += b":split 50 70\n:gone 1000 10 a\n1000 10 d\n"
    times = (30, 40, 49, 50, 60, 70, 90)
    waits = [sample(clock, ip=ip, pid=PID, tid=PID, time=time, period=1) for time in times for ip in (0x1001, 0x2001)]
    older = told(jit_map(PID, b":apart 0\n1000 10 older\n"))
    records = [
        side(clock, RecordType.MMAP, 2, time=1, **place),
        *waits,
        older,
        told(jit_map(PID, text[:30])),
        told(jit_map(PID, text[30:])),
    ]
    recording = load_recording(write(tmp_path / "in.data", [clock, COUNTERS], records))
    assert recording.perf_maps == {PID: text}
    profile = symbolize(recording, SymbolizeOptions())
    leaf = profile.frames.symbol[profile.stacks.frame[profile.samples.stack]]
    names = [profile.strings[row] for row in leaf.tolist()]
    firsts, seconds = ["a", "a", "a", "", "", "d", "d"], ["b", "", "", "c", "c", "c", "c"]
    assert [*zip(names[::2], names[1::2], strict=True)] == [*zip(firsts, seconds, strict=True)]
    assert profile.samples.period.sum() == len(waits)


def test_a_map_is_known_in_later_parts_of_a_file_that_grows(tmp_path: Path) -> None:
    records = [told(jit_map(7, b"1000 10 first\n")), told(account(1, 10)), told(account(10, 20))]
    write(tmp_path / "in.data", [COUNTERS], records)
    with PerfDataReader.open(str(tmp_path / "in.data")) as complete:
        begin = complete.head.data_offset
    with contextlib.closing(GrowingFile(str(tmp_path / "in.data"), {})) as file:
        parts = [file.read(begin + len(b"".join(records[:number]))) for number in (2, 3)]
    assert [part and part.perf_maps for part in parts] == [{7: b"1000 10 first\n"}] * 2


@pytest.mark.parametrize(("raw", "shown", "file", "line"), examples("unit/objects/files.txt", "generated code"))
def test_names_of_languages(raw: str, shown: str, file: str, line: str) -> None:
    assert read_jit_name(raw) == JitName(shown, file, int(line or 0))


def test_which_memory_may_hold_made_code() -> None:
    for name in ("//anon", "[heap]", "[anon:v8]", "/memfd:doublemapper (deleted)", "/dev/zero (deleted)"):
        assert is_jit_memory(name)
    for name in ("[vdso]", "/usr/bin/node", "[vsyscall]", "[uprobes]", ""):
        assert not is_jit_memory(name)


class TestWhichAreBelieved:
    @pytest.fixture
    def path(self, tmp_path: Path) -> str:
        path = tmp_path / "perf-1.map"
        path.write_text("1000 10 f\n")
        return str(path)

    @pytest.mark.kernel
    def test_another_users_map_is_not_nor_its_link_to_a_good_one(self, path: str, tmp_path: Path) -> None:
        link = tmp_path / "link.map"
        link.symlink_to(path)
        for name in (path, str(link)):
            assert len(parse_perf_map(read_perf_map(name))) == 1
        os.lchown(link, 65534, 65534)
        with pytest.raises(FileRefusedError, match="a symbolic link of user 65534"):
            read_perf_map(str(link), force=True)
        os.chown(path, 65534, 65534)
        with pytest.raises(FileRefusedError, match="belongs to another user"):
            read_perf_map(path)
        assert len(parse_perf_map(read_perf_map(path, force=True))) == 1

    def test_nor_is_a_second_name_of_a_file(self, path: str, tmp_path: Path) -> None:
        (tmp_path / "other.map").hardlink_to(path)
        with pytest.raises(FileRefusedError, match="it has a second name"):
            read_perf_map(path)

    def test_times_of_another_process_tell(self, path: str) -> None:
        second = 10**9
        os.utime(path, ns=(0, 1000 * second))
        assert len(parse_perf_map(read_perf_map(path, born_ns=990 * second, died_ns=1001 * second))) == 1
        with pytest.raises(FileRefusedError, match="older than the process"):
            read_perf_map(path, born_ns=1010 * second)
        with pytest.raises(FileRefusedError, match="after the process had ended"):
            read_perf_map(path, died_ns=990 * second)

    def test_nothing_but_a_regular_file_is_opened(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        for path in (tmp_path / "fifo", tmp_path):
            with pytest.raises(FileRefusedError, match="not a regular file"):
                read_perf_map(str(path))


class TestSymbolize:
    """From a sample in anonymous memory to the name in a map."""

    @pytest.fixture
    def map_file(self) -> Iterator[Path]:
        path = Path(f"/tmp/perf-{PID}.map")
        path.write_text("7f0000001000 100 py::handle:/srv/app.py\n7f0000001100 40 JS:*f /srv/f.js:3:1\n")
        yield path
        path.unlink(missing_ok=True)

    def profile(self, **options: Any) -> Profile:
        recording = recording_of_chains(
            [[CallchainContext.USER, 0x7F0000001010, 0x7F0000001121, 0x7F0000001F00]],
            (0, 0x7F0000001000, 0x7F0000002000, 0, "//anon"), columns={"time_ns": [50]},
            spaces=Spaces.filled(1, pid=[PID]), tasks=Tasks.from_rows([(PID, PID, 10, -1)]),
            meta=Meta(wall_clock_ns=1, wall_clock_at_ns=1),
        )  # fmt: skip
        profile = symbolize(recording, SymbolizeOptions(**options))
        profile.check()
        return profile

    def frames(self, profile: Profile) -> set[tuple[str, str, int, int]]:
        table, strings = profile.frames, profile.strings
        columns = (column.tolist() for column in (table.symbol, table.file, table.line, table.offset))
        return {(strings[symbol], strings[file], *place) for symbol, file, *place in zip(*columns, strict=True)}

    def test_frames_have_the_names_of_the_map(self, map_file: Path) -> None:
        profile = self.profile()
        named = {("handle (app.py)", "/srv/app.py", 0, 0x10), ("JS:*f /srv/f.js:3:1", "/srv/f.js", 3, 0x21)}
        assert self.frames(profile) == named | {("", "", 0, 0)}
        assert {profile.strings[row] for row in profile.frames.dso.tolist()} == {str(map_file)}
        assert profile.frames.address.min() > 0x7F0000000000
        assert sum(count for cause, count in profile.losses.items() if str(map_file) in cause.text) == 1

    def test_symfs_holds_maps_too(self, map_file: Path, tmp_path: Path) -> None:
        (tmp_path / "tmp").mkdir()
        map_file.rename(tmp_path / "tmp" / map_file.name)
        without = self.profile()
        assert ("", "", 0, 0) in self.frames(without) and losses.NO_PERF_MAP in without.losses
        assert len(self.frames(self.profile(symfs=str(tmp_path)))) == 3

    @pytest.mark.kernel
    def test_a_refused_map_is_named_and_forced(self, map_file: Path) -> None:
        os.chown(map_file, 65534, 65534)
        profile = self.profile()
        assert self.frames(profile) == {("", "", 0, 0)}
        assert any(str(map_file) in cause.text and "another user" in cause.text for cause in profile.losses)
        assert len(self.frames(self.profile(force=True))) == 3
