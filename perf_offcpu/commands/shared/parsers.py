# SPDX-License-Identifier: Apache-2.0
"""Make the argument parsers of the command and its verbs.

Only the module of the running verb is imported; the overall help and `completion` import all of them.

Options are declared in the table next to this module, a line each (`add_options`):

    -p, --pid PIDS: processes (17 or 17,18)
    -a, --all-cpus: the whole system

An option without a metavar is a switch. A line without a leading dash continues the text of the option above."""

import argparse
import functools
import importlib
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, Final, NoReturn, cast

from perf_offcpu.commands.shared.streams import columns
from perf_offcpu.errors import UsageError
from perf_offcpu.tables import read_table
from perf_offcpu.units import parse_time

PROGRAM = "perf-offcpu"
VERBS = {
    "record": "record.command",
    "top": "top",
    "agent": "agent",
    "report": "report",
    "script": "script",
    "convert": "convert",
    "push": "push",
    "inject": "inject",
    "archive": "archive",
    "dump": "dump",
    "fleet": "fleet",
    "doctor": "doctor",
    "completion": "completion",
}
"""Verb → its module in `commands`."""
_WITHOUT_EFFECT = {
    "record": "--off-cpu -T --timestamp -P --period --sample-cpu --sample-identifier",
    "report": "--stdio --no-children -n --show-nr-samples --show-total-period -v --verbose",
    "script": "-v --verbose",
}
"""Verb → options of perf that ask for its default behaviour."""


class Parser(argparse.ArgumentParser):
    """Argparse parser that accepts no abbreviated options and raises UsageError. `dashed_values`: option whose value
    may begin with a dash (`-F -sym`) → its long form."""

    def __init__(self, *, dashed_values: Mapping[str, str] | None = None, **options: Any) -> None:
        self.dashed_values = dashed_values or {}
        options["description"] = textwrap.fill(options.get("description") or "", 100)
        options.setdefault("allow_abbrev", False)
        width = columns() - 2
        options.setdefault("formatter_class", functools.partial(argparse.RawDescriptionHelpFormatter, width=width))
        self._words: list[str] = []
        super().__init__(**options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, and keep the words for messages."""
        self._words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def attached(self, words: Iterable[str]) -> list[str]:
        """Replace `-F -sym` among the words by `--fields=-sym`, as argparse would take the former for two options."""
        result: list[str] = []
        for word in words:
            option = self.dashed_values.get(result[-1]) if result else None
            if option and word.startswith("-"):
                result[-1:] = [f"{option}={word}"]
            else:
                result.append(word)
        return result

    def format_help(self) -> str:
        """Return argparse's help, followed by the verb's entry `below` of the options table, if it has one."""
        below = help_texts().get(self.prog.removeprefix(f"{PROGRAM} "), {}).get("below", "")
        return super().format_help() + (f"\n{below}" if below else "")

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with argparse's message and a known option that is spelled like the unknown one."""
        words = self._words if "required" in message else []
        if message.startswith(unknown := "unrecognized arguments: "):
            words = [self._as_typed(word) for word in message.removeprefix(unknown).split()]
            message = unknown + " ".join(words)
            if files := [word for word in words if os.path.exists(word)]:  # direct: words of an advice
                raise UsageError(f"{files[0]}: name the recording with -i")
        raise UsageError(f"{message} ({self._instead_of(words)}see '{self.prog} --help')")

    def _instead_of(self, words: Iterable[str]) -> str:
        """Return `did you mean OPTION? ` for the first of `words` that resembles a known option, else ""."""
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        options = [name for action in shown for name in action.option_strings if name.startswith("--")]
        unknown = (word.partition("=")[0] for word in words if word.startswith("--"))
        return next((spelled_like(name, options) for name in unknown if name not in options), "")

    def _as_typed(self, word: str) -> str:
        """Return a word as it was typed: of `-z99`, argparse of Python 3.14 reports `-99` as unknown."""
        if word in self._words:
            return word
        return next(filter(re.compile(f"-[^-]{re.escape(word[1:])}").fullmatch, self._words), word)


def spelled_like(word: str, names: Iterable[str]) -> str:
    """Return `did you mean NAME? ` for the one of `names` that is spelled like a word, "" for none."""
    import difflib

    return "".join(f"did you mean {name}? " for name in difflib.get_close_matches(word, names, 1, 0.75))


def accept_without_effect(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add options of perf that ask for the default behaviour of the verb; they are hidden from the help."""
    names = _WITHOUT_EFFECT[verb].split()
    parser.add_argument(*names, action="store_true", dest="_without_effect", help=argparse.SUPPRESS)


@functools.cache
def help_texts() -> dict[str, dict[str, str]]:
    """Return the options table: verb or `shared` → name of an entry → its text."""
    return dict(read_table(__file__))


def add_verb(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]", verb: str, **options: Any
) -> argparse.ArgumentParser:
    """Add the parser of a verb, with the texts of the options table, and return it. `options`: of Parser."""
    texts = help_texts()[verb]
    return subparsers.add_parser(verb, help=texts["help"], description=texts["description"], **options)


def load_verb(verb: str) -> ModuleType:
    """Import and return the module of a verb; it has `add_parser(subparsers)` and `run(args)` → exit status."""
    return importlib.import_module(f"perf_offcpu.commands.{VERBS[verb]}")


def make_parsers(verbs: Iterable[str]) -> tuple[Parser, dict[str, Parser]]:
    """Make the main parser with the parsers of `verbs`; return it, and verb → its parser."""
    parser = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [--version [-vv]] [--traceback] VERB [OPTIONS]",
        description="Where a program waits: record, read and show off-CPU time.",
        epilog=f"Options of a verb: {PROGRAM} VERB --help",
    )
    parser.add_argument(
        "--version", action="store_true", help="print the version and exit; with -vv also the environment"
    )
    parser.add_argument("-v", "--verbose", action="count", default=0, help=argparse.SUPPRESS)
    parser.add_argument("--traceback", action="store_true", help="show Python's traceback of an error")
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser] = parser.add_subparsers(
        title="verbs", metavar="VERB", prog=PROGRAM, parser_class=Parser
    )
    for verb in verbs:
        load_verb(verb).add_parser(subparsers)
    return parser, cast("dict[str, Parser]", dict(subparsers.choices))


LIST: Final[dict[str, Any]] = {"action": "append", "default": []}
"""Arguments of `add_argument` for an option that may be given several times."""


def add_options(
    group: argparse._ActionsContainer, name: str, values: Mapping[str, object] | None = None, **details: dict[str, Any]
) -> None:
    """Add the options of an entry (`name`: VERB.NAME) of the options table to a parser or a group. `values`: texts for
    names in braces; `details`: first long name of an option, as `no_pager` → further arguments of `add_argument`."""
    verb, _, name = name.partition(".")
    table = help_texts()[verb][name].format_map({**help_texts()["shared"], **(values or {})})
    for row in re.split(r"\n(?=-)", table.strip()):
        head, _, text = row.partition(": ")
        *names, last = head.split(", ")
        last, _, metavar = last.partition(" ")
        names.append(last)
        long = next((name for name in names if name.startswith("--")), last)
        shown: dict[str, Any] = {"metavar": metavar} if metavar else {}
        usual = {} if metavar else {"action": "store_true"}
        more = details.get(long.lstrip("-").replace("-", "_"), usual)
        group.add_argument(*names, help=" ".join(text.split()), **shown, **more)


def duration_s(text: str | None) -> float | None:
    """Parse the value of --duration to seconds; None if it is not given."""
    return None if text is None else parse_time("--duration", text, "s", least="1ns") / 1e9
