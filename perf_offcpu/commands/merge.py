# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu merge: several recordings as one."""

from __future__ import annotations

import argparse
import sys

from perf_offcpu.commands.shared.output import STDOUT, check_distinct, write_recording

_EPILOG = """\
examples:
  perf-offcpu merge run1.data run2.data -o both.data      two runs on one host: one flame graph
  perf-offcpu merge web1.data web2.data -o web.data       two hosts: comms become web1:nginx, web2:nginx
  perf-offcpu merge web*.data -o - --no-prefix | perf-offcpu inject -i - -o web.data      for older perfs

Hosts are told apart by name, boots of one host by where the kernel lay and by the clock. Pids of the second
machine become 10000000 + pid, of the third 20000000 + pid, and so on. Clocks of different machines meet by
the wall clock, which recordings of perf-offcpu hold, and those of `perf record -k mono`.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb's options."""
    parser = subparsers.add_parser(
        "merge",
        help="put several recordings together, of several runs or hosts",
        description="Write several recordings as one: one time line, one flame graph. Processes of different "
        "hosts, or of different boots of one, keep apart.",
        epilog=_EPILOG,
    )
    parser.add_argument("inputs", nargs="+", metavar="FILE", help="recordings; -: standard input")
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="the file to write; -: pipe form, to stdout"
    )
    parser.add_argument("-f", "--force", action="store_true", help="read files that belong to other users")
    parser.add_argument(
        "--no-prefix", action="store_true", help="leave comms as they are, so that hosts are summed up"
    )
    parser.add_argument(
        "--apart", action="store_true", help="take each recording to be of a machine of its own"
    )
    parser.add_argument(
        "--from-start",
        action="store_true",
        help="let all recordings begin at the same moment, whatever their clocks say (implies --apart)",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="say what belongs together")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the verb; the exit status."""
    from perf_offcpu.commands.shared.ownership import check_ownership
    from perf_offcpu.merge.merge import Merged, check_inputs, merge
    from perf_offcpu.merge.merge_plan import MergeOptions

    check_inputs(args.inputs)
    for path in args.inputs:
        check_ownership(path, args.force)
    check_distinct(args.inputs, args.output)
    options = MergeOptions(args.apart, args.from_start, not args.no_prefix, args.output == STDOUT)

    def write(fd: int, name: str) -> Merged:
        return merge(args.inputs, fd, name, ["perf-offcpu", "merge", *args.inputs], options)

    done = write_recording(args.output, write)
    if args.verbose:
        for number, rows in enumerate(done.machines, 1):
            names = ", ".join(args.inputs[row] for row in rows)
            print(f"machine {number} of {len(done.machines)}: {names}", file=sys.stderr)
        print(f"{done.records} records", file=sys.stderr)
    for cause, count in sorted(done.losses.items()):
        print(f"perf-offcpu merge: {count} {cause}", file=sys.stderr)
    return 0
