# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu report: show where the time went, as tables on the terminal."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from perf_offcpu.callpaths.options import UNITS
from perf_offcpu.commands.shared.causality.cascades import cascade_from_args
from perf_offcpu.commands.shared.causality.critical import HELP as CRITICAL_PATH
from perf_offcpu.commands.shared.causality.critical import critical_path_from_args
from perf_offcpu.commands.shared.causality.serial import serial_from_args
from perf_offcpu.commands.shared.option_tables import LIST, add_options
from perf_offcpu.commands.shared.output import check_distinct, open_output
from perf_offcpu.commands.shared.page import kept_options, whole_lives, with_head
from perf_offcpu.commands.shared.pager import paged
from perf_offcpu.commands.shared.perf_habits import accept_without_effect, advice_of
from perf_offcpu.commands.shared.profile import (
    add_profile_arguments,
    inputs,
    profile_from_args,
    selection_from_args,
    split_list,
    split_words,
)
from perf_offcpu.commands.shared.streams import columns
from perf_offcpu.errors import UsageError

if TYPE_CHECKING:
    from perf_offcpu.model.recording import Meta
    from perf_offcpu.report.diff.sides import Per
    from perf_offcpu.report.style import Style
    from perf_offcpu.report.summary import Limits

_THREADS, _STACKS, _GROUPS = 25, 10, 25

SORT_KEYS = "comm pid tid cpu event dso symbol state class syscall object waker cgroup blocked".split()
"""Named as perf's sort keys where it has them; see `callpaths.keys`."""
_ALIASES = {"sym": "symbol", "prev_state": "state"}

_ORDERS = ("caller", "callee", "none")
_OTHER_WORDS = "graph flat fractal folded function address branch percent period count value".split()
"""Words of perf report -g that do not say the order; they are ignored."""

EXAMPLES = """examples:
  perf-offcpu report                        threads and stacks by off-cpu time
  perf-offcpu report --unit ns --limit 0    everything, to the nanosecond
  perf-offcpu report --comm mysqld          only threads of this name
  perf-offcpu report --sort comm,class -g none   what each program waited for
  perf-offcpu report --sort comm,object -g none  which lock, file or connection
  perf-offcpu report --children -g none     functions, with all that they call
  perf-offcpu report --idle hide            without threads that merely wait for work
  perf-offcpu report --class disk --min-dur 10ms   long waits for the disk
  perf-offcpu report --event cpu-clock      by CPU samples instead
  perf-offcpu report -i run1.data -i run2.data     two runs as one; hosts are kept apart: web1:nginx
  perf-offcpu report --diff old.data        what grew and shrank since then, and what of it is noise
  perf-offcpu report --diff old.data --per 8000,12000   the same, per request: 8000 before, 12000 now
  perf-offcpu report --critical-path --comm client   what this thread waited for, and on whom
  perf-offcpu report --locks                each lock: waiters, holders, queue
  perf-offcpu report --bottlenecks          where the waits of all threads end, and in which functions
  perf-offcpu report --serial --comm server  what ran while few of its threads did
  perf-offcpu report --html page.html       a page to look at: threads in time, and any part of it
  perf-offcpu report --json | jq '.threads[] | [.comm, .tid, .weight]'
"""


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
--limit N: rows of each table, 0 for all (default: {_THREADS}, {_STACKS} stacks; --json: all)
--no-verdict: leave out the sentences on top that sum up the report
--json: print a JSON document, weights as integers
--html OUT: write a page: threads in time, flame graph and tables of any part (as convert --html)
--no-pager: use no pager ($PERF_PAGER, $PAGER, less)
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb's options."""
    parser = subparsers.add_parser(
        "report",
        help="show where the time went, as tables on the terminal",
        description="Off-cpu time by thread, next to the thread's CPU samples; the time budget of threads; "
        "what they waited for; the stacks that waited longest; a histogram of waits; and what was lost. "
        "Totals are printed to the nanosecond.",
        epilog=EXAMPLES,
        advice=advice_of("report"),
    )
    accept_without_effect(parser, "report")
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
    add_profile_arguments(parser)


def _order(text: str) -> str:
    """Return the order of stacks in a value that perf takes for `-g`: `graph,0.5,callee`."""
    words = text.split(",")
    orders = [word for word in words if word in _ORDERS]
    known = {*_ORDERS, *_OTHER_WORDS}
    unknown = [word for word in words if word not in known and not re.fullmatch(r"[\d.]+", word)]
    return unknown[0] if unknown else (*orders, "caller")[0]


def run(args: argparse.Namespace) -> int:
    """Run the verb and return the exit status."""
    from perf_offcpu.analysis.interpreters import fold_interpreters
    from perf_offcpu.report.summary import summarize

    views = (
        (args.html is not None, _page),
        (args.critical_path, _critical_path),
        (args.bottlenecks, _bottlenecks),
        (args.locks, _locks),
        (args.serial, _serial),
        (args.diff is not None, _compare),
    )
    for chosen, view in views:
        if chosen:
            return view(args)
    if args.per is not None:
        raise UsageError("--per has a meaning with --diff OLD only")
    profile = profile_from_args(args)
    summary = summarize(
        fold_interpreters(profile) if args.fold_interpreters else profile,
        split_list(args.event),
        _limits(args),
        keys=parse_keys(args.sort) or ("class",),
        children=args.children,
        whole_lives=whole_lives(args),
        verdict=not args.no_verdict,
        options=kept_options(args),
        budget_by=args.budget_by,
    )
    if args.json:
        from perf_offcpu.report.document import document

        return _print_json(document(summary))
    from perf_offcpu.report.terminal import render

    return _print_lines(render(summary, _style(args)), args)


def _page(args: argparse.Namespace) -> int:
    """Write the page and return the exit status."""
    from perf_offcpu.analysis.interpreters import fold_interpreters
    from perf_offcpu.analysis.select import select_events
    from perf_offcpu.convert.options import Options
    from perf_offcpu.convert.registry import FORMATS

    others = {"--json": args.json, "--diff": args.diff, "--critical-path": args.critical_path}
    others |= {"--bottlenecks": args.bottlenecks, "--serial": args.serial}
    if given := [name for name, value in others.items() if value]:
        raise UsageError(f"{given[0]} means nothing to --html, which writes a page of one recording")
    check_distinct(inputs(args), args.html)
    profile = profile_from_args(args)
    profile = fold_interpreters(profile) if args.fold_interpreters else profile
    options = with_head(Options(), args, profile)
    with open_output(args.html, binary=False) as out:
        FORMATS["html"].write(select_events(profile, split_list(args.event)), out, options)
    return 0


def _critical_path(args: argparse.Namespace) -> int:
    """Print the critical path of a thread and return the exit status."""
    from perf_offcpu.report.causality.path_report import document, render, report_of

    if args.diff is not None:
        raise UsageError("--diff does not compare critical paths")
    limit = _limits(args).threads
    report = report_of(*critical_path_from_args(args))
    if args.json:
        return _print_json(document(report))
    return _print_lines(render(report, _style(args), limit), args)


def _bottlenecks(args: argparse.Namespace) -> int:
    """Print where most waiting time ends and return the exit status."""
    from perf_offcpu.report.causality.bottlenecks import bottlenecks_of, document
    from perf_offcpu.report.causality.bottlenecks_text import render

    if args.diff is not None or args.event:
        raise UsageError("--bottlenecks is about the waits of one recording: no --diff, --event")
    found = bottlenecks_of(*cascade_from_args(args))
    if args.json:
        return _print_json(document(found))
    return _print_lines(render(found, _style(args)), args)


def _locks(args: argparse.Namespace) -> int:
    """Print the locks that were waited for and return the exit status."""
    from perf_offcpu.analysis.interpreters import fold_interpreters
    from perf_offcpu.report.objects.lock_report import document, hand_limit, render, report_of

    if args.diff is not None or args.event:
        raise UsageError("--locks is about the waits of one recording: no --diff, --event")
    profile, limit = profile_from_args(args), _limits(args).stacks
    found = report_of(
        fold_interpreters(profile) if args.fold_interpreters else profile, limit, hand_limit(limit)
    )
    if args.json:
        return _print_json(document(found))
    return _print_lines(render(found, _style(args)), args)


def _serial(args: argparse.Namespace) -> int:
    """Print how much of the time was serial and return the exit status."""
    from perf_offcpu.report.causality.serial import document
    from perf_offcpu.report.causality.serial_text import render

    limits = _limits(args)
    found = serial_from_args(args, _STACKS if limits.stacks is None else limits.stacks)
    if args.json:
        return _print_json(document(found))
    return _print_lines(render(found, _style(args), limits.threads), args)


def _compare(args: argparse.Namespace) -> int:
    """Print the comparison with an older recording and return the exit status."""
    from perf_offcpu.analysis.interpreters import fold_interpreters
    from perf_offcpu.report.diff.compare import compare
    from perf_offcpu.report.diff.sides import side_of
    from perf_offcpu.report.diff.verdict import verdict_of

    if args.children or args.budget_by != "thread":
        raise UsageError("--diff compares neither functions with their callees nor budgets")
    windows = selection_from_args(args).windows
    before = argparse.Namespace(**vars(args) | {"input": [args.diff]})
    old, new = map(profile_from_args, (before, args))
    if args.fold_interpreters:
        old, new = map(fold_interpreters, (old, new))
    per = _per(args.per, old.meta, new.meta)
    before_side, now = (
        side_of(profile, split_list(args.event), per, units, windows, whole=whole_lives(args))
        for profile, units in zip((old, new), per.units, strict=True)
    )
    limits, keys = _limits(args), parse_keys(args.sort) or ("class",)
    if "blocked" in keys:
        raise UsageError("--diff sorts by the change: --sort blocked does not apply")
    comparison = compare(before_side, now, per, keys=keys, limits=(limits.groups, limits.stacks))
    verdict = None if args.no_verdict else verdict_of(comparison, kept_options(args), args.diff)
    if args.json:
        from perf_offcpu.report.diff.document import document

        return _print_json(document(comparison, verdict))
    from perf_offcpu.report.diff.text import render

    return _print_lines(render(comparison, verdict, _style(args)), args)


def _per(text: str | None, old: Meta, new: Meta) -> Per:
    """Return the amount of work of `--per`; by default a run if both recorded the same program."""
    from perf_offcpu.report.diff.sides import Per

    if text is None:
        program, other = (_program(meta) for meta in (old, new))
        return Per("run", program) if program and program == other else Per("second")
    if text in ("second", "run"):
        return Per(text)
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?),(\d{1,15}(?:\.\d{1,9})?)", text, re.ASCII)
    units = [float(number) for number in match.groups()] if match else []
    if not all(units) or not units:
        raise UsageError(
            f"--per {text}: give second, run, or units of work of OLD and of the input: 800,1200"
        )
    return Per("unit", units=(units[0], units[1]))


def _program(meta: Meta) -> str:
    """Return the program of a recording of one run; "" for no program, and for `sleep`, no workload."""
    command = () if meta.joined else meta.cmdline
    words = command[command.index("--") + 1 :] if "--" in command else ()
    name = words[0] if words else ""
    return "" if os.path.basename(name) == "sleep" else name


def _print_json(document: object) -> int:
    import json

    json.dump(document, sys.stdout, indent=1)
    print()
    return 0


def _print_lines(lines: Iterable[str], args: argparse.Namespace) -> int:
    with paged(not args.no_pager) as out:
        for line in lines:
            _print(line, out)
    return 0


def parse_keys(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the keys in comma-separated lists, each once."""
    keys = [_ALIASES.get(word, word) for word in split_words(texts)]
    for key in keys:
        if key not in SORT_KEYS:
            raise UsageError(f"--sort: no key '{key}' (known: {', '.join(SORT_KEYS)})")
    return tuple(dict.fromkeys(keys))


def _limits(args: argparse.Namespace) -> Limits:
    from perf_offcpu.report.summary import Limits

    if args.limit is not None and args.limit < 0:
        raise UsageError(f"--limit {args.limit}: not a number of rows, 0 for all")
    if args.limit is None:
        return Limits() if args.json else Limits(_THREADS, _STACKS, _GROUPS)
    limit = args.limit or None
    return Limits(limit, limit, limit)


def _style(args: argparse.Namespace) -> Style:
    from perf_offcpu.report.style import Style

    terminal = sys.stdout.isatty()
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return Style(
        unit=args.unit,
        leaf_first=args.call_graph == "callee",
        width=columns() if terminal else None,
        color=terminal and not plain,
        stacks=args.call_graph != "none",
    )


def _print(line: str, out: TextIO) -> None:
    """Print a line; characters that the terminal's encoding lacks are escaped."""
    encoding = out.encoding or "utf-8"
    print(line.encode(encoding, "backslashreplace").decode(encoding), file=out)
