# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu fleet: query a dataset, the recordings of many hosts, and maintain its files."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from perf_offcpu.analysis.classes.wait_classes import BY_LABEL
from perf_offcpu.commands.shared.files import open_output
from perf_offcpu.commands.shared.parsers import LIST, Parser, add_options, add_verb
from perf_offcpu.commands.shared.profile import IDLE_CHOICES, known_words, split_list, split_words
from perf_offcpu.commands.shared.streams import limit_from_args, print_json, print_view, terminal_style, write_lines
from perf_offcpu.errors import UsageError
from perf_offcpu.text import printable
from perf_offcpu.units import UNITS, parse_time

if TYPE_CHECKING:
    from perf_offcpu.dataset.dataset import Dataset
    from perf_offcpu.fleet.queries import Selected
    from perf_offcpu.fleet.selection import Selection
    from perf_offcpu.fleet.tables import Tables

_DATASET = "folder of the dataset, or s3://…, gs://…"
_GIGA = 10**9
_ROWS, _STACKS, _EXAMPLES = 25, 10, 3
_ATTEMPTS = 3
SORT_KEYS = (
    *"host comm pid tid event state class syscall object waker cgroup".split(),
    *"container pod namespace container_name image blocked".split(),
)
"""Keys of `--sort`, as in `report`; every label of a host is a key, too."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of this verb, with its subverbs and their options, to `subparsers`."""
    parser = add_verb(subparsers, "fleet", dashed_values={"--since": "--since", "--until": "--until"})
    verbs = parser.add_subparsers(dest="fleet_verb", metavar="VERB", required=True, parser_class=Parser)

    def add(verb: str, text: str, run: Callable[[argparse.Namespace], int], *, asks: bool = True) -> Parser:
        """Add a subverb, and return its parser; `asks`: it queries the dataset, so it has the option --engine."""
        added: Parser = verbs.add_parser(verb, help=text)
        added.set_defaults(fleet_run=run)
        added.add_argument("dataset", metavar="DATASET", help=_DATASET)
        if asks:
            add_options(added, "fleet.engine", engine={"default": "duckdb"})
        return added

    report = add("report", "who waited for what: by class, service, host, comm", _report)
    add_options(report, "fleet.report", {"keys": ", ".join(SORT_KEYS)}, sort=LIST)
    _add_selection(report)
    _add_output(report, _ROWS)

    top = add("top", "the stacks that waited longest", _top)
    _add_selection(top)
    _add_output(top, _STACKS)

    waits = add("waits", "the longest single waits, each with its stack", _waits)
    _add_selection(waits)
    _add_output(waits, _EXAMPLES)

    flamegraph = add("flamegraph", "a flame graph of the selected samples", _flamegraph)
    add_options(flamegraph, "fleet.flamegraph", output={"required": True})
    _add_selection(flamegraph)

    diff = add("diff", "two selections compared; or hosts that are unlike the others", _diff)
    add_options(diff, "fleet.diff", sort=LIST)
    _add_selection(diff)
    _add_output(diff, _ROWS)

    path = add("path", "what the processes at the other end of TCP connections did while threads waited", _path)
    _add_selection(path)
    _add_output(path, _ROWS)

    sql = add("sql", "a query in the engine's own SQL", _sql)
    sql.add_argument("query", metavar="QUERY", help="tables: samples, stacks, frames, budgets, hosts, losses, gaps")
    add_options(sql, "fleet.sql")

    add("compact", "merge the small files of each past hour", _compact, asks=False)
    expire = add("expire", "remove the recordings of old hours", _expire, asks=False)
    add_options(expire, "fleet.expire", older_than={"required": True})


def _add_selection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("selection", "lists are separated by commas")
    lists = dict.fromkeys(("host", "label", "event", "comm", "object", "container"), LIST)
    lists["class"] = LIST | {"dest": "wait_class"}
    add_options(group, "fleet.selection", {"classes": ", ".join(BY_LABEL)}, idle=IDLE_CHOICES, **lists)


def _add_output(parser: argparse.ArgumentParser, limit: int) -> None:
    group = parser.add_argument_group("output")
    unit = {"choices": UNITS, "default": "ms"}
    add_options(group, "fleet.output", {"limit": limit}, unit=unit, limit={"type": int})


def _selection(args: argparse.Namespace, now_ns: int) -> Selection:
    """Return the selection that the command line asks for; raise UsageError if a value is wrong."""
    from perf_offcpu.fleet.selection import Selection, parse_labels
    from perf_offcpu.fleet.selection import parse_time as parse_moment

    classes = known_words("class", args.wait_class, BY_LABEL)
    since_ns, until_ns = (
        None if text is None else parse_moment(option, text, now_ns)
        for option, text in (("--since", args.since), ("--until", args.until))
    )
    if since_ns is not None and until_ns is not None and since_ns >= until_ns:
        raise UsageError(f"--since {args.since} is not before --until {args.until}")
    return Selection(
        since_ns=since_ns,
        until_ns=until_ns,
        hosts=split_words(args.host),
        labels=parse_labels("--label", args.label),
        events=split_list(args.event) or Selection().events,
        classes=classes,
        objects=tuple(args.object),
        comms=split_list(args.comm),
        containers=split_words(args.container),
        idle=args.idle,
    )


def _tables(args: argparse.Namespace) -> Tables:
    """Open the dataset with --engine; raise UsageError if it is missing, PerfOffcpuError if the engine fails."""
    from perf_offcpu.fleet.engine import connect
    from perf_offcpu.fleet.tables import open_tables

    return open_tables(args.dataset, connect(args.engine))


def _selected(args: argparse.Namespace) -> Selected:
    from perf_offcpu.fleet.queries import select

    selection = _selection(args, time.time_ns())  # first: it may be wrong
    return select(_tables(args), selection)


def _parse_keys(texts: list[str], labels: list[str]) -> tuple[str, ...]:
    """Return the keys in the values of --sort, each once; raise UsageError unless they are in SORT_KEYS or `labels`."""
    keys = split_words(texts)
    from perf_offcpu.fleet.queries import is_column

    labels = [name for name in labels if not is_column(name)]  # these go before labels of the same name
    for key in keys:
        if key not in SORT_KEYS and key not in labels:
            choices = f"known: {', '.join(SORT_KEYS)}; labels: {', '.join(labels) or 'none'}"
            raise UsageError(f"--sort: no key or label '{key}' ({choices})")
    return tuple(dict.fromkeys(keys))


def run(args: argparse.Namespace) -> int:
    """Run the subverb, again if files were compacted or expired meanwhile, and return the exit status."""
    from perf_offcpu.fleet.engine import FileGoneError

    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(FileGoneError):
            return int(args.fleet_run(args))
    return int(args.fleet_run(args))


def _report(args: argparse.Namespace) -> int:
    from perf_offcpu.fleet import document, text
    from perf_offcpu.fleet.causes import causes_of
    from perf_offcpu.fleet.report import head_of, tables_of

    limit, selected = limit_from_args(args, _ROWS), _selected(args)
    keys = _parse_keys(args.sort, selected.label_names)
    head, (tables, idle) = head_of(selected), tables_of(selected, keys, limit)
    causes = causes_of(selected)
    lines = text.report(head, tables, idle, causes, terminal_style(args))
    return print_view(args, lambda: document.report(head, tables, idle, causes), lines, str)


def _top(args: argparse.Namespace) -> int:
    from perf_offcpu.fleet import document, text
    from perf_offcpu.fleet.report import head_of, stacks_of

    limit, selected = limit_from_args(args, _STACKS), _selected(args)
    head, table = head_of(selected), stacks_of(selected, limit)
    return print_view(args, lambda: document.stacks(head, table), text.stacks(head, table, terminal_style(args)), str)


def _waits(args: argparse.Namespace) -> int:
    from perf_offcpu.fleet import document
    from perf_offcpu.fleet.report import head_of
    from perf_offcpu.fleet.waits import longest_waits, wait_lines

    limit, selected = limit_from_args(args, _EXAMPLES), _selected(args)
    waits, head = longest_waits(selected, limit), head_of(selected)
    return print_view(args, lambda: document.waits(head, waits), wait_lines(waits, head, terminal_style(args)), str)


def _diff(args: argparse.Namespace) -> int:
    from perf_offcpu.fleet import document
    from perf_offcpu.fleet.diff import text
    from perf_offcpu.fleet.diff.compare import compare
    from perf_offcpu.fleet.diff.outliers import outliers_of
    from perf_offcpu.fleet.queries import select
    from perf_offcpu.fleet.report import head_of
    from perf_offcpu.fleet.selection import baseline

    limit, now, style = limit_from_args(args, _ROWS), time.time_ns(), terminal_style(args)
    selection = _selection(args, now)
    old = None if args.baseline is None else baseline(selection, args.baseline, now)
    tables = _tables(args)
    new_side = select(tables, selection)
    keys = _parse_keys(args.sort, new_side.label_names) or ("class",)
    if wrong := {"host", "blocked"}.intersection(keys):
        raise UsageError(f"--sort {wrong.pop()} does not apply: hosts are the samples of a comparison")
    head = head_of(new_side)
    if old is None:
        unlike = outliers_of(new_side, keys)
        lines = text.outliers(unlike, head, style, limit)
        return print_view(args, lambda: document.outliers(unlike, head), lines, str)
    before = select(tables, old)
    comparison, old_head = compare(before, new_side, keys), head_of(before)
    lines = text.comparison(comparison, old_head, head, style, limit)
    return print_view(args, lambda: document.comparison(comparison, old_head, head), lines, str)


def _path(args: argparse.Namespace) -> int:
    from perf_offcpu.fleet import document
    from perf_offcpu.fleet.path import path, path_of
    from perf_offcpu.fleet.report import head_of

    limit, selected = limit_from_args(args, _ROWS), _selected(args)
    head, followed = head_of(selected), path_of(selected)
    lines = path(followed, head, terminal_style(args), limit)
    return print_view(args, lambda: document.path(followed, head), lines, str)


def _flamegraph(args: argparse.Namespace) -> int:
    from perf_offcpu.convert.registry import FORMATS, Options
    from perf_offcpu.fleet.queries import profile_of_selected, title_of

    selected = _selected(args)
    profile, title = profile_of_selected(selected), title_of(selected)
    with open_output(args.output, binary=False) as out:
        FORMATS["flamegraph"].write(profile, out, Options(title=title))
    return 0


def _sql(args: argparse.Namespace) -> int:
    from perf_offcpu.fleet.tables import ask, document, lines

    columns = ask(_tables(args), args.query)
    if args.json:
        return print_json(document(columns))
    write_lines(lines(columns), sys.stdout)
    return 0


def _opened(path: str) -> Dataset:
    """Open the dataset `path` to change its files; raise UsageError if it is no dataset."""
    from perf_offcpu.dataset.dataset import open_dataset
    from perf_offcpu.dataset.schema import TABLES

    dataset = open_dataset(path)
    if not {*TABLES} & {*dataset.store.names("")}:
        raise UsageError(f"{printable(path)}: no dataset: it has no folder samples")
    return dataset


def _compact(args: argparse.Namespace) -> int:
    from perf_offcpu.dataset.compact import SETTLED_S, Compacted, compact

    total, status = Compacted(), 0
    for folder, done in compact(_opened(args.dataset), time.time_ns() - SETTLED_S * _GIGA):
        if isinstance(done, Compacted):
            total.add(done)
            continue
        left = f"{printable(folder)} is left as it is: {printable(str(done))}"
        print(f"perf-offcpu fleet: {left}", file=sys.stderr)
        status = 1
    if not total.hours and not status:
        print("nothing to merge: no hour that ended more than an hour ago has several files")
        return status
    before, after = f"{total.bytes_before:,} bytes", f"{total.bytes_after:,}"
    print(f"{total.files:,} files became {total.hours:,}; {before} became {after}")
    return status


def _expire(args: argparse.Namespace) -> int:
    from perf_offcpu.dataset.compact import expire

    age_ns = parse_time("--older-than", args.older_than, "", least="1h")
    done = expire(_opened(args.dataset), time.time_ns() - age_ns)
    print(f"{done.hours:,} hour{'s' * (done.hours != 1)} removed, {done.files:,} files")
    return 0
