# SPDX-License-Identifier: Apache-2.0
"""Declare the option `-i` of a verb that reads one recording, and check owners of recordings as perf does."""

import argparse
import glob
import os
import stat
import sys
from collections.abc import Mapping
from typing import Any

from perf_offcpu import losses
from perf_offcpu.commands.shared.parsers import add_options
from perf_offcpu.errors import PerfOffcpuError, UsageError
from perf_offcpu.losses import LossCause
from perf_offcpu.text import printable

RECORDING = "perf.data"
"""The default recording."""
FORCE = "-f, --force: read files that belong to other users"
_INPUT = f"-i, --input FILE: default: {RECORDING}\n{FORCE}"


def add_one_input(parser: argparse.ArgumentParser) -> None:
    """Add `-i` and `-f` of a verb that reads one recording."""
    add_options(parser, _INPUT, input={"action": _OneInput, "default": RECORDING})


class _OneInput(argparse.Action):
    """Store the recording; a second one is an error."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: Any = None) -> None:
        if getattr(namespace, self.dest) is not self.default:
            raise UsageError("-i is given twice: one recording is read (report, script and convert join more)")
        setattr(namespace, self.dest, values)


def check_ownership(path: str, force: bool) -> None:
    """Refuse a recording of another user, who could have prepared it, unless `--force` is given.

    Files of a recording in a directory are checked, too. Standard input and FIFOs are accepted, as in perf
    (tools/perf/util/data.c, open_file_read()). A missing file is reported by the reader.
    """
    if force or path == "-":
        return
    # direct: names are listed; every file is opened by `files` later, and read as a hostile one
    for name in (path, *glob.glob(f"{glob.escape(path)}/data*")):
        try:
            status = os.stat(name)  # direct: asks whose it is
        except OSError:
            continue
        if not stat.S_ISFIFO(status.st_mode) and status.st_uid not in (0, os.geteuid()):
            raise PerfOffcpuError(f"{name}: not owned by the current user or root (use -f to read it anyway)")


def note_cut(args: argparse.Namespace, path: str, counts: Mapping[LossCause, int]) -> bool:
    """Report on stderr that a recording with these losses is cut, or has no end; return True if so.

    A cut recording is added to `args.cut`, a list that all copies of the command line share: the verb does its work,
    and the exit status says that it was cut.
    """
    causes = [cause for cause in losses.CUT if counts.get(cause)]
    if causes:
        what = "; ".join(f"{counts[cause]} {cause}" for cause in causes)
        print(f"perf-offcpu: {printable(path)}: {what}", file=sys.stderr, flush=True)
    if causes and losses.NO_END not in causes:
        args.cut.append(path)
    return bool(causes)
