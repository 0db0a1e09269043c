# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu report: show where the time went, as tables on the terminal."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from perf_offcpu.commands.shared import profile as shared
from perf_offcpu.commands.shared.causality import cascade_from_args, critical_path_from_args, serial_from_args
from perf_offcpu.commands.shared.files import check_distinct, open_output
from perf_offcpu.commands.shared.parsers import LIST, accept_without_effect, add_options, add_verb
from perf_offcpu.commands.shared.streams import limit_from_args, print_lines, print_view, terminal_style
from perf_offcpu.errors import UsageError
from perf_offcpu.units import UNITS

if TYPE_CHECKING:
    from perf_offcpu.model.recording import Meta
    from perf_offcpu.report.diff.sides import Per
    from perf_offcpu.report.style import Style
    from perf_offcpu.report.summary import Limits

_THREADS, _STACKS, _GROUPS = 25, 10, 25  # rows of tables without `--limit`

SORT_KEYS = "comm pid tid cpu event dso symbol state class syscall object waker cgroup container blocked".split()
"""Sort keys, with perf's names where perf has them; see `callpaths.keys`."""
_ALIASES = {"sym": "symbol", "prev_state": "state"}

_ORDERS = ("caller", "callee", "none")
_OTHER_WORDS = "graph flat fractal folded function address branch percent period count value".split()
"""Words of perf report -g other than the order; they are ignored."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of this verb, with its options, to `subparsers`."""
    parser = add_verb(subparsers, "report")
    accept_without_effect(parser, "report")
    _add_output(parser)
    shared.add_profile_arguments(parser)


def _add_output(parser: argparse.ArgumentParser) -> None:
    order = {"nargs": "?", "type": _order, "const": "caller", "choices": _ORDERS, "default": "caller"}
    same = {"action": "store_const", "dest": "call_graph"}
    add_options(
        parser.add_argument_group("output"),
        "report.output",
        {"keys": ", ".join(SORT_KEYS), "threads": _THREADS, "stacks": _STACKS},
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
    """Return the order of stacks (one of _ORDERS) in a value of perf's -g, such as `graph,0.5,callee`, or its first
    unknown word, which argparse then refuses."""
    words = text.split(",")
    orders = [word for word in words if word in _ORDERS]
    accepted = {*_ORDERS, *_OTHER_WORDS}
    unknown = [word for word in words if word not in accepted and not re.fullmatch(r"[\d.]+", word)]
    return unknown[0] if unknown else (*orders, "caller")[0]


def parse_keys(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the sort keys in comma-separated lists, each once; raise UsageError for an unknown key."""
    keys = [_ALIASES.get(word, word) for word in shared.split_words(texts)]
    for key in keys:
        if key not in SORT_KEYS:
            raise UsageError(f"--sort: no key '{key}' (known: {', '.join(SORT_KEYS)})")
    return tuple(dict.fromkeys(keys))


def _limits(args: argparse.Namespace) -> Limits:
    """Return the numbers of rows of tables: --limit, or the defaults."""
    from perf_offcpu.report.summary import Limits

    return Limits(*(limit_from_args(args, rows) for rows in (_THREADS, _STACKS, _GROUPS)))


def _style(args: argparse.Namespace) -> Style:
    return terminal_style(args, leaf_first=args.call_graph == "callee", stacks=args.call_graph != "none")


def run(args: argparse.Namespace) -> int:
    """Run the verb with the parsed arguments and return the exit status."""
    views = (
        (args.html is not None, _page),
        (args.critical_path, _critical_path),
        (args.bottlenecks, _bottlenecks),
        (args.locks, _locks),
        (args.serial, _serial),
        (args.diff is not None, _comparison),
        (True, _summary),
    )
    return next(view for is_asked, view in views if is_asked)(args)


def _summary(args: argparse.Namespace) -> int:
    from perf_offcpu.report.document import document
    from perf_offcpu.report.summary import summarize
    from perf_offcpu.report.terminal import first_screen, render

    if args.per is not None:
        raise UsageError("--per has a meaning with --diff OLD only")
    summary = summarize(
        shared.folded(args, shared.profile_from_args(args)),
        shared.split_list(args.event),
        _limits(args),
        keys=parse_keys(args.sort) or (("comm", "object") if args.by == "task" else ("class",)),
        children=args.children,
        whole_lives=shared.whole_lives(args),
        verdict=not args.no_verdict,
        options=shared.kept_options(args),
        budget_by=args.budget_by,
    )
    if args.summary and not args.json:
        if summary.verdict is None:
            raise UsageError("--summary ranks the causes of waits, of which there are none here")
        return print_lines(first_screen(summary), args)
    return print_view(args, lambda: document(summary), render(summary, _style(args)))


def _page(args: argparse.Namespace) -> int:
    from perf_offcpu.analysis.selection.select import select_events
    from perf_offcpu.convert.registry import FORMATS, Options

    outputs = {"--json": args.json, "--diff": args.diff, "--critical-path": args.critical_path}
    outputs |= {"--bottlenecks": args.bottlenecks, "--serial": args.serial}
    if meaningless := [name for name, value in outputs.items() if value]:
        raise UsageError(f"{meaningless[0]} means nothing to --html, which writes a page of one recording")
    check_distinct(shared.inputs(args), args.html)
    profile = shared.folded(args, shared.profile_from_args(args))
    options = shared.with_head(Options(), args, profile)
    with open_output(args.html, binary=False, inputs=shared.inputs(args)) as out:
        FORMATS["html"].write(select_events(profile, shared.split_list(args.event)), out, options)
    return 0


def _critical_path(args: argparse.Namespace) -> int:
    from perf_offcpu.report.path_report import document, render, report_of

    if args.diff is not None:
        raise UsageError("--diff does not compare critical paths")
    limit = _limits(args).threads
    report = report_of(*critical_path_from_args(args))
    return print_view(args, lambda: document(report), render(report, _style(args), limit))


def _bottlenecks(args: argparse.Namespace) -> int:
    from perf_offcpu.report.bottlenecks import bottlenecks_of, document, render

    if args.diff is not None or args.event:
        raise UsageError("--bottlenecks is about the waits of one recording: no --diff, --event")
    bottlenecks = bottlenecks_of(*cascade_from_args(args))
    return print_view(args, lambda: document(bottlenecks), render(bottlenecks, _style(args)))


def _locks(args: argparse.Namespace) -> int:
    from perf_offcpu.report.lock_report import document, render, report_of

    if args.diff is not None or args.event:
        raise UsageError("--locks is about the waits of one recording: no --diff, --event")
    profile, limit = shared.profile_from_args(args), _limits(args).stacks
    report = report_of(shared.folded(args, profile), limit)
    return print_view(args, lambda: document(report), render(report, _style(args)))


def _serial(args: argparse.Namespace) -> int:
    from perf_offcpu.report.serial import document, render

    limits = _limits(args)
    serial = serial_from_args(args, _STACKS if limits.stacks is None else limits.stacks)
    return print_view(args, lambda: document(serial), render(serial, _style(args), limits.threads))


def _comparison(args: argparse.Namespace) -> int:
    from perf_offcpu.report.diff.compare import compare
    from perf_offcpu.report.diff.output import document, render
    from perf_offcpu.report.diff.sides import side_of
    from perf_offcpu.report.diff.verdict import verdict_of

    if args.children or args.budget_by != "thread":
        raise UsageError("--diff compares neither functions with their callees nor budgets")
    windows = shared.selection_from_args(args).windows
    old, new = (
        shared.folded(args, shared.profile_from_args(each)) for each in (shared.with_input(args, args.diff), args)
    )
    per = _per(args.per, old.meta, new.meta)
    before, now = (
        side_of(profile, shared.split_list(args.event), per, units, windows, whole=shared.whole_lives(args))
        for profile, units in zip((old, new), per.units, strict=True)
    )
    limits, keys = _limits(args), parse_keys(args.sort) or ("class",)
    if "blocked" in keys:
        raise UsageError("--diff sorts by the change: --sort blocked does not apply")
    comparison = compare(before, now, per, keys=keys, limits=(limits.groups, limits.stacks))
    verdict = None if args.no_verdict else verdict_of(comparison, shared.kept_options(args), args.diff)
    return print_view(args, lambda: document(comparison, verdict), render(comparison, verdict, _style(args)))


def _per(text: str | None, old: Meta, new: Meta) -> Per:
    """Parse --per to a unit of work; default: a run if both recordings ran the same program, else a second."""
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
    """Return the program that a recording ran; "" for none, for `sleep`, and with pauses or several files."""
    command = () if meta.parts else meta.cmdline
    words = command[command.index("--") + 1 :] if "--" in command else ()
    name = words[0] if words else ""
    return "" if os.path.basename(name) == "sleep" else name
