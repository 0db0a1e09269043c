# SPDX-License-Identifier: Apache-2.0
"""Declare options in a table of text, in the form of the help:

    -p, --pid PIDS: processes (17 or 17,18)
    -a, --all-cpus: the whole system

An option without a metavar is a switch. A line without a leading dash continues the text of the option above.
"""

from __future__ import annotations

import argparse
import re
from typing import Any, Final

from perf_offcpu.units import parse_time

LIST: Final[dict[str, Any]] = {"action": "append", "default": []}
"""Arguments of `add_argument` for an option that may be given several times."""


def add_options(group: argparse._ActionsContainer, table: str, **details: dict[str, Any]) -> None:
    """Add the options of a table to a parser or to a group of it.

    Args:
        details: first long name of an option (`no_pager`) → arguments of `add_argument` that are not in the
            table.
    """
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
    """Return the seconds of `--duration`; None if it is not given."""
    return None if text is None else parse_time("--duration", text, "s", least="1ns") / 1e9
