# SPDX-License-Identifier: Apache-2.0
"""Handle standard streams: replace closed ones, show a progress bar, page output, print JSON documents.

Python has None for a stream that was closed when the program started (`>&-`), and the next opened file gets its
number, so that output of C code would go into a recording. So the numbers are occupied, and writing to closed
standard output raises OSError.

The pager is $PERF_PAGER, else $PAGER, else less; `cat` or an empty value: none. Unless $LESS is set, less quits if
the output fits on the screen (F), keeps colours (R), does not fold lines (S) and does not clear the screen (X)."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from perf_offcpu.environment import child_environment
from perf_offcpu.errors import UsageError

if TYPE_CHECKING:
    import subprocess
    from threading import Event

    from perf_offcpu.report.style import Style


class _Closed:
    """Base of streams that stand for closed standard output: writing raises OSError."""

    def writable(self) -> bool:
        return True

    def write(self, _data: Any, /) -> NoReturn:
        raise OSError(errno.EBADF, "standard output is closed")


class _ClosedBytes(_Closed, io.RawIOBase):
    pass


class _ClosedText(_Closed, io.TextIOBase):
    buffer, encoding = _ClosedBytes(), "utf-8"


def stdout_is_closed() -> bool:
    """Return True if standard output was closed when the program started."""
    return sys.stdout is None or isinstance(sys.stdout, _ClosedText)


def columns() -> int:
    """Return the terminal's width in columns, as shutil.get_terminal_size does, whose import costs 3 ms."""
    try:
        return int(os.environ.get("COLUMNS", "0")) or os.get_terminal_size(1).columns or 80
    except (ValueError, OSError):
        return 80


def replace_closed_streams() -> None:
    """Open closed standard streams: stdin is empty, writes to stdout raise OSError, writes to stderr are ignored."""
    if sys.stdin is None:
        os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # the lowest free number: 0
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  as long as the program runs
    if sys.stdout is None:
        os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        sys.stdout = _ClosedText()
    if sys.stderr is None:
        os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


_AFTER_S, _EVERY_S = 1.0, 0.2
_WIDTH = 20


@contextlib.contextmanager
def busy(what: str) -> Iterator[None]:
    """Show on stderr, if it is a terminal, a moving bar, the work `what` and its seconds so far, from the first second
    of the `with` block to its end. The bar moves to and fro, as the remaining time is unknown."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    import threading

    done = threading.Event()
    thread = threading.Thread(target=_show, args=(what, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _show(what: str, done: Event) -> None:
    """Draw the bar of `busy`, in a thread, until `done` is set."""
    begin = time.monotonic()
    if done.wait(_AFTER_S):
        return
    color, plain = ("", "") if os.environ.get("NO_COLOR") else ("\x1b[36m", "\x1b[0m")
    for step in itertools.count():
        if done.wait(_EVERY_S):
            break
        seconds = time.monotonic() - begin
        print(f"\r{color}{bar(step)}{plain} {what}, {seconds:.0f} s", end="", file=sys.stderr, flush=True)
    print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def bar(step: int) -> str:
    """Return the picture of a bar at a step: a block that moves to and fro."""
    left = abs((step + _WIDTH) % (2 * _WIDTH) - _WIDTH)
    return f"[{' ' * left}={' ' * (_WIDTH - left)}]"


@contextlib.contextmanager
def paged(wanted: bool = True) -> Iterator[TextIO]:
    """Yield the standard input of a pager if stdout is a terminal and a pager is `wanted`, else stdout. A pager that is
    closed early is no error; BrokenPipeError is raised if the reader of stdout is gone."""
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
    """Return the command line of the pager, "" for none."""
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
    """Print a JSON document and return the exit status, 0. `default`: converts values that JSON cannot express."""
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
    """Print the JSON document that `document` makes if --json is given, else `lines`; return the exit status, 0."""
    return print_json(document(), default) if args.json else print_lines(lines, args)


def print_lines(lines: Iterable[str], args: argparse.Namespace) -> int:
    """Print lines, through a pager unless --no-pager is given; return the exit status, 0."""
    with paged(not args.no_pager) as out:
        write_lines(lines, out)
    return 0


def write_lines(lines: Iterable[str], out: TextIO) -> None:
    """Write lines; characters that the encoding of `out` lacks are escaped."""
    encoding = out.encoding or "utf-8"
    for line in lines:
        print(line.encode(encoding, "backslashreplace").decode(encoding), file=out)


def limit_from_args(args: argparse.Namespace, usual: int) -> int | None:
    """Return the number of rows to print (None: all) that --limit asks for; without it, all for --json, else `usual`.
    Raise UsageError for a negative number."""
    if args.limit is not None and args.limit < 0:
        raise UsageError(f"--limit {args.limit}: not a number of rows, 0 for all")
    if args.limit is None:
        return None if args.json else usual
    return args.limit or None


def terminal_style(args: argparse.Namespace, *, leaf_first: bool = False, stacks: bool = True) -> Style:
    """Return the style of tables: the unit of --unit, and width and colours of stdout if it is a terminal.
    `leaf_first`, `stacks`: order of stacks, and whether they are shown."""
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
