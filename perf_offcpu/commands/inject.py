# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu inject: rewrite a recording so that any perf shows its off-cpu samples and callchains."""

import argparse
import sys

from perf_offcpu.commands.shared import files
from perf_offcpu.commands.shared.parsers import add_options, add_verb
from perf_offcpu.errors import UsageError


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the parser of this verb, with its options, to `subparsers`."""
    parser = add_verb(subparsers, "inject")
    files.add_one_input(parser)
    add_options(parser, "inject.options", output={"default": files.STDOUT})


def run(args: argparse.Namespace) -> int:
    """Run the verb with the parsed arguments and return the exit status."""
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
