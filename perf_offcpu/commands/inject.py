# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu inject: rewrite a recording so that any perf shows its off-cpu samples and callchains."""

from __future__ import annotations

import argparse
import sys

from perf_offcpu.commands.shared import files
from perf_offcpu.commands.shared.parsers import add_options
from perf_offcpu.errors import UsageError

_OPTIONS = """
-o, --output FILE: default: -, standard output in pipe form
--no-retype: leave raw off-cpu samples as they are
--no-merge-callchains: leave deferred callchains in records of their own, which only newer perfs read
--switches: add off-cpu time to a recording of context switches (sched:sched_switch, or perf record
  --switch-events) that has no off-cpu event
--keep-stack-bytes: keep copies of user stacks, which can hold secrets, for perf's own unwinder (default: they
  are unwound and left out)
-z, --compress: write compressed records (zstd)
-v, --verbose: print what was done
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb's options."""
    parser = subparsers.add_parser(
        "inject",
        help="rewrite a recording, so that any perf reports its off-cpu samples",
        description="Write a recording again, with raw off-cpu samples as an ordinary event with callchains "
        "and period (ns), deferred callchains merged, compression undone and attrs as perf 6.1 knows them. "
        "Everything else is copied.",
    )
    files.add_one_input(parser)
    add_options(parser, _OPTIONS, output={"default": files.STDOUT})


def run(args: argparse.Namespace) -> int:
    """Run the verb and return the exit status."""
    from perf_offcpu.cache import DiskCache
    from perf_offcpu.inject.header import RewriteOptions
    from perf_offcpu.inject.rewrite import rewrite
    from perf_offcpu.losses import CUT, by_text
    from perf_offcpu.objects.search import Search

    files.check_ownership(args.input, args.force)
    files.check_distinct([args.input], args.output)
    options = RewriteOptions(
        retype=not args.no_retype,
        merge=not args.no_merge_callchains,
        pipe=args.output == files.STDOUT,
        compress=args.compress,
        switches=args.switches,
        keep_stacks=args.keep_stack_bytes,
        search=Search.usual(cache=DiskCache.usual()),
    )
    if options.pipe and options.compress:
        raise UsageError("-z: perf compresses files, not pipes: name a file with -o, or pipe through zstd")

    done = files.write_recording(args.output, lambda fd, name: rewrite(args.input, fd, name, options))
    files.note_cut(args, args.input, done.losses)
    if args.verbose:
        added = f"{done.waits} waits between context switches added, " if args.switches else ""
        print(
            f"{done.retyped} off-cpu samples re-typed, {added}{done.completed} deferred callchains merged, "
            f"{done.copied} records copied",
            file=sys.stderr,
        )
        if done.unwound:
            print(f"{done.unwound} user stacks unwound", file=sys.stderr)
    for cause, count in by_text(done.losses).items():
        if cause not in CUT:
            print(f"perf-offcpu inject: {count} {cause}", file=sys.stderr)
    return 0
