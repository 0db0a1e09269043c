# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu report: show where the time went, as tables on the terminal."""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING

from perf_offcpu.commands.report.arguments import STACKS, add_output, limits_of, parse_keys, style_of
from perf_offcpu.commands.shared.causality import cascade_from_args, critical_path_from_args, serial_from_args
from perf_offcpu.commands.shared.output import check_distinct, open_output
from perf_offcpu.commands.shared.page import kept_options, whole_lives, with_head
from perf_offcpu.commands.shared.parsers import accept_without_effect
from perf_offcpu.commands.shared.printing import print_json, print_lines
from perf_offcpu.commands.shared.profile import (
    add_profile_arguments,
    inputs,
    profile_from_args,
    selection_from_args,
    split_list,
)
from perf_offcpu.errors import UsageError

if TYPE_CHECKING:
    from perf_offcpu.model.recording import Meta
    from perf_offcpu.report.diff.sides import Per


EXAMPLES = """examples:
  perf-offcpu report                        threads and stacks by off-cpu time
  perf-offcpu report --summary              the causes, largest first, and nothing else
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


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb's options."""
    parser = subparsers.add_parser(
        "report",
        help="show where the time went, as tables on the terminal",
        description="Off-cpu time by thread, next to the thread's CPU samples; the time budget of threads; "
        "what they waited for; the stacks that waited longest; a histogram of waits; and what was lost. "
        "Totals are printed to the nanosecond.",
        epilog=EXAMPLES,
    )
    accept_without_effect(parser, "report")
    add_output(parser)
    add_profile_arguments(parser)


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
        (args.diff is not None, compare_with_older),
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
        limits_of(args),
        keys=parse_keys(args.sort) or ("class",),
        children=args.children,
        whole_lives=whole_lives(args),
        verdict=not args.no_verdict,
        options=kept_options(args),
        budget_by=args.budget_by,
    )
    if args.json:
        from perf_offcpu.report.document import document

        return print_json(document(summary))
    if args.summary and summary.verdict is None:
        raise UsageError("--summary ranks the causes of waits, of which there are none here")
    from perf_offcpu.report.terminal import first_screen, render

    lines = first_screen(summary) if args.summary else render(summary, style_of(args))
    return print_lines(lines, args)


def _page(args: argparse.Namespace) -> int:
    """Write the page and return the exit status."""
    from perf_offcpu.analysis.interpreters import fold_interpreters
    from perf_offcpu.analysis.select import select_events
    from perf_offcpu.convert.registry import FORMATS, Options

    others = {"--json": args.json, "--diff": args.diff, "--critical-path": args.critical_path}
    others |= {"--bottlenecks": args.bottlenecks, "--serial": args.serial}
    if given := [name for name, value in others.items() if value]:
        raise UsageError(f"{given[0]} means nothing to --html, which writes a page of one recording")
    check_distinct(inputs(args), args.html)
    profile = profile_from_args(args)
    profile = fold_interpreters(profile) if args.fold_interpreters else profile
    options = with_head(Options(), args, profile)
    with open_output(args.html, binary=False, inputs=inputs(args)) as out:
        FORMATS["html"].write(select_events(profile, split_list(args.event)), out, options)
    return 0


def _critical_path(args: argparse.Namespace) -> int:
    """Print the critical path of a thread and return the exit status."""
    from perf_offcpu.report.path_report import document, render, report_of

    if args.diff is not None:
        raise UsageError("--diff does not compare critical paths")
    limit = limits_of(args).threads
    report = report_of(*critical_path_from_args(args))
    if args.json:
        return print_json(document(report))
    return print_lines(render(report, style_of(args), limit), args)


def _bottlenecks(args: argparse.Namespace) -> int:
    """Print where most waiting time ends and return the exit status."""
    from perf_offcpu.report.bottlenecks import bottlenecks_of, document, render

    if args.diff is not None or args.event:
        raise UsageError("--bottlenecks is about the waits of one recording: no --diff, --event")
    bottlenecks = bottlenecks_of(*cascade_from_args(args))
    if args.json:
        return print_json(document(bottlenecks))
    return print_lines(render(bottlenecks, style_of(args)), args)


def _locks(args: argparse.Namespace) -> int:
    """Print the locks that were waited for and return the exit status."""
    from perf_offcpu.analysis.interpreters import fold_interpreters
    from perf_offcpu.report.lock_report import document, render, report_of

    if args.diff is not None or args.event:
        raise UsageError("--locks is about the waits of one recording: no --diff, --event")
    profile, limit = profile_from_args(args), limits_of(args).stacks
    report = report_of(fold_interpreters(profile) if args.fold_interpreters else profile, limit)
    if args.json:
        return print_json(document(report))
    return print_lines(render(report, style_of(args)), args)


def _serial(args: argparse.Namespace) -> int:
    """Print how much of the time was serial and return the exit status."""
    from perf_offcpu.report.serial import document, render

    limits = limits_of(args)
    serial = serial_from_args(args, STACKS if limits.stacks is None else limits.stacks)
    if args.json:
        return print_json(document(serial))
    return print_lines(render(serial, style_of(args), limits.threads), args)


def compare_with_older(args: argparse.Namespace) -> int:
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
    limits, keys = limits_of(args), parse_keys(args.sort) or ("class",)
    if "blocked" in keys:
        raise UsageError("--diff sorts by the change: --sort blocked does not apply")
    comparison = compare(before_side, now, per, keys=keys, limits=(limits.groups, limits.stacks))
    verdict = None if args.no_verdict else verdict_of(comparison, kept_options(args), args.diff)
    if args.json:
        from perf_offcpu.report.diff.output import document

        return print_json(document(comparison, verdict))
    from perf_offcpu.report.diff.output import render

    return print_lines(render(comparison, verdict, style_of(args)), args)


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
        raise UsageError(f"--per {text}: give second, run, or units of work of OLD and of the input: 800,1200")
    return Per("unit", units=(units[0], units[1]))


def _program(meta: Meta) -> str:
    """Return the program of a recording of one whole run; "" for none and for `sleep`, no workload."""
    command = () if meta.parts else meta.cmdline
    words = command[command.index("--") + 1 :] if "--" in command else ()
    name = words[0] if words else ""
    return "" if os.path.basename(name) == "sleep" else name
