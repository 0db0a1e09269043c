# SPDX-License-Identifier: Apache-2.0
"""Declare the options of `perf-offcpu record`, with the names of `perf record` where it has them."""

import argparse
from typing import Any, Final

from perf_offcpu.commands.shared.parsers import LIST, add_options

MAX_COMPRESSION_LEVEL = 22
_ON: Final[dict[str, Any]] = {"action": argparse.BooleanOptionalAction, "default": True}
_NUMBER: Final[dict[str, Any]] = {"type": int, "default": 0}
_TASK_RATE: Final[dict[str, Any]] = {"type": int, "default": 4, "choices": range(6)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options, and the command to run."""
    from perf_offcpu.collect.bpf.config import ShortWaits

    targets = parser.add_argument_group("target: whose waits are recorded")
    add_options(targets, "record.targets", cgroup=LIST)
    events = parser.add_argument_group("events and stacks")
    one_of = events.add_mutually_exclusive_group()
    add_options(one_of, "record.which_waits", off_cpu_thresh={"default": "1"})
    add_options(events, "record.events", event={"action": "append"})
    add_options(events.add_mutually_exclusive_group(), "record.rate", count={"type": int})
    add_options(
        events,
        "record.stacks",
        kernel_callchains=_ON,
        call_graph={"default": "auto"},
        task_rate=_TASK_RATE,
        goroutines={"action": argparse.BooleanOptionalAction, "default": None},
    )
    add_options(
        parser.add_argument_group("waits"),
        "record.waits",
        short_waits={"choices": [choice.value for choice in ShortWaits], "default": ShortWaits.SAMPLED.value},
        min_block={"default": "0"},
        max_rate=_NUMBER,
        switch_states={"default": "S,D,I,T,t,Q"},
        **dict.fromkeys(("wakers", "objects", "object_names", "budget"), _ON),
    )
    recording = parser.add_argument_group("recording")
    add_options(recording, "record.output", output={"default": "perf.data"})
    level: dict[str, Any] = {"dest": "compression_level", "action": "store_const"}
    for number in range(MAX_COMPRESSION_LEVEL + 1):  # attached, as in perf: a word after -z is the command
        recording.add_argument(f"-z{number}", help=argparse.SUPPRESS, const=number, **level)
    details = dict.fromkeys(("compression_level", "switch_max_files", "realtime", "until_exit"), _NUMBER)
    details |= {
        "ready_fd": {"type": int},
        "switch_output": {"nargs": "?", "const": "signal"},
        "z": level | {"const": 1},
    }
    add_options(recording, "record.recording", **details)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help=argparse.SUPPRESS)
