# SPDX-License-Identifier: Apache-2.0
"""The command `perf-offcpu`: finds the verb, runs it, turns errors into one line and an exit status.

A verb is a module of `commands/` with two functions:

    add_parser(subparsers)   declares its options and help with `subparsers.add_parser(…)`
    run(args) -> int         does it and gives the exit status

Only the module of the verb that is asked for is imported (all of them for the overall help), and what it
needs beyond argparse it imports when it runs: help is instant, and a missing bcc troubles nobody who only
reads.

Exit status: 0 done, 1 it failed, 129 wrong usage (as perf), 130 interrupted, 141 the reader of a pipe went
away; `record` passes on that of the recorded command.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, cast

from perf_offcpu.commands.shared.perf_habits import VERBS as HABITS
from perf_offcpu.commands.shared.perf_habits import advice_on
from perf_offcpu.commands.shared.streams import replace_closed_streams
from perf_offcpu.errors import PerfOffcpuError, UsageError
from perf_offcpu.resources import version

PROGRAM = "perf-offcpu"
VERBS = {
    "record": "record.command",
    "report": "report",
    "script": "script",
    "convert": "convert",
    "inject": "inject",
    "archive": "archive",
    "dump": "dump",
    "doctor": "doctor.command",
    "scripts": "scripts",
    "completion": "completion",
}
"""Each verb's module in `commands`."""
_WITHOUT_NUMPY = frozenset({"doctor", "scripts", "completion"})
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
EXIT_USAGE = UsageError.exit_status
EXIT_INTERRUPTED = 128 + 2
EXIT_BROKEN_PIPE = 128 + 13


class Command(Protocol):
    """What a module of `commands/` offers."""

    def add_parser(self, subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        """Declare the verb's options."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it; the exit status."""


_UNWANTED_VALUE = re.compile(r"argument (-\w): ignored explicit argument '(.*)'")
"""What argparse says of `-z99`, where `-z` takes no value."""


class Parser(argparse.ArgumentParser):
    """argparse as all verbs want it: long options in full, examples as they were written, errors raised.

    Args:
        dashed_values: options whose value may begin with a dash (`-F -sym`), each with its long form.
        advice: what to say of options that are not there, see `commands.shared.perf_habits`.
        options: as for argparse.
    """

    def __init__(
        self,
        *,
        dashed_values: Mapping[str, str] | None = None,
        advice: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self.dashed_values, self.advice = dashed_values or {}, advice or {}
        options["description"] = textwrap.fill(options.get("description") or "", 100)
        options.setdefault("allow_abbrev", False)
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        self._words: list[str] = []
        super().__init__(**options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse; what was typed is kept for `error`."""
        self._words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def attached(self, words: Iterable[str]) -> list[str]:
        """The words; values that argparse would take for options become `--fields=-sym`."""
        result: list[str] = []
        for word in words:
            option = self.dashed_values.get(result[-1]) if result else None
            if option and word.startswith("-"):
                result[-1:] = [f"{option}={word}"]
            else:
                result.append(word)
        return result

    def error(self, message: str) -> NoReturn:
        """Called by argparse for anything wrong on the command line."""
        unknown = message.removeprefix("unrecognized arguments: ")
        if value := _UNWANTED_VALUE.fullmatch(message):
            unknown = "".join(value.groups())
        elif unknown != message:
            unknown = " ".join(map(self._as_typed, unknown.split()))
            message = f"unrecognized arguments: {unknown}"
        if unknown != message and (advice := advice_on(unknown.split(), self.advice)):
            raise UsageError(advice)
        raise UsageError(f"{message} (see '{self.prog} --help')")

    def _as_typed(self, word: str) -> str:
        """Newer argparse (seen in Python 3.14) takes `-z` out of `-z99` and tells of `-99`."""
        if word in self._words:
            return word
        attached = re.compile(f"-[^-]{re.escape(word[1:])}")
        return next(filter(attached.fullmatch, self._words), word)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and give the exit status; errors are one line on stderr.

    Raises:
        PerfOffcpuError, OSError: only with `--traceback` (or PERF_OFFCPU_TRACEBACK in the environment).
    """
    options, verb, rest = _split(sys.argv[1:] if argv is None else argv)
    developer = "--traceback" in options or bool(os.environ.get("PERF_OFFCPU_TRACEBACK"))
    prefix = f"{PROGRAM} {verb}" if verb in VERBS else PROGRAM
    return guard(prefix, lambda: _run(options, verb, rest), developer=developer)


def guard(prefix: str, run: Callable[[], int], *, developer: bool = False) -> int:
    """The exit status of `run`; what goes wrong becomes one line on stderr that begins with `prefix`.

    Raises:
        PerfOffcpuError, OSError: only for a developer.
    """
    replace_closed_streams()
    try:
        status = _status(run)
        sys.stdout.flush()  # a closed pipe shows itself here, not when Python has shut down
        return status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _detach_stdout()
        return EXIT_BROKEN_PIPE
    except (PerfOffcpuError, OSError) as problem:
        if developer:
            raise
        return _explain(prefix, problem)


def _status(run: Callable[[], int]) -> int:
    try:
        return run()
    except SystemExit as stop:  # from argparse: the help was printed, with 3.14 not yet flushed
        return stop.code if isinstance(stop.code, int) else 0


def _split(argv: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
    """(options of perf-offcpu itself, verb, everything behind it); own options take no values."""
    words = list(argv)
    for place, word in enumerate(words):
        if not word.startswith("-"):
            return words[:place], word, words[place + 1 :]
    return words, None, []


def _run(options: list[str], verb: str | None, rest: list[str]) -> int:
    if verb is not None and verb not in VERBS:
        instead = f"use {HABITS[verb]}" if verb in HABITS else f"see '{PROGRAM} --help'"
        raise UsageError(f"'{verb}' is not a verb of {PROGRAM} ({instead})")
    parser, verbs = _parsers(VERBS if verb is None else (verb,))
    chosen = parser.parse_args(options)
    if chosen.version:
        _print_versions(chosen.verbose)
        return 0
    if verb is None:
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    options_of_verb = cast(Parser, verbs[verb])
    args = options_of_verb.parse_args(options_of_verb.attached(rest))
    if verb not in _WITHOUT_NUMPY:
        _import_numpy()
    return _load(verb).run(args)


def _import_numpy() -> None:
    """Import numpy without the threads that its BLAS starts, one for each CPU: none of it is used here.

    It is told by the environment, which a command that is recorded must not see.
    """
    if "numpy" not in sys.modules and _BLAS_THREADS not in os.environ:
        os.environ[_BLAS_THREADS] = "1"
        try:
            importlib.import_module("numpy")
        finally:
            del os.environ[_BLAS_THREADS]


def _print_versions(verbose: int) -> None:
    """As `perf version -vv`: what a bug report should tell."""
    print(f"{PROGRAM} version {version()}")
    if verbose >= 2:
        from perf_offcpu.commands.shared.versions import surroundings

        for name, found in surroundings():
            print(f"{name:>20}: {found}")


def _load(verb: str) -> Command:
    return cast(Command, importlib.import_module(f"perf_offcpu.commands.{VERBS[verb]}"))


def _parsers(verbs: Iterable[str]) -> tuple[Parser, dict[str, argparse.ArgumentParser]]:
    """The parser of what stands before the verb, and that of each verb."""
    parser = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [--version [-vv]] [--traceback] VERB [OPTIONS]",
        description="Where a program waits: record, read and show off-CPU time.",
        epilog=f"Options of a verb: {PROGRAM} VERB --help",
    )
    parser.add_argument(
        "--version", action="store_true", help="print the version and exit; with -vv: also what it runs on"
    )
    parser.add_argument("-v", "--verbose", action="count", default=0, help=argparse.SUPPRESS)
    parser.add_argument("--traceback", action="store_true", help="show Python's traceback of an error")
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser] = parser.add_subparsers(
        title="verbs", metavar="VERB", prog=PROGRAM, parser_class=Parser
    )
    for verb in verbs:
        _load(verb).add_parser(subparsers)
    return parser, dict(subparsers.choices)


_NAMELESS = {errno.ENOSPC: "standard output or a temporary file (in $TMPDIR or /tmp): "}
"""What cannot be written when an error names no file."""


def _explain(prefix: str, problem: PerfOffcpuError | OSError) -> int:
    """Print one line; names inside it come from files and must not drive the terminal."""
    from perf_offcpu.text import printable

    text = str(problem)
    if isinstance(problem, OSError) and problem.strerror:
        name = (
            f"{os.fsdecode(problem.filename)}: "
            if problem.filename
            else _NAMELESS.get(problem.errno or 0, "")
        )
        remedy = ": raise the limit with ulimit -n" if problem.errno == errno.EMFILE else ""
        text = f"{name}{problem.strerror}{remedy}"
    print(f"{prefix}: {printable(text)}", file=sys.stderr)
    return problem.exit_status if isinstance(problem, PerfOffcpuError) else 1


def _detach_stdout() -> None:
    """Let Python flush what is left into nowhere when it exits."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
