# SPDX-License-Identifier: Apache-2.0
"""Declare the options of the verbs of fleet, and make selections and limits of them."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from perf_offcpu.analysis.classes.wait_classes import BY_LABEL
from perf_offcpu.commands.shared.parsers import LIST, add_options
from perf_offcpu.commands.shared.profile import split_list, split_words
from perf_offcpu.errors import UsageError
from perf_offcpu.units import UNITS

if TYPE_CHECKING:
    from perf_offcpu.fleet.queries import Selected
    from perf_offcpu.fleet.selection import Selection
    from perf_offcpu.fleet.tables import Tables

SORT_KEYS = "host comm pid tid event state class syscall object waker cgroup container blocked".split()
"""Keys of `--sort`, as in `report`; every label of a host is a key, too."""
_SELECTION = f"""
--since TIME: from this time on, UTC: 2026-11-22T14:00, 14:00 (today), -2h, -3d; a wait is at its end
--until TIME: up to this time
--host NAMES: these hosts, by name or id
--label NAME=VALUE: hosts with this label: service=web; values of one label are alternatives
--event NAMES: samples of these events (default: offcpu-time)
--comm NAMES: threads of these names
--class CLASSES: waits of these classes: {", ".join(BY_LABEL)}
--object PATTERN: waits for objects whose name contains this: ledger_lock, 10.0.0.7:*; not a list
--container IDS: containers by the beginning of their ids
--idle: threads that merely wait for work: shown with the others (default), hidden, or shown alone
"""
_ENGINE = "--engine URL: duckdb (default, in this process), spark:MASTER, or a database: clickhouse://HOST/DB"
_OUTPUT = """
--unit: unit of time (default: ms)
--limit N: rows of each table, 0 for all (default: {limit})
--json: print a JSON document, weights as integers
--no-pager: use no pager ($PERF_PAGER, $PAGER, less)
"""


def add_dataset(parser: argparse.ArgumentParser) -> None:
    """Add the dataset and the engine."""
    parser.add_argument("dataset", metavar="DATASET", help="folder of the dataset, or s3://…, gs://…")
    add_options(parser, _ENGINE, engine={"default": "duckdb"})


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the options that select samples."""
    group = parser.add_argument_group("selection", "lists are separated by commas")
    lists = dict.fromkeys(("host", "label", "event", "comm", "object", "container"), LIST)
    add_options(
        group,
        _SELECTION,
        since={},
        until={},
        idle={"choices": ("show", "hide", "only"), "default": "show"},
        **lists,
        **{"class": LIST | {"dest": "wait_class"}},
    )


def add_output(parser: argparse.ArgumentParser, limit: int) -> None:
    """Add the options of tables on the terminal."""
    group = parser.add_argument_group("output")
    unit = {"choices": UNITS, "default": "ms"}
    add_options(group, _OUTPUT.format(limit=limit), unit=unit, limit={"type": int})
    parser.set_defaults(default_limit=limit)


def selection_of(args: argparse.Namespace, now_ns: int) -> Selection:
    """Return the selection of a command line; raise UsageError if a value is wrong."""
    from perf_offcpu.fleet.selection import Selection, parse_labels, parse_time

    classes = split_words(args.wait_class)
    if unknown := [name for name in classes if name not in BY_LABEL]:
        raise UsageError(f"--class: no class '{unknown[0]}' (known: {', '.join(BY_LABEL)})")
    times = [
        None if text is None else parse_time(option, text, now_ns)
        for option, text in (("--since", args.since), ("--until", args.until))
    ]
    if None not in times and times[0] >= times[1]:  # type: ignore[operator]
        raise UsageError(f"--since {args.since} is not before --until {args.until}")
    return Selection(
        since_ns=times[0],
        until_ns=times[1],
        hosts=split_words(args.host),
        labels=parse_labels("--label", args.label),
        events=split_list(args.event) or Selection().events,
        classes=classes,
        objects=tuple(args.object),
        comms=split_list(args.comm),
        containers=split_words(args.container),
        idle=args.idle,
    )


def opened(args: argparse.Namespace) -> Tables:
    """Open the dataset with its engine.

    Raises:
        UsageError: the dataset does not exist, or a package is missing.
        PerfOffcpuError: the engine does not answer.
    """
    from perf_offcpu.fleet.engine import connect
    from perf_offcpu.fleet.tables import open_tables

    return open_tables(args.dataset, connect(args.engine))


def selected(args: argparse.Namespace) -> Selected:
    """Return the selected samples of the dataset."""
    from perf_offcpu.fleet.queries import select

    selection = selection_of(args, time.time_ns())  # first: it may be wrong
    return select(opened(args), selection)


def parse_keys(texts: list[str], labels: list[str]) -> tuple[str, ...]:
    """Return the keys of `--sort`, each once.

    Raises:
        UsageError: a word is neither a key nor a label of a selected host.
    """
    keys = split_words(texts)
    from perf_offcpu.fleet.queries import is_column

    labels = [name for name in labels if not is_column(name)]  # these go before labels of the same name
    for key in keys:
        if key not in SORT_KEYS and key not in labels:
            known = f"known: {', '.join(SORT_KEYS)}; labels: {', '.join(labels) or 'none'}"
            raise UsageError(f"--sort: no key or label '{key}' ({known})")
    return tuple(dict.fromkeys(keys))


def limit_of(args: argparse.Namespace) -> int | None:
    """Return the largest number of rows of a table; None for all."""
    if args.limit is not None and args.limit < 0:
        raise UsageError(f"--limit {args.limit}: not a number of rows, 0 for all")
    if args.limit is None:
        return None if args.json else int(args.default_limit)
    return args.limit or None
