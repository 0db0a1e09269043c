# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu fleet: show a dataset, the recordings of many hosts, in the tables of the report."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

from perf_offcpu.commands.fleet.arguments import (
    SORT_KEYS,
    add_dataset,
    add_output,
    add_selection,
    limit_of,
    opened,
    parse_keys,
    selected,
    selection_of,
)
from perf_offcpu.commands.shared.output import open_output
from perf_offcpu.commands.shared.parsers import LIST, Parser, add_options
from perf_offcpu.commands.shared.printing import print_json, print_lines, terminal_style, write_lines
from perf_offcpu.errors import UsageError
from perf_offcpu.text import printable
from perf_offcpu.units import parse_time

if TYPE_CHECKING:
    from perf_offcpu.dataset.dataset import Dataset


_ROWS, _STACKS = 25, 10
_ATTEMPTS = 3
_DIFF = """
--baseline SELECTION: what to compare with, as differs: version=1.4, or since=-2d,until=-1d, or host=web1;
  without it: hosts that are unlike the others
-s, --sort KEYS: the first table by these keys, separated by commas (default: class)
"""
EXAMPLES = """examples:
  perf-offcpu fleet report DATASET                       who waited for what: by class, service, host, comm
  perf-offcpu fleet report DATASET --label service=web --since -1h
  perf-offcpu fleet report DATASET --sort service,class  one table by these keys; labels are keys
  perf-offcpu fleet top DATASET --class lock             the stacks that waited longest
  perf-offcpu fleet flamegraph DATASET -o out.html       for a browser
  perf-offcpu fleet diff DATASET --label version=2.0 --baseline version=1.9   what changed since the release
  perf-offcpu fleet diff DATASET --since -1h --baseline since=-25h,until=-24h  than yesterday at this time
  perf-offcpu fleet diff DATASET --label service=web     which host is unlike the others
  perf-offcpu fleet sql DATASET "SELECT count(*) FROM samples"
  perf-offcpu fleet compact DATASET                      every hour: merge its small files
  perf-offcpu fleet expire DATASET --older-than 30d      every day: remove what is old
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subverbs with their options."""
    parser = subparsers.add_parser(
        "fleet",
        help="ask the recordings of many hosts: tables, flame graphs, SQL",
        description="Ask a dataset: the recordings of many hosts as Parquet files.",
        epilog=EXAMPLES,
        dashed_values={"--since": "--since", "--until": "--until"},
    )
    verbs = parser.add_subparsers(dest="fleet_verb", metavar="VERB", required=True, parser_class=Parser)
    report = verbs.add_parser("report", help="who waited for what: by class, service, host, comm")
    add_dataset(report)
    keys = f"a table by these keys, separated by commas, instead: {', '.join(SORT_KEYS)}, or labels"
    add_options(report, f"-s, --sort KEYS: {keys}", sort=LIST)
    add_selection(report)
    add_output(report, _ROWS)
    report.set_defaults(fleet_run=_report)

    top = verbs.add_parser("top", help="the stacks that waited longest")
    add_dataset(top)
    add_selection(top)
    add_output(top, _STACKS)
    top.set_defaults(fleet_run=_top)

    flamegraph = verbs.add_parser("flamegraph", help="a flame graph of the selected samples")
    add_dataset(flamegraph)
    add_options(flamegraph, "-o, --output OUT: HTML file to write (-: standard output)", output={"required": True})
    add_selection(flamegraph)
    flamegraph.set_defaults(fleet_run=_flamegraph)

    diff = verbs.add_parser("diff", help="two selections compared; or hosts that are unlike the others")
    add_dataset(diff)
    add_options(diff, _DIFF, sort=LIST, baseline={})
    add_selection(diff)
    add_output(diff, _ROWS)
    diff.set_defaults(fleet_run=_diff)

    sql = verbs.add_parser("sql", help="a query in the engine's own SQL")
    add_dataset(sql)
    sql.add_argument("query", metavar="QUERY", help="tables: samples, stacks, frames, budgets, hosts, losses, gaps")
    add_options(sql, "--json: print a JSON document")
    sql.set_defaults(fleet_run=_sql)
    add_verbs(verbs)


def run(args: argparse.Namespace) -> int:
    """Run the verb and return the exit status; again if files were compacted or expired meanwhile."""
    from perf_offcpu.fleet.engine import FileGoneError

    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(FileGoneError):
            return int(args.fleet_run(args))
    return int(args.fleet_run(args))


def _report(args: argparse.Namespace) -> int:
    from perf_offcpu.fleet import document, text
    from perf_offcpu.fleet.report import head_of, tables_of

    limit, selected_rows = limit_of(args), selected(args)
    keys = parse_keys(args.sort, selected_rows.label_names)
    head, (tables, idle) = head_of(selected_rows), tables_of(selected_rows, keys, limit)
    if args.json:
        return print_json(document.report(head, tables, idle), default=str)
    return print_lines(text.report(head, tables, idle, terminal_style(args)), args)


def _top(args: argparse.Namespace) -> int:
    from perf_offcpu.fleet import document, text
    from perf_offcpu.fleet.report import head_of, stacks_of

    limit, selected_rows = limit_of(args), selected(args)
    head, table = head_of(selected_rows), stacks_of(selected_rows, limit)
    if args.json:
        return print_json(document.stacks(head, table), default=str)
    return print_lines(text.stacks(head, table, terminal_style(args)), args)


def _diff(args: argparse.Namespace) -> int:
    from perf_offcpu.fleet import document
    from perf_offcpu.fleet.diff import text
    from perf_offcpu.fleet.diff.compare import compare
    from perf_offcpu.fleet.diff.outliers import outliers_of
    from perf_offcpu.fleet.queries import select
    from perf_offcpu.fleet.report import head_of
    from perf_offcpu.fleet.selection import baseline

    limit, now = limit_of(args), time.time_ns()
    selection = selection_of(args, now)
    old = None if args.baseline is None else baseline(selection, args.baseline, now)
    tables = opened(args)
    new_side = select(tables, selection)
    keys = parse_keys(args.sort, new_side.label_names) or ("class",)
    if wrong := {"host", "blocked"}.intersection(keys):
        raise UsageError(f"--sort {wrong.pop()} does not apply: hosts are the samples of a comparison")
    head = head_of(new_side)
    if old is None:
        unlike = outliers_of(new_side, keys)
        if args.json:
            return print_json(document.outliers(unlike, head), default=str)
        return print_lines(text.outliers(unlike, head, terminal_style(args), limit), args)
    before = select(tables, old)
    comparison, old_head = compare(before, new_side, keys), head_of(before)
    if args.json:
        return print_json(document.comparison(comparison, old_head, head), default=str)
    return print_lines(text.comparison(comparison, old_head, head, terminal_style(args), limit), args)


def _flamegraph(args: argparse.Namespace) -> int:
    from perf_offcpu.convert.registry import FORMATS, Options
    from perf_offcpu.fleet.queries import profile_of_selected, title_of

    selected_rows = selected(args)
    profile, title = profile_of_selected(selected_rows), title_of(selected_rows)
    with open_output(args.output, binary=False) as out:
        FORMATS["flamegraph"].write(profile, out, Options(title=title))
    return 0


def _sql(args: argparse.Namespace) -> int:
    from perf_offcpu.fleet.tables import ask, document, lines

    columns = ask(opened(args), args.query)
    if args.json:
        return print_json(document(columns))
    write_lines(lines(columns), sys.stdout)
    return 0


_SETTLED_S = 3600
"""Time after the end of an hour in which delayed agents may still deliver its segments."""
_GIGA = 10**9


def add_verbs(verbs: Any) -> None:
    """Add the two verbs to those of fleet."""
    compact = verbs.add_parser("compact", help="merge the small files of each past hour")
    compact.add_argument("dataset", metavar="DATASET", help="folder of the dataset, or s3://…, gs://…")
    compact.set_defaults(fleet_run=_compact)
    expire = verbs.add_parser("expire", help="remove the recordings of old hours")
    expire.add_argument("dataset", metavar="DATASET", help="folder of the dataset, or s3://…, gs://…")
    age = "remove hours that ended this long ago: 30d, 12h, 8w"
    add_options(expire, f"--older-than AGE: {age}", older_than={"required": True})
    expire.set_defaults(fleet_run=_expire)


def _opened(path: str) -> Dataset:
    """Open a dataset; raise UsageError for a directory without one, so that a wrong path is noticed."""
    from perf_offcpu.dataset.dataset import open_dataset
    from perf_offcpu.dataset.schema import TABLES

    dataset = open_dataset(path)
    if not {*TABLES} & {*dataset.store.names("")}:
        raise UsageError(f"{printable(path)}: no dataset: it has no folder samples")
    return dataset


def _compact(args: argparse.Namespace) -> int:
    from perf_offcpu.dataset.compact import Compacted, compact

    total, status = Compacted(), 0
    for folder, done in compact(_opened(args.dataset), time.time_ns() - _SETTLED_S * _GIGA):
        if isinstance(done, Compacted):
            total.add(done)
            continue
        print(
            f"perf-offcpu fleet: {printable(folder)} is left as it is: {printable(str(done))}",
            file=sys.stderr,
        )
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
    hours = "hour" if done.hours == 1 else "hours"
    print(f"{done.hours:,} {hours} removed, {done.files:,} files")
    return 0
