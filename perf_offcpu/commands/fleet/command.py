# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu fleet: ask a dataset, the recordings of many hosts, with the tables of the report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from perf_offcpu.commands.fleet.arguments import (
    SORT_KEYS,
    add_dataset,
    add_output,
    add_selection,
    limit_of,
    opened,
    parse_keys,
    selected,
    style_of,
)
from perf_offcpu.commands.shared.option_tables import LIST, add_options
from perf_offcpu.commands.shared.output import open_output
from perf_offcpu.commands.shared.pager import paged
from perf_offcpu.commands.shared.parsers import Parser

_ROWS, _STACKS = 25, 10
EXAMPLES = """examples:
  perf-offcpu fleet report DATASET                       who waited for what: by class, service, host, comm
  perf-offcpu fleet report DATASET --label service=web --since -1h
  perf-offcpu fleet report DATASET --sort service,class  one table by these keys; labels are keys
  perf-offcpu fleet top DATASET --class lock             the stacks that waited longest
  perf-offcpu fleet flamegraph DATASET -o out.html       for a browser
  perf-offcpu fleet sql DATASET "SELECT count(*) FROM samples"
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb's own verbs with their options."""
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
    add_options(
        flamegraph, "-o, --output OUT: HTML file to write (-: standard output)", output={"required": True}
    )
    add_selection(flamegraph)
    flamegraph.set_defaults(fleet_run=_flamegraph)

    sql = verbs.add_parser("sql", help="a query in the engine's own SQL")
    add_dataset(sql)
    sql.add_argument("query", metavar="QUERY", help="tables: samples, stacks, frames, budgets, hosts, losses")
    add_options(sql, "--json: print a JSON document")
    sql.set_defaults(fleet_run=_sql)


def run(args: argparse.Namespace) -> int:
    """Run the verb and return the exit status."""
    return int(args.fleet_run(args))


def _report(args: argparse.Namespace) -> int:
    from perf_offcpu.fleet import document, text
    from perf_offcpu.fleet.report import head_of, tables_of

    limit, found = limit_of(args), selected(args)
    keys = parse_keys(args.sort, found.label_names)
    head, tables = head_of(found), tables_of(found, keys, limit)
    if args.json:
        return print_json(document.report(head, tables))
    return print_lines(text.report(head, tables, style_of(args)), args)


def _top(args: argparse.Namespace) -> int:
    from perf_offcpu.fleet import document, text
    from perf_offcpu.fleet.report import head_of, stacks_of

    limit, found = limit_of(args), selected(args)
    head, table = head_of(found), stacks_of(found, limit)
    if args.json:
        return print_json(document.stacks(head, table))
    return print_lines(text.stacks(head, table, style_of(args)), args)


def _flamegraph(args: argparse.Namespace) -> int:
    from perf_offcpu.convert.options import Options
    from perf_offcpu.convert.registry import FORMATS
    from perf_offcpu.fleet.report import profile_of_selected, title_of

    found = selected(args)
    profile, title = profile_of_selected(found), title_of(found)
    with open_output(args.output, binary=False) as out:
        FORMATS["flamegraph"].write(profile, out, Options(title=title))
    return 0


def _sql(args: argparse.Namespace) -> int:
    from perf_offcpu.fleet.raw_sql import ask, lines

    columns = ask(opened(args), args.query)
    if args.json:
        return print_json(
            [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        )
    for line in lines(columns):
        print(line)
    return 0


def print_json(document: object) -> int:
    """Print a JSON document and return the exit status."""
    import json

    json.dump(document, sys.stdout, indent=1, default=str)
    print()
    return 0


def print_lines(lines: Iterable[str], args: argparse.Namespace) -> int:
    """Print lines, through a pager on a terminal, and return the exit status."""
    with paged(not args.no_pager) as out:
        encoding = out.encoding or "utf-8"
        for line in lines:
            print(line.encode(encoding, "backslashreplace").decode(encoding), file=out)
    return 0
