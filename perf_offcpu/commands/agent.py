# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu agent: record all the time, and write segments into a dataset or push them to servers."""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from perf_offcpu.commands.push import ACCESS
from perf_offcpu.commands.shared.parsers import add_options, duration_s
from perf_offcpu.errors import PerfOffcpuError, UsageError

if TYPE_CHECKING:
    from perf_offcpu.agent.config import AgentConfig

_DESCRIPTION = """\
Record waits of the whole machine all the time, in segments of a minute, and write them into a dataset, push
them to servers, or both. The agent keeps to a budget of CPU time and bytes by itself."""

_OUTPUT = f"""
--dataset DIR: write segments into this dataset: a directory, or a URL (s3://..., gs://..., abfs://...)
--keep AGE: remove hours of the dataset, of all hosts, that ended this long ago: 30d, 12h (default: never)
--push KIND=URL: push segments to this server; may be given several times
{ACCESS.strip()}
--containers unix:PATH: ask this CRI socket (/run/containerd/containerd.sock) for pods, names and images of
  containers, for the dataset (default: ids alone)
--label NAME=VALUE: label of this host in dataset and servers; may be given several times
"""
_RECORDING = """
--off-cpu-period TIME: one sample for each such time of waiting of a thread, a bare number is ms
  (default: 100)
--segment TIME: length of a segment (default: 60s)
--duration TIME: stop after this time: 120 (seconds), 2h (default: at a signal)
"""
_BUDGETS = """
--max-cpu PERCENT: CPU time that agent, recorder and BPF programs may take, in percent of one CPU (default: 1)
--max-bytes SIZE: bytes written and pushed in a day, 0 for any number (default: 1G)
--spool DIR: directory of what is not delivered yet (default: /var/lib/perf-offcpu/spool, or
  ~/.local/state/perf-offcpu/spool)
--spool-size SIZE: limit of the spool; beyond it, the oldest is dropped and counted (default: 256M)
"""
_OTHERS = """
-c, --config FILE: options in TOML, read again at SIGHUP
--port N: metrics and health on 127.0.0.1, 0 for none (default: 9811)
--listen ADDRESS:PORT: metrics and health there instead, or at unix:PATH, a socket
--token-file FILE: token that requests for them have to show (Authorization: Bearer)
--check: check configuration, stores, servers' names and privileges, and record nothing
--takeover: write into the dataset although another agent of this host does, which then ends
-q, --quiet: print errors only
"""
_OWN: Final = ("check", "config", "duration", "quiet", "record", "takeover")
"""Arguments that are not keys of the file, or have another form there."""
_WIDTH: Final = len("deferred callchains")  # the longest name of a part


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb's options."""
    parser = subparsers.add_parser(
        "agent",
        help="record all the time, into a dataset or to servers",
        description=_DESCRIPTION,
        usage="perf-offcpu agent [OPTIONS] [-- OPTIONS OF RECORD]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    many = dict.fromkeys(("push", "push_header_file", "label"), {"action": "append"})
    add_options(parser.add_argument_group("where to"), _OUTPUT, **many)
    add_options(parser.add_argument_group("recording"), _RECORDING)
    add_options(parser.add_argument_group("budgets"), _BUDGETS, max_cpu={"type": percent})
    add_options(parser.add_argument_group("others"), _OTHERS, port={"type": int})
    parser.add_argument("record", nargs=argparse.REMAINDER, metavar="OPTIONS", help=argparse.SUPPRESS)


def percent(text: str) -> float:
    """Return the number in a percentage, with or without the sign."""
    return float(text.removesuffix("%"))


def run(args: argparse.Namespace) -> int:
    """Run the verb and return the exit status."""
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
    """Print a line for each part that the agent needs; return 0 if none is missing, else 1."""
    from perf_offcpu.agent.check import check
    from perf_offcpu.collect.doctor import State
    from perf_offcpu.commands.doctor import finding_lines

    states = set[State]()
    for finding in check(lambda: config_of(args)):
        states.add(finding.state)
        if not args.quiet or finding.state == State.MISSING:
            print(*finding_lines(finding, _WIDTH), sep="\n", flush=True)
    return 1 if State.MISSING in states else 0


def config_of(args: argparse.Namespace) -> AgentConfig:
    """Return the configuration of a command line and its file; raise UsageError for an invalid value."""
    from perf_offcpu.agent.config import load_config

    given = {
        name.replace("_", "-"): value for name, value in vars(args).items() if name not in _OWN and value is not None
    }
    words = args.record[1:] if args.record[:1] == ["--"] else args.record
    if args.record and args.record[0] != "--":
        raise UsageError(f"{args.record[0]}: the agent takes no command; options of record follow --")
    if words:
        given["record"] = words
    config = load_config(args.config, given)
    return replace(config, record=(*_defaults(config.record), *config.record))


_TAKEN: Final = (
    "output switch_output duration off_cpu_period max_rate until_exit ready_fd control buildid_cache "
    "switch_max_files quiet"
).split()
"""Options of record that the agent sets itself."""


_USUAL: Final = {"event": ("-e", "none"), "mmap_pages": ("-m", "2M"), "compression_level": ("--compression-level", "0")}
"""Argument of record → option and value that are the agent's default: no on-CPU samples, small rings, and segments,
which are read once, as they are."""


def _defaults(words: tuple[str, ...]) -> list[str]:
    """Return the options that the agent gives to record, without those that `words` replace. Raise UsageError
    if a word is no option of record, or an option that the agent sets itself."""
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
