# SPDX-License-Identifier: Apache-2.0
"""Commands of `record --control` and requests to a recorder that runs; files in turn, losses, the last line."""

import io
import os
import pty
import select
import termios
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from builders.examples import examples

from perf_offcpu import losses
from perf_offcpu.abi.counters import COUNTERS, EVENT_ID, MAGIC
from perf_offcpu.abi.records import RECORD_HEADER, RecordType
from perf_offcpu.abi.sample import SAMPLE
from perf_offcpu.collect.control import Control, ControlFds, RecordingSignals, Requests, parse_control
from perf_offcpu.collect.counters import Counter, Span, counters_event, counters_sample
from perf_offcpu.collect.events.evsels import Support
from perf_offcpu.collect.options import RecordOptions, Rotation, parse_rotation
from perf_offcpu.collect.output.series import FileNames, FileSeries
from perf_offcpu.collect.session import Session
from perf_offcpu.collect.summary import Summary
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.targets import Target
from perf_offcpu.commands.record.command import LiveLine, summary_lines
from perf_offcpu.errors import UsageError

MS = 10**6


class Place:
    """Requests with their pipe, and all that was said."""

    def __init__(self, commands: str, rotation: Rotation | None, period_ns: int = 2 * MS) -> None:
        theirs, ours = os.pipe()
        os.write(ours, commands.encode())
        os.close(ours)
        self.said: list[str] = []
        self.signals = cast(RecordingSignals, SimpleNamespace(rotate=False))
        self.requests = Requests(ControlFds(theirs), period_ns, rotation is not None, self.signals, self.said.append)
        self.requests.control.read()
        os.close(theirs)


def test_commands_are_carried_out_up_to_the_expected_one() -> None:
    place = Place("ping\nperiod 7000us\ndisable\nenable\nstop\nenable\n", Rotation())
    requests: Any = place.requests
    assert requests.obey("disable") and requests.period_ns == 7 * MS and not requests.stopping
    assert requests.take_rotate() and not requests.take_rotate(), "another period needs a new file"
    assert requests.obey("enable") and not requests.account_due
    assert not requests.obey("enable") and requests.stopping, "nothing counts after the end"
    assert place.said == []


@pytest.mark.parametrize(
    ("commands", "rotation", "period", "sentence"), examples("unit/collect/examples.txt", "requests")
)
def test_bad_requests_change_nothing(commands: str, rotation: str, period: str, sentence: str) -> None:
    lines = [line.encode().decode("unicode_escape") for line in commands.split("; ")]
    text = "".join(f"{line}\n" for line in lines)
    place = Place(text, parse_rotation(rotation) if rotation else None, int(period))
    assert not place.requests.obey("disable") and not place.requests.take_rotate()
    assert place.requests.period_ns == int(period)
    assert len(place.said) == len(lines) and all(sentence in one for one in place.said)


class Files(FileSeries):
    """A series of files, none of which is written."""

    def __init__(self, requests: Requests, steps: list[str]) -> None:
        self._requests, self._steps, self.is_between = requests, steps, False
        self.current: Any = SimpleNamespace(pause=lambda span: None, size=50, age_s=1.0)

    def end_part(self, stop: Any) -> None: ...

    def while_draining(self, work: Any) -> Any: ...

    def drain(self) -> None:
        self._steps.append("drain")

    def leave(self) -> None:
        self.is_between = True
        self._steps.append("leave")

    def resume(self) -> None:
        self.is_between = False
        self._steps.append("go on")


class Pausing(Session):
    """A session of which only the steps in a pause are left."""

    def __init__(self, commands: str, rotation: Rotation) -> None:
        place = Place(commands, rotation)
        self.steps: list[str] = []
        self.requests, self.options = place.requests, RecordOptions(Target(), rotation=rotation)
        self.files = Files(self.requests, self.steps)
        self.collector: Any = SimpleNamespace(pause=None, span=None, sleep=None)
        self.hotplug: Any = SimpleNamespace(follow=lambda _: [])
        self.paused, self.say = False, self.steps.append

    def _wait(self, waiter: Any, most_s: float) -> bool:
        self.steps.append("wait")
        return self.steps.count("wait") > 2


@pytest.mark.parametrize(("commands", "rotation", "steps"), examples("unit/collect/examples.txt", "pauses"))
def test_commands_that_come_with_disable_need_no_wait(commands: str, rotation: str, steps: str) -> None:
    session: Any = Pausing("".join(f"{command}\n" for command in commands.split()), parse_rotation(rotation))
    went_on = session._pause(None)
    end = ["Events enabled"] if went_on else []
    assert session.steps == ["Events disabled", *filter(None, steps.split(", ")), *end]
    assert went_on == ("go on" in steps) == (not session.paused)


def test_commands_come_in_pieces_and_others_are_left_out() -> None:
    (theirs, ours), (acks, answers) = os.pipe(), os.pipe()
    control = Control(ControlFds(theirs, answers))
    assert control.read() and control.next() is None
    for piece in (b"dis", b"able\nnonsense\nperiod  2.5 \n", b"x" * 5000, b"\nping\0stop\0\n\xff\xfe\nena", b"ble"):
        os.write(ours, piece)
        while select.select([control.fd], [], [], 0)[0]:
            assert control.read()
    found = list(iter(control.next, None))
    assert found == [("disable", ""), ("period", "2.5"), ("ping", ""), ("stop", "")]
    control.acknowledge()
    assert os.read(acks, 10) == b"ack\n"
    os.close(ours)
    assert not control.read(), "nothing will come any more"
    assert control.next() == ("enable", "") and not control.read() and control.next() is None
    os.close(acks)
    control.acknowledge()  # nobody listens
    os.close(theirs)
    os.close(answers)


@pytest.mark.parametrize("text", ["", "3", "fd:", "fd:x", "fd:1,", "fifo:a", "fd:-1", "fd:999999"])
def test_other_descriptors_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--control"):
        parse_control(text)
    assert parse_control("fd:0") == ControlFds(0) and parse_control("fd:1,2") == ControlFds(1, 2)


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


def progress_line(elapsed_s: float, samples: int, sums: int, lost: int, fill: float, file_bytes: int) -> str:
    collector: Any = SimpleNamespace(
        span=Span(now_ns() - int(elapsed_s * 1e9), 0, 0),
        rings=SimpleNamespace(recent_fill=lambda: fill),
        threshold_ns=1_000_000,
        counters=lambda: {losses.SAMPLES: Counter(samples)},
        lost_by_id=lambda: {7: lost},
    )
    return Summary("out").progress(collector, sums, file_bytes)


def test_live_line_makes_way_for_what_stays() -> None:
    out = io.StringIO()
    progress = progress_line(12.3, 5, 6, 0, 0.25, 3 << 20)
    with open(os.devnull, "w") as device, LiveLine(out) as live:
        out.fileno = device.fileno  # type: ignore[method-assign]
        live.show(progress)
        live.say("something")
        live.show(progress)
    line = "\r\x1b[Krecording 12 s: 5 samples, 6 sums, none lost, rings 25%, from 1 ms, 3.0 MB"
    assert out.getvalue() == f"{line}\r\x1b[Ksomething\n{line}\r\x1b[K"
    progress = progress_line(9e5, 99_999_999, 9_999_999, 99_999, 1.0, 5 << 30)
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
