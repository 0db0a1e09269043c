# SPDX-License-Identifier: Apache-2.0
"""Rotation of files and their names; the line on the terminal."""

import io
import os
import pty
import termios
from pathlib import Path

import pytest

from perf_offcpu.collect.rotation import FileNames, Rotation, parse_rotation
from perf_offcpu.collect.summary import progress_line
from perf_offcpu.commands.record.command import LiveLine
from perf_offcpu.errors import UsageError


@pytest.mark.parametrize(("text", "rotation"), [
    ("signal", Rotation()), ("5M", Rotation(size_bytes=5 << 20)), ("5m", Rotation(seconds=300)),
    ("1.5s", Rotation(seconds=1.5)),
])  # fmt: skip
def test_sizes_and_times(text: str, rotation: Rotation) -> None:
    assert parse_rotation(text) == rotation


@pytest.mark.parametrize("text", ["", "0s", "5", "sleep"])
def test_what_is_neither_names_the_way_out(text: str) -> None:
    with pytest.raises(UsageError, match="--switch-output=signal"):
        parse_rotation(text)


def test_names_are_never_given_twice_and_the_oldest_go(tmp_path: Path) -> None:
    names = FileNames(str(tmp_path / "perf.data"), Rotation(max_files=2))
    given = []
    for _ in range(5):
        given.append(names.next())
        Path(given[-1]).touch()
        names.forget_oldest()
    assert len(set(given)) == 5 and {str(path) for path in tmp_path.iterdir()} == set(given[-2:])


def test_a_directory_that_is_not_there_is_reported_where_the_file_is_created(tmp_path: Path) -> None:
    names = FileNames(str(tmp_path / "none" / "x.data"), Rotation())
    first, second = names.next(), names.next()
    assert first < second and first.startswith(f"{tmp_path}/none/x.data.")


def test_live_line_makes_way_for_what_stays() -> None:
    out = io.StringIO()
    progress = progress_line(12.3, 5, 6, 0, 0.25, 1_000_000, 3 << 20)
    with open(os.devnull, "w") as device, LiveLine(out) as live:
        out.fileno = device.fileno  # type: ignore[method-assign]
        live.show(progress)
        live.say("something")
        live.show(progress)
    line = "\r\x1b[Krecording 12 s: 5 samples, 6 sums, none lost, rings 25%, from 1 ms, 3.0 MB"
    assert out.getvalue() == f"{line}\r\x1b[Ksomething\n{line}\r\x1b[K"
    progress = progress_line(9e5, 99_999_999, 9_999_999, 99_999, 1.0, 1_000_000, 5 << 30)
    assert len(f"recording {progress}") < 110, "it fits a terminal after days of recording"


def test_a_terminal_that_takes_nothing_does_not_hold_the_recorder_up() -> None:
    """After Ctrl-S; the line comes again after Ctrl-Q."""
    leader, follower = pty.openpty()
    with open(leader, "rb", buffering=0) as shown, open(follower, "w") as out:
        live = LiveLine(out)
        termios.tcflow(out, termios.TCOOFF)
        for _ in range(1000):
            live.show("not to be seen")
        termios.tcflow(out, termios.TCOON)
        live.show("to be seen")
        assert shown.read(100) == b"\r\x1b[Krecording to be seen"
