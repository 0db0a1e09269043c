# SPDX-License-Identifier: Apache-2.0
"""Recordings that a verb reads: option `-i`, and perf's check of who owns them."""

from __future__ import annotations

import argparse
import os
import stat
from typing import Any

from perf_offcpu.errors import PerfOffcpuError, UsageError

RECORDING = "perf.data"
"""The recording that is read if none is given."""


def add_one_input(parser: argparse.ArgumentParser) -> None:
    """Add `-i` and `-f` of a verb that reads one recording."""
    parser.add_argument(
        *("-i", "--input"), action=_OneInput, default=RECORDING, metavar="FILE", help=f"default: {RECORDING}"
    )
    add_force(parser)


def add_force(parser: argparse._ActionsContainer) -> None:
    """Add `-f`."""
    parser.add_argument("-f", "--force", action="store_true", help="read files that belong to other users")


class _OneInput(argparse.Action):
    """Store the recording; a second one is an error."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: Any = None) -> None:
        if getattr(namespace, self.dest) is not self.default:
            raise UsageError(
                "-i is given twice: one recording is read (report, script and convert join more)"
            )
        setattr(namespace, self.dest, values)


def check_ownership(path: str, force: bool) -> None:
    """Let a recording pass if it belongs to the user or to root, or the user insists.

    Standard input and FIFOs pass, as in perf (tools/perf/util/data.c, open_file_read()). A missing file is
    reported by the reader.

    Raises:
        PerfOffcpuError: it belongs to another user, who could have prepared it.
    """
    if force or path == "-":
        return
    try:
        status = os.stat(path)
    except OSError:
        return
    if not stat.S_ISFIFO(status.st_mode) and status.st_uid not in (0, os.geteuid()):
        raise PerfOffcpuError(f"{path}: not owned by the current user or root (use -f to read it anyway)")
