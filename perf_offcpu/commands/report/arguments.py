# SPDX-License-Identifier: Apache-2.0
"""Declare the options of `perf-offcpu report`, and make sort keys, limits and style of them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from perf_offcpu.commands.shared.causality import HELP as CRITICAL_PATH
from perf_offcpu.commands.shared.parsers import LIST, add_options
from perf_offcpu.commands.shared.printing import terminal_style
from perf_offcpu.commands.shared.profile import split_words
from perf_offcpu.errors import UsageError
from perf_offcpu.units import UNITS

if TYPE_CHECKING:
    from perf_offcpu.report.style import Style
    from perf_offcpu.report.summary import Limits

_THREADS, STACKS, _GROUPS = 25, 10, 25
"""Rows of tables without `--limit`."""

SORT_KEYS = "comm pid tid cpu event dso symbol state class syscall object waker cgroup blocked".split()
"""Sort keys, with perf's names where perf has them; see `callpaths.keys`."""
_ALIASES = {"sym": "symbol", "prev_state": "state"}

_ORDERS = ("caller", "callee", "none")
_OTHER_WORDS = "graph flat fractal folded function address branch percent period count value".split()
"""Words of perf report -g other than the order; they are ignored."""

_OUTPUT = f"""
--unit: unit of time (default: ms)
-g, --call-graph: stacks root first (caller, the default), leaf first (callee), or no stacks
-G, --inverted: same as -g caller
--no-call-graph: same as -g none
-s, --sort KEYS: a table by these keys, separated by commas, instead of by class: {", ".join(SORT_KEYS)}
--children: a table of functions, too: time of their own, and with their callees
--diff OLD: compare with an older recording: by class, function, object, comm and stack, and what is noise
--per WORK: with --diff: weights per 'second' recorded, of a 'run', or per unit of work: OLD,NEW units
  (default: run if both recorded the same command, else second)
--budget-by: rows of the thread budget (default: thread)
--fold-interpreters: functions of an interpreter as one frame: [CPython] (default: yes)
{CRITICAL_PATH.strip()}
--bottlenecks: the three threads or devices for which most was waited in the end, and their stacks
--serial: what ran while few threads of the program did (--comm, --pid), and the waits that one thread ends
--locks: each lock: who waited, how many at once, and who held or released it
--limit N: rows of each table, 0 for all (default: {_THREADS}, {STACKS} stacks; --json: all)
--summary: print only the table of causes that stands on top of the report
--no-verdict: leave out that table
--json: print a JSON document, weights as integers
--html OUT: write a page: threads in time, flame graph and tables of any part (as convert --html)
--no-pager: use no pager ($PERF_PAGER, $PAGER, less)
"""


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a view, its tables and its form."""
    order = {"nargs": "?", "type": _order, "const": "caller", "choices": _ORDERS, "default": "caller"}
    same = {"action": "store_const", "dest": "call_graph"}
    add_options(
        parser.add_argument_group("output"),
        _OUTPUT,
        unit={"choices": UNITS, "default": "ms"},
        call_graph=order,
        inverted=same | {"const": "caller"},
        no_call_graph=same | {"const": "none"},
        sort=LIST,
        budget_by={"choices": ("thread", "comm", "pid", "cgroup"), "default": "thread"},
        fold_interpreters={"action": argparse.BooleanOptionalAction, "default": True},
        limit={"type": int},
    )


def _order(text: str) -> str:
    """Return the order of stacks in a value that perf takes for `-g`: `graph,0.5,callee`."""
    words = text.split(",")
    orders = [word for word in words if word in _ORDERS]
    known = {*_ORDERS, *_OTHER_WORDS}
    unknown = [word for word in words if word not in known and not re.fullmatch(r"[\d.]+", word)]
    return unknown[0] if unknown else (*orders, "caller")[0]


def parse_keys(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the keys in comma-separated lists, each once."""
    keys = [_ALIASES.get(word, word) for word in split_words(texts)]
    for key in keys:
        if key not in SORT_KEYS:
            raise UsageError(f"--sort: no key '{key}' (known: {', '.join(SORT_KEYS)})")
    return tuple(dict.fromkeys(keys))


def limits_of(args: argparse.Namespace) -> Limits:
    """Return the rows of each table.

    Raises:
        UsageError: `--limit` is negative.
    """
    from perf_offcpu.report.summary import Limits

    if args.limit is not None and args.limit < 0:
        raise UsageError(f"--limit {args.limit}: not a number of rows, 0 for all")
    if args.limit is None:
        return Limits() if args.json else Limits(_THREADS, STACKS, _GROUPS)
    limit = args.limit or None
    return Limits(limit, limit, limit)


def style_of(args: argparse.Namespace) -> Style:
    """Return the style of the tables and stacks."""
    stacks = {"leaf_first": args.call_graph == "callee", "stacks": args.call_graph != "none"}
    return terminal_style(args, **stacks)
