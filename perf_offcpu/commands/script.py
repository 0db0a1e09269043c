# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu script: print samples as text, as perf script does."""

from __future__ import annotations

import argparse
import sys
import textwrap
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from perf_offcpu.commands.shared.output import STDOUT, open_output
from perf_offcpu.commands.shared.parsers import LIST, accept_without_effect, add_options
from perf_offcpu.commands.shared.profile import (
    add_profile_arguments,
    profile_from_args,
    selection_from_args,
    split_list,
)
from perf_offcpu.commands.shared.streams import busy
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Meta
from perf_offcpu.script.fields import DEFAULT_FIELDS, OWN_FIELDS, PERF_FIELDS
from perf_offcpu.text import printable

if TYPE_CHECKING:
    from perf_offcpu.model.profile import Profile


_RULE = "# ========"
_MINUTE_NS = 60 * 10**9


def header_lines(profile: Profile) -> Iterator[str]:
    """Return the lines, without line ends; unknown facts are left out."""
    meta = profile.meta
    facts = {
        "captured on": _captured(meta),
        "hostname": meta.hostname,
        "os release": meta.os_release,
        "perf version": meta.version,
        "arch": meta.arch,
        "nrcpus online": str(meta.nr_cpus or ""),
        "cpudesc": meta.cpu_desc,
        "cmdline": " ".join(meta.cmdline),
    }
    yield _RULE
    yield from (_fact(name, text) for name, text in facts.items() if text)
    for event in profile.evsels:
        yield _fact("event", f"name = {event.name}" + (f", unit = {event.unit}" if event.unit else ""))
    if meta.threshold_ns >= 0:
        yield _fact("off-cpu threshold", f"{meta.threshold_ns} ns")
    for part in meta.recorded if 0 < meta.begin_ns < meta.end_ns else ():
        begin, end = (f"{ns // 10**9}.{ns % 10**9:09}" for ns in part)
        yield _fact("recorded", f"from {begin} to {end}")
    yield from (_RULE, "#")


def _captured(meta: Meta) -> str:
    """Return the date of the first sample; "" if the recording has no wall clock.

    perf notes the wall clock and the clock of its events before the first sample. Inside a time namespace it
    sees another clock than the kernel that takes the samples; where perf's is ahead, that shows.
    """
    if not meta.wall_clock_ns or meta.first_ns < 0:
        return ""
    if meta.wall_clock_at_ns > max(meta.last_ns, meta.end_ns) + _MINUTE_NS:
        return "unknown, by its clock perf began after the last sample (in a time namespace?)"
    wall_ns = meta.wall_clock_ns + meta.first_ns - meta.wall_clock_at_ns
    return time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(wall_ns // 10**9))


def _fact(name: str, text: str) -> str:
    return f"# {name} : {printable(text)}"


EXAMPLES = """examples:
  perf-offcpu script                                  all samples of perf.data
  perf-offcpu script -F +state,+class,+syscall,+waker --event offcpu-time
  perf-offcpu script -F +srcline                      with source lines, where there is DWARF
  perf-offcpu script -F comm,tid,time,period          one line a sample
  perf-offcpu script | stackcollapse-perf.pl          for tools that read the text of perf script
"""


_OUTPUT = """
-F, --fields LIST: fields to print, separated by commas; +FIELD and -FIELD change the default; TYPE:LIST is
  for events of one type: hw, sw, trace or raw
-G, --hide-call-graph: print only the innermost frame
--ns: print times with 9 decimals, not 6
--full-source-path: print source files with directories
--header: print the header (machine and run) first
--header-only: print only the header
--no-merge-callchains: print deferred user callchains as they were sent, apart from their samples
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb's options."""
    parser = subparsers.add_parser(
        "script",
        help="print samples as text, as perf script does",
        description="Print the samples of a recording by time, as perf script does; a wait belongs to the "
        "thread that slept. Sums of waits have no time: they show - and come last.",
        epilog=f"{_describe_fields()}\n{EXAMPLES}",
        dashed_values={"-F": "--fields", "--fields": "--fields"},
    )
    accept_without_effect(parser, "script")
    add_options(parser.add_argument_group("output"), _OUTPUT, fields=LIST)
    add_profile_arguments(
        parser, default_events="all that were recorded; with --state, --class, --min-dur the waits"
    )


def run(args: argparse.Namespace) -> int:
    """Run the verb and return the exit status."""
    from perf_offcpu import losses
    from perf_offcpu.script.fields import choose_fields
    from perf_offcpu.script.samples import TextOptions, write
    from perf_offcpu.text import printable

    fields = choose_fields(args.fields)
    options = TextOptions(fields, args.ns, not args.hide_call_graph, args.full_source_path)
    args.srcline |= "srcline" in fields.anywhere()
    with busy("reading"):
        profile = _profile(args)
    with open_output(STDOUT, binary=False) as out:
        if args.header or args.header_only:
            out.writelines(f"{line}\n" for line in header_lines(profile))
        if not args.header_only:
            write(profile, out, options)
    mismatches = {losses.OTHER_BUILD.name, losses.FILE_CHANGED.name}
    for cause, count in losses.by_text(profile.losses).items():
        if cause in losses.CUT:
            continue
        if cause.stage is not losses.Stage.NAMES or cause.name in mismatches:  # frames show the others
            print(f"perf-offcpu script: {count} {printable(str(cause))}", file=sys.stderr)
    return 0


def _profile(args: argparse.Namespace) -> Profile:
    from perf_offcpu.analysis.select import select_events

    events = split_list(args.event)
    # Waits derived from context switches are no samples of the recording: only --event shows them.
    profile = profile_from_args(
        args, keep_ips=True, merge=not args.no_merge_callchains, switches=bool(events)
    )
    return select_events(profile, events) if events or selection_from_args(args).is_of_waits else profile


def _describe_fields() -> str:
    """Return the fields and their meanings for the help."""
    lines = [f"fields (default: {','.join(DEFAULT_FIELDS)}):"]
    width = max(map(len, [*PERF_FIELDS, *OWN_FIELDS]))
    for name, meaning in [*PERF_FIELDS.items(), *OWN_FIELDS.items()]:
        first, others = f"  {name:<{width}}  ", " " * (width + 4)
        lines += textwrap.wrap(
            meaning, 110, initial_indent=first, subsequent_indent=others, break_on_hyphens=False
        )
    return "\n".join([*lines, ""])
