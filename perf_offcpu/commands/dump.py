# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu dump: print every record of a recording as text."""

import argparse
import sys

from perf_offcpu.commands.shared.files import add_one_input, check_ownership, note_cut
from perf_offcpu.commands.shared.parsers import add_verb


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the parser of this verb, with its options, to `subparsers`."""
    add_one_input(add_verb(subparsers, "dump"))


def run(args: argparse.Namespace) -> int:
    """Run the verb with the parsed arguments and return the exit status."""
    from perf_offcpu.perfdata.dump import dump
    from perf_offcpu.perfdata.reader import PerfDataReader

    check_ownership(args.input, args.force)
    with PerfDataReader.open(args.input) as reader:
        is_noted = note_cut(args, args.input, reader.counters)
        sys.stdout.writelines(f"{line}\n" for line in dump(reader))
        if not is_noted:  # a cut pipe is seen at its end
            note_cut(args, args.input, reader.counters)
    return 0
