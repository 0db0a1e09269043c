# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu agent: record all the time, and write segments into a dataset or push them to servers."""

import argparse
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from perf_offcpu.commands.shared.parsers import add_options, add_verb, duration_s
from perf_offcpu.errors import PerfOffcpuError, UsageError

if TYPE_CHECKING:
    from perf_offcpu.agent.config import AgentConfig

_OWN: Final = ("check", "config", "duration", "quiet", "record", "takeover")
"""Arguments that are not keys of the configuration file, or have another form there."""
_WIDTH: Final = len("deferred callchains")  # the longest name of a part


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the parser of this verb, with its options, to `subparsers`."""
    parser = add_verb(subparsers, "agent", usage="perf-offcpu agent [OPTIONS] [-- OPTIONS OF RECORD]")
    many = dict.fromkeys(("push", "push_header_file", "label"), {"action": "append"})
    add_options(parser.add_argument_group("where to"), "agent.output", **many)
    add_options(parser.add_argument_group("recording"), "agent.recording")
    add_options(parser.add_argument_group("budgets"), "agent.budgets", max_cpu={"type": percent})
    add_options(parser.add_argument_group("others"), "agent.others", port={"type": int})
    parser.add_argument("record", nargs=argparse.REMAINDER, metavar="OPTIONS", help=argparse.SUPPRESS)


def percent(text: str) -> float:
    """Parse a percentage, with or without the sign %."""
    return float(text.removesuffix("%"))


def run(args: argparse.Namespace) -> int:
    """Run the verb with the parsed arguments and return the exit status."""
    if args.check:
        return _check(args)
    from perf_offcpu.agent.agent import Agent
    from perf_offcpu.agent.journal import write_line

    seconds = duration_s(args.duration)

    def say(text: str) -> None:
        if not args.quiet:
            with contextlib.suppress(OSError):  # a log on a full disk, or whose reader has gone
                write_line(text)

    has_segments = Agent(lambda: config_of(args), say, seconds, take_over=args.takeover).run()
    if seconds is not None and not has_segments:
        raise PerfOffcpuError(f"nothing was recorded in {seconds:g} s")
    return 0


def _check(args: argparse.Namespace) -> int:
    """Print a line for each part that the agent needs (`--check`); return 0 if none is missing, else 1."""
    from perf_offcpu.agent.check import check
    from perf_offcpu.collect.doctor import State
    from perf_offcpu.commands.doctor import finding_lines

    states = set[State]()
    for finding in check(lambda: config_of(args)):
        states.add(finding.state)
        if not args.quiet or finding.state == State.MISSING:
            print(*finding_lines(finding, _WIDTH), sep="\n", flush=True)
    return 1 if State.MISSING in states else 0


def config_of(args: argparse.Namespace) -> "AgentConfig":
    """Return the configuration from the command line and its file (--config); raise UsageError for invalid values."""
    from perf_offcpu.agent.config import load_config

    overrides = {
        name.replace("_", "-"): value for name, value in vars(args).items() if name not in _OWN and value is not None
    }
    words = args.record[1:] if args.record[:1] == ["--"] else args.record
    if args.record and args.record[0] != "--":
        raise UsageError(f"{args.record[0]}: the agent takes no command; options of record follow --")
    if words:
        overrides["record"] = words
    config = load_config(args.config, overrides)
    return replace(config, record=(*_defaults(config.record), *config.record))


_TAKEN: Final = (
    "output switch_output duration off_cpu_period max_rate until_exit ready_fd control buildid_cache "
    "switch_max_files quiet"
).split()
"""Options of record that the agent sets itself."""


_USUAL: Final = {"event": ("-e", "none"), "mmap_pages": ("-m", "2M"), "compression_level": ("--compression-level", "0")}
"""Argument of record → option and value that the agent gives by default: no on-CPU samples, small rings, no compression
of segments, which are read once."""


def _defaults(words: tuple[str, ...]) -> list[str]:
    """Return the agent's default options of record, without those that the user's options `words` replace. Raise
    UsageError if a word is no option of record, or an option that the agent sets itself."""
    from perf_offcpu.commands.shared.parsers import make_parsers

    parser = make_parsers(("record",))[1]["record"]
    usual, args = vars(parser.parse_args([])), vars(parser.parse_args(parser.attached(words)))
    for name in _TAKEN:
        if args[name] != usual[name]:
            option = {"output": "-o", "quiet": "-q"}.get(name, f"--{name.replace('_', '-')}")
            raise UsageError(f"after --: {option} is the agent's own")
    if args["off_cpu_thresh"] != usual["off_cpu_thresh"]:
        raise UsageError("after --: --off-cpu-thresh does not go with --off-cpu-period")
    if args["command"]:
        raise UsageError(f"after --: {args['command'][0]}: the agent takes no command")
    return [word for name, option in _USUAL.items() if args[name] == usual[name] for word in option]
