# SPDX-License-Identifier: Apache-2.0
"""`perf-offcpu convert` on a recording of perf 7.2, and what holds for every output."""

import dataclasses
import gzip
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from builders.examples import examples
from builders.refused import output, refused

from perf_offcpu.cli import main
from perf_offcpu.commands.shared.files import open_output
from perf_offcpu.convert.registry import FORMATS

DATA = Path(__file__).resolve().parents[2] / "data"
DEMO, RECORDING = DATA / "demo.data", DATA / "perf-7.2" / "direct.data"
TOTAL_NS = 1610900175
"""Of its 108 off-cpu samples, as `perf report` sums them (direct.report.txt next to the original)."""


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(RECORDING, tmp_path / "perf.data")
    return tmp_path / "perf.data"


def total(folded: str) -> int:
    return sum(int(line.rsplit(" ", 1)[1]) for line in folded.splitlines())


def test_default_names(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "--folded"]) == 0
    assert capsys.readouterr() == ("", "perf-offcpu convert: wrote perf.data.folded\n")
    assert total((recording.parent / "perf.data.folded").read_text("utf-8")) == TOTAL_NS
    assert main(["convert", "--flamegraph"]) == 0
    assert (recording.parent / "perf.data.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    assert main(["convert", "--callgraph"]) == main(["convert", "--callgraph", "json", "--wakers"]) == 0
    assert all(os.path.getsize(f"perf.data.callgraph.{form}") > 100 for form in ("dot", "json"))


def test_output_can_be_standard_output_or_compressed(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("out", "one.gz", "two.gz", "-"):
        assert main(["convert", "--folded", "-o", name]) == 0
    assert capsys.readouterr() == (Path("out").read_text("utf-8"), "")
    packed = Path("one.gz").read_bytes()
    assert gzip.decompress(packed) == Path("out").read_bytes() and packed == Path("two.gz").read_bytes()


def test_selections_and_labels(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def folded(*options: str) -> str:
        return output(capsys, "convert", "--folded", "-o", "-", *options)

    roots = {line.split(";")[0] for line in folded("--tid", "--comm", "reader,writer").splitlines()}
    assert roots == {"reader-126/132", "writer-126/133"}
    assert folded("--tid", "132,133") == folded("--tid", "132", "--tid", "133") == folded("--comm", "reader,writer")
    assert folded("--pid", "126", "--pid").startswith("blocker-126;")
    assert total(folded("--event", "cpu-clock")) == 402206609
    assert total(folded("--event", "cpu-clock,offcpu-time")) == TOTAL_NS + 402206609
    assert folded("--all-events") == folded("--event", "cpu-clock,offcpu-time")
    assert total(folded("--unit", "us")) == (TOTAL_NS + 500) // 1000


def test_an_empty_selection_is_reported(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "--folded", "-o", "-", "--comm", "nobody"]) == 0
    out, err = capsys.readouterr()
    assert out == "" and err.endswith("perf-offcpu convert: no sample was selected; the output is empty\n")
    assert err.startswith("perf-offcpu: no comm nobody in the recording, which has ")


@pytest.mark.parametrize(("words", "status", "message"), examples("unit/sentences.txt", "convert"))
def test_errors(recording: Path, capsys: pytest.CaptureFixture[str], words: str, status: str, message: str) -> None:
    before = recording.read_bytes()
    err = refused(capsys, "convert", *words.split(), status=int(status))
    assert err.startswith("perf-offcpu convert: ") and message in err
    assert os.listdir() == ["perf.data"] and recording.read_bytes() == before


def test_a_failure_leaves_the_old_output(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("out").write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("perf_offcpu.convert.folded.in_units", fail)
    assert main(["convert", "--folded", "-o", "out"]) == 1
    assert Path("out").read_text() == "old" and sorted(os.listdir()) == ["out", "perf.data"]


def test_links_are_followed_and_modes_obey_the_umask(recording: Path) -> None:
    Path("real").write_text("old")
    Path("link").symlink_to("real")
    assert main(["convert", "--folded", "-o", "link"]) == 0
    assert Path("link").is_symlink() and total(Path("real").read_text("utf-8")) == TOTAL_NS
    os.umask(0o027)
    assert main(["convert", "--folded", "-o", "new"]) == 0
    assert stat.S_IMODE(os.stat("new").st_mode) == 0o640


def test_fifos_and_devices_are_written_directly(recording: Path) -> None:
    os.mkfifo("fifo")
    command = [sys.executable, "-m", "perf_offcpu", "convert", "-f", "--folded", "-o", "fifo"]
    reader = os.open("fifo", os.O_RDONLY | os.O_NONBLOCK)  # the reader comes first; it ends with the test
    try:
        assert subprocess.run(command, timeout=60, check=False).returncode == 0
        assert total(os.read(reader, 1 << 16).decode()) == TOTAL_NS
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(os.stat("fifo").st_mode) and main(["convert", "--folded", "-o", "/dev/null"]) == 0


def test_a_locale_without_utf8_changes_nothing(recording: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "perf_offcpu", "convert", "-f", "--flamegraph", "-o", "-", "--title", "größe"]
    done = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60)
    assert "<title>gr" in done.stdout.decode("utf-8")


@pytest.mark.kernel
def test_a_stranger_s_recording_needs_force(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.chown(recording, 12345, -1)
    assert main(["convert", "--folded", "-o", "-"]) == 1
    assert re.search("not owned by the current user or root .*-f", capsys.readouterr().err)
    assert total(output(capsys, "convert", "--folded", "-o", "-", "-f")) == TOTAL_NS


def test_two_weights_where_two_recordings_are_compared(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(recording, "old.data")
    shown = output(capsys, "convert", "--folded", "-o", "-", "--diff", "old.data", "--comm", "reader")
    weights = [line.rsplit(" ", 2)[1:] for line in shown.splitlines()]
    assert weights and all(old == new and int(old) for old, new in weights)


def test_a_file_too_large_for_viewers_is_reported(
    recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORMATS, "chrome-trace", dataclasses.replace(FORMATS["chrome-trace"], most_bytes=1000))
    assert main(["convert", "--chrome-trace"]) == 0
    assert "long waits with --min-dur, or use --perfetto" in capsys.readouterr().err


@pytest.mark.parametrize("binary", [True, False])
def test_a_full_disk_is_reported_with_the_files_name(binary: bool) -> None:
    with pytest.raises(OSError, match="No space left") as caught, open_output("/dev/full", binary=binary) as out:
        out.write((b"x" if binary else "x") * 100_000)
    assert caught.value.filename == "/dev/full"


@pytest.mark.parametrize(("own", "old", "mode"), [(0o644, 0o664, 0o644), (0o600, 0o644, 0o600), (0o644, 0o640, 0o640)])
def test_who_may_read_the_output_may_read_all_recordings(own: int, old: int, mode: int, tmp_path: Path) -> None:
    for name, bits in (("x.data", own), ("old.data", old)):
        shutil.copy(DEMO, tmp_path / name)
        (tmp_path / name).chmod(bits)
    words = ["-i", str(tmp_path / "x.data"), "--diff", str(tmp_path / "old.data")]
    assert main(["convert", "--folded", *words, "-o", str(tmp_path / "out")]) == 0
    assert main(["report", "--html", str(tmp_path / "page"), *words[:2]]) == 0
    assert (tmp_path / "out").stat().st_mode & 0o777 == mode
    assert (tmp_path / "page").stat().st_mode & 0o777 == own
