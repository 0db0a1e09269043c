# SPDX-License-Identifier: Apache-2.0
"""Files made to hang, to take all memory or to end in a traceback: each once did. Damage at random, a sample of what
`tests/fuzz/mutate.py` does with 100 000 copies, `tests/fuzz/prefixes.py` with each prefix."""

import os
import random
import shutil
import subprocess
import sys
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from builders.mutations import content, mutated, survive, timed
from builders.recording import sample, write
from builders.zoo import as_file, recordings

from perf_offcpu.abi.attr import Attr, AttrFlag, PerfType, SampleType
from perf_offcpu.cli import main
from perf_offcpu.decode.load import load_recording
from perf_offcpu.decode.switches.events import _states
from perf_offcpu.errors import FormatError
from perf_offcpu.files import FileRefusedError
from perf_offcpu.objects.elf.image import open_elf
from perf_offcpu.objects.perf_map import MAX_LINES, _not_replaced, parse_perf_map, read_jit_name, read_perf_map
from perf_offcpu.objects.search import file_crc
from perf_offcpu.objects.symtab import _ends_of_names
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.symbolize.kernel.kallsyms import load_kallsyms

REPOSITORY = Path(__file__).resolve().parents[2]


def lines_of_a_map(*rows: tuple[int, int]) -> bytes:
    return b"".join(b"%x %x f%d\n" % (start, size, row) for row, (start, size) in enumerate(rows))


def test_an_ascending_map_whose_last_line_takes_the_first_again() -> None:
    """15 s for 200 000 lines once."""
    text = lines_of_a_map(*((0x1000 + 16 * row, 16) for row in range(200_000)), (0x1000, 16))
    assert timed(lambda: parse_perf_map(text)) < 8


def test_a_map_takes_few_bytes_of_memory_for_a_line() -> None:
    """3 million lines, 77 MB, took 1.24 GB."""
    text = lines_of_a_map(*((0x1000 + 16 * row, 16) for row in range(20_000)))
    tracemalloc.start()
    parse_perf_map(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000 * 220


@pytest.mark.parametrize("kind", ["holes", "lines"])
def test_a_map_larger_than_any_real_one_is_not_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "perf-7.map"
    path.write_bytes(b"\n" * (MAX_LINES + 1) if kind == "lines" else b"1000 10 f\n")
    os.truncate(path, 250 << 20 if kind == "holes" else path.stat().st_size)
    with pytest.raises(FileRefusedError, match=kind):
        read_perf_map(str(path))


@pytest.mark.long
@pytest.mark.parametrize("order", ["ascending", "descending", "nested", "overlapping"])
def test_time_for_a_map_grows_with_its_lines_alone(order: str) -> None:
    def text(count: int) -> bytes:
        rows = {
            "ascending": ((0x1000 + 16 * row, 16) for row in range(count)),
            "descending": ((0x1000 + 16 * (count - row), 16) for row in range(count)),
            "nested": ((0x1000 + row, 2 * (count - row)) for row in range(count)),
            "overlapping": ((0x1000 + 16 * row, 24) for row in range(count)),
        }[order]
        return lines_of_a_map(*rows, (0x1000, 16 * count + 64))

    few, many = text(5_000), text(80_000)
    once = timed(lambda: parse_perf_map(few))
    assert timed(lambda: parse_perf_map(many)) < 16 * 4 * max(once, 0.02)


def replaced_one_by_one(rows: list[tuple[int, int]]) -> list[int]:
    """What the names of a map say, written plainly: later lines take the memory of earlier ones."""
    kept, taken = [], list[tuple[int, int]]()
    for row in range(len(rows) - 1, -1, -1):
        low, high = rows[row][0], sum(rows[row])
        over = [span for span in taken if span[0] < high and span[1] > low]
        if not over or (low < min(span[0] for span in over) and max(span[1] for span in over) <= high):
            kept.append(row)
        merged = (min([low, *(span[0] for span in over)]), max([high, *(span[1] for span in over)]))
        taken = [span for span in taken if span not in over] + [merged]
    return kept[::-1]


@pytest.mark.parametrize("seed", range(40))
def test_which_lines_of_a_map_are_replaced(seed: int) -> None:
    rng = np.random.default_rng(seed)
    starts, sizes = rng.integers(16, 60, 30).tolist(), rng.integers(1, 12, 30).tolist()
    rows = list(zip(starts, sizes, strict=True))
    found = _not_replaced(np.array(starts, np.uint64), np.array(sizes, np.uint64))
    assert found.tolist() == replaced_one_by_one(rows)


@pytest.mark.parametrize("part", ["a:", " /", ":1", "a: /", " /:1", "a:b /c:1:2 "])
def test_a_name_of_any_form_is_read_in_linear_time(part: str) -> None:
    """8 names of 32 KB took more than two minutes once."""
    names = [part * (32_768 // len(part)) + end for end in ("", ":1", "x", ":1:1", " /x:1")]
    assert timed(lambda: [read_jit_name(name) for name in names]) < 1


def test_a_string_table_of_nuls_takes_little_memory() -> None:
    """Each NUL was a number of eight bytes, several times: 5.2 GB for a sparse file of 200 MB."""
    text = np.zeros(100 << 20, np.uint8)
    text[50 << 20 : (50 << 20) + 3] = ord("x")
    tracemalloc.start()
    ends = _ends_of_names(np.array([0, 50 << 20, (100 << 20) - 1], np.int64), text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert ends.tolist() == [0, (50 << 20) + 3, (100 << 20) - 1]
    assert peak < 64 << 20


@pytest.mark.parametrize("seed", range(10))
def test_ends_of_names(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perf_offcpu.objects.symtab._STEP", 16)
    rng = np.random.default_rng(seed)
    text = rng.choice(np.array([0, 65, 66, 67, 68, 69], np.uint8), 200)
    at = rng.integers(0, 200, 50)
    expected = [(bytes(text[offset:]) + b"\0").index(b"\0") + offset for offset in at.tolist()]
    assert _ends_of_names(at, text).tolist() == expected


def test_the_checksum_of_a_hole_is_not_computed(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.write(Path("/bin/true").read_bytes())
        file.truncate(40 << 30)
    with open_elf(str(path)) as image:
        assert timed(lambda: file_crc(image)) < 1 and file_crc(image) is None
    with open_elf("/bin/true") as image:
        assert file_crc(image) is not None


def test_a_flag_that_is_no_number_of_c_is_passed_over() -> None:
    states, _ = _states(np.array([1, 2]), '{ 0x01, "S" }, { 08, "D" }, { 2, "D" }, { 0x100, "R+" }')
    assert states.tolist() == [1, 2]


def test_fifos_and_devices_for_a_part_of_a_recording_or_kallsyms_do_not_hold_the_reader_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "data")
    with pytest.raises(FormatError, match="it is not a regular file"):
        PerfDataReader.open(tmp_path)
    (tmp_path / "device").symlink_to("/dev/ptmx")
    for name in ("data", "device"):
        with pytest.raises(OSError, match="it is not a regular file"):
            load_kallsyms(str(tmp_path / name))


@pytest.mark.long
def test_time_for_a_recording_grows_with_its_events_alone(tmp_path: Path) -> None:
    """8000 events took 15 s once, four times as long as 4000."""
    few, many = (recording_of_events(tmp_path / str(count), count) for count in (1000, 4000))
    assert timed(lambda: load_recording(many)) < 9 * timed(lambda: load_recording(few))


def recording_of_events(directory: Path, count: int) -> Path:
    """Write a recording of so many events with a sample each."""
    directory.mkdir()
    sampled = SampleType.IDENTIFIER | SampleType.TID | SampleType.TIME
    attr = Attr(type=PerfType.SOFTWARE, size=128, sample_type=sampled, flags=AttrFlag.SAMPLE_ID_ALL)
    events = [EventSpec(attr, f"event{row}", (1000 + row,)) for row in range(count)]
    return write(directory / "perf.data", events, [sample(spec, pid=70, tid=70, time=5000) for spec in events])


def test_an_archive_holds_the_recording_that_a_link_leads_to_and_no_link(tmp_path: Path) -> None:
    demo = Path(__file__).resolve().parents[1] / "data" / "demo.data"
    (tmp_path / "directory").mkdir()
    shutil.copy(demo, tmp_path / "directory" / "data")
    (tmp_path / "directory" / "data.1").symlink_to("/etc/passwd")
    (tmp_path / "link").symlink_to(demo)
    for name, member, status in (("link", "perf.data", 0), ("directory", "perf.data/data", 2)):
        output = tmp_path / f"{name}.tar"
        words = ["archive", "--symfs", str(tmp_path), "-i", str(tmp_path / name), "-o", str(output)]
        assert main(words) == status, "2: a part of it is no recording"
        with tarfile.open(output) as archive:
            (packed,) = (one for one in archive if one.name.startswith("perf.data"))
            assert packed.isreg() and packed.name == member and packed.size == demo.stat().st_size


def test_offcpu_py_takes_nothing_from_the_directory_above_a_checkout(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "scripts").mkdir(parents=True)
    shutil.copy(REPOSITORY / "scripts" / "offcpu.py", checkout / "scripts")
    (checkout / "perf_offcpu").symlink_to(REPOSITORY / "perf_offcpu")
    packages = tmp_path / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    packages.mkdir(parents=True)
    (packages / "numpy.py").write_text("raise SystemExit('numpy of another user')")
    command = [sys.executable, "-I", "-S", checkout / "scripts" / "offcpu.py"]
    assert "cannot import numpy" in subprocess.run(command, capture_output=True, text=True, check=False).stderr


ZOO = recordings()
SECONDS = 5.0  # A step takes some milliseconds; on a busy machine, what does not end by itself still takes longer


@pytest.mark.parametrize("name", ZOO)
def test_seeded_damage(name: str) -> None:
    for seed in range(2):
        data = mutated(ZOO[name], random.Random(f"{name} {seed}"))
        assert survive(data, rewriting=seed % 4 == 0, showing=seed % 4 == 1) < SECONDS


@pytest.mark.parametrize("name", ZOO)
def test_prefixes(name: str) -> None:
    """Cut at each 59th of the first 300 bytes, and at some of the others. Most prefixes have the records, events
    and features of a shorter one: these are only cut into records."""
    data, seen = ZOO[name], set[bytes]()
    for size in [*range(0, 300, 59), *range(300, len(data), max(1, len(data) // 7))]:
        with as_file(data[:size]) as path:
            what = content(str(path))
        if what not in seen:
            seen.add(what)
            shown = len(seen)
            assert survive(data[:size], rewriting=shown % 16 == 0, showing=shown % 16 == 1) < SECONDS
