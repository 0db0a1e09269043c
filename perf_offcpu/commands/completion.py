# SPDX-License-Identifier: Apache-2.0
"""`perf-offcpu completion bash|zsh`: completion for shells, made from the parsers.

What a value can be is read off its parser: choices; lists of known words (`--class`, `--sort`, `--fields`); a
file or directory by the name of its metavar; else nothing is offered.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from perf_offcpu import commands

EXAMPLES = """examples:
  source <(perf-offcpu completion bash)                      in ~/.bashrc
  perf-offcpu completion bash > /etc/bash_completion.d/perf-offcpu
  perf-offcpu completion zsh > "${fpath[1]}/_perf-offcpu"    then start a new zsh
"""
_FILES = frozenset(("FILE", "OUT", "OLD", "DIR"))


@dataclass(frozen=True, slots=True)
class Value:
    """What can stand behind an option."""

    words: tuple[str, ...] = ()
    is_list: bool = False
    """Several of the words, separated by commas."""
    is_file: bool = False
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a verb; `value` is None for a flag."""

    names: tuple[str, ...]
    help: str
    value: Value | None


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb with its options. `has_command`: a command with arguments follows them."""

    name: str
    help: str
    options: tuple[Option, ...]
    words: tuple[str, ...]
    """What its positional argument can be."""
    has_command: bool


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb's options."""
    parser = subparsers.add_parser(
        "completion",
        help="print what lets bash or zsh complete this command's options",
        description="Print a script for the shell, made from the options that this version has.",
        epilog=EXAMPLES,
    )
    parser.add_argument("shell", choices=("bash", "zsh"), help="for which shell")


def run(args: argparse.Namespace) -> int:
    """Run the verb; the exit status."""
    from perf_offcpu.commands.completion_shells import bash, zsh

    print({"bash": bash, "zsh": zsh}[args.shell](verbs()), end="")
    return 0


class _Parser(argparse.ArgumentParser):
    """Takes what `cli.Parser` takes."""

    def __init__(self, *, dashed_values: object = None, advice: object = None, **options: Any) -> None:
        super().__init__(**options)


def verbs() -> list[Verb]:
    """All verbs, from their parsers, by name."""
    parser = argparse.ArgumentParser()
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser] = parser.add_subparsers(
        parser_class=_Parser
    )
    found = pkgutil.walk_packages(commands.__path__, f"{commands.__name__}.")
    modules = [importlib.import_module(one.name) for one in found if not one.ispkg]
    for module in sorted(modules, key=lambda one: one.__name__):
        if hasattr(module, "add_parser"):
            module.add_parser(subparsers)
    summaries = {action.dest: action.help or "" for action in subparsers._choices_actions}
    return [_verb(name, summaries[name], made) for name, made in subparsers.choices.items()]


def _verb(name: str, summary: str, parser: argparse.ArgumentParser) -> Verb:
    actions = [action for action in parser._actions if action.option_strings]
    others = [action for action in parser._actions if not action.option_strings]
    words = [str(choice) for action in others for choice in action.choices or ()]
    has_command = any(action.nargs == argparse.REMAINDER for action in others)
    return Verb(name, summary, tuple(map(_option, actions)), tuple(words), has_command)


def _option(action: argparse.Action) -> Option:
    hidden = action.help == argparse.SUPPRESS
    text = "as always" if hidden else re.sub(r"%%", "%", action.help or "")
    return Option(tuple(action.option_strings), text, None if action.nargs == 0 else _value(action))


def _value(action: argparse.Action) -> Value:
    optional = action.nargs == "?"
    if action.choices is not None:
        return Value(tuple(map(str, action.choices)), is_optional=optional)
    if words := _lists().get(action.option_strings[-1]):
        return Value(tuple(words), is_list=True, is_optional=optional)
    return Value(is_file=action.metavar in _FILES, is_optional=optional)


def _lists() -> dict[str, Iterable[str]]:
    """Options whose values are lists of known words."""
    from perf_offcpu.abi.task_state import STATE_NAMES
    from perf_offcpu.commands.report import SORT_NAMES
    from perf_offcpu.commands.shared.profile import CLASS_NAMES
    from perf_offcpu.script.fields import OWN_FIELDS, PERF_FIELDS

    return {
        "--class": CLASS_NAMES,
        "--state": STATE_NAMES,
        "--sort": SORT_NAMES,
        "--fields": [*PERF_FIELDS, *OWN_FIELDS],
    }
