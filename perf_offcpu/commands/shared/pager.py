# SPDX-License-Identifier: Apache-2.0
"""Long output on a terminal goes through a pager, as in perf and git.

$PERF_PAGER, else $PAGER, else less; `cat` or nothing: none. If $LESS does not say otherwise, less leaves
alone what fits on one screen (F), keeps colours (R), does not fold lines (S), and stays where it is (X).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def paged(wanted: bool = True) -> Iterator[TextIO]:
    """Where to print: a pager if standard output is a terminal and one is wanted, else standard output.

    Raises:
        BrokenPipeError: the reader went away; who closes the pager early wants no more.
    """
    command = _pager() if wanted and sys.stdout.isatty() else ""
    if not command:
        yield sys.stdout
        return
    environment = {"LESS": "FRSX", **os.environ}
    with subprocess.Popen(command, shell=True, stdin=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        with (
            contextlib.suppress(BrokenPipeError),
            open(
                process.stdin.fileno(), "w", encoding="utf-8", errors="backslashreplace", closefd=False
            ) as out,
        ):
            yield out
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        _wait(process)


def _pager() -> str:
    if os.environ.get("TERM", "dumb") == "dumb":
        return ""
    for name in ("PERF_PAGER", "PAGER"):
        if name in os.environ:
            return "" if os.environ[name] in ("", "cat") else os.environ[name]
    return "less" if shutil.which("less") else ""


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Ctrl-C is the pager's business while it runs."""
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            process.wait()
            return
