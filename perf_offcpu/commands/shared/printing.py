# SPDX-License-Identifier: Apache-2.0
"""Print tables, through a pager on a terminal, and JSON documents.

$PERF_PAGER, else $PAGER, else less; `cat` or an empty value: no pager. Unless $LESS is set, less quits if the
output fits on the screen (F), keeps colours (R), does not fold lines (S) and does not clear the screen (X).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from perf_offcpu.commands.shared.streams import columns
from perf_offcpu.environment import child_environment
from perf_offcpu.errors import UsageError

if TYPE_CHECKING:
    import subprocess

    from perf_offcpu.report.style import Style


@contextlib.contextmanager
def paged(wanted: bool = True) -> Iterator[TextIO]:
    """Yield a pager's standard input if stdout is a terminal and a pager is wanted, else stdout.

    Raises:
        BrokenPipeError: the reader of stdout went away; closing the pager early is no error.
    """
    command = _pager() if wanted and sys.stdout.isatty() else ""
    if not command:
        yield sys.stdout
        return
    import subprocess

    less = os.environ.get("LESS", "FRSX")
    with subprocess.Popen(command, shell=True, stdin=subprocess.PIPE, env=child_environment(LESS=less)) as process:
        assert process.stdin is not None
        with (
            contextlib.suppress(BrokenPipeError),
            open(  # direct: a pipe that is open
                process.stdin.fileno(), "w", encoding="utf-8", errors="backslashreplace", closefd=False
            ) as out,
        ):
            yield out
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        _wait(process)


def _pager() -> str:
    """Return the pager's command line; "" for no pager."""
    from shutil import which

    if os.environ.get("TERM", "dumb") == "dumb":
        return ""
    for name in ("PERF_PAGER", "PAGER"):
        if name in os.environ:
            return "" if os.environ[name] in ("", "cat") else os.environ[name]
    return "less" if which("less") else ""


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Wait for the pager; while it runs, only the pager handles Ctrl-C."""
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            process.wait()
            return


def print_json(document: object, default: Callable[[Any], Any] | None = None) -> int:
    """Print a JSON document and return the exit status. `default` converts values that JSON cannot express."""
    import json

    json.dump(document, sys.stdout, indent=1, default=default)
    print()
    return 0


def print_view(
    args: argparse.Namespace,
    document: Callable[[], object],
    lines: Iterable[str],
    default: Callable[[Any], Any] | None = None,
) -> int:
    """Print the document if `--json` is given, else the lines, and return the exit status."""
    return print_json(document(), default) if args.json else print_lines(lines, args)


def print_lines(lines: Iterable[str], args: argparse.Namespace) -> int:
    """Print lines, through a pager unless `--no-pager` is given, and return the exit status."""
    with paged(not args.no_pager) as out:
        write_lines(lines, out)
    return 0


def write_lines(lines: Iterable[str], out: TextIO) -> None:
    """Write lines; characters that the encoding of `out` lacks are escaped."""
    encoding = out.encoding or "utf-8"
    for line in lines:
        print(line.encode(encoding, "backslashreplace").decode(encoding), file=out)


def limit_from_args(args: argparse.Namespace, usual: int) -> int | None:
    """Return the largest number of rows of a table, None for all: of `--limit`, else all of JSON, else `usual`."""
    if args.limit is not None and args.limit < 0:
        raise UsageError(f"--limit {args.limit}: not a number of rows, 0 for all")
    if args.limit is None:
        return None if args.json else usual
    return args.limit or None


def terminal_style(args: argparse.Namespace, *, leaf_first: bool = False, stacks: bool = True) -> Style:
    """Return the style of tables: the unit of `--unit`; width and colours of the terminal, if it is one."""
    from perf_offcpu.report.style import Style

    terminal = sys.stdout.isatty()
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return Style(
        unit=args.unit,
        leaf_first=leaf_first,
        width=columns() if terminal else None,
        color=terminal and not plain,
        stacks=stacks,
    )
