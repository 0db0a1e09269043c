# SPDX-License-Identifier: Apache-2.0
"""`perf-offcpu record`: where threads wait and what runs meanwhile, into one perf.data.

`_record_arguments` has its options, `_record_options` what they mean. Here the recording is made, and what
became of it is told in perf's manner.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from perf_offcpu import losses
from perf_offcpu.commands.record.arguments import add_arguments
from perf_offcpu.commands.record.options import options_of
from perf_offcpu.commands.shared.perf_habits import add_as_always, advice_of

if TYPE_CHECKING:
    from perf_offcpu.collect.summary import Summary

_DESCRIPTION = """\
Record where threads wait (off-CPU time, with stacks) and, beside it, what runs on the CPUs. Without a
target and without a command, everybody is recorded until Ctrl-C."""

_EPILOG = """\
Each wait at or over --off-cpu-thresh becomes a sample with its own time and its whole stack, kernel and user.
Shorter waits are summed by thread, state, system call and user stack: nothing is left out, but a sum has no
single time and no kernel stack. perf's threshold is 500 ms, which turns nearly everything into sums;
here it is 1 ms, because waits are what the recording is for."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its options to the command line."""
    parser = subparsers.add_parser(
        "record",
        help="record waits and on-CPU samples into perf.data",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        usage="perf-offcpu record [OPTIONS] [-a | -p PIDS | -t TIDS] [-u USERS] [-- COMMAND [ARGS]]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        advice=advice_of("record"),
    )
    add_as_always(parser, "record")
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Record as the options say.

    Returns:
        The command's exit status; without one, 128 + signal if a signal ended the recording, else 0.

    Raises:
        PerfOffcpuError: see `collect.session.record`.
    """
    from perf_offcpu.collect.session import record
    from perf_offcpu.commands.record.keep import keep_symbols
    from perf_offcpu.commands.record.live import LiveLine
    from perf_offcpu.text import printable

    options = options_of(args, sys.argv)
    if args.quiet or not sys.stderr.isatty():
        summary = record(options, (lambda text: None) if args.quiet else _say)
    else:
        with LiveLine(sys.stderr) as live:
            summary = record(options, live.say, live.show)
    if not args.quiet:
        for line in summary_lines(summary, args.verbose):
            _say(line)
    if args.buildid_cache:
        for line in keep_symbols(summary.path):
            if not args.quiet:
                _say(f"[ perf-offcpu record: {printable(line)} ]")
    return summary.status


def summary_lines(summary: Summary, verbose: bool = False) -> list[str]:
    """What became of the recording, in perf's manner."""
    megabytes = summary.file_bytes / (1 << 20)  # as perf counts them
    waits = f"{summary.events(losses.SAMPLES) + summary.still_blocked} off-cpu samples"
    if summary.still_blocked:
        waits += f", {summary.still_blocked} of them still blocked"
    counts = f"{waits}, {summary.sums} sums, {summary.oncpu_samples} on-CPU samples"
    where = summary.path if summary.files == 1 else f"{summary.path} and {summary.files - 1} before it"
    lines = [f"[ perf-offcpu record: Captured and wrote {megabytes:.3f} MB {where} ({counts}) ]"]
    lost = [f"{count} {cause.text}" for cause, count in summary.losses().items()]
    if lost:
        lines.append(f"[ perf-offcpu record: lost: {', '.join(lost)} ]")
    if summary.remedy:
        lines.append(f"[ perf-offcpu record: {summary.remedy} ]")
    if verbose:
        lines += _details(summary)
    return lines


def _details(summary: Summary) -> list[str]:
    seconds = (summary.span.end_ns - summary.span.begin_ns) / 1e9
    rings = f"{summary.ring_bytes >> 10} kB per CPU, {summary.ring_fullest:.0%} used at most"
    counters = ", ".join(f"{cause.name} {counter.events}" for cause, counter in summary.counters.items())
    lines = [
        f"recorded for {seconds:.3f} s with {summary.cpu_s:.3f} s of CPU; rings of {rings}",
        f"counters: {counters}",
    ]
    runs = [f"{name} {ns / n:.0f} ns in {n} runs" for name, (n, ns) in summary.programs.items() if n]
    return [*lines, f"BPF: {', '.join(runs)}"] if runs else lines


def _say(text: str) -> None:
    print(text, file=sys.stderr)
