# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu script: print samples as text, as perf script does."""

import argparse
import sys
import textwrap
from typing import TYPE_CHECKING

from perf_offcpu.commands.shared import profile as shared
from perf_offcpu.commands.shared.files import STDOUT, open_output
from perf_offcpu.commands.shared.parsers import LIST, accept_without_effect, add_options, add_verb
from perf_offcpu.commands.shared.streams import busy
from perf_offcpu.script.fields import DEFAULT_FIELDS, OWN_FIELDS, PERF_FIELDS

if TYPE_CHECKING:
    from perf_offcpu.model.profile import Profile


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the parser of this verb, with its options, to `subparsers`."""
    dashed = {"-F": "--fields", "--fields": "--fields"}
    parser = add_verb(subparsers, "script", epilog=_describe_fields(), dashed_values=dashed)
    accept_without_effect(parser, "script")
    add_options(parser.add_argument_group("output"), "script.output", fields=LIST)
    shared.add_profile_arguments(
        parser, default_events="all that were recorded; with --state, --class, --min-dur the waits"
    )


def run(args: argparse.Namespace) -> int:
    """Run the verb with the parsed arguments and return the exit status."""
    from perf_offcpu import losses
    from perf_offcpu.script.fields import choose_fields
    from perf_offcpu.script.samples import TextOptions, header_lines, write
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
        is_shown = cause.stage is losses.Stage.NAMES and cause.name not in mismatches  # by the frames
        if cause not in losses.CUT and not is_shown:
            print(f"perf-offcpu script: {count} {printable(str(cause))}", file=sys.stderr)
    return 0


def _profile(args: argparse.Namespace) -> "Profile":
    from perf_offcpu.analysis.selection.select import select_events

    events = shared.split_list(args.event)
    # Waits derived from context switches are no samples of the recording: only --event shows them.
    loading = {"tasks": True, "merge": not args.no_merge_callchains, "switches": bool(events)}
    profile = shared.profile_from_args(args, keep_ips=True, **loading)
    return select_events(profile, events) if events or shared.selection_from_args(args).is_of_waits else profile


def _describe_fields() -> str:
    lines, fields = [f"fields (default: {','.join(DEFAULT_FIELDS)}):"], PERF_FIELDS | OWN_FIELDS
    width = max(map(len, fields))
    for name, meaning in fields.items():
        first, others = f"  {name:<{width}}  ", " " * (width + 4)
        lines += textwrap.wrap(meaning, 110, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)
    return "\n".join([*lines, ""])
