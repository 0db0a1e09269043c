# SPDX-License-Identifier: Apache-2.0
"""Print tables, through a pager on a terminal, and JSON documents."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TextIO

from perf_offcpu.commands.shared.pager import paged
from perf_offcpu.commands.shared.streams import columns

if TYPE_CHECKING:
    from perf_offcpu.report.style import Style


def print_json(document: object, default: Callable[[Any], Any] | None = None) -> int:
    """Print a JSON document and return the exit status.

    Args:
        default: converts a value that JSON cannot express.
    """
    import json

    json.dump(document, sys.stdout, indent=1, default=default)
    print()
    return 0


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
