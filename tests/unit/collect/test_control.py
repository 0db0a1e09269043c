# SPDX-License-Identifier: Apache-2.0
"""Commands of `record --control`: what is a command, in pieces or damaged."""

from __future__ import annotations

import os
import select

import pytest

from perf_offcpu.collect.control import Command, Control, ControlFds, parse_control
from perf_offcpu.errors import UsageError


def test_commands_come_in_pieces_and_others_are_left_out() -> None:
    (theirs, ours), (acks, answers) = os.pipe(), os.pipe()
    control = Control(ControlFds(theirs, answers))
    assert control.read() and control.next() is None
    for piece in (
        b"dis",
        b"able\nnonsense\nperiod  2.5 \n",
        b"x" * 5000,
        b"\nping\0stop\0\n\xff\xfe\nena",
        b"ble",
    ):
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


def test_descriptors_of_commands_and_answers() -> None:
    assert parse_control("fd:0") == ControlFds(0)
    assert parse_control("fd:1,2") == ControlFds(1, 2)
