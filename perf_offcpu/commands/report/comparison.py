# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu report --diff: compare a recording with an older one."""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING

from perf_offcpu.commands.report.arguments import limits_of, parse_keys, style_of
from perf_offcpu.commands.shared.page import kept_options, whole_lives
from perf_offcpu.commands.shared.printing import print_json, print_lines
from perf_offcpu.commands.shared.profile import profile_from_args, selection_from_args, split_list
from perf_offcpu.errors import UsageError

if TYPE_CHECKING:
    from perf_offcpu.model.recording import Meta
    from perf_offcpu.report.diff.sides import Per


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
        from perf_offcpu.report.diff.document import document

        return print_json(document(comparison, verdict))
    from perf_offcpu.report.diff.text import render

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
        raise UsageError(
            f"--per {text}: give second, run, or units of work of OLD and of the input: 800,1200"
        )
    return Per("unit", units=(units[0], units[1]))


def _program(meta: Meta) -> str:
    """Return the program of a recording of one whole run; "" for none and for `sleep`, no workload."""
    command = () if meta.parts else meta.cmdline
    words = command[command.index("--") + 1 :] if "--" in command else ()
    name = words[0] if words else ""
    return "" if os.path.basename(name) == "sleep" else name
