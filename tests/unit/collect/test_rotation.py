# SPDX-License-Identifier: Apache-2.0
"""Files in turn and their names, the line on the terminal, losses in the file and in the last line."""

import io
import os
import pty
import termios
from pathlib import Path

import pytest

from perf_offcpu import losses
from perf_offcpu.abi.counters import COUNTERS, EVENT_ID, MAGIC
from perf_offcpu.abi.records import RECORD_HEADER, RecordType
from perf_offcpu.abi.sample import SAMPLE
from perf_offcpu.collect.counters import Counter, Span, counters_event, counters_sample
from perf_offcpu.collect.events.evsels import Support
from perf_offcpu.collect.rotation import FileNames, Rotation, parse_rotation
from perf_offcpu.collect.summary import Summary, progress_line
from perf_offcpu.commands.record.command import LiveLine, summary_lines
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


COUNTED = {
    losses.SAMPLES: Counter(7, 7_000_000), losses.WAITS_LOST: Counter(2, 999), losses.SUM_MAP_FULL: Counter(3, 5),
    losses.MISSED_RUNS: Counter(0),
}  # fmt: skip


def test_counters_are_one_raw_sample() -> None:
    event = counters_event(Support())
    data = counters_sample(event, Span(100, 200, 1_000_000), COUNTED)
    assert RECORD_HEADER.unpack(data) == {"type": RecordType.SAMPLE, "misc": 2, "size": len(data)}
    assert len(data) % 8 == 0
    sample = SAMPLE.unpack(data, shape=event.shape, start=8)
    wanted = {"identifier": EVENT_ID, "pid": os.getpid(), "tid": os.getpid(), "time": 200, "period": 0}
    assert {name: sample[name] for name in wanted} == wanted and event.ids == (EVENT_ID,)
    values = COUNTERS.unpack(sample["raw"])
    names = ("magic", "begin_ns", "end_ns", "threshold_ns")
    assert [values[name] for name in names] == [MAGIC, 100, 200, 1_000_000]
    rows = {row["name"].rstrip(b"\0").decode(): Counter(row["events"], row["ns"]) for row in values["counters"]}
    assert {losses.CAUSES[name]: counter for name, counter in rows.items()} == COUNTED


def test_only_what_is_missing_is_a_loss() -> None:
    assert Summary("out", lost_records=5, counters=COUNTED).losses() == {losses.LOST_RECORDS: 5, losses.WAITS_LOST: 2}
    assert Summary("out", counters={losses.SAMPLES: Counter(1)}).losses() == {}


def test_last_lines() -> None:
    summary = Summary("out", file_bytes=3 << 19, sums=4, oncpu_samples=5, counters=COUNTED)
    written = "Captured and wrote 1.500 MB out (7 off-cpu samples, 4 sums, 5 on-CPU samples)"
    assert summary_lines(summary) == [
        f"[ perf-offcpu record: {written} ]",
        "[ perf-offcpu record: lost: 2 waits neither sampled nor summed ]",
    ]
    assert len(summary_lines(Summary("out"))) == 1
    (line,) = summary_lines(Summary("out", still_blocked=3, counters={losses.SAMPLES: Counter(7)}))
    assert line.endswith("(10 off-cpu samples, 3 of them still blocked, 0 sums, 0 on-CPU samples) ]")
