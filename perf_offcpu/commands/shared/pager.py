# SPDX-License-Identifier: Apache-2.0
"""Run a pager for long output on a terminal, as perf and git do.

$PERF_PAGER, else $PAGER, else less; `cat` or an empty value: no pager. Unless $LESS is set, less quits if the
output fits on the screen (F), keeps colours (R), does not fold lines (S) and does not clear the screen (X).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from perf_offcpu.environment import child_environment

if TYPE_CHECKING:
    import subprocess


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
    with subprocess.Popen(
        command, shell=True, stdin=subprocess.PIPE, env=child_environment(LESS=less)
    ) as process:
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
