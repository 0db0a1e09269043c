# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu completion: print a completion script for a shell, which shtab writes from the parsers."""

import argparse
from collections.abc import Iterator
from typing import Any

from perf_offcpu.commands.shared.parsers import add_verb

_DIRECTORIES = frozenset(("DIR", "DATASET"))
_FILES = frozenset(("FILE", "OUT", "OLD", "ARCHIVE"))


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the parser of this verb, with its options, to `subparsers`."""
    parser = add_verb(subparsers, "completion")
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell")


def run(args: argparse.Namespace) -> int:
    """Run the verb with the parsed arguments and return the exit status."""
    import shtab

    from perf_offcpu.commands.shared.parsers import VERBS, make_parsers

    parser, verbs = make_parsers(VERBS)
    kinds = dict.fromkeys(_FILES, shtab.FILE) | dict.fromkeys(_DIRECTORIES, shtab.DIRECTORY)
    for action in (action for verb in verbs.values() for action in _actions(verb)):
        if action.metavar in kinds:
            action.complete = kinds[action.metavar]
    print(shtab.complete(parser, args.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[Any]:
    """Yield the arguments of a parser and of its subparsers."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for own in action.choices.values():
                yield from _actions(own)
        else:
            yield action
