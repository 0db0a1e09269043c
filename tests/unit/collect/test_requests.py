# SPDX-License-Identifier: Apache-2.0
"""Commands of `record --control`, requests to a recorder that runs, a pause that begins while others wait."""

import os
import select
from types import SimpleNamespace
from typing import Any, cast

import pytest

from perf_offcpu.collect.control import Command, Control, ControlFds, RecordingSignals, Requests, parse_control
from perf_offcpu.collect.options import RecordOptions
from perf_offcpu.collect.output.series import FileSeries
from perf_offcpu.collect.rotation import Rotation
from perf_offcpu.collect.session import Session
from perf_offcpu.collect.targets import Target
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
    assert requests.obey("enable")
    assert not requests.obey("enable") and requests.stopping, "nothing counts after the end"
    assert place.said == []


@pytest.mark.parametrize(("commands", "rotation", "period_ns", "sentence"), [
    ("snapshot\nperiod 7\n", None, 2 * MS, "there is no --switch-output"),
    ("period x\n", Rotation(), 2 * MS, "--control: period x: not a length of time"),
    ("period \x1b[2J\n", Rotation(), 2 * MS, "--control: period \\x1b[2J: not a length of time"),
    ("period 0\n", Rotation(), 2 * MS, "--control: period 0: at least 1us"),
    ("period 7\n", Rotation(), 0, "waits are not sampled by length"),
])  # fmt: skip
def test_bad_requests_change_nothing(commands: str, rotation: Rotation | None, period_ns: int, sentence: str) -> None:
    place = Place(commands, rotation, period_ns)
    assert not place.requests.obey("disable") and not place.requests.take_rotate()
    assert place.requests.period_ns == period_ns
    assert len(place.said) == commands.count("\n") and all(sentence in one for one in place.said)


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


@pytest.mark.parametrize(("commands", "rotation", "steps"), [
    ("snapshot\n", Rotation(), ["leave", "wait", "wait", "wait"]), ("enable\n", Rotation(), ["go on"]),
    ("snapshot\nenable\n", Rotation(), ["leave", "go on"]), ("stop\n", Rotation(), []),
    ("", Rotation(), ["wait", "drain", "wait", "drain", "wait"]),
    ("", Rotation(size_bytes=50), ["leave", "wait", "wait", "wait"]),
    ("", Rotation(seconds=2), ["wait", "drain", "wait", "drain", "wait"]),
])  # fmt: skip
def test_commands_that_come_with_disable_need_no_wait(commands: str, rotation: Rotation, steps: list[str]) -> None:
    session: Any = Pausing(commands, rotation)
    went_on = session._pause(None)
    assert session.steps == ["Events disabled", *steps, *(["Events enabled"] if went_on else [])]
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
    assert found == [Command("disable"), Command("period", "2.5"), Command("ping"), Command("stop")]
    control.acknowledge()
    assert os.read(acks, 10) == b"ack\n"
    os.close(ours)
    assert not control.read(), "nothing will come any more"
    assert control.next() == Command("enable") and not control.read() and control.next() is None
    os.close(acks)
    control.acknowledge()  # nobody listens
    os.close(theirs)
    os.close(answers)


@pytest.mark.parametrize("text", ["", "3", "fd:", "fd:x", "fd:1,", "fifo:a", "fd:-1", "fd:999999"])
def test_other_descriptors_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--control"):
        parse_control(text)
    assert parse_control("fd:0") == ControlFds(0) and parse_control("fd:1,2") == ControlFds(1, 2)
